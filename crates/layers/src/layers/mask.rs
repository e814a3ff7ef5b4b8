//! Attention masks: key-padding masks and additive masks.

use candle_core::{DType, Device, Tensor};

use super::padding_mask::PaddingMask;
use crate::config::{HeadsOfRank, getters};
use crate::{Error, Result};

/// An attention mask: a key-padding mask, an additive mask, both, or neither.
///
/// Causal attention needs no mask: it is part of the attention's configuration ([`Visibility`](crate::Visibility)).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AttentionMask {
    keep: Option<PaddingMask>, // [batch, keys]
    additive: Option<Tensor>,  // broadcasts to [batch, n_heads, queries, keys]
}

impl AttentionMask {
    /// Creates an empty mask.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a key-padding mask from a tokenizer's `attention_mask`: `[batch, seq]` of any dtype, 1 = a real token,
    /// 0 = padding.
    ///
    /// A query whose keys are all masked gives zeros, not NaN.
    ///
    /// # Errors
    /// If the rank is not 2 or a value is neither 0 nor 1.
    pub fn padding(mask: &Tensor) -> Result<Self> {
        Self::of_keys(mask, KeySource::Input, mask.device())
    }

    /// Creates a mask like [`Self::padding`], on `device`. `of` names the mask in errors.
    #[doc(hidden)]
    pub fn of_keys(mask: &Tensor, of: KeySource, device: &Device) -> Result<Self> {
        let fail = |reason| Err(Error::input(of.mask(), reason));
        let &[_, keys] = mask.dims() else {
            return fail(format!(
                "has shape {:?}, expected [batch, seq]",
                mask.dims()
            ));
        };
        // In f64: a value that f32 would round to 1 must not become 0 as an integer. On the CPU: Metal has no f64,
        // and neither Metal nor CUDA converts every integer type.
        let values = mask.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let values = values.flatten_all()?.to_vec1::<f64>()?;
        if let Some(at) = values.iter().position(|&v| v != 0.0 && v != 1.0) {
            return fail(format!(
                "holds {} at [{}, {}], expected 1 (keep) or 0 (drop)",
                values[at],
                at / keys,
                at % keys
            ));
        }
        let marks = values.into_iter().map(|value| value as u8).collect();
        let marks = Tensor::from_vec(marks, mask.shape(), &Device::Cpu)?;
        Ok(Self {
            keep: Some(PaddingMask::new(marks, device)?),
            additive: None,
        })
    }

    /// Also adds `mask` to the scores before the softmax; `-inf` hides a key. The tensor must broadcast to `[batch,
    /// n_heads, queries, keys]` and have a float dtype. A rank of a `TensorParallel`
    /// stack takes the elements of its heads. The tensor receives a gradient if it is a variable or depends on one.
    /// The forward pass checks shape and dtype.
    pub fn with_additive(mut self, mask: Tensor) -> Self {
        self.additive = Some(mask);
        self
    }

    getters! {
        /// The key-padding mask, if any: `[batch, keys]` of `u8`, 1 = keep.
        keep(&self) -> Option<&Tensor> => Some(&self.keep.as_ref()?.device);
        /// The additive mask, if any.
        additive(&self) -> Option<&Tensor> => self.additive.as_ref();
    }

    /// Returns the key-padding mask, if any, on the device and on the host.
    pub(crate) fn padding_mask(&self) -> Option<&PaddingMask> {
        self.keep.as_ref()
    }
}

/// The keys of a mask, for error messages.
#[derive(Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum KeySource {
    /// The positions of the input.
    Input,
    /// The positions of the encoder output.
    Encoder,
}

impl KeySource {
    fn mask(self) -> &'static str {
        match self {
            Self::Input => "attention_mask",
            Self::Encoder => "encoder_attention_mask",
        }
    }

    fn states(self) -> &'static str {
        match self {
            Self::Input => "hidden_states",
            Self::Encoder => "encoder_hidden_states",
        }
    }

    /// Checks that a key-padding mask is `[batch, keys]`.
    pub fn check(self, keep: Option<&Tensor>, batch: usize, keys: usize) -> Result<()> {
        match keep {
            Some(keep) if keep.dims() != [batch, keys] => Err(Error::input(
                self.mask(),
                format!(
                    "has shape {:?}, expected [batch, seq] = [{batch}, {keys}] of {}",
                    keep.dims(),
                    self.states()
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the part of an additive mask for a rank's heads, or all of it, if it has no elements for each head or only those of
/// the rank's heads. `lengths` are the sequences, queries and keys.
///
/// # Errors
/// If the mask does not broadcast to the scores of the model's heads.
pub(crate) fn mask_of_heads(
    mask: &Tensor,
    HeadsOfRank { first, own, all }: HeadsOfRank,
    [batch, queries, keys]: [usize; 3],
) -> Result<Tensor> {
    let whole = [batch, all, queries, keys];
    let fits = |to: [usize; 4]| {
        let mut pairs = mask.dims().iter().rev().zip(to.into_iter().rev());
        mask.rank() <= to.len() && pairs.all(|(&dim, n)| dim == 1 || dim == n)
    };
    if fits([batch, own, queries, keys]) {
        return Ok(mask.clone());
    }
    if fits(whole) {
        return Ok(mask.narrow(mask.rank() - 3, first, own)?);
    }
    let reason = format!(
        "has shape {:?}, expected a shape that broadcasts to [batch, n_heads, queries, keys] = {whole:?} of the model, of whose \
         heads this rank computes {first} to {}",
        mask.dims(),
        first + own - 1
    );
    Err(Error::input("additive mask", reason))
}

/// Checks that a mask can be added to scores. Zeros and ones of an integer type are a key mask, and would be added as
/// they are.
pub(crate) fn check_additive(mask: &Tensor) -> Result<()> {
    if mask.dtype().is_float() {
        return Ok(());
    }
    let reason = format!(
        "is {:?}, expected a float type, whose values are added to the scores; pass a 0/1 key mask to AttentionMask::padding",
        mask.dtype()
    );
    Err(Error::input("additive mask", reason))
}
