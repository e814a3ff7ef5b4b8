//! What CUDA computes by kernels of this crate where the environment asks for them; a rehearsal computes their composed form.
//! **Nobody has run them on a GPU yet.**

use candle_blocks_kernels::rows::norm::Norm;
use candle_core::{DType, Device, Result, Tensor, bail};

use super::Array;
use crate::config::Activation;
use crate::ops::cpu::fused;
use crate::ops::ledger::{issued, unrecorded};

/// What is computed of a product before it is rounded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct After<'a> {
    /// Added to each row.
    pub bias: Option<&'a Array>,
    /// Added to the result.
    pub residual: Option<&'a Array>,
    /// Comes last: [`Activation::Relu`] or [`Activation::GeluTanh`], which are cuBLASLt's.
    pub activation: Option<Activation>,
}

/// What flash attention is asked beside its operands.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "flash-attn"),
    allow(dead_code, reason = "a rehearsal asks the composed form")
)]
pub(crate) struct Flash {
    /// f16 or bf16, in which it multiplies.
    pub dtype: DType,
    /// Factor on the scores.
    pub scale: f32,
    /// Their soft bound; 0 is none.
    pub soft_cap: f32,
    /// How many keys before and behind its own a query sees; `None` is all.
    pub windows: [Option<usize>; 2],
}

/// An array in order, where there is one.
fn in_order(of: Option<&Array>) -> Result<Option<Array>> {
    of.map(Array::contiguous).transpose()
}

/// Takes down a kernel of these operands.
fn taken_down(name: &'static str, operands: &[Option<&Array>]) -> Result<()> {
    let operands = operands.iter().copied().flatten().map(Array::tensor);
    issued(name, &operands.collect::<Vec<&Tensor>>(), None)
}

impl Array {
    /// Whether the array's device computes by this crate's kernels where it can.
    pub fn is_fused(&self) -> bool {
        fused(self.device())
    }

    /// Whether rows of this array are multiplied with a weight by [`Self::product`]: not f64, of which cuBLASLt has no epilogue.
    pub fn has_product(&self, weight: &Self) -> bool {
        let is_empty = self.is_empty() || weight.is_empty();
        self.is_fused() && self.dtype() != DType::F64 && !is_empty
    }

    /// Whether rows of this array are normalised by [`Self::norm`].
    pub fn has_norm(&self) -> bool {
        self.is_fused() && !self.is_empty()
    }

    /// Whether heads `[.., head_dim]`, whose result is rounded to a type, are attended by [`Self::flash`].
    pub fn has_flash(&self, rounded_to: DType) -> bool {
        let is_built = cfg!(feature = "flash-attn") || self.device().is_cpu();
        let is_half = matches!(rounded_to, DType::F16 | DType::BF16);
        let fits = self.width().is_multiple_of(8) && self.width() <= 256;
        self.is_fused() && is_built && is_half && fits && !self.is_empty()
    }

    /// Attention of queries, keys and values `[batch, heads, seq, head_dim]` by candle's flash attention, to
    /// `[batch, seq, heads, head_dim]` in the type of the operands.
    pub fn flash(
        operands: [&Self; 3],
        flash: Flash,
        composed: impl FnOnce() -> Result<Self>,
    ) -> Result<Self> {
        let [query, key, value] = operands;
        let half = |heads: &Self| heads.transpose(1, 2)?.to_dtype(flash.dtype)?.contiguous();
        let (query, key, value) = (half(query)?, half(key)?, half(value)?);
        taken_down("flash_attention", &[Some(&query), Some(&key), Some(&value)])?;
        let y = match query.device() {
            Device::Cpu => unrecorded(composed)?.to_dtype(flash.dtype)?,
            #[cfg(feature = "flash-attn")]
            Device::Cuda(_) => {
                let [left, right] = flash.windows;
                let [query, key, value] = [&query, &key, &value].map(Self::tensor);
                Self(candle_flash_attn::flash_attn_alibi_windowed_softcap(
                    query,
                    key,
                    value,
                    None,
                    flash.scale,
                    left,
                    right,
                    flash.soft_cap,
                )?)
            }
            _ => bail!("{flash:?} without the feature flash-attn, or on another device"),
        };
        y.to_dtype(operands[0].dtype())
    }

    /// `after(x·Wᵀ)` of rows, rounded once, in the shape of the residual if there is one.
    pub fn product(
        &self,
        weight: &Self,
        after: After,
        composed: impl FnOnce() -> Result<Self>,
    ) -> Result<Self> {
        let (x, weight) = (self.rows()?, weight.contiguous()?);
        let (bias, residual) = (in_order(after.bias)?, in_order(after.residual)?);
        let after = After {
            bias: bias.as_ref(),
            residual: residual.as_ref(),
            ..after
        };
        let operands = [Some(&x), Some(&weight), after.bias, after.residual];
        taken_down("product_with_epilogue", &operands)?;
        match self.device() {
            Device::Cpu => unrecorded(composed),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => super::cuda::product(device, &x, &weight, after),
            _ => bail!("a product on a device without kernels of this crate"),
        }
    }

    /// The norm of rows, or of their sums with `residual`; and what was normalised.
    pub fn norm(
        &self,
        residual: Option<&Self>,
        (weight, bias): (&Self, Option<&Self>),
        norm: &Norm,
        composed: impl FnOnce() -> Result<(Self, Self)>,
    ) -> Result<(Self, Self)> {
        let (x, weight) = (self.contiguous()?, weight.contiguous()?);
        let (residual, bias) = (in_order(residual)?, in_order(bias)?);
        let (residual, bias) = (residual.as_ref(), bias.as_ref());
        taken_down("norm", &[Some(&x), residual, Some(&weight), bias])?;
        match self.device() {
            Device::Cpu => unrecorded(composed),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                super::cuda::norm(device, (&x, residual), (&weight, bias), norm)
            }
            _ => bail!("{norm:?} on a device without kernels of this crate"),
        }
    }
}
