//! Rotary position embedding.

use candle_core::{DType, Result, Tensor};

use crate::config::RotaryPairing;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn rotate(
        &self,
        cos: &Tensor,
        sin: &Tensor,
        pairing: RotaryPairing,
    ) -> Result<Self> {
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let (cos, sin) = (Array::of(cos).widened()?, Array::of(sin).widened()?);
        let turned = move |x: &Array, sin: &Array| {
            rotated(&x.widened()?, &cos, sin, pairing)?.to_dtype(dtype)
        };
        let y = turned(&self.view()?, &sin)?;
        // The transposed rotation is the rotation by the negative angle.
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            pass.add(&slot, turned(&dy, &sin.affine(-1.0, 0.0)?)?)
        }))
    }
}

/// Rotates the first `2 · pairs` dimensions in `x` `[batch, seq, heads, head_dim]`.
fn rotated(x: &Array, cos: &Array, sin: &Array, pairing: RotaryPairing) -> Result<Array> {
    let n_rotated = 2 * cos.width();
    let rest = x.width() - n_rotated;
    if n_rotated == 0 || x.is_empty() {
        return Ok(x.clone());
    }
    let part = x.narrow(3, 0, n_rotated)?;
    let for_all_heads = |table: &Array| match *table.dims() {
        [1, seq, pairs] => table.reshape(&[seq, pairs]),
        _ => Ok(table.clone()),
    };
    let turned = match (pairing, x.dtype()) {
        // candle lacks f64 kernels on some devices.
        (_, DType::F64) => by_parts(&part, cos, sin, pairing)?,
        (RotaryPairing::Halves, _) => {
            part.rope_halves(&for_all_heads(cos)?, &for_all_heads(sin)?)?
        }
        (RotaryPairing::Interleaved, _) => {
            let heads = part.transpose(1, 2)?; // [batch, heads, seq, ..]
            heads
                .rope_neighbors(&for_all_heads(cos)?, &for_all_heads(sin)?)?
                .transpose(1, 2)?
        }
    };
    match rest {
        0 => Ok(turned),
        _ => Array::cat(&[turned, x.narrow(3, n_rotated, rest)?], 3),
    }
}

/// Computes `(a cos - b sin, b cos + a sin)` for `(a, b)`.
fn by_parts(x: &Array, cos: &Array, sin: &Array, pairing: RotaryPairing) -> Result<Array> {
    let pairs = cos.width();
    let (cos, sin) = (cos.unsqueeze(2)?, sin.unsqueeze(2)?); // [batch or 1, seq, 1, pairs]
    let dims = x.dims();
    let (split, along) = match pairing {
        RotaryPairing::Halves => ([dims[0], dims[1], dims[2], 2, pairs], 3),
        RotaryPairing::Interleaved => ([dims[0], dims[1], dims[2], pairs, 2], 4),
    };
    let split = x.reshape(&split)?;
    let half = |i: usize| {
        let half = split.narrow(along, i, 1)?;
        half.reshape(&[dims[0], dims[1], dims[2], pairs])
    };
    let (a, b) = (half(0)?, half(1)?);
    let first = a.mul(&cos)?.sub(&b.mul(&sin)?)?;
    let second = b.mul(&cos)?.add(&a.mul(&sin)?)?;
    let parts = [first.unsqueeze(along)?, second.unsqueeze(along)?];
    Array::cat(&parts, along)?.reshape(dims)
}
