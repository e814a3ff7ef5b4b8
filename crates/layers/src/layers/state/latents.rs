//! Latents, which latent attention keeps.

use candle_blocks_kernels::attention::{OperandFormat, PanelShape, Sequences};
use candle_blocks_kernels::{Cpu, threads};
use half::bf16;

/// The latents and shared keys for a batch, in the number format in which attention multiplies. Each position has one
/// row. Every step unpacks the rows for keys and for values.
#[derive(Clone, Debug)]
pub(crate) struct LatentRows {
    shape: PanelShape,
    positions: usize,
    sequences: Vec<LatentElements>,
}

#[derive(Clone, Debug)]
enum LatentElements {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl LatentRows {
    /// Creates empty rows for one head with this shape.
    pub fn new(shape: PanelShape) -> Self {
        let empty = || match shape.stored {
            OperandFormat::F32 => LatentElements::F32(Vec::new()),
            OperandFormat::Bf16 => LatentElements::Bf16(Vec::new()),
        };
        Self {
            shape,
            positions: 0,
            sequences: (0..shape.batch).map(|_| empty()).collect(),
        }
    }

    pub fn shape(&self) -> PanelShape {
        self.shape
    }

    /// Returns how many positions each sequence has.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Returns how many elements all sequences have.
    pub fn len(&self) -> usize {
        self.shape.batch * self.positions * self.shape.head_dim
    }

    pub fn bytes(&self) -> usize {
        let bytes = |numbers: &LatentElements| match numbers {
            LatentElements::F32(numbers) => size_of_val(&numbers[..]),
            LatentElements::Bf16(numbers) => size_of_val(&numbers[..]),
        };
        self.sequences.iter().map(bytes).sum()
    }

    /// Returns the rows that [`Self::copy_to`] writes.
    pub fn sequences(&self) -> Sequences<'static> {
        Sequences::Equal {
            batch: self.shape.batch,
            seq: self.positions,
        }
    }

    /// Appends new rows to each sequence, `[batch, new, width]`.
    pub fn append(&mut self, rows: &[f32]) {
        let each = rows.len() / self.shape.batch.max(1);
        let new = rows.chunks_exact(each.max(1));
        for (numbers, new) in self.sequences.iter_mut().zip(new) {
            match numbers {
                LatentElements::F32(numbers) => numbers.extend_from_slice(new),
                LatentElements::Bf16(numbers) => {
                    numbers.extend(new.iter().map(|&x| bf16::from_f32(x)));
                }
            }
        }
        self.positions += each / self.shape.head_dim;
    }

    /// Writes all rows, `[batch, positions, width]`.
    pub fn copy_to(&self, cpu: Cpu, y: &mut [f32]) {
        /// Elements per task.
        const TASK: usize = 1 << 14;
        let per_sequence = self.positions * self.shape.head_dim;
        for (y, numbers) in y.chunks_exact_mut(per_sequence.max(1)).zip(&self.sequences) {
            let n_threads = threads::threads_for(per_sequence, cpu.threads);
            threads::for_chunks(n_threads, y, TASK, |start, y| match numbers {
                LatentElements::F32(numbers) => y.copy_from_slice(&numbers[start..start + y.len()]),
                LatentElements::Bf16(numbers) => {
                    for (y, x) in y.iter_mut().zip(&numbers[start..]) {
                        *y = x.to_f32();
                    }
                }
            });
        }
    }

    /// Keeps the given sequences, in this order. A sequence that occurs several times is copied.
    pub fn keep_sequences(&mut self, sequences: &[usize]) {
        let mut old: Vec<Option<LatentElements>> = self.sequences.drain(..).map(Some).collect();
        for (i, &of) in sequences.iter().enumerate() {
            let is_last = !sequences[i + 1..].contains(&of);
            let taken = match is_last {
                true => old[of].take(),
                false => old[of].clone(),
            };
            self.sequences.extend(taken);
        }
        self.shape.batch = sequences.len();
    }

    /// Removes the positions from `positions` on.
    pub fn truncate(&mut self, positions: usize) {
        self.positions = self.positions.min(positions);
        let n = self.positions * self.shape.head_dim;
        for numbers in &mut self.sequences {
            match numbers {
                LatentElements::F32(numbers) => numbers.truncate(n),
                LatentElements::Bf16(numbers) => numbers.truncate(n),
            }
        }
    }
}
