//! LayerNorm and RMSNorm.

use candle_core::{DType, Result, Tensor};

use crate::config::{NormConfig, NormKind, NormWeight};

use super::{Array, Composed, Taped};
use crate::ops::tape::Reads;

impl Taped<Composed> {
    pub(in crate::ops) fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &NormConfig,
    ) -> Result<Self> {
        let weight_place = self.place(weight, Reads::Both);
        let bias_place = bias.and_then(|bias| self.place(bias, Reads::Forward));
        let norm = ComposedNorm {
            config: *config,
            dtype: self.dtype(),
            gain: gain(&Array::of(weight), config)?,
        };
        let (slot, x) = (self.slot.clone(), self.view()?);
        let bias = bias.map(|bias| Array::of(bias).widened()).transpose()?;
        let y = norm.forward(&x, bias.as_ref())?;
        let asks = [slot.place, weight_place, bias_place];
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let (normal, deviation) = norm.normal(&x.widened()?)?;
            let dy = dy.widened()?;
            let has_weight = norm.config.weight != NormWeight::Absent;
            if has_weight {
                pass.add_column_sums(weight_place, || dy.mul(&normal), norm.dtype)?;
            }
            pass.add_column_sums(bias_place, || Ok(dy.clone()), norm.dtype)?;
            if slot.place.is_none() {
                return Ok(());
            }
            // `dx = (g - mean(g) - n · mean(g · n)) / deviation` with `g = dy · gain`. RMSNorm has no `mean(g)`.
            let g = dy.mul(&norm.gain)?;
            let along = normal.mul(&mean(&g.mul(&normal)?)?)?;
            let centered = match norm.config.kind {
                NormKind::LayerNorm => g.sub(&mean(&g)?)?,
                NormKind::RmsNorm => g,
            };
            let dx = centered.sub(&along)?.div(&deviation)?;
            pass.add(&slot, dx.to_dtype(norm.dtype)?)
        }))
    }
}

/// A norm's kind, and its gain in f32 or f64.
struct ComposedNorm {
    config: NormConfig,
    /// The rows' type.
    dtype: DType,
    gain: Array,
}

impl ComposedNorm {
    fn forward(&self, x: &Array, bias: Option<&Array>) -> Result<Array> {
        if x.is_empty() {
            return Ok(x.clone());
        }
        let (wide, eps) = (x.widened()?, self.config.eps);
        let is_half = self.dtype != wide.dtype();
        let y = match (self.config.kind, self.config.weight) {
            // candle computes f64 norms in f32.
            _ if wide.dtype() == DType::F64 => added(self.normal(&wide)?.0.mul(&self.gain)?, bias)?,
            // A plain RMSNorm rounds half types before the multiplication.
            (NormKind::RmsNorm, NormWeight::Plain) if is_half => {
                let rounded = self.normal(&wide)?.0.to_dtype(self.dtype)?;
                added(rounded.widened()?.mul(&self.gain)?, bias)?
            }
            (NormKind::RmsNorm, _) => added(wide.rms_norm(&self.gain, eps)?, bias)?,
            (NormKind::LayerNorm, _) => {
                let zeros = || self.gain.zeros(self.gain.dims());
                let bias = bias.map_or_else(zeros, |bias| Ok(bias.clone()))?;
                centered(&wide)?.layer_norm(&self.gain, &bias, eps)?
            }
        };
        y.to_dtype(self.dtype)
    }

    /// Returns rows before the gain, and their divisors.
    fn normal(&self, wide: &Array) -> Result<(Array, Array)> {
        let centered = match self.config.kind {
            // Twice, because the first mean is rounded.
            NormKind::LayerNorm => centered(&centered(wide)?)?,
            NormKind::RmsNorm => wide.clone(),
        };
        let deviation = mean(&centered.sqr()?)?
            .affine(1.0, self.config.eps)?
            .sqrt()?;
        Ok((centered.div(&deviation)?, deviation))
    }
}

/// Returns the gain on normalized rows, in f32 or f64.
fn gain(weight: &Array, config: &NormConfig) -> Result<Array> {
    let weight = weight.widened()?;
    match config.weight {
        NormWeight::Plain | NormWeight::Absent => Ok(weight),
        NormWeight::OnePlus => weight.affine(1.0, 1.0),
    }
}

fn added(y: Array, bias: Option<&Array>) -> Result<Array> {
    match bias {
        Some(bias) => y.add(bias),
        None => Ok(y),
    }
}

fn centered(x: &Array) -> Result<Array> {
    x.sub(&mean(x)?)
}

/// Returns each row's mean.
fn mean(x: &Array) -> Result<Array> {
    x.sum(x.dims().len() - 1)?
        .affine(1.0 / x.width() as f64, 0.0)
}
