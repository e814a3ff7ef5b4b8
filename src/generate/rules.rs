//! Tokens that may not, or must, be chosen.

use candle_core::{DType, Device, Result, Tensor};

use super::GenerationOptions;

impl GenerationOptions {
    /// Logits `[sequences, n_tokens]` in which what may not be chosen as the new token number `n`, counted from 0, is `-inf`.
    pub(super) fn ruled(&self, logits: Tensor, n: usize) -> Result<Tensor> {
        let is_last = n + 1 == self.max_new_tokens;
        let forced =
            (self.forced_last.filter(|_| is_last)).or(self.forced_first.filter(|_| n == 0));
        let mut banned = self.suppressed.clone();
        if n == 0 {
            banned.extend(&self.suppressed_first);
        }
        if n < self.min_new_tokens {
            banned.extend(&self.stop_tokens);
        }
        if banned.is_empty() && forced.is_none() {
            return Ok(logits);
        }
        let (rows, n_tokens) = logits.dims2()?;
        let logits = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let mut ruled: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        for row in ruled.chunks_exact_mut(n_tokens.max(1)) {
            let within = |token: u32| (token as usize) < n_tokens;
            for &token in banned.iter().filter(|&&token| within(token)) {
                row[token as usize] = f32::NEG_INFINITY;
            }
            if let Some(token) = forced.filter(|&token| within(token)) {
                row.fill(f32::NEG_INFINITY);
                row[token as usize] = 0.0;
            }
        }
        Tensor::from_vec(ruled, (rows, n_tokens), &Device::Cpu)
    }
}
