//! LayerNorm and RMSNorm.

use candle_core::{DType, Result, Tensor};

use crate::config::{NormConfig, NormKind, NormWeight};
use crate::ops::norm_kernel;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &NormConfig,
    ) -> Result<Self> {
        let (x, norm) = (self.view()?, Norm::new(weight, config, self.dtype()));
        let of_bias = bias.map(Array::of);
        let composed = || norm.forward(&x, of_bias.as_ref());
        let y = match x.has_norm() {
            true => {
                let parameters = (&norm.weight, of_bias.as_ref());
                let composed = || Ok((composed()?, x.clone()));
                x.norm(None, parameters, &norm_kernel(config), composed)?.0
            }
            false => composed()?,
        };
        self.normalized(y, norm, (weight, bias))
    }

    /// The norm of the sum with `residual`: one kernel where there is one.
    pub(in crate::ops) fn norm_of_sum(
        &self,
        residual: &Self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &NormConfig,
    ) -> Result<Self> {
        let x = self.view()?;
        if !x.has_norm() {
            return residual.add(self)?.norm(weight, bias, config);
        }
        let norm = Norm::new(weight, config, self.dtype());
        let of_bias = bias.map(Array::of);
        let parameters = (&norm.weight, of_bias.as_ref());
        let beside = residual.view()?;
        let composed = || {
            let sum = beside.add(&x)?;
            Ok((norm.forward(&sum, of_bias.as_ref())?, sum))
        };
        let (y, sum) = x.norm(Some(&beside), parameters, &norm_kernel(config), composed)?;
        residual
            .summed(self, sum)
            .normalized(y, norm, (weight, bias))
    }

    /// What the rows became, with the step back.
    fn normalized(
        &self,
        y: Array,
        norm: Norm,
        (weight, bias): (&Tensor, Option<&Tensor>),
    ) -> Result<Self> {
        let (of_weight, of_bias) = (self.place(weight), bias.and_then(|bias| self.place(bias)));
        let (slot, x) = (self.slot.clone(), self.view()?);
        let asks = [slot.place, of_weight, of_bias];
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let (normal, deviation) = norm.normal(&x.widened()?)?;
            let dy = dy.widened()?;
            let of_parameters = norm.config.weight != NormWeight::Absent;
            if of_parameters {
                pass.add_column_sums(of_weight, || dy.mul(&normal), norm.dtype)?;
            }
            pass.add_column_sums(of_bias, || Ok(dy.clone()), norm.dtype)?;
            if slot.place.is_none() {
                return Ok(());
            }
            // `dx = (g - mean(g) - n · mean(g · n)) / deviation` with `g = dy · gain`; RMSNorm has no mean of `g`.
            let g = dy.mul(&norm.gain()?)?;
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

/// What a norm does to rows.
struct Norm {
    config: NormConfig,
    /// The type of the rows.
    dtype: DType,
    weight: Array,
}

impl Norm {
    fn new(weight: &Tensor, config: &NormConfig, dtype: DType) -> Self {
        Self {
            config: *config,
            dtype,
            weight: Array::of(weight),
        }
    }

    fn forward(&self, x: &Array, bias: Option<&Array>) -> Result<Array> {
        if x.is_empty() {
            return Ok(x.clone());
        }
        let (wide, gain) = (x.widened()?, self.gain()?);
        let bias = bias.map(Array::widened).transpose()?;
        let is_rms = self.config.kind == NormKind::RmsNorm;
        let plain = self.config.weight == NormWeight::Plain;
        let y = if wide.dtype() == DType::F64 || (is_rms && plain && self.dtype != wide.dtype()) {
            // A plain RMSNorm rounds half types before it multiplies.
            let normal = self.normal(&wide)?.0;
            let normal = match is_rms && plain {
                true => normal.to_dtype(self.dtype)?.widened()?,
                false => normal,
            };
            added(normal.mul(&gain)?, bias.as_ref())?
        } else if is_rms {
            added(wide.rms_norm(&gain, self.config.eps)?, bias.as_ref())?
        } else {
            let bias = bias.map_or_else(|| gain.zeros(gain.dims()), Ok)?;
            centered(&wide)?.layer_norm(&gain, &bias, self.config.eps)?
        };
        y.to_dtype(self.dtype)
    }

    /// Rows before the gain, and what they were divided by.
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

    /// The factor on normal rows, in f32 or f64.
    fn gain(&self) -> Result<Array> {
        let weight = self.weight.widened()?;
        match self.config.weight {
            NormWeight::Plain | NormWeight::Absent => Ok(weight),
            NormWeight::OnePlus => weight.affine(1.0, 1.0),
        }
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

/// The mean of each row.
fn mean(x: &Array) -> Result<Array> {
    x.sum(x.dims().len() - 1)?
        .affine(1.0 / x.width() as f64, 0.0)
}
