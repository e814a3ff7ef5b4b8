//! The modules in sentence-transformers that map a vector to a vector.

use std::fmt;

use candle_core::{DType, Device, Module, Tensor};

use crate::config::Activation;
use crate::error::{Error, Result};
use crate::layers::{Linear, Norm};
use crate::ops;

/// The minimum length by which a vector is divided, as in PyTorch's `normalize`.
const LEAST_LENGTH: f64 = 1e-12;

/// A map on vectors, and the features that it reads and writes.
#[derive(Clone, Debug)]
pub(crate) struct ModuleStep {
    pub stage: VectorMap,
    pub from: Feature,
    pub to: Feature,
}

/// A text's feature, with its name in sentence-transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A vector for each token.
    Tokens,
    /// One vector for the text.
    Vectors,
    /// A cross-encoder's scores.
    Scores,
}

/// A map from vectors `[n, d]` to vectors.
#[derive(Clone, Debug)]
pub(crate) enum VectorMap {
    /// A linear layer and an activation, optionally with a residual connection.
    Dense {
        linear: Linear,
        activation: Activation,
        residual: Residual,
    },
    /// A norm.
    LayerNorm(Norm),
    /// Divides a vector by its length.
    Normalize,
    /// Keeps the first features.
    Truncate(usize),
    /// Replaces a feature x by log(1 + max(x, 0)), this many times.
    LogOfRelu(u8),
    /// Keeps this number of features, those with the largest magnitude; the others become 0.
    KeepLargest(usize),
}

/// The value that a dense layer adds to its output.
#[derive(Clone, Debug)]
pub(crate) enum Residual {
    None,
    /// Its input.
    Input,
    /// Another linear layer's output.
    Linear(Linear),
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 3] = [Self::Tokens, Self::Vectors, Self::Scores];

    /// Returns the feature with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|feature| feature.to_string() == name)
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => "token_embeddings",
            Self::Vectors => "sentence_embedding",
            Self::Scores => "scores",
        })
    }
}

impl ModuleStep {
    /// Makes a step that maps a text's vector.
    pub fn of_vectors(stage: VectorMap) -> Self {
        Self {
            stage,
            from: Feature::Vectors,
            to: Feature::Vectors,
        }
    }
}

/// Returns the width of a feature after all steps, which begin with vectors of this width.
///
/// # Errors
/// If a step reads vectors with another width.
pub(crate) fn width_after(steps: &[ModuleStep], width: usize, result: Feature) -> Result<usize> {
    let mut widths = [Some(width), None];
    for step in steps {
        let width = widths[place(step.from)].map(|width| step.stage.width(width));
        widths[place(step.to)] = width.transpose()?;
    }
    Ok(widths[place(result)].unwrap_or_default())
}

/// Returns a feature after all steps, which begin with `vectors`.
///
/// # Errors
/// If no step returns it, or a tensor operation fails.
pub(crate) fn after(steps: &[ModuleStep], vectors: Tensor, result: Feature) -> Result<Tensor> {
    let mut features = [Some(vectors), None];
    for step in steps {
        let output = features[place(step.from)]
            .as_ref()
            .map(|x| step.stage.forward(x));
        features[place(step.to)] = output.transpose()?;
    }
    let missing = || Error::InvalidConfig(format!("no module returns {result}"));
    features[place(result)].take().ok_or_else(missing)
}

/// Returns the index of a text's feature, one of two.
fn place(feature: Feature) -> usize {
    usize::from(feature == Feature::Scores)
}

impl VectorMap {
    /// Returns the output for vectors `[n, d]`.
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense {
                linear,
                activation,
                residual,
            } => {
                let y = ops::activate(&linear.forward(x)?, *activation)?;
                match residual {
                    Residual::None => Ok(y),
                    Residual::Input => y + x,
                    Residual::Linear(linear) => y + linear.forward(x)?,
                }
            }
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Normalize => {
                let exact = x.to_dtype(DType::F64)?;
                let lengths = exact.sqr()?.sum_keepdim(1)?.sqrt()?;
                let lengths = lengths.clamp(LEAST_LENGTH, f64::MAX)?;
                exact.broadcast_div(&lengths)?.to_dtype(x.dtype())
            }
            Self::Truncate(dim) => x.narrow(1, 0, (*dim).min(x.dim(1)?))?.contiguous(),
            Self::LogOfRelu(times) => mapped(x, |row| {
                for value in row {
                    let log = (0..*times).fold(f64::from(*value), |x, _| x.max(0.0).ln_1p());
                    *value = log as f32;
                }
            }),
            Self::KeepLargest(n) => mapped(x, |row| {
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by(|&a, &b| row[b].abs().total_cmp(&row[a].abs()));
                order.iter().skip(*n).for_each(|&i| row[i] = 0.0);
            }),
        }
    }

    /// Returns whether every feature keeps its meaning.
    pub fn keeps_features(&self) -> bool {
        matches!(
            self,
            Self::Normalize | Self::LogOfRelu(_) | Self::KeepLargest(_)
        )
    }

    /// Returns the output's width for an input with this width.
    ///
    /// # Errors
    /// If it reads vectors with another width.
    pub fn width(&self, d_in: usize) -> Result<usize> {
        let (reads, d_out) = match self {
            Self::Dense { linear, .. } => {
                let (d_out, d_in) = linear.shape();
                (d_in, d_out)
            }
            Self::LayerNorm(norm) => (norm.config().d_model, d_in),
            Self::Normalize | Self::LogOfRelu(_) | Self::KeepLargest(_) => (d_in, d_in),
            Self::Truncate(dim) => (d_in, d_in.min(*dim)),
        };
        match reads == d_in {
            true => Ok(d_out),
            false => Err(Error::InvalidConfig(format!(
                "a module reads vectors with {reads} features, but gets vectors with {d_in}; check \
                 that its files belong to this model"
            ))),
        }
    }
}

/// Returns vectors `[n, d]` in f32 on the CPU after a change of each.
fn mapped(x: &Tensor, change: impl Fn(&mut [f32])) -> candle_core::Result<Tensor> {
    let (n, d) = x.dims2()?;
    let mut rows: Vec<f32> = x.flatten_all()?.to_vec1()?;
    rows.chunks_exact_mut(d).for_each(change);
    Tensor::from_vec(rows, (n, d), &Device::Cpu)
}
