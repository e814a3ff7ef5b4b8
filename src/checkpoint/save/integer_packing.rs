//! Writes compressed-tensors' `pack-quantized`: 4- or 8-bit integers with a scale for every group in a row.
//!
//! Like in the package, a value is divided by its group's scale and rounded half to even. The scale is either the package's,
//! for the group's largest magnitude, or slightly smaller, whichever has the least squared error. Most values in a group are
//! small, and finer steps for these outweigh clipping the largest.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use candle_blocks_kernels::storage::numbers::whole;

/// The quantization of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct IntegerPacking {
    pub bits: usize,
    pub group_size: usize,
}

impl IntegerPacking {
    /// Returns whether rows with this many columns consist of whole groups and whole words.
    pub fn fits(self, columns: usize) -> bool {
        columns.is_multiple_of(self.group_size) && columns > 0
    }

    /// Returns the scale for every group; `round` rounds each scale to its stored type.
    pub fn scales(self, numbers: &[f32], round: fn(f32) -> f32) -> Vec<f32> {
        let groups = numbers.chunks_exact(self.group_size);
        groups.map(|group| self.scale(group, round)).collect()
    }

    fn scale(self, group: &[f32], round: fn(f32) -> f32) -> f32 {
        let largest = group.iter().fold(0f32, |max, number| max.max(number.abs()));
        let widest = largest / ((1 << self.bits) - 1) as f32 * 2.0;
        if round(widest) == 0.0 {
            return f32::EPSILON; // the package's scale for zeros
        }
        // With eight bits, smaller scales would not help.
        let n_steps = if self.bits == 4 { 20 } else { 0 };
        let candidates = (0..=n_steps).map(|step| round(widest * (1.0 - 0.02 * step as f32)));
        // Parallel sums, which the compiler may keep in one register.
        let error = |scale: f32| -> f32 {
            let mut sums = [0f32; 8];
            for numbers in group.as_chunks::<8>().0 {
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum += (scale * self.code(*number, scale) - number).powi(2);
                }
            }
            sums.iter().sum()
        };
        let mut best = (f32::INFINITY, round(widest));
        for scale in candidates {
            let error = error(scale);
            if error < best.0 {
                best = (error, scale);
            }
        }
        best.1
    }

    /// Returns the signed integer nearest to a value.
    #[inline]
    fn code(self, number: f32, scale: f32) -> f32 {
        let half = (1 << (self.bits - 1)) as f32;
        whole((number / scale).clamp(-256.0, 256.0)).clamp(-half, half - 1.0)
    }

    /// Returns a matrix's quantized values in words, the first in the lowest bits, and the dequantized values.
    pub fn words(self, numbers: &[f32], scales: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let per_word = 32 / self.bits;
        let half = 1 << (self.bits - 1);
        let mut words = vec![0u32; numbers.len() / per_word];
        let mut decoded = Vec::with_capacity(numbers.len());
        let per_scale = self.group_size / per_word;
        for (i, numbers) in numbers.chunks_exact(per_word).enumerate() {
            let scale = scales[i / per_scale];
            for (place, &number) in numbers.iter().enumerate() {
                let code = self.code(number, scale);
                words[i] |= ((code as i32 + half) as u32) << (place * self.bits);
                decoded.push(code * scale);
            }
        }
        (words, decoded)
    }

    /// Returns the entry for `config.json`. Modules that are not quantized are `ignore`d.
    pub fn config(self, ignore: &BTreeSet<String>) -> Value {
        json!({
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "input_activations": null,
                "output_activations": null,
                "weights": {
                    "num_bits": self.bits,
                    "type": "int",
                    "symmetric": true,
                    "strategy": "group",
                    "group_size": self.group_size,
                    "dynamic": false,
                },
            }},
            "ignore": ignore,
        })
    }
}
