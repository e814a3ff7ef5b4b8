//! The packed keys and values of earlier positions: the KV cache of one layer.
//!
//! ```text
//! positions.start            positions.end
//!       |                          |
//! | .. k k k k | k k k k k k | k k k ...... |      blocks of `chunk` positions
//!   block 0      block 1       block 2             each [batch, n_kv_heads, chunk layout]
//! ```

use std::{collections::VecDeque, fmt, ops::Range};

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;

use super::{
    AttentionKernel, Chunk, Fill, Heads, Layout, Operand, OperandFormat, Shape, Values,
    WithAttentionKernel,
};
use crate::memory::{Aligned, LargePages};
use crate::{cpu::Cpu, threads::parallel, vectors::Isa};

/// The keys and values of one layer for a batch of sequences, packed as [`attend`](super::attend) reads them.
///
/// Positions are numbered from the first that was ever appended. They lie in blocks of one chunk each:
/// appending writes only the new positions, and blocks dropped from the front are reused at the end.
pub struct KeyValuePanels {
    shape: PanelShape,
    layout: Layout,
    /// Block 0 begins at the last chunk boundary at or before `positions.start`.
    blocks: VecDeque<Block>,
    /// Blocks to reuse.
    free: Vec<Block>,
    /// Where new blocks take their memory from.
    pages: LargePages,
    positions: Range<usize>,
}

/// Whose keys and values panels hold, and what reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelShape {
    /// The instruction set that reads them.
    pub isa: Isa,
    /// The format that they are stored in.
    pub stored: OperandFormat,
    /// Number of sequences.
    pub batch: usize,
    /// Number of key/value heads.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

/// One chunk of positions, of every sequence and head.
struct Block {
    /// `[batch, n_kv_heads, chunk]`; behind it what sequences had that are no longer there.
    memory: Aligned<u32>,
    /// `[batch, n_kv_heads]`.
    values: Vec<Values>,
    /// Has only the pages that were written to: all layers' blocks of a generation's last chunk are a large part of a short
    /// cache. When it is full, it moves to the large pages of the others.
    is_begun: bool,
}

impl fmt::Debug for KeyValuePanels {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("KeyValuePanels")
            .field("shape", &self.shape)
            .field("positions", &self.positions)
            .finish_non_exhaustive()
    }
}

impl KeyValuePanels {
    /// Panels without positions.
    pub fn new(shape: PanelShape) -> Self {
        Self::new_in(shape, &LargePages::default())
    }

    /// As [`Self::new`], with memory next to that of other layers.
    pub fn new_in(shape: PanelShape, pages: &LargePages) -> Self {
        Self {
            shape,
            layout: match shape.stored {
                OperandFormat::F32 => f32::kernel(shape.isa).layout(shape.head_dim),
                OperandFormat::Bf16 => bf16::kernel(shape.isa).layout(shape.head_dim),
            },
            blocks: VecDeque::new(),
            free: Vec::new(),
            pages: pages.clone(),
            positions: 0..0,
        }
    }

    /// A copy, with memory next to that of other layers.
    pub fn copy_in(&self, pages: &LargePages) -> Self {
        let copy = |block: &Block| {
            let mut memory = Aligned::zeros_in(pages, block.memory.len());
            memory.copy_from_slice(&block.memory);
            let values = block.values.clone();
            Block {
                memory,
                values,
                is_begun: false,
            }
        };
        Self {
            blocks: self.blocks.iter().map(copy).collect(),
            free: Vec::new(),
            pages: pages.clone(),
            positions: self.positions.clone(),
            ..*self
        }
    }

    /// Keeps these sequences of the batch alone, in this order, which rises. They move up in the memory where they are, and the
    /// rest of it stays for nobody.
    ///
    /// # Panics
    /// If one is beyond the batch, or before the one in front of it.
    pub fn keep_sequences(&mut self, sequences: &[usize]) {
        let (n_heads, length) = (self.shape.n_kv_heads, self.layout.len());
        for Block { memory, values, .. } in self.blocks.iter_mut().chain(&mut self.free) {
            for (to, &from) in sequences.iter().enumerate() {
                assert!(to <= from, "sequences in another order");
                let from = from * n_heads..(from + 1) * n_heads;
                let to = to * n_heads;
                memory.copy_within(from.start * length..from.end * length, to * length);
                values.copy_within(from, to);
            }
            values.truncate(sequences.len() * n_heads);
        }
        self.shape.batch = sequences.len();
    }

    /// What the panels were made for.
    pub fn shape(&self) -> PanelShape {
        self.shape
    }

    /// The positions held: from the first that was not dropped to the number of positions ever appended.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// The positions that the allocated blocks have room for.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        (self.blocks.len() + self.free.len()) * self.layout.positions
    }

    pub(crate) fn check(&self, isa: Isa, stored: OperandFormat, shape: &Shape) {
        let asked = PanelShape {
            isa,
            stored,
            batch: shape.queries.batch(),
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
        };
        assert_eq!(self.shape, asked, "panels of another level or shape");
    }

    /// Appends `seq` positions to each sequence: row `b · seq + i` of `key` and `value` is the `i`th new one of
    /// sequence `b`.
    ///
    /// # Panics
    /// If the lengths do not fit, or `cpu` has another instruction set than the panels.
    pub fn append(&mut self, cpu: Cpu, seq: usize, key: Heads, value: Heads) {
        let (shape, isa) = (self.shape, self.shape.isa);
        assert_eq!(isa, cpu.isa, "panels of another level");
        let width = shape.n_kv_heads * shape.head_dim;
        key.check(shape.batch * seq, width);
        value.check(shape.batch * seq, width);
        if width == 0 {
            self.positions.end += seq;
            return;
        }
        match shape.stored {
            OperandFormat::F32 => self.append_packed(cpu, &*f32::kernel(isa), seq, key, value),
            OperandFormat::Bf16 => self.append_packed(cpu, &*bf16::kernel(isa), seq, key, value),
        }
    }

    fn append_packed<F: Operand>(
        &mut self,
        cpu: Cpu,
        kernel: &dyn AttentionKernel<F>,
        seq: usize,
        key: Heads,
        value: Heads,
    ) {
        let (n_kv_heads, layout) = (self.shape.n_kv_heads, self.layout);
        let chunk = layout.positions;
        let mut done = 0;
        while done < seq {
            let position = self.positions.end % chunk;
            if position == 0 || self.blocks.is_empty() {
                self.add_block(seq - done);
            }
            let count = (chunk - position).min(seq - done);
            let Some(block) = self.blocks.back_mut() else {
                return;
            };
            let work = block.values.len() * count * 2 * layout.head_dim * WORK_PER_NUMBER;
            let threads = cpu.for_work(work).threads;
            let fill = |start: usize, memory: &mut [u32], values: &mut [Values]| {
                let at = start / layout.len();
                let (sequence, head) = (at / n_kv_heads, at % n_kv_heads);
                // No row behind the last new one, so that whole panels of keys are padded and not read on.
                let (first, end) = (sequence * seq, done + count);
                kernel.fill(Fill {
                    layout,
                    key: key.view(first, end, head, layout.head_dim),
                    value: value.view(first, end, head, layout.head_dim),
                    rows: done..end,
                    position,
                    memory: cast_slice_mut(memory),
                    values: &mut values[0],
                });
            };
            let Block { memory, values, .. } = &mut *block;
            let memory = &mut memory[..values.len() * layout.len()];
            parallel::for_chunk_pairs(threads, memory, layout.len(), values, 1, fill);
            done += count;
            self.positions.end += count;
            if self.positions.end.is_multiple_of(chunk) && block.is_begun {
                let mut whole = Aligned::zeros_in(&self.pages, block.memory.len());
                whole.copy_from_slice(&block.memory);
                (block.memory, block.is_begun) = (whole, false);
            }
        }
    }

    /// Drops the positions before `position`; later ones keep their numbers.
    pub fn drop_before(&mut self, position: usize) {
        let start = position.clamp(self.positions.start, self.positions.end);
        let chunk = self.layout.positions;
        for _ in self.positions.start / chunk..start / chunk {
            self.free.extend(self.blocks.pop_front());
        }
        self.positions.start = start;
    }

    /// Forgets the positions from `position` on.
    pub fn truncate(&mut self, position: usize) {
        let end = position.clamp(self.positions.start, self.positions.end);
        let chunk = self.layout.positions;
        let blocks = end
            .div_ceil(chunk)
            .saturating_sub(self.positions.start / chunk);
        while self.blocks.len() > blocks {
            self.free.extend(self.blocks.pop_back());
        }
        self.positions.end = end;
    }

    /// Forgets all positions, and starts again at 0; the memory is kept.
    pub fn reset(&mut self) {
        self.free.extend(self.blocks.drain(..));
        self.positions = 0..0;
    }

    /// Chunk number `index`, counted from position 0, of a head of a sequence.
    pub(crate) fn chunk<F: Operand>(
        &self,
        sequence: usize,
        head: usize,
        index: usize,
    ) -> Chunk<'_, F> {
        let block = &self.blocks[index - self.positions.start / self.layout.positions];
        let at = sequence * self.shape.n_kv_heads + head;
        let length = self.layout.len();
        Chunk {
            layout: self.layout,
            memory: cast_slice(&block.memory[at * length..][..length]),
            values: block.values[at],
        }
    }

    /// Adds a block behind the others, whose positions are all unwritten, for so many at first.
    fn add_block(&mut self, at_first: usize) {
        let n_chunks = self.shape.batch * self.shape.n_kv_heads;
        let block = self.free.pop().map(|mut block| {
            block.values.fill(Values::Finite);
            block
        });
        self.blocks.push_back(block.unwrap_or_else(|| {
            let len = n_chunks * self.layout.len();
            let is_begun = at_first < self.layout.positions / 2;
            Block {
                memory: match is_begun {
                    true => Aligned::zeros_when_written(len),
                    false => Aligned::zeros_in(&self.pages, len),
                },
                values: vec![Values::Finite; n_chunks],
                is_begun,
            }
        }));
    }
}

/// Cost of writing one number of a key or value, in multiplications: consecutive numbers of a key go to
/// different cache lines.
const WORK_PER_NUMBER: usize = 32;
