//! Alternating updates (AltUp, Gemma 3n). A layer's hidden state has several streams, and a block computes one.

use candle_core::{Device, Result, Tensor};
use candle_nn::Init;

use crate::config::{Activation, AltUpConfig, LinearConfig, NormConfig, NormWeight};
use crate::layers::own::streams::{apart, side_by_side};
use crate::layers::{Linear, Norm, ParameterSource, visit::parts};
use crate::ops::{Value, uploaded};

/// The prediction and correction of a block's AltUp streams: see [`AltUpConfig`].
///
/// transformers' `Gemma3nTextAltUp`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>.
/// Its clip of coefficients in training, at 120, is not applied.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct AltUp {
    pub config: AltUpConfig,
    pub router_norm: Norm,
    /// `[n_streams, d_model]`
    pub router: Linear,
    /// The projection to the prediction coefficients, `[n_streams², n_streams]`.
    pub prediction: Linear,
    /// The projection to the correction coefficients, `[n_streams, n_streams]`.
    pub correction: Linear,
    /// Factors on the active stream before the per-layer input's gate, `[d_model]`.
    pub input_scale: Tensor,
}

impl AltUp {
    /// Creates the layer with `router_norm`, `router`, `prediction`, `correction` and `input_scale.weight` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(config: &AltUpConfig, norm: &NormConfig, vb: &ParameterSource) -> Result<Self> {
        let linear = |name: &str, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        let (n, d_model) = (config.n_streams, norm.d_model);
        let scale = vb.pp("input_scale");
        Ok(Self {
            config: *config,
            router_norm: Norm::new(norm, vb.pp("router_norm"))?,
            router: linear("router", d_model, n)?,
            prediction: linear("prediction", n, n * n)?,
            correction: linear("correction", n, n)?,
            input_scale: scale.get_with_hints(d_model, "weight", Init::Const(0.0))?,
        })
    }

    /// Returns the width of one stream.
    fn d_model(&self) -> usize {
        self.router_norm.config().d_model
    }

    /// Returns the coefficients that `map` computes from rows, in f32 or wider.
    fn coefficients(&self, x: &Value, map: &Linear, train: bool) -> Result<Value> {
        let normal = self.router_norm.apply(x)?;
        let routed = self.router.apply(&normal, None, train)?;
        // Scaled after the product, which rounds once.
        let routed = routed.scale(1.0 / self.d_model() as f64)?;
        let routed = routed.activate(Activation::Tanh)?;
        map.apply(&routed, None, train)?.widened()
    }

    /// Predicts all streams from the streams `x`, which lie side by side.
    pub(in crate::layers) fn predicted(&self, x: &Value, train: bool) -> Result<Vec<Value>> {
        let (n, dtype) = (self.config.n_streams, x.dtype());
        let streams = apart(x, n)?;
        let active = &streams[self.config.active];
        let coefficients = self.coefficients(active, &self.prediction, train)?;
        let wide = streams.iter().map(Value::widened);
        let wide = wide.collect::<Result<Vec<_>>>()?;
        let predicted = |to: usize| {
            let part = |from: usize| {
                let coefficient = coefficients.columns(to * n + from..to * n + from + 1);
                wide[from].times_column(&coefficient)
            };
            let sum = (0..n).try_fold(wide[to].clone(), |sum, from| sum.add(&part(from)?))?;
            sum.to_dtype(dtype)
        };
        (0..n).map(predicted).collect()
    }

    /// Corrects the predicted streams by the block's output for the active one.
    pub(in crate::layers) fn corrected(
        &self,
        predicted: &[Value],
        y: &Value,
        train: bool,
    ) -> Result<Vec<Value>> {
        let coefficients = self.coefficients(y, &self.correction, train)?;
        let coefficients = coefficients.shift(1.0)?;
        let expected = predicted[self.config.active].widened()?;
        let new = y.widened()?.add(&expected.scale(-1.0)?)?;
        let corrected = predicted.iter().enumerate().map(|(i, predicted)| {
            let correction = new.times_column(&coefficients.columns(i..i + 1))?;
            let corrected = correction.add(&predicted.widened()?)?;
            corrected.to_dtype(y.dtype())
        });
        corrected.collect()
    }
}

parts!(AltUp: Self { router, prediction, correction, .. } => [] [router, prediction, correction]);

/// The layers that make a stack's input into AltUp streams, and the streams into the output.
///
/// For an input `x`, the first stream is `x`, and stream `i` is `spread_i(x)`, scaled to the root mean square of `x`.
/// The output is the mean of the first stream and `merge_i` of each other stream, scaled to the first stream's root
/// mean square. Mean squares below 10⁻⁵ are replaced by 10⁻⁵ (transformers' `Gemma3nTextModel`).
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Streams {
    /// The projections to each stream but the first.
    pub spread: Vec<Linear>,
    /// The projections back.
    pub merge: Vec<Linear>,
}

/// The lower bound on the mean square of a stream.
const LEAST_SQUARE: f64 = 1e-5;
/// A tiny epsilon for root mean squares. It changes only rows of zeros.
const TINY: f64 = 1e-30;

impl Streams {
    /// Creates `altup.spread.{i}` and `altup.merge.{i}` from `vb`, for each stream `i` but the first, counted from 0.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(config: &AltUpConfig, d_model: usize, vb: &ParameterSource) -> Result<Self> {
        let all = |role: &str| {
            let vb = vb.pp("altup").pp(role);
            let config_of_each = LinearConfig::new(d_model, d_model).with_bias(false);
            let each = (0..config.n_streams - 1).map(|i| Linear::new(&config_of_each, vb.pp(i)));
            each.collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            spread: all("spread")?,
            merge: all("merge")?,
        })
    }

    fn n_streams(&self) -> usize {
        1 + self.spread.len()
    }

    /// Returns the streams for an input, side by side.
    pub(in crate::layers) fn opened(&self, x: &Value, train: bool) -> Result<Value> {
        let others = self.spread.iter().map(|map| {
            let mapped = map.apply(x, None, train)?;
            scaled_to(&mapped, x)
        });
        let others = others.collect::<Result<Vec<_>>>()?;
        side_by_side(std::iter::once(x).chain(&others))
    }

    /// Returns the output for streams that lie side by side.
    pub(in crate::layers) fn merged(&self, x: &Value, train: bool) -> Result<Value> {
        let streams = apart(x, self.n_streams())?;
        let mut sum = streams[0].widened()?;
        for (map, stream) in self.merge.iter().zip(&streams[1..]) {
            let mapped = map.apply(stream, None, train)?;
            let scaled = scaled_to(&mapped, &streams[0])?;
            sum = sum.add(&scaled.widened()?)?;
        }
        let mean = sum.scale(1.0 / self.n_streams() as f64)?;
        mean.to_dtype(x.dtype())
    }
}

parts!(Streams: Self { spread, merge } => [] [spread, merge]);

/// Scales each row to the root mean square of the same row in `like`.
fn scaled_to(x: &Value, like: &Value) -> Result<Value> {
    let (unit, root) = with_root(x)?;
    let (_, target) = with_root(like)?;
    // Below the least mean square, the division would use too large a root.
    let share = root.scale(LEAST_SQUARE.sqrt().recip())?;
    let share = share.clamp([f64::NEG_INFINITY, 1.0])?;
    let factor = target.gate(&share, Activation::Identity, None)?;
    unit.times_column(&factor)?.to_dtype(x.dtype())
}

/// Returns each row divided by its root mean square, and the roots as a column, in f32 or wider.
fn with_root(x: &Value) -> Result<(Value, Value)> {
    let wide = x.widened()?;
    let norm = NormConfig::rms_norm(wide.width(), TINY).with_weight(NormWeight::Absent);
    let ones = Tensor::ones(wide.width(), wide.dtype(), &Device::Cpu)?;
    let ones = uploaded(&ones, wide.dtype(), &wide.device())?;
    let unit = wide.norm(&ones, None, &norm)?;
    let root = wide.mean_products(&unit)?;
    Ok((unit, root))
}
