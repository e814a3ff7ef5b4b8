//! The layers before the blocks in wav2vec 2.0, HuBERT, WavLM and data2vec: convolutions over samples, a projection, and convolutions over
//! positions. They are computed in f32 on the CPU, for one clip at a time.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/wav2vec2/modeling_wav2vec2.py>

use candle_core::{Module, Tensor};

use super::outer_tensors::OuterTensors;
use crate::checkpoint::config_json::ConfigJson;
use crate::config::Activation;
use crate::error::Result;
use crate::layers::Linear;
use crate::ops::activate;

/// The epsilon for norms that take PyTorch's default in transformers.
const EPS: f64 = 1e-5;

/// The layers before the first block.
#[derive(Clone, Debug)]
pub(super) struct WaveformEncoder {
    convolutions: Vec<Convolution>,
    projection_norm: Option<Norm>,
    projection: Linear,
    positions: Vec<Convolution>,
    /// The norm before the first block, in a post-norm model.
    norm: Option<Norm>,
}

/// A convolution with its norm and its activation.
#[derive(Clone, Debug)]
struct Convolution {
    weight: Tensor,       // [channels, channels / groups, kernel]
    bias: Option<Tensor>, // [1, channels, 1]
    kind: ConvolutionKind,
    norm: Normalized,
    activation: Activation,
}

#[derive(Clone, Copy, Debug)]
enum ConvolutionKind {
    /// Over samples.
    Strided(usize),
    /// Over positions, with as many results.
    Grouped(usize),
}

/// A convolution's norm.
#[derive(Clone, Debug)]
enum Normalized {
    None,
    /// Each channel over all positions: a group norm with as many groups as channels.
    Channels(Norm),
    /// Each position over its channels.
    Positions(Option<Norm>),
    /// A batch norm before the convolution, as a factor and a summand `[1, channels, 1]`.
    Input(Tensor, Tensor),
}

#[derive(Clone, Debug)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl WaveformEncoder {
    /// Reads a checkpoint's layers with this `config.json`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or a key has an unknown value.
    pub fn open(tensors: &OuterTensors, json: &ConfigJson) -> Result<Self> {
        json.only("add_adapter", &[false.into()])?;
        let eps = json.number(&["layer_norm_eps"], 1e-5)?;
        let activation = json.activation(&["feat_extract_activation"], Activation::Gelu)?;
        let d_model = json.size(&["hidden_size"])?;
        let strides = json.parsed::<Vec<usize>>("conv_stride")?;
        let strides = strides.unwrap_or_else(|| vec![5, 2, 2, 2, 2, 2, 2]);
        let kernels = json.parsed::<Vec<usize>>("conv_kernel")?;
        let kernels = kernels.unwrap_or_else(|| vec![10, 3, 3, 3, 3, 2, 2]);
        let channels = json.parsed::<Vec<usize>>("conv_dim")?;
        let channels = channels.unwrap_or_else(|| vec![512; 7]);
        let lengths = [strides.len(), kernels.len(), channels.len()];
        if lengths.iter().any(|&n| n != lengths[0]) || lengths[0] == 0 || strides.contains(&0) {
            let reason = format!(
                "conv_dim, conv_kernel and conv_stride have {lengths:?} entries, expected as many of each, and no stride 0"
            );
            return Err(json.error(&["conv_stride"], reason));
        }
        let is_data2vec = json.text(&["model_type"])?.as_deref() == Some("data2vec-audio");
        let norms = json.text(&["feat_extract_norm"])?;
        let norms =
            norms.unwrap_or_else(|| if is_data2vec { "layer" } else { "group" }.to_string());
        let has_bias = json.flag(&["conv_bias"], false)?;
        let mut convolutions = Vec::new();
        let mut before = 1;
        for (i, ((&stride, &kernel), &n)) in strides.iter().zip(&kernels).zip(&channels).enumerate()
        {
            let name = format!("feature_extractor.conv_layers.{i}");
            let norm = || Norm::open(tensors, &format!("{name}.layer_norm"), n, EPS);
            convolutions.push(Convolution {
                weight: tensors.read(&format!("{name}.conv.weight"), &[n, before, kernel])?,
                bias: bias(tensors, &format!("{name}.conv"), n, has_bias)?,
                kind: ConvolutionKind::Strided(stride),
                norm: match (norms.as_str(), i) {
                    ("layer", _) => Normalized::Positions(Some(norm()?)),
                    ("group", 0) => Normalized::Channels(norm()?),
                    ("group", _) => Normalized::None,
                    _ => {
                        let reason = format!("found {norms:?}, expected \"group\" or \"layer\"");
                        return Err(json.error(&["feat_extract_norm"], reason));
                    }
                },
                activation,
            });
            before = n;
        }
        let has_norm = json.flag(&["feat_proj_layer_norm"], true)?;
        let projection_norm = has_norm
            .then(|| Norm::open(tensors, "feature_projection.layer_norm", before, eps))
            .transpose()?;
        let projection = Linear::from_parts(
            tensors.read("feature_projection.projection.weight", &[d_model, before])?,
            Some(tensors.read("feature_projection.projection.bias", &[d_model])?),
        )?;
        let is_stable = json.flag(&["do_stable_layer_norm"], false)?;
        let norm = (!is_stable)
            .then(|| Norm::open(tensors, "encoder.layer_norm", d_model, eps))
            .transpose()?;
        Ok(Self {
            convolutions,
            projection_norm,
            projection,
            positions: match is_data2vec {
                true => layers_of_positions(tensors, json, d_model, activation)?,
                false => vec![one_layer_of_positions(tensors, json, d_model, activation)?],
            },
            norm,
        })
    }

    /// Returns how many samples lie between positions: transformers' `inputs_to_logits_ratio`.
    pub fn samples_per_position(&self) -> usize {
        let strides = self
            .convolutions
            .iter()
            .map(|convolution| match convolution.kind {
                ConvolutionKind::Strided(stride) => stride,
                ConvolutionKind::Grouped(_) => 1,
            });
        strides.product()
    }

    /// Returns how many samples a first position needs.
    pub fn least_samples(&self) -> usize {
        let layers = self.convolutions.iter().rev();
        layers.fold(1, |n, convolution| {
            let kernel = convolution.weight.dims()[2];
            match convolution.kind {
                ConvolutionKind::Strided(stride) => (n - 1) * stride + kernel,
                ConvolutionKind::Grouped(_) => n,
            }
        })
    }

    /// Returns the first block's input `[1, seq, d_model]` for a clip's samples.
    pub fn forward(&self, samples: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = samples.reshape((1, 1, samples.elem_count()))?; // [1, channels, steps]
        for convolution in &self.convolutions {
            x = convolution.forward(&x)?;
        }
        let x = x.transpose(1, 2)?.contiguous()?;
        let x = match &self.projection_norm {
            Some(norm) => norm.forward(&x)?,
            None => x,
        };
        let x = self.projection.forward(&x)?;
        let mut positions = x.transpose(1, 2)?.contiguous()?;
        for convolution in &self.positions {
            positions = convolution.forward(&positions)?;
        }
        let x = (x + positions.transpose(1, 2)?)?;
        match &self.norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }
}

/// Reads the one convolution over positions in wav2vec 2.0 and HuBERT, whose weight is stored as a length for each place in the
/// kernel and a direction (`weight_norm`).
fn one_layer_of_positions(
    tensors: &OuterTensors,
    json: &ConfigJson,
    d_model: usize,
    activation: Activation,
) -> Result<Convolution> {
    const NAME: &str = "encoder.pos_conv_embed.conv";
    let kernel = json.size_or(&["num_conv_pos_embeddings"], 128)?;
    let groups = json.size_or(&["num_conv_pos_embedding_groups"], 16)?;
    let weight_shape = [d_model, d_model / groups.max(1), kernel];
    let has_batch_norm = json.flag(&["conv_pos_batch_norm"], false)?;
    let (weight, norm) = match has_batch_norm {
        true => {
            let of = |name: &str| {
                tensors.read(
                    &format!("encoder.pos_conv_embed.batch_norm.{name}"),
                    &[d_model],
                )
            };
            let deviation = (of("running_var")? + EPS)?.sqrt()?;
            let factor = (of("weight")? / deviation)?;
            let summand = (of("bias")? - (of("running_mean")? * &factor)?)?;
            let shape = (1, d_model, 1);
            let norm = Normalized::Input(factor.reshape(shape)?, summand.reshape(shape)?);
            (
                tensors.read(&format!("{NAME}.weight"), &weight_shape)?,
                norm,
            )
        }
        false => {
            let one_of = |names: [&str; 2], shape: &[usize]| {
                let names = names.map(|name| format!("{NAME}.{name}"));
                tensors.read_one_of(&names, shape)
            };
            let length = one_of(
                ["parametrizations.weight.original0", "weight_g"],
                &[1, 1, kernel],
            )?;
            let direction = one_of(
                ["parametrizations.weight.original1", "weight_v"],
                &weight_shape,
            )?;
            let norms = direction.sqr()?.sum_keepdim((0, 1))?.sqrt()?;
            let factor = (length / norms)?;
            (direction.broadcast_mul(&factor)?, Normalized::None)
        }
    };
    Ok(Convolution {
        weight,
        bias: bias(tensors, NAME, d_model, true)?,
        kind: ConvolutionKind::Grouped(groups),
        norm,
        activation,
    })
}

/// Reads data2vec's convolutions over positions, each with a norm without parameters.
fn layers_of_positions(
    tensors: &OuterTensors,
    json: &ConfigJson,
    d_model: usize,
    activation: Activation,
) -> Result<Vec<Convolution>> {
    let kernel = json.size_or(&["conv_pos_kernel_size"], 19)?;
    let groups = json.size_or(&["num_conv_pos_embedding_groups"], 16)?;
    let n_layers = json.size_or(&["num_conv_pos_embeddings"], 5)?;
    let layer = |i: usize| {
        let name = format!("encoder.pos_conv_embed.layers.{i}.conv");
        let shape = [d_model, d_model / groups.max(1), kernel];
        Ok(Convolution {
            weight: tensors.read(&format!("{name}.weight"), &shape)?,
            bias: bias(tensors, &name, d_model, true)?,
            kind: ConvolutionKind::Grouped(groups),
            norm: Normalized::Positions(None),
            activation,
        })
    };
    (0..n_layers).map(layer).collect()
}

fn bias(tensors: &OuterTensors, name: &str, n: usize, is_there: bool) -> Result<Option<Tensor>> {
    if !is_there {
        return Ok(None);
    }
    let bias = tensors.read(&format!("{name}.bias"), &[n])?;
    Ok(Some(bias.reshape((1, n, 1))?))
}

impl Convolution {
    /// `x` is `[1, channels, steps]`.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = match &self.norm {
            Normalized::Input(factor, summand) => {
                &x.broadcast_mul(factor)?.broadcast_add(summand)?
            }
            _ => x,
        };
        let mut y = match self.kind {
            ConvolutionKind::Strided(stride) => x.conv1d(&self.weight, 0, stride, 1, 1)?,
            ConvolutionKind::Grouped(groups) => {
                let steps = x.dim(2)?;
                let y = x.conv1d(&self.weight, self.weight.dim(2)? / 2, 1, 1, groups)?;
                // An even kernel gives one step too many.
                y.narrow(2, 0, steps)?
            }
        };
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(bias)?;
        }
        let y = match &self.norm {
            Normalized::None | Normalized::Input(..) => y,
            Normalized::Channels(norm) => {
                let channels = norm.weight.elem_count();
                let weight = norm.weight.reshape((1, channels, 1))?;
                let bias = norm.bias.reshape((1, channels, 1))?;
                let y = standardized(&y, norm.eps)?;
                y.broadcast_mul(&weight)?.broadcast_add(&bias)?
            }
            Normalized::Positions(norm) => {
                let rows = y.transpose(1, 2)?.contiguous()?;
                let rows = match norm {
                    Some(norm) => norm.forward(&rows)?,
                    None => standardized(&rows, EPS)?,
                };
                rows.transpose(1, 2)?
            }
        };
        activate(&y.contiguous()?, self.activation)
    }
}

impl Norm {
    fn open(tensors: &OuterTensors, name: &str, n: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: tensors.read(&format!("{name}.weight"), &[n])?,
            bias: tensors.read(&format!("{name}.bias"), &[n])?,
            eps,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = standardized(x, self.eps)?;
        x.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)
    }
}

/// Gives each row zero mean and unit variance.
fn standardized(x: &Tensor, eps: f64) -> candle_core::Result<Tensor> {
    let last = candle_core::D::Minus1;
    let centered = x.broadcast_sub(&x.mean_keepdim(last)?)?;
    let variance = centered.sqr()?.mean_keepdim(last)?;
    centered.broadcast_div(&(variance + eps)?.sqrt()?)
}
