//! A multi-layer perceptron.

use candle_core::{Module, Result, Tensor, bail};

use crate::config::{Activation, LinearConfig, MlpConfig};
use crate::layers::ParameterSource;
use crate::{layers::Linear, ops::Value};

/// A multi-layer perceptron of any depth, applied to each position: `linear_n(act(.. act(linear_1(x)) ..))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// Creates the layer with `layers.{i}`, each with `weight` and `bias`, from `vb`.
    ///
    /// # Errors
    /// If there are fewer than two widths, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &MlpConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        let layers = config.widths.windows(2).enumerate().map(|(i, widths)| {
            let config = LinearConfig::new(widths[0], widths[1]);
            Linear::new(&config, vb.pp("layers").pp(i))
        });
        Self::from_parts(layers.collect::<Result<_>>()?, config.activation)
    }

    /// Builds the perceptron from its layers in order. The activation follows each layer but the last.
    ///
    /// # Errors
    /// If there is no layer, or one layer's output does not fit the next layer's input.
    pub fn from_parts(layers: Vec<Linear>, activation: Activation) -> Result<Self> {
        if layers.is_empty() {
            bail!("mlp: no layers given, expected at least one");
        }
        for (i, pair) in layers.windows(2).enumerate() {
            let (d_out, d_in) = (pair[0].shape().0, pair[1].shape().1);
            if d_out != d_in {
                bail!(
                    "mlp: layer {i} has output width {d_out}, but layer {} has input width {d_in}",
                    i + 1
                );
            }
        }
        Ok(Self { layers, activation })
    }

    /// Returns the linear layers, first to last.
    pub fn layers(&self) -> &[Linear] {
        &self.layers
    }
}

impl Module for Mlp {
    /// # Shapes
    /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some((last, before)) = self.layers.split_last() else {
            return Ok(x.clone()); // never: as checked where it was made
        };
        Value::through(x, |x| {
            let hidden = before.iter().try_fold(x.clone(), |x, layer| {
                layer.apply(&x, None, false)?.activate(self.activation)
            })?;
            last.apply(&hidden, None, false)
        })
    }
}
