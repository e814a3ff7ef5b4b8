//! Rotary frequencies that a checkpoint stores as a tensor.
//!
//! Most models compute their frequencies from `config.json`, and a tensor with frequencies in their files has no effect. ESM is an
//! exception: its buffer is part of the state dictionary, so transformers takes the file's frequencies, whatever `rope_theta` says.
//! transformers' `EsmRotaryEmbedding`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/esm/modeling_esm.py>

use candle_core::DType;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::{Family, matches};
use crate::config::{BlockConfig, Position, RotaryConfig, RotaryScaling, StackConfig};
use crate::error::{Error, Result};

/// Families with such a buffer, and the pattern for its names: one buffer for the model, or in older files one for each layer.
const BUFFERS: [(&str, &str); 1] = [("esm", "*rotary_embeddings.inv_freq")];
/// The relative difference between frequencies that are computed in f32 and in f64.
const ROUNDING: f64 = 1e-6;

/// Returns the configuration with the frequencies in the files, if the family reads them there. Of several tensors the first by its
/// name counts, as in transformers.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the tensor does not have one frequency for each pair of rotated dimensions, and
/// [`Error::InvalidConfig`] if a frequency is not a positive number.
pub(crate) fn with_stored(
    family: &Family,
    config: StackConfig,
    files: &TensorFiles,
) -> Result<StackConfig> {
    let Some((_, pattern)) = BUFFERS.iter().find(|(name, _)| *name == family.name) else {
        return Ok(config);
    };
    let mut attentions = config.blocks.iter().flat_map(BlockConfig::attention);
    let is_rotary = attentions.any(|of| matches!(of.position, Position::Rotary(_)));
    let Some(name) = files.names().filter(|name| matches(pattern, name)).min() else {
        return Ok(config);
    };
    if !is_rotary {
        return Ok(config);
    }
    let name = name.to_string();
    let shape = files.find(&name)?.shape.to_vec();
    let stored = files.read(&name)?.to_dtype(DType::F64)?.flatten_all()?;
    let stored: Vec<f64> = stored.to_vec1()?;
    let path = files.find(&name)?.path.to_path_buf();
    let mut config = config;
    let blocks = config.blocks.iter_mut();
    for attention in blocks.flat_map(BlockConfig::attention_mut) {
        let Position::Rotary(rotary) = &mut attention.position else {
            continue;
        };
        if shape != [rotary.dim / 2] {
            return Err(Error::ShapeMismatch {
                path,
                tensor: name,
                expected: vec![rotary.dim / 2],
                found: shape,
            });
        }
        if let Some(odd) = stored.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            return Err(Error::InvalidConfig(format!(
                "{}: {name} contains the frequency {odd}, expected positive numbers; save the model again with \
                 frequencies from its `rope_theta`",
                path.display()
            )));
        }
        set(rotary, &stored);
    }
    Ok(config)
}

/// Sets the frequencies, unless they are the base's.
fn set(rotary: &mut RotaryConfig, stored: &[f64]) {
    let base_frequency = |i: usize| rotary.theta.powf(-2.0 * i as f64 / rotary.dim as f64);
    let divisors: Vec<f64> = { stored.iter().enumerate() }
        .map(|(i, frequency)| base_frequency(i) / frequency)
        .collect();
    if divisors
        .iter()
        .all(|divisor| (divisor - 1.0).abs() <= ROUNDING)
    {
        return;
    }
    // One list of divisors for all lengths.
    rotary.scaling = RotaryScaling::LongRope {
        short_factor: divisors.clone(),
        long_factor: divisors,
        attention_factor: 1.0,
        long_attention_factor: None,
        original_positions: 1 << 30,
    };
}
