//! A text as batches of bytes: the input, and as target the byte that follows each.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use candle_blocks::candle_core::{Device, Tensor};

use crate::random::Random;

/// Rows of the evaluation, evenly spread over the held-out part.
const N_EVALUATED: usize = 32;

/// A text whose last tenth is kept for evaluation.
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    n_trained: usize,
    context: usize,
    seed: u64,
}

/// `[rows, context]` each.
pub struct Batch {
    pub inputs: Tensor,
    pub targets: Tensor,
}

impl Text {
    /// Reads a file, to be cut into rows of `context` bytes where the seed says.
    pub fn open(path: &Path, context: usize, seed: u64) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| {
            let path = path.display();
            format!("cannot read the text {path}; --text names the file to train on")
        })?;
        let n_trained = bytes.len() - bytes.len() / 10;
        let shortest = 10 * (context + 1);
        ensure!(
            bytes.len() >= shortest,
            "{} is too short: {} bytes, expected at least {shortest} (ten rows of the context and a byte)",
            path.display(),
            bytes.len(),
        );
        Ok(Self {
            bytes,
            n_trained,
            context,
            seed,
        })
    }

    /// FNV-1a of all bytes: another text has another.
    pub fn digest(&self) -> String {
        let fold = |hash: u64, &byte: &u8| (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3);
        format!(
            "{:016x}",
            self.bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
        )
    }

    /// Returns the batch for step `step`. It depends only on the seed and the step, so a resumed training gets the same.
    pub fn batch(&self, step: usize, rows: usize) -> Result<Batch> {
        let mut random = Random::seeded(self.seed ^ ((step as u64) << 32));
        let starts = (0..rows).map(|_| random.below(self.n_trained - self.context));
        self.rows(starts.collect())
    }

    /// Returns the batch for every evaluation.
    pub fn evaluation(&self) -> Result<Batch> {
        let last = self.bytes.len() - self.n_trained - self.context - 1;
        let start = |i: usize| self.n_trained + i * last / (N_EVALUATED - 1);
        self.rows((0..N_EVALUATED).map(start).collect())
    }

    fn rows(&self, starts: Vec<usize>) -> Result<Batch> {
        let shape = (starts.len(), self.context);
        let shifted = |by: usize| -> Result<Tensor> {
            let row = |&start: &usize| &self.bytes[start + by..start + by + self.context];
            let bytes: Vec<u32> = starts.iter().flat_map(row).map(|&b| b as u32).collect();
            Ok(Tensor::from_vec(bytes, shape, &Device::Cpu)?)
        };
        Ok(Batch {
            inputs: shifted(0)?,
            targets: shifted(1)?,
        })
    }
}
