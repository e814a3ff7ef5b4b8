//! Weights of linear layers that stay quantised as they are in the files: frozen, and dequantised for each product anew.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::files::{Compute, TensorFiles};
use crate::checkpoint::source::Source;
use crate::checkpoint::{Checkpoint, CheckpointOptions};
use crate::error::{Error, Result};
use crate::layers::StoredMatrix;

impl CheckpointOptions {
    /// Keeps the weights of linear layers quantised where they are so in the files, for training adapters over them with
    /// the memory of the codes ([`Lora`](crate::train::Lora); QLoRA, <https://arxiv.org/abs/2305.14314>).
    ///
    /// The codes are in memory, and each product dequantises its weight, forward and back, and drops it: results and
    /// gradients have the bits of the dequantised model. On a device other than the CPU, the host does that, and moves the
    /// numbers there. These weights are frozen: [`Checkpoint::trainable`] makes variables of the others (norms, biases,
    /// embeddings). A [`Loader`](crate::checkpoint::Loader) makes such layers, also by
    /// [`build`](crate::checkpoint::Loader::build) of another configuration; what its `var_builder` hands out is dense.
    ///
    /// ```no_run
    /// use candle_blocks::{CheckpointOptions, candle_core::{DType, Device}, train::{Lora, LoraConfig}};
    /// let checkpoint = CheckpointOptions::default().keep_quantized().open("llama-3.2-1b-gptq")?;
    /// let mut stack = checkpoint.stack(DType::F32, &Device::Cpu)?;
    /// let lora = Lora::attach(&mut stack, LoraConfig::new(8, 16.0, &["attention.*"]), 42)?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn keep_quantized(mut self) -> Self {
        self.keeps_quantized = true;
        self
    }
}

/// The quantised matrices of a checkpoint, by role.
#[derive(Debug)]
pub(super) struct Kept {
    files: Arc<TensorFiles>,
    sources: HashMap<String, Source>,
}

impl Kept {
    /// # Errors
    /// If there are none.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let Checkpoint { plan, files, .. } = checkpoint;
        // A parameter that others share, such as a table of words, stays one tensor.
        let is_kept = |source: &&Source| {
            source.is_quantized && source.shape.len() == 2 && !plan.is_shared(&source.role)
        };
        let kept = plan.sources.iter().filter(is_kept);
        let sources: HashMap<_, _> = kept.map(|s| (s.role.clone(), s.clone())).collect();
        if sources.is_empty() {
            let path = files.path().display();
            let reason = format!("{path} has no quantised weights; open it without");
            return Err(Error::input("keep_quantized", reason));
        }
        Ok(Self {
            files: Arc::new(files.kept_in_memory()),
            sources,
        })
    }

    /// Whether the matrix of a role is quantised.
    pub fn has(&self, role: &str) -> bool {
        self.sources.contains_key(role)
    }

    /// The matrix of a role, if it is quantised. All of it is read, and dequantised once: what is wrong with it comes to
    /// light here.
    pub fn matrix(
        &self,
        role: &str,
        (d_out, d_in): (usize, usize),
    ) -> Result<Option<Arc<dyn StoredMatrix>>> {
        let Some(source) = self.sources.get(role) else {
            return Ok(None);
        };
        source.check_request(&[d_out, d_in], &self.files)?;
        let Some(compute) = self.files.computed(&source.name) else {
            return Ok(None);
        };
        let matrix = Matrix {
            files: self.files.clone(),
            compute: compute.clone(),
            source: source.clone(),
        };
        const CHECKED_AT_ONCE: usize = 1 << 20;
        let step = match matrix.comes_whole() {
            true => d_out.max(1),
            false => (CHECKED_AT_ONCE / d_in.max(1)).max(1),
        };
        for start in (0..d_out).step_by(step) {
            matrix.numbers(start..d_out.min(start + step))?;
        }
        Ok(Some(Arc::new(matrix)))
    }
}

/// A matrix that stays quantised.
#[derive(Debug)]
struct Matrix {
    files: Arc<TensorFiles>,
    compute: Arc<dyn Compute>,
    source: Source,
}

impl Matrix {
    fn numbers(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let (source, files) = (&self.source, &*self.files);
        if self.comes_whole() {
            let numbers = source.read(files)?.narrow(0, rows.start, rows.len())?;
            return Ok(numbers.flatten_all()?.to_vec1()?);
        }
        let mut numbers = Vec::new();
        for rows in source.rows_on_disk(rows) {
            let mut part = self.compute.rows(files, rows)?;
            match numbers.is_empty() {
                true => numbers = part,
                false => numbers.append(&mut part),
            }
        }
        Ok(numbers)
    }
}

impl StoredMatrix for Matrix {
    fn rows(&self, rows: Range<usize>) -> candle_core::Result<Vec<f32>> {
        Ok(self.numbers(rows)?)
    }

    fn comes_whole(&self) -> bool {
        !self.source.has_rows()
    }
}
