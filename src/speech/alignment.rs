//! Token times by a decoder's cross-attention: transformers' `WhisperGenerationMixin._extract_token_timestamps`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/generation_whisper.py>

use std::collections::BTreeMap;

use candle_core::{D, DType, Device, Module, Tensor};

use super::dynamic_time_warping::path;
use super::segments::INPUT_STRIDE;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::{Checkpoint, Weights};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::layers::Linear;
use crate::model::{Encoded, Model, ModelInput};

/// The seconds from one position in the encoder's output to the next, a constant in transformers.
const PRECISION: f64 = 0.02;

/// The cross-attention heads that follow the clip.
#[derive(Clone, Debug)]
pub(super) struct Alignment {
    /// `alignment_heads`: a layer and a head.
    heads: Vec<(usize, usize)>,
    /// Each such layer's query and key projection.
    projections: BTreeMap<usize, Projections>,
    /// `median_filter_width`.
    filter_width: usize,
}

#[derive(Clone, Debug)]
struct Projections {
    query: Linear,
    key: Linear,
    config: AttentionConfig,
}

impl Alignment {
    /// Reads the heads from `generation_config.json`, and loads their projections in f32.
    ///
    /// # Errors
    /// If the files name no heads, or heads that the model does not have.
    pub fn open(checkpoint: &Checkpoint, decoder: &Model) -> Result<Self> {
        const KEY: &str = "alignment_heads";
        let folder = checkpoint.files().directory();
        let json = ConfigJson::open(&folder.join("generation_config.json"))?;
        let Some(heads) = json.parsed::<Vec<(usize, usize)>>(KEY)? else {
            let reason = "missing; times of words need it: add it, or ask for times of segments";
            return Err(json.error(&[KEY], reason));
        };
        let blocks = &decoder.config().stack.blocks;
        let parameters = checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .var_builder();
        let mut projections = BTreeMap::new();
        for &(layer, head) in &heads {
            let attention = blocks
                .get(layer)
                .and_then(|block| block.cross_attention.as_ref());
            let Some(config) = attention.filter(|attention| head < attention.n_heads) else {
                let reason = format!("found [{layer}, {head}], which the decoder does not have");
                return Err(json.error(&[KEY], reason));
            };
            if projections.contains_key(&layer) {
                continue;
            }
            let attention = parameters.pp(format!("blocks.{layer}.cross_attention"));
            let width = config.n_heads * config.head_dim;
            let linear = |name: &str, has_bias: bool| {
                let parameters = attention.pp(name);
                let weight = parameters.get((width, config.d_model), "weight")?;
                let bias = has_bias
                    .then(|| parameters.get(width, "bias"))
                    .transpose()?;
                Linear::from_parts(weight, bias)
            };
            projections.insert(
                layer,
                Projections {
                    query: linear("query", config.bias.query)?,
                    key: linear("key", config.bias.key)?,
                    config: config.clone(),
                },
            );
        }
        if heads.is_empty() {
            return Err(json.error(&[KEY], "is empty; times of words need at least one head"));
        }
        let config = checkpoint.config_json()?;
        let width = config
            .map(|json| json.size_or(&["median_filter_width"], 7))
            .transpose()?;
        Ok(Self {
            heads,
            projections,
            filter_width: width.unwrap_or(7),
        })
    }

    /// Returns a time for each token in `new`, which follow `prompt`. The clip has `n_frames` frames from the window's
    /// beginning on; a negative number, for a window in the silence after the clip, counts from the window's end, twice, as in
    /// transformers.
    ///
    /// # Errors
    /// If the model fails.
    pub fn times(
        &self,
        decoder: &Model,
        encoded: &Encoded,
        (prompt, new): (&[u32], &[u32]),
        n_frames: isize,
    ) -> Result<Vec<f64>> {
        let Some(n_read) = new.len().checked_sub(1).filter(|&n| n > 0) else {
            return Ok(vec![0.0; new.len()]);
        };
        // No token is generated after the last one, so that transformers has no attention for it.
        let ids = [prompt, &new[..n_read]].concat();
        let ids = Tensor::new(&ids[..], decoder.device())?.unsqueeze(0)?;
        let input = ModelInput::tokens(&ids);
        let input = input.with_encoder_output(&encoded.hidden_states, None);
        let memory = encoded
            .hidden_states
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F32)?;
        let (all, positions) = (memory.dim(1)?, n_frames.div_euclid(INPUT_STRIDE as isize));
        let cut = |n: usize| match positions {
            0.. => n.min(positions as usize),
            _ => n.saturating_sub(positions.unsigned_abs()),
        };
        let seq = cut(cut(all));
        let mut weights: BTreeMap<usize, Tensor> = BTreeMap::new(); // [n_heads, n_read, encoder_seq]
        decoder.observe(&input, |layer, stages| {
            if let (Some(projections), Some(stages)) =
                (self.projections.get(&layer), &stages.cross_attention)
            {
                let read = stages.input.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                let read = read.narrow(1, prompt.len(), n_read)?;
                weights.insert(layer, projections.weights(&read, &memory)?);
            }
            Ok(())
        })?;
        let mut mean = vec![0f32; n_read * seq];
        for (layer, head) in &self.heads {
            let Some(of_layer) = weights.get(layer) else {
                let reason = format!("layer {layer} has no cross-attention");
                return Err(Error::InvalidConfig(reason));
            };
            let rows = of_layer.get(*head)?.narrow(1, 0, seq)?.to_vec2::<f32>()?;
            let filtered = self.filtered(&rows, seq);
            for (sum, value) in mean.iter_mut().zip(filtered) {
                *sum += value;
            }
        }
        let n_heads = self.heads.len() as f32;
        let costs: Vec<f64> = mean
            .iter()
            .map(|&sum| f64::from(-(sum / n_heads)))
            .collect();
        let mut times = Vec::with_capacity(new.len());
        let mut row = None;
        for (i, j) in path(&costs, n_read, seq) {
            if row != Some(i) {
                times.push(j as f64 * PRECISION);
                row = Some(i);
            }
        }
        times.extend(times.last().copied());
        // transformers keeps times in f32.
        Ok(times
            .into_iter()
            .map(|time| f64::from(time as f32))
            .collect())
    }

    /// Returns a head's weights `[n_read * seq]`, normalized for each encoder position and smoothed along them.
    fn filtered(&self, rows: &[Vec<f32>], seq: usize) -> Vec<f32> {
        let n = rows.len() as f64;
        let mut normalized: Vec<Vec<f32>> = vec![vec![0.0; seq]; rows.len()];
        for j in 0..seq {
            let mean = rows.iter().map(|row| f64::from(row[j])).sum::<f64>() / n;
            let squares = rows.iter().map(|row| (f64::from(row[j]) - mean).powi(2));
            let deviation = (squares.sum::<f64>() / n).sqrt();
            for (to, row) in normalized.iter_mut().zip(rows) {
                to[j] = ((f64::from(row[j]) - mean) / deviation) as f32;
            }
        }
        let smoothed = normalized
            .iter()
            .map(|row| median_filtered(row, self.filter_width));
        smoothed.flatten().collect()
    }
}

impl Projections {
    /// Returns the attention weights `[n_heads, n_read, encoder_seq]`, softmax(q·kᵀ).
    fn weights(&self, read: &Tensor, memory: &Tensor) -> candle_core::Result<Tensor> {
        let (n_heads, head_dim) = (self.config.n_heads, self.config.head_dim);
        let heads = |x: Tensor| {
            let seq = x.dim(1)?;
            x.reshape((seq, n_heads, head_dim))?
                .transpose(0, 1)?
                .contiguous()
        };
        let (query, key) = (
            heads(self.query.forward(read)?)?,
            heads(self.key.forward(memory)?)?,
        );
        let scores = (query.matmul(&key.transpose(1, 2)?)? * self.config.scale)?;
        let largest = scores.max_keepdim(D::Minus1)?;
        let powers = scores.broadcast_sub(&largest)?.exp()?;
        powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
    }
}

/// Returns each value's median with its neighbors; before the first value and after the last come reflected ones.
fn median_filtered(row: &[f32], width: usize) -> Vec<f32> {
    let half = width / 2;
    if row.len() <= half {
        return row.to_vec();
    }
    let last = row.len() as isize - 1;
    let at = |i: isize| row[last.abs_diff(last.abs_diff(i.abs()) as isize)];
    let median = |i: usize| {
        let from = i as isize - half as isize;
        let mut near: Vec<f32> = (from..from + width as isize).map(at).collect();
        // PyTorch sorts NaN last.
        near.sort_by(|a, b| a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(b)));
        near[half]
    };
    (0..row.len()).map(median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_reflects_at_both_ends() {
        let row = [5.0, 1.0, 4.0, 2.0, 9.0];
        // PyTorch: pad(x, (1, 1), mode="reflect").unfold(-1, 3, 1).sort()[0][..., 1]
        assert_eq!(median_filtered(&row, 3), [1.0, 4.0, 2.0, 4.0, 2.0]);
        assert_eq!(median_filtered(&row, 1), row);
        assert_eq!(median_filtered(&row[..1], 3), [5.0]);
    }
}
