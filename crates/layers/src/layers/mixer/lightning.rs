//! Lightning attention.

use candle_blocks_kernels::recurrence::{Rule, StateHeads};
use candle_core::{Device, Result, Tensor};

use super::layer::recurrent;
use super::recurrent::RecurrentPass;
use crate::config::{Activation, LightningConfig, getters};
use crate::layers::packed::Packing;
use crate::layers::{Linear, Norm, ParameterSource};
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::{Value, record};

/// Lightning attention, linear attention with a constant decay for each head. [`LightningConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::LightningConfig;
/// use candle_blocks::layers::LightningAttention;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// // Four heads of 4 dimensions.
/// let attention = LightningAttention::new(&LightningConfig::new(8, 4, 4), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(attention.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LightningAttention {
    config: LightningConfig,
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    norm: Norm,
    output: Linear,
    is_packed: bool,
}

impl LightningAttention {
    /// Creates the layer with parameters from `vb`: the projections `query`, `key`, `value` and `gate`
    /// `[n_heads · head_dim, d_model]` and `output` `[d_model, n_heads · head_dim]`, without biases, and `norm`
    /// `[n_heads · head_dim]`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &LightningConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let (d_model, width) = (config.d_model, config.width());
        let linear = |name: &str, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        Ok(Self {
            config: *config,
            query: linear("query", d_model, width)?,
            key: linear("key", d_model, width)?,
            value: linear("value", d_model, width)?,
            gate: linear("gate", d_model, width)?,
            norm: Norm::new(&config.norm, vb.pp("norm"))?,
            output: linear("output", width, d_model)?,
            is_packed: false,
        })
    }

    getters! {
        /// Widths, heads, slope and norm.
        config(&self) -> &LightningConfig => &self.config;
    }

    /// Returns the dimensions of the state after the batch.
    fn state_dims(&self) -> [Vec<usize>; 1] {
        let of = &self.config;
        [vec![of.n_heads, of.head_dim, of.head_dim]]
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            norm: self.norm.packed()?,
            ..self.with_packed_parts(packing)?
        })
    }

    /// Computes the output for positions after the state's, and adds it to `residual`.
    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let train = pass.context.train();
        let states = RecurrentPass::new(1, x, pass, state)?;
        let [query, key, value] = [&self.query, &self.key, &self.value].map(|of| {
            let rows = of.apply(x, None, train)?.widened()?;
            rows.activate(self.config.activation)
        });
        let (query, key, value) = (query?, key?, value?);
        let decay = each_row(&query, &self.config.decays())?;
        let write = each_row(&query, &vec![1.0; self.config.n_heads])?;
        let read = states.recur(
            Rule::Sum,
            self.heads(),
            [&query, &key, &value],
            [&decay, &write],
        )?;

        let read = pass.requested_rows(read.to_dtype(x.dtype())?)?;
        let mixed = self.norm.apply_in_place(read)?;
        let gate = self
            .gate
            .apply(&pass.requested_rows(x.clone())?, None, train)?;
        let mixed = gate.gate(&mixed, Activation::Sigmoid, None)?;
        self.output.apply(&mixed, residual, train)
    }

    fn heads(&self) -> StateHeads {
        let of = &self.config;
        StateHeads {
            n_keys: of.n_heads,
            n_values: of.n_heads,
            key_dim: of.head_dim,
            value_dim: of.head_dim,
        }
    }
}

/// Returns these values for every row of `like`, in its type.
fn each_row(like: &Value, numbers: &[f64]) -> Result<Value> {
    let mut dims = like.dims().to_vec();
    dims.pop();
    dims.push(numbers.len());
    let numbers = Tensor::new(numbers, &Device::Cpu)?.to_dtype(like.dtype())?;
    let numbers = numbers.to_device(&like.device())?;
    record("copy", &numbers)?;
    like.beside(&numbers.broadcast_as(dims)?.contiguous()?)
}

recurrent!(Lightning: LightningAttention, "lightning attention", LIGHTNING,
    [query, key, value, gate, output]);
