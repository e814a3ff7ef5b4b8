//! The KV cache for one layer: packed keys and values at earlier positions.
//!
//! ```text
//! positions.start            positions.end
//!       |                          |
//! | .. k k k k | k k k k k k | k k k ...... |      blocks with `chunk` positions
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

/// A layer's keys and values for a batch of sequences, packed in the layout that [`attend`](super::attend) reads.
///
/// Positions are numbered from the first one ever appended. A block holds one chunk. Appending writes only the new
/// positions, and blocks dropped from the front are reused at the end.
pub struct KeyValuePanels {
    shape: PanelShape,
    layout: Layout,
    /// Block 0 begins at the last chunk boundary at or before `positions.start`.
    blocks: VecDeque<CacheBlock>,
    /// Blocks to reuse.
    free: Vec<CacheBlock>,
    /// The allocator for new blocks.
    pages: LargePages,
    positions: Range<usize>,
}

/// The shape and format that panels are packed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelShape {
    /// The instruction set that reads the panels.
    pub isa: Isa,
    /// The storage format.
    pub stored: OperandFormat,
    /// Sequence count.
    pub batch: usize,
    /// Key/value head count.
    pub n_kv_heads: usize,
    /// Dimensions per head.
    pub head_dim: usize,
}

/// A chunk of positions, for every sequence and head.
struct CacheBlock {
    /// `[batch, n_kv_heads, chunk]`. Memory after that belonged to sequences that were removed.
    memory: Aligned<u32>,
    /// `[batch, n_kv_heads]`.
    values: Vec<Values>,
    /// True if only written pages are allocated. All layers' last blocks are a large share of a short cache. A full
    /// block moves to the large pages that the others use.
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
    /// Creates panels without positions.
    pub fn new(shape: PanelShape) -> Self {
        Self::new_in(shape, &LargePages::default())
    }

    /// Like [`Self::new`], with memory next to other layers' panels.
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

    /// Returns a copy, with memory next to other layers' panels.
    pub fn copy_in(&self, pages: &LargePages) -> Self {
        let copy = |block: &CacheBlock| {
            let mut memory = Aligned::zeros_in(pages, block.memory.len());
            memory.copy_from_slice(&block.memory);
            let values = block.values.clone();
            CacheBlock {
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

    /// Keeps only the given sequences in the batch, in ascending order. They move up within their memory. The rest
    /// stays allocated, but unused.
    ///
    /// # Panics
    /// If a sequence is beyond the batch, or not in ascending order.
    pub fn keep_sequences(&mut self, sequences: &[usize]) {
        let (n_heads, length) = (self.shape.n_kv_heads, self.layout.len());
        for CacheBlock { memory, values, .. } in self.blocks.iter_mut().chain(&mut self.free) {
            for (to, &from) in sequences.iter().enumerate() {
                assert!(to <= from, "sequences must be in ascending order");
                let from = from * n_heads..(from + 1) * n_heads;
                let to = to * n_heads;
                memory.copy_within(from.start * length..from.end * length, to * length);
                values.copy_within(from, to);
            }
            values.truncate(sequences.len() * n_heads);
        }
        self.shape.batch = sequences.len();
    }

    /// Returns the shape and format that the panels are packed for.
    pub fn shape(&self) -> PanelShape {
        self.shape
    }

    /// Returns the stored positions: from the first that was not dropped to the total number ever appended.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// Returns how many positions fit into the allocated blocks.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        (self.blocks.len() + self.free.len()) * self.layout.positions
    }

    pub(crate) fn check(&self, isa: Isa, stored: OperandFormat, shape: &Shape) {
        let requested = PanelShape {
            isa,
            stored,
            batch: shape.queries.batch(),
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
        };
        assert_eq!(
            self.shape, requested,
            "the panels are packed for another instruction set or shape"
        );
    }

    /// Appends `seq` positions to each sequence. Row `b · seq + i` in `key` and `value` is sequence `b`'s `i`th new
    /// position.
    ///
    /// # Panics
    /// If lengths do not match, or `cpu` has another instruction set than the panels.
    pub fn append(&mut self, cpu: Cpu, seq: usize, key: Heads, value: Heads) {
        let (shape, isa) = (self.shape, self.shape.isa);
        assert_eq!(
            isa, cpu.isa,
            "the panels are packed for another instruction set"
        );
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
                // No row after the last new one, so that whole key panels are padded rather than read past the end.
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
            let CacheBlock { memory, values, .. } = &mut *block;
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

    /// Drops the positions before `position`. Later ones keep their indices.
    pub fn drop_before(&mut self, position: usize) {
        let start = position.clamp(self.positions.start, self.positions.end);
        let chunk = self.layout.positions;
        for _ in self.positions.start / chunk..start / chunk {
            self.free.extend(self.blocks.pop_front());
        }
        self.positions.start = start;
    }

    /// Removes the positions from `position` on.
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

    /// Removes all positions, and starts again at 0. Memory stays allocated.
    pub fn reset(&mut self) {
        self.free.extend(self.blocks.drain(..));
        self.positions = 0..0;
    }

    /// Returns chunk number `index`, counted from position 0, for one head in one sequence.
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

    /// Adds an empty block after the others. The caller first writes `at_first` positions.
    fn add_block(&mut self, at_first: usize) {
        let n_chunks = self.shape.batch * self.shape.n_kv_heads;
        let block = self.free.pop().map(|mut block| {
            block.values.fill(Values::Finite);
            block
        });
        self.blocks.push_back(block.unwrap_or_else(|| {
            let len = n_chunks * self.layout.len();
            let is_begun = at_first < self.layout.positions / 2;
            CacheBlock {
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

/// The cost to write one element in a key or value, in multiplications. A key's consecutive elements go to different
/// cache lines.
const WORK_PER_NUMBER: usize = 32;
