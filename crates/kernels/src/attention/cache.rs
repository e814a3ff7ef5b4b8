//! The KV cache for one layer and sequence: packed keys and values at earlier positions.
//!
//! ```text
//! positions.start            positions.end
//!       |                          |
//! | .. k k k k | k k k k k k | k k k ...... |      blocks with `chunk` positions
//!   block 0      block 1       block 2             each [n_kv_heads, chunk layout]
//! ```

use std::{collections::VecDeque, fmt, ops::Range, sync::Arc};

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;

use super::{
    AttentionKernel, Chunk, Fill, Heads, Layout, Operand, OperandFormat, Sequences, Shape, Values,
    WithAttentionKernel,
};
use crate::memory::{Aligned, LargePages};
use crate::{cpu::Cpu, threads::parallel, vectors::Isa};

/// A layer's keys and values for one sequence, packed in the layout that [`attend`](super::attend) reads.
///
/// Positions are numbered from the first one ever appended. A block holds one chunk. Appending writes only the new
/// positions, and blocks dropped from the front are reused at the end. Clones share their blocks until one of them
/// writes: it then copies the last block.
pub struct KeyValuePanels {
    shape: PanelShape,
    layout: Layout,
    /// Block 0 begins at the last chunk boundary at or before `positions.start`.
    blocks: VecDeque<Arc<CacheBlock>>,
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
    /// Key/value head count.
    pub n_kv_heads: usize,
    /// Dimensions per head.
    pub head_dim: usize,
}

/// A chunk of positions, for every head.
struct CacheBlock {
    /// `[n_kv_heads, chunk]`.
    memory: Aligned<u32>,
    /// `[n_kv_heads]`.
    values: Vec<Values>,
    /// True if only written pages are allocated. All layers' last blocks are a large share of a short cache. A full
    /// block moves to the large pages that the others use.
    is_begun: bool,
}

impl CacheBlock {
    /// Returns a copy, with memory in `pages`.
    fn copy_in(&self, pages: &LargePages) -> Self {
        let mut memory = Aligned::zeros_in(pages, self.memory.len());
        memory.copy_from_slice(&self.memory);
        Self {
            memory,
            values: self.values.clone(),
            is_begun: false,
        }
    }
}

impl Clone for KeyValuePanels {
    fn clone(&self) -> Self {
        Self {
            blocks: self.blocks.clone(),
            free: Vec::new(),
            pages: self.pages.clone(),
            positions: self.positions.clone(),
            ..*self
        }
    }
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
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
        };
        assert_eq!(
            self.shape, requested,
            "the panels are packed for another instruction set or shape"
        );
    }

    /// Appends new positions to each of some sequences. `rows` are those of their keys and values.
    ///
    /// # Panics
    /// If lengths do not match, or `cpu` has another instruction set than the panels.
    pub fn append_all(all: &mut [Self], cpu: Cpu, rows: Sequences, key: Heads, value: Heads) {
        assert_eq!(
            all.len(),
            rows.batch(),
            "panels and rows differ in batch size"
        );
        let n = rows.longest() * all.first().map_or(0, Self::width);
        let threads = cpu.for_work(all.len() * n * WORK_PER_NUMBER).threads;
        // Each thread takes whole sequences, or all threads share one.
        let (n_tasks, cpu) = match all.len() < threads {
            true => (1, cpu),
            false => (threads, cpu.alone()),
        };
        parallel::for_chunks(n_tasks, all, 1, |sequence, panels| {
            panels[0].append(cpu, rows.rows(sequence), key, value);
        });
    }

    /// Appends the keys and values in some rows.
    ///
    /// # Panics
    /// If lengths do not match, or `cpu` has another instruction set than the panels.
    pub fn append(&mut self, cpu: Cpu, rows: Range<usize>, key: Heads, value: Heads) {
        let (shape, isa) = (self.shape, self.shape.isa);
        assert_eq!(
            isa, cpu.isa,
            "the panels are packed for another instruction set"
        );
        key.check(rows.end, self.width());
        value.check(rows.end, self.width());
        if self.width() == 0 {
            self.positions.end += rows.len();
            return;
        }
        match shape.stored {
            OperandFormat::F32 => self.append_packed(cpu, &*f32::kernel(isa), rows, key, value),
            OperandFormat::Bf16 => self.append_packed(cpu, &*bf16::kernel(isa), rows, key, value),
        }
    }

    /// Returns the columns in all heads.
    fn width(&self) -> usize {
        self.shape.n_kv_heads * self.shape.head_dim
    }

    fn append_packed<F: Operand>(
        &mut self,
        cpu: Cpu,
        kernel: &dyn AttentionKernel<F>,
        rows: Range<usize>,
        key: Heads,
        value: Heads,
    ) {
        let (layout, seq) = (self.layout, rows.len());
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
            if Arc::get_mut(block).is_none() {
                *block = Arc::new(block.copy_in(&self.pages));
            }
            let Some(block) = Arc::get_mut(block) else {
                return;
            };
            let work = block.values.len() * count * 2 * layout.head_dim * WORK_PER_NUMBER;
            let threads = cpu.for_work(work).threads;
            let fill = |start: usize, memory: &mut [u32], values: &mut [Values]| {
                let head = start / layout.len();
                // No row after the last new one, so that whole key panels are padded rather than read past the end.
                let (first, end) = (rows.start, done + count);
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
            parallel::for_chunk_pairs(threads, memory, layout.len(), values, 1, fill);
            done += count;
            self.positions.end += count;
            if self.positions.end.is_multiple_of(chunk) && block.is_begun {
                *block = block.copy_in(&self.pages);
            }
        }
    }

    /// Returns the stored positions' keys and values, `[positions, n_kv_heads · head_dim]` each, as they were rounded.
    pub fn to_rows(&self) -> [Vec<f32>; 2] {
        let (layout, width) = (self.layout, self.width());
        let mut rows = [(); 2].map(|()| vec![0.0; self.positions.len() * width]);
        let first = self.positions.start / layout.positions;
        for (i, position) in self.positions.clone().enumerate() {
            let block = &self.blocks[position / layout.positions - first];
            for column in 0..width {
                let (head, dimension) = (column / layout.head_dim, column % layout.head_dim);
                let words = &block.memory[head * layout.len()..][..layout.len()];
                let places = layout.places(position % layout.positions, dimension);
                for (rows, (word, element)) in rows.iter_mut().zip(places) {
                    rows[i * width + column] = match self.shape.stored {
                        OperandFormat::F32 => f32::from_bits(words[word]),
                        OperandFormat::Bf16 => {
                            bf16::from_bits((words[word] >> (16 * element)) as u16).to_f32()
                        }
                    };
                }
            }
        }
        rows
    }

    /// Counts positions before the first one, as if they had been appended and dropped.
    ///
    /// # Panics
    /// If there are positions.
    pub fn begin_at(&mut self, position: usize) {
        assert!(self.positions.is_empty(), "the panels have positions");
        self.reset();
        self.positions = position..position;
    }

    /// Drops the positions before `position`. Later ones keep their indices.
    pub fn drop_before(&mut self, position: usize) {
        let start = position.clamp(self.positions.start, self.positions.end);
        let chunk = self.layout.positions;
        for _ in self.positions.start / chunk..start / chunk {
            let block = self.blocks.pop_front();
            self.free.extend(block.and_then(Arc::into_inner));
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
            let block = self.blocks.pop_back();
            self.free.extend(block.and_then(Arc::into_inner));
        }
        self.positions.end = end;
    }

    /// Removes all positions, and starts again at 0. Memory stays allocated.
    pub fn reset(&mut self) {
        let blocks = self.blocks.drain(..);
        self.free.extend(blocks.filter_map(Arc::into_inner));
        self.positions = 0..0;
    }

    /// Returns chunk number `index`, counted from position 0, for one head.
    pub(crate) fn chunk<F: Operand>(&self, head: usize, index: usize) -> Chunk<'_, F> {
        let block = &self.blocks[index - self.positions.start / self.layout.positions];
        let length = self.layout.len();
        Chunk {
            layout: self.layout,
            memory: cast_slice(&block.memory[head * length..][..length]),
            values: block.values[head],
        }
    }

    /// Adds an empty block after the others. The caller first writes `at_first` positions.
    fn add_block(&mut self, at_first: usize) {
        let n_chunks = self.shape.n_kv_heads;
        let block = self.free.pop().map(|mut block| {
            block.values.fill(Values::Finite);
            block
        });
        let block = block.unwrap_or_else(|| {
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
        });
        self.blocks.push_back(Arc::new(block));
    }
}

/// The cost to write one element in a key or value, in multiplications. A key's consecutive elements go to different
/// cache lines.
const WORK_PER_NUMBER: usize = 32;
