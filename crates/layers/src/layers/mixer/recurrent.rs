//! Parts that recurrent mixers with a state for each head share: convolved projections, and the decay.

use std::sync::Arc;

use candle_blocks_kernels::products::WeightFormat;
use candle_core::{DType, Result, Tensor};
use candle_nn::Init;

use crate::config::{Activation, LinearConfig};
use crate::layers::visit::parts;
use crate::layers::{Linear, Norm, ParameterSource, linear::packed::plain, packed::Packing};
use crate::ops::{TapTable, Value, record, record_conversion};

/// A projection, a short convolution of its rows, and SiLU.
#[derive(Clone, Debug)]
pub(super) struct ConvolvedProjection {
    projection: Linear,
    /// `[width, 1, taps]`.
    weight: Tensor,
    bias: Option<Tensor>,
}

parts!(ConvolvedProjection: Self { projection, .. } => [projection] []);

impl ConvolvedProjection {
    /// Creates the projection `name`, without a bias, and the convolution `{name}_convolution`.
    pub fn new(
        vb: &ParameterSource,
        name: &str,
        [d_in, width, taps]: [usize; 3],
        has_bias: bool,
    ) -> Result<Self> {
        let convolution = vb.pp(format_args!("{name}_convolution"));
        let linear = LinearConfig::new(d_in, width).with_bias(false);
        let of_convolution = has_bias.then(|| convolution.get(width, "bias"));
        Ok(Self {
            projection: Linear::new(&linear, vb.pp(name))?,
            weight: convolution.get((width, 1, taps), "weight")?,
            bias: of_convolution.transpose()?,
        })
    }

    /// Returns the rows in f32 or f64, and appends those that precede the next pass's to `after`.
    pub fn apply(
        &self,
        (x, train): (&Value, bool),
        earlier: Option<&Tensor>,
        table: &Arc<TapTable>,
        after: &mut Vec<Tensor>,
    ) -> Result<Value> {
        let rows = self.projection.apply(x, None, train)?;
        after.push(rows.rows_after(earlier, table)?);
        let mixed = rows.convolve(&self.weight, self.bias.as_ref(), earlier, table)?;
        mixed.activate(Activation::Silu)?.widened()
    }

    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            projection: self.projection.packed(packing)?,
            weight: single(&self.weight)?,
            bias: self.bias.as_ref().map(single).transpose()?,
        })
    }
}

/// Each head's decay: `exp(-exp(rate) · step)` with `step = softplus(projection(x) + bias)`.
#[derive(Clone, Debug)]
pub(super) struct Decay {
    projection: Linear,
    bias: Tensor,
    rate: Tensor,
}

parts!(Decay: Self { projection, .. } => [projection] []);

impl Decay {
    /// Creates the projection `name` with its bias, and `rate`.
    pub fn new(vb: &ParameterSource, name: &str, [d_in, n_heads]: [usize; 2]) -> Result<Self> {
        let one = Init::Const(1.0);
        let linear = LinearConfig::new(d_in, n_heads).with_bias(false);
        Ok(Self {
            projection: Linear::new(&linear, vb.pp(name))?,
            bias: vb.pp(name).get_with_hints(n_heads, "bias", one)?,
            rate: vb.pp("rate").get_with_hints(n_heads, "weight", one)?,
        })
    }

    /// Returns the steps, in f32 or f64.
    pub fn steps(&self, x: &Value, train: bool) -> Result<Value> {
        let steps = self.projection.apply(x, None, train)?.widened()?;
        let steps = steps.add_to_rows(&widened(&self.bias, steps.dtype())?)?;
        steps.activate(Activation::Softplus)
    }

    /// Returns the decay's logarithms for these steps.
    pub fn logarithms(&self, steps: &Value) -> Result<Value> {
        let rate = widened(&self.rate, steps.dtype())?;
        record("exp", &rate)?;
        record("neg", &rate)?;
        steps.multiply_rows(&rate.exp()?.neg()?)
    }

    /// The projection stays in f32 in every precision: few weights, on which all later positions depend.
    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            projection: self.projection.packed(&exact(packing))?,
            bias: single(&self.bias)?,
            rate: single(&self.rate)?,
        })
    }
}

/// Returns a parameter in another type, through the graph.
pub(super) fn widened(of: &Tensor, dtype: DType) -> Result<Tensor> {
    if of.dtype() != dtype {
        record_conversion(of, dtype)?;
    }
    of.to_dtype(dtype)
}

/// Returns the packing in f32.
pub(super) fn exact(packing: &Packing) -> Packing {
    Packing {
        format: Some(WeightFormat::F32),
        ..packing.clone()
    }
}

/// Returns a packed layer's parameter.
pub(super) fn single(of: &Tensor) -> Result<Tensor> {
    plain(of)?.to_dtype(DType::F32)
}

/// Returns a packed layer's norm.
pub(super) fn packed_norm(of: &Norm) -> Result<Norm> {
    let bias = of.bias().map(single).transpose()?;
    Norm::from_parts(single(of.weight())?, bias, *of.config())
}

/// Returns the rows with a dimension for heads of this width.
pub(super) fn in_heads(rows: &Value, width: usize) -> Result<Value> {
    let mut dims = rows.dims().to_vec();
    let of_all = dims.pop().unwrap_or(0);
    dims.extend([of_all / width, width]);
    rows.reshape(dims)
}
