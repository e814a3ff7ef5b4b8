//! Latents, which latent attention keeps.

use std::sync::Arc;

use candle_blocks_kernels::attention::{OperandFormat, Sequences};
use candle_blocks_kernels::{Cpu, threads};
use candle_core::{Device, Result, Tensor};
use half::bf16;

use super::named::{Given, Named};
use super::reordered;
use super::shape::CacheShape;
use crate::layers::visit::join;

/// The latents and shared keys for a batch, in the number format in which attention multiplies. Each position has one
/// row. Every step unpacks the rows for keys and for values. Clones share a sequence's rows until one of them writes.
#[derive(Clone, Debug)]
pub(crate) struct LatentRows {
    shape: CacheShape,
    sequences: Vec<Arc<LatentElements>>,
}

#[derive(Clone, Debug)]
enum LatentElements {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl LatentRows {
    /// Creates empty rows for one head with this shape.
    pub fn new(shape: CacheShape) -> Self {
        let empty = || match shape.sequence.stored {
            OperandFormat::F32 => LatentElements::F32(Vec::new()),
            OperandFormat::Bf16 => LatentElements::Bf16(Vec::new()),
        };
        Self {
            shape,
            sequences: (0..shape.batch).map(|_| Arc::new(empty())).collect(),
        }
    }

    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Returns how many elements all sequences have.
    pub fn len(&self) -> usize {
        self.sequences.iter().map(|of| of.len()).sum()
    }

    /// Adds the rows to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        let width = self.shape.sequence.head_dim;
        for (i, elements) in self.sequences.iter().enumerate() {
            let dims = (elements.len() / width, width);
            let rows = match &**elements {
                LatentElements::F32(elements) => Tensor::from_slice(elements, dims, &Device::Cpu),
                LatentElements::Bf16(elements) => Tensor::from_slice(elements, dims, &Device::Cpu),
            };
            to.insert(join(prefix, format_args!("{i}.latents")), rows?);
        }
        Ok(())
    }

    /// Returns the rows in a cache's tensors, of which each sequence has as many as `lengths` says.
    ///
    /// # Errors
    /// If they are another mixer's.
    pub fn restored(shape: CacheShape, given: &Given, lengths: &[usize]) -> Result<Self> {
        let mut made = Self::new(shape);
        for (i, (elements, &n)) in made.sequences.iter_mut().zip(lengths).enumerate() {
            let rows = given.at(i).of_sequence("latents", n, shape.sequence)?;
            *elements = Arc::new(match shape.sequence.stored {
                OperandFormat::F32 => LatentElements::F32(rows.flatten_all()?.to_vec1()?),
                OperandFormat::Bf16 => LatentElements::Bf16(rows.flatten_all()?.to_vec1()?),
            });
        }
        Ok(made)
    }

    pub fn bytes(&self) -> usize {
        let bytes = |numbers: &Arc<LatentElements>| match &**numbers {
            LatentElements::F32(numbers) => size_of_val(&numbers[..]),
            LatentElements::Bf16(numbers) => size_of_val(&numbers[..]),
        };
        self.sequences.iter().map(bytes).sum()
    }

    /// Returns the first row of each sequence in those that [`Self::copy_to`] writes, and their number.
    pub fn starts(&self) -> Vec<usize> {
        let ends = self.sequences.iter().scan(0, |end, of| {
            *end += of.len() / self.shape.sequence.head_dim;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Appends new rows to each sequence.
    pub fn append(&mut self, all: &[f32], rows: Sequences) {
        let width = self.shape.sequence.head_dim;
        for (i, elements) in self.sequences.iter_mut().enumerate() {
            let rows = rows.rows(i);
            let new = &all[rows.start * width..rows.end * width];
            match Arc::make_mut(elements) {
                LatentElements::F32(elements) => elements.extend_from_slice(new),
                LatentElements::Bf16(elements) => {
                    elements.extend(new.iter().map(|&x| bf16::from_f32(x)));
                }
            }
        }
    }

    /// Writes all rows, one sequence after the other.
    pub fn copy_to(&self, cpu: Cpu, mut y: &mut [f32]) {
        /// Elements per task.
        const TASK: usize = 1 << 14;
        for elements in &self.sequences {
            let (own, rest) = y.split_at_mut(elements.len());
            let n_threads = threads::threads_for(own.len(), cpu.threads);
            threads::for_chunks(n_threads, own, TASK, |start, y| match &**elements {
                LatentElements::F32(from) => y.copy_from_slice(&from[start..start + y.len()]),
                LatentElements::Bf16(from) => {
                    for (y, x) in y.iter_mut().zip(&from[start..]) {
                        *y = x.to_f32();
                    }
                }
            });
            y = rest;
        }
    }

    /// Replaces the batch by the given sequences, in this order. A sequence may be given several times.
    pub fn take_sequences(&mut self, sequences: &[usize]) {
        reordered(&mut self.sequences, sequences);
        self.shape.batch = sequences.len();
    }

    /// Appends another batch's sequences.
    pub fn join(&mut self, other: Self) {
        self.sequences.extend(other.sequences);
        self.shape.batch = self.sequences.len();
    }

    /// Keeps each sequence's first positions: none, where the number is missing.
    pub fn truncate(&mut self, positions: &[usize]) {
        let width = self.shape.sequence.head_dim;
        for (i, elements) in self.sequences.iter_mut().enumerate() {
            let n = positions.get(i).map_or(0, |n| n * width);
            if n < elements.len() {
                match Arc::make_mut(elements) {
                    LatentElements::F32(elements) => elements.truncate(n),
                    LatentElements::Bf16(elements) => elements.truncate(n),
                }
            }
        }
    }
}

impl LatentElements {
    fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::Bf16(elements) => elements.len(),
        }
    }
}
