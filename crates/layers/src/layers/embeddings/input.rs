//! The input of token embeddings.

use candle_core::{DType, Device, Result, Tensor};

use crate::Error;

/// Token ids with token types, positions and mask, each `[batch, seq]` of any integer type.
/// Pass them to [`TokenEmbeddings::forward_t`](crate::layers::TokenEmbeddings::forward_t).
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'t> {
    /// The name that errors give the ids.
    pub name: &'static str,
    /// The ids.
    pub ids: &'t Tensor,
    /// Token types. The default is 0.
    pub types: Option<&'t Tensor>,
    /// Positions. By default they are counted.
    pub positions: Option<&'t Tensor>,
    /// The padding mask: 1 = a real token, 0 = padding.
    pub mask: Option<&'t Tensor>,
    /// The number of tokens counted in earlier passes, for each sequence. Empty if there were none.
    pub counted: &'t [u32],
}

impl<'t> Tokens<'t> {
    /// Creates an input with only token ids.
    pub fn new(ids: &'t Tensor) -> Self {
        Self {
            name: "input_ids",
            ids,
            types: None,
            positions: None,
            mask: None,
            counted: &[],
        }
    }
}

pub(super) fn shape(tokens: &Tokens) -> Result<(usize, usize)> {
    match *tokens.ids.dims() {
        [batch, seq] => Ok((batch, seq)),
        ref found => {
            let reason = format!("has shape {found:?}, expected [batch, seq]");
            Err(Error::input(tokens.name, reason).into())
        }
    }
}

/// Returns the values of an integer input `[batch, seq]` (or `[1, seq]`, for every sequence), on the CPU.
pub(super) fn integers(
    name: &str,
    tensor: &Tensor,
    (batch, seq): (usize, usize),
) -> Result<Vec<i64>> {
    let fail = |reason| Err(Error::input(name, reason).into());
    let (found, dtype) = (tensor.dims(), tensor.dtype());
    if dtype.is_float() {
        return fail(format!("is {dtype:?}, expected integers"));
    }
    if found != [batch, seq] && found != [1, seq] {
        return fail(format!("has shape {found:?}, expected [{batch}, {seq}]"));
    }
    // On the CPU: CUDA and Metal do not convert every integer type.
    let all = tensor.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
    all.broadcast_as((batch, seq))?.flatten_all()?.to_vec1()
}
