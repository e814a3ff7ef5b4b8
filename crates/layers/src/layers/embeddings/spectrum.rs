//! Audio spectrogram embeddings.

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::Init;

use crate::Error;
use crate::config::{Activation, SpectrumEmbeddingsConfig, getters};
use crate::layers::{Dropout, DropoutSource, Linear, ParameterSource};
use crate::ops;

/// The kernel size of a convolution, in time steps.
const STEPS: usize = 3;

/// Spectrogram embeddings: two convolutions over time, each followed by GELU, the second with stride 2. Position
/// embeddings are then added (transformers' `WhisperEncoder`).
///
/// Names in a `VarBuilder`: `convolution_1`, `convolution_2`, `position`.
#[derive(Clone, Debug)]
pub struct SpectrumEmbeddings {
    config: SpectrumEmbeddingsConfig,
    convolutions: [Linear; 2], // of [channels * STEPS]
    positions: Tensor,         // [n_positions, d_model]
    pub(super) dropout: Dropout,
}

impl SpectrumEmbeddings {
    /// Creates the layer with parameters from `vb`: `convolution_1.weight` `[d_model, n_mels, 3]`,
    /// `convolution_2.weight` `[d_model, d_model, 3]`, their biases, and `position.weight` `[n_positions, d_model]`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &SpectrumEmbeddingsConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let d_model = config.d_model;
        let init = Init::Randn {
            mean: 0.0,
            stdev: 0.02,
        };
        let convolution = |name: &str, channels: usize| {
            let vb = vb.pp(name);
            let weight = vb.get_with_hints((d_model, channels, STEPS), "weight", init)?;
            let bias = vb.get_with_hints(d_model, "bias", Init::Const(0.0))?;
            Linear::from_parts(weight.flatten_from(1)?, Some(bias))
        };
        let positions = (config.n_positions, d_model);
        Ok(Self {
            convolutions: [
                convolution("convolution_1", config.n_mels)?,
                convolution("convolution_2", d_model)?,
            ],
            positions: vb
                .pp("position")
                .get_with_hints(positions, "weight", init)?,
            dropout: Dropout::new(config.dropout, DropoutSource::default())?,
            config: config.clone(),
        })
    }

    getters! {
        /// The configuration.
        config(&self) -> &SpectrumEmbeddingsConfig => &self.config;
    }

    /// Computes the first block's input, `[batch, n_positions, d_model]`.
    ///
    /// # Shapes
    /// `features` is `[batch, n_mels, 2 · n_positions]`.
    ///
    /// # Errors
    /// If `features` has another shape or an integer dtype.
    pub fn forward_t(&self, features: &Tensor, train: bool) -> Result<Tensor> {
        if !features.dtype().is_float() {
            let reason = format!("is {:?}, expected a floating-point type", features.dtype());
            return Err(Error::input("input_features", reason).into());
        }
        let (found, n_mels) = (features.dims(), self.config.n_mels);
        let n_steps = 2 * self.config.n_positions;
        if found.len() != 3 || found[1..] != [n_mels, n_steps] {
            let reason = format!(
                "has shape {found:?}, expected [batch, {n_mels}, {n_steps}]; pad or cut the audio"
            );
            return Err(Error::input("input_features", reason).into());
        }
        let mut x = features.transpose(1, 2)?.contiguous()?;
        for (convolution, stride) in self.convolutions.iter().zip([1, 2]) {
            x = convolution.forward(&windows(&x, stride)?)?;
            x = ops::activate(&x, Activation::Gelu)?;
        }
        x = x.broadcast_add(&self.positions.unsqueeze(0)?)?;
        self.dropout.forward_t(&x, train)
    }
}

/// Returns a convolution's input window, with padding 1, at each output step. `x` is `[batch, steps, channels]`, the
/// result `[batch, places, channels * STEPS]`.
fn windows(x: &Tensor, stride: usize) -> Result<Tensor> {
    let (batch, steps, channels) = x.dims3()?;
    let padded = x.pad_with_zeros(1, 1, 1)?;
    let seen = (0..STEPS).map(|i| padded.narrow(1, i, steps));
    let seen = Tensor::stack(&seen.collect::<Result<Vec<_>>>()?, 3)?;
    let seen = seen.reshape((batch, steps, channels * STEPS))?;
    if stride == 1 {
        return Ok(seen);
    }
    let places: Vec<u32> = (0..steps as u32).step_by(stride).collect();
    let places = Tensor::new(places, x.device())?;
    seen.index_select(&places, 1)
}
