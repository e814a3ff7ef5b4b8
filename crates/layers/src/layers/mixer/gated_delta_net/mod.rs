//! Gated delta rules.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::Init;

use crate::config::{GatedDeltaNetConfig, LinearConfig, getters};
use crate::layers::visit::parts;
use crate::layers::{ForwardContext, Linear, Norm, ParameterSource, state::LayerState};
use crate::layers::{packed::Packing, pass::Origin, pass::Pass};
use crate::ops::Value;

/// A gated delta rule (Gated DeltaNet). [`GatedDeltaNetConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::GatedDeltaNetConfig;
/// use candle_blocks::layers::GatedDeltaNet;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // Two key heads and four value heads, with keys of 4 and values of 6 dimensions.
/// let delta = GatedDeltaNet::new(&GatedDeltaNetConfig::new(8, [2, 4], [4, 6]), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(delta.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GatedDeltaNet {
    config: GatedDeltaNetConfig,
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    write: Linear,
    decay: Linear,
    /// The convolutions of queries, keys and values, `[width, 1, taps]`.
    convolutions: [Tensor; 3],
    decay_bias: Tensor,
    rate: Tensor,
    norm: Norm,
    output: Linear,
}

impl GatedDeltaNet {
    /// Creates the layer with parameters from `vb`: the projections `query` and `key` `[n_key_heads · key_dim, d_model]`,
    /// `value` and `gate` `[n_value_heads · value_dim, d_model]`, `write` and `decay` `[n_value_heads, d_model]`, and
    /// `output` `[d_model, n_value_heads · value_dim]`, all without biases; the convolutions `query_convolution`,
    /// `key_convolution` and `value_convolution` `[width, 1, taps]` as in `torch.nn.Conv1d`; `decay.bias` and `rate`
    /// `[n_value_heads]`; and `norm` `[value_dim]`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &GatedDeltaNetConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let (keys, values, heads) = (
            config.keys_width(),
            config.values_width(),
            config.n_value_heads,
        );
        let linear = |name, d_in, d_out| {
            Linear::new(
                &LinearConfig::new(d_in, d_out).with_bias(false),
                vb.pp(name),
            )
        };
        let projection = |name, d_out| linear(name, config.d_model, d_out);
        let convolution = |name: &str, width| vb.pp(name).get((width, 1, config.taps), "weight");
        let one = Init::Const(1.0);
        Ok(Self {
            config: *config,
            query: projection("query", keys)?,
            key: projection("key", keys)?,
            value: projection("value", values)?,
            gate: projection("gate", values)?,
            write: projection("write", heads)?,
            decay: projection("decay", heads)?,
            convolutions: [
                convolution("query_convolution", keys)?,
                convolution("key_convolution", keys)?,
                convolution("value_convolution", values)?,
            ],
            decay_bias: vb.pp("decay").get_with_hints(heads, "bias", one)?,
            rate: vb.pp("rate").get_with_hints(heads, "weight", one)?,
            norm: Norm::new(&config.norm, vb.pp("norm"))?,
            output: linear("output", values, config.d_model)?,
        })
    }

    getters! {
        /// Heads, widths, taps, norm and gate.
        config(&self) -> &GatedDeltaNetConfig => &self.config;
    }

    /// Returns true if the layer's weights are packed.
    pub(super) fn is_packed(&self) -> bool {
        false
    }

    /// Returns the dimensions of each part of the state after the batch: the last rows of the three convolutions, and the
    /// state of each value head.
    pub(super) fn state_dims(&self) -> [Vec<usize>; 4] {
        let GatedDeltaNetConfig {
            taps,
            n_value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let [keys, values] = [self.config.keys_width(), self.config.values_width()];
        let rows = |width| vec![taps - 1, width];
        let state = vec![n_value_heads, key_dim, value_dim];
        [rows(keys), rows(keys), rows(values), state]
    }

    /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Computes the delta rule with the context's padding mask and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a padding mask does not fit, or there is an additive
    /// mask.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = Pass::new(context, x.dims())?;
        pass.through(Origin::new("gated delta rule", self.is_packed()), x, |x| {
            self.apply(x, &pass, None, None)
        })
    }

    pub(super) fn packed(&self, _packing: &Packing) -> Result<Self> {
        bail!("not yet")
    }

    /// Computes the output for positions after the state's, and adds it to `residual`.
    pub(super) fn apply(
        &self,
        _x: &Value,
        _pass: &Pass,
        _state: Option<&mut LayerState>,
        _residual: Option<&Value>,
    ) -> Result<Value> {
        bail!("not yet")
    }
}

parts!(GatedDeltaNet: Self { query, key, value, gate, write, decay, output, .. }
    => [] [query, key, value, gate, write, decay, output]);

impl ModuleT for GatedDeltaNet {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
