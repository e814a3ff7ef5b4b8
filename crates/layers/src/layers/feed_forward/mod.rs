//! The position-wise feed-forward network, plain and gated.

use std::sync::Arc;

use candle_core::{ModuleT, Result, Tensor, bail};

use crate::config::{
    Activation, FeedForwardConfig, FeedForwardForm, GateClamp, LinearConfig, LinearInit,
    NormConfig, getters,
};
use crate::layers::{Dropout, DropoutSource, Linear, Norm, ParameterSource, Xielu, visit::parts};
use crate::ops::Value;

pub(in crate::layers) mod packed;

use packed::PackedFeedForward;

/// A position-wise feed-forward network: `down(dropout(act(up(x))))`, or gated `down(dropout(act(gate(x)) · up(x)))`.
/// A [`GateClamp`] may bound gate and up, and gate and output may have constant factors. With sparsity, most of the gate's outputs become 0 before the activation.
/// The activation may be an [`Xielu`], which has its own parameters. A norm may precede `down`.
///
/// The feed-forward of Vaswani et al. 2017 (<https://arxiv.org/abs/1706.03762>, section 3.3) and its
/// gated variants (Shazeer 2020, <https://arxiv.org/abs/2002.05202>). The residual connection and the norm
/// are not part of it; wrap it in a [`Sublayer`](crate::Sublayer) for those.
///
/// Fresh parameters: `up` and `gate` are Kaiming normal with ReLU gain, `down` is Xavier normal with gain
/// 0.02, and biases are zero.
///
/// ```
/// use candle_blocks::{Activation, FeedForward, FeedForwardConfig};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// let config = FeedForwardConfig::new(8).with_activation(Activation::Relu); // d_ff = 32
/// let feed_forward = FeedForward::new(&config, vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 3, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(feed_forward.forward(&x)?.dims(), [2, 3, 8]);
/// assert_eq!(parameters.all_vars().len(), 4);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
    /// Replaces the activation function.
    pub(crate) xielu: Option<Xielu>,
    /// The bounds of gate and `up`.
    pub(crate) clamp: Option<GateClamp>,
    /// The factors on the gate and on the output.
    pub(crate) multipliers: Multipliers,
    /// The share of the gate's outputs that become 0.
    pub(crate) sparsity: Option<f64>,
    /// Normalizes the rows that `down` reads, `[d_ff]`.
    pub(crate) sub_norm: Option<Norm>,
    dropout: Dropout,
    /// The packed weights, in a packed layer. The linear layers then hold only shapes and biases.
    pub(crate) packed: Option<Arc<PackedFeedForward>>,
}

/// The factors on a feed-forward's gate and on its output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multipliers {
    pub gate: f64,
    pub output: f64,
}

impl FeedForward {
    /// Creates the layer with `up`, `down` and, if gated, `gate` from `vb`, each with `weight` and `bias`. If
    /// configured, also reads `xielu` and `sub_norm`.
    pub fn new<'p>(config: &FeedForwardConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let &FeedForwardConfig { d_model, d_ff, .. } = config;
        let widen = |name| {
            let config = LinearConfig::new(d_model, d_ff)
                .with_bias(config.up_bias)
                .with_init(LinearInit::KaimingNormal);
            Linear::new(&config, vb.pp(name))
        };
        let gate = match config.form {
            FeedForwardForm::Plain => None,
            FeedForwardForm::Absent => {
                bail!("an absent feed-forward is no layer; make a block without it")
            }
            FeedForwardForm::Gated => Some(widen("gate")?),
        };
        let narrow = LinearConfig::new(d_ff, d_model)
            .with_bias(config.down_bias)
            .with_init(LinearInit::XavierNormal { gain: 0.02 });
        Ok(Self {
            gate,
            up: widen("up")?,
            down: Linear::new(&narrow, vb.pp("down"))?,
            activation: config.activation,
            xielu: config
                .xielu
                .map(|xielu| Xielu::new(&xielu, vb.pp("xielu")))
                .transpose()?,
            clamp: config.clamp,
            multipliers: Multipliers {
                gate: config.gate_multiplier,
                output: config.output_multiplier,
            },
            sparsity: config.sparsity,
            sub_norm: config
                .sub_norm
                .map(|norm| {
                    let norm = NormConfig {
                        d_model: d_ff,
                        ..norm
                    };
                    Norm::new(&norm, vb.pp("sub_norm"))
                })
                .transpose()?,
            dropout: Dropout::new(config.dropout, DropoutSource::default())?,
            packed: None,
        })
    }

    /// Builds the layer from its projections, without dropout. The layer is gated if `gate` is given.
    ///
    /// # Errors
    /// If the shapes of the projections do not fit each other.
    pub fn from_parts(
        gate: Option<Linear>,
        up: Linear,
        down: Linear,
        activation: Activation,
    ) -> Result<Self> {
        let (d_ff, d_model) = up.shape();
        if let Some(gate) = &gate {
            gate.expect_shape("feed-forward", "gate", [d_ff, d_model])?;
        }
        down.expect_shape("feed-forward", "down", [down.shape().0, d_ff])?;
        Ok(Self {
            gate,
            up,
            down,
            activation,
            xielu: None,
            clamp: None,
            multipliers: Multipliers {
                gate: 1.0,
                output: 1.0,
            },
            sparsity: None,
            sub_norm: None,
            dropout: Dropout::none(),
            packed: None,
        })
    }

    /// Applies `dropout` after the activation.
    pub fn with_dropout(mut self, dropout: Dropout) -> Self {
        self.dropout = dropout;
        self
    }

    getters! {
        /// The gate projection, `[d_ff, d_model]`, if gated.
        gate(&self) -> Option<&Linear> => self.gate.as_ref();
        /// The up projection, `[d_ff, d_model]`.
        up(&self) -> &Linear => &self.up;
        /// The down projection, `[d_model, d_ff]`.
        down(&self) -> &Linear => &self.down;
        /// The norm before `down`, `[d_ff]`, if there is one.
        sub_norm(&self) -> Option<&Norm> => self.sub_norm.as_ref();
        /// The activation function.
        activation(&self) -> Activation => self.activation;
    }

    /// Returns the input width and the output width.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.up.shape().1, self.down.shape().0]
    }

    /// Returns the gate if there is one, `up` and `down`.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Returns all parameters that have gradients.
    pub(in crate::layers) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        let xielu_parameters = self.xielu.iter().flat_map(Xielu::parameters);
        self.linears()
            .flat_map(Linear::parameters)
            .chain(xielu_parameters)
    }

    /// Returns true if the dropout in the layer or in an adapter is active.
    pub(in crate::layers) fn drops(&self, train: bool) -> bool {
        let adapters = self.linears().filter_map(Linear::dropout);
        adapters
            .chain([&self.dropout])
            .any(|dropout| dropout.is_on(train))
    }

    /// Computes the output and adds it to `residual`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        residual: Option<&Value>,
        train: bool,
    ) -> Result<Value> {
        if let Some(packed) = &self.packed {
            return packed.apply(x, residual, train);
        }
        let up = self.up.apply(x, None, train)?;
        let gate = self.gate.as_ref().map(|gate| {
            let gate = gate
                .apply(x, None, train)?
                .multiplied(self.multipliers.gate)?;
            match self.sparsity {
                Some(share) => gate.largest(share),
                None => Ok(gate),
            }
        });
        let hidden = match (&gate.transpose()?, &self.xielu) {
            (None, None) => up.activate(self.activation)?,
            (None, Some(xielu)) => xielu.apply(&up)?,
            (Some(gate), None) => gate.gate(&up, self.activation, self.clamp)?,
            (Some(gate), Some(xielu)) => {
                xielu.apply(gate)?.gate(&up, Activation::Identity, None)?
            }
        };
        let hidden = self.dropout.apply(&hidden, train)?;
        let hidden = match &self.sub_norm {
            Some(norm) => norm.apply(&hidden)?,
            None => hidden,
        };
        // [.., d_ff] -> [.., d_model]
        match self.multipliers.output {
            1.0 => self.down.apply(&hidden, residual, train),
            factor => {
                let output = self.down.apply(&hidden, None, train)?;
                output.scale(factor)?.added_to(residual)
            }
        }
    }

    /// Computes the output in evaluation mode, as in PyTorch after `.eval()`.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

parts!(FeedForward: Self { gate, up, down, dropout, packed, .. } => [dropout, packed] [gate, up, down]);

impl ModuleT for FeedForward {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match &self.packed {
            // The products wake the worker threads themselves.
            Some(_) => Value::through_packed("feed-forward", x, |x| self.apply(x, None, train)),
            None => Value::through(x, |x| self.apply(x, None, train)),
        }
    }
}
