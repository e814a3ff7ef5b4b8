//! Rotary position embedding, given cosines and sines.

use candle_core::{
    CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor, backend::BackendStorage, bail,
};

use super::storage::{Float, cotangent, gradient, output, slice, tensor_slice, with_float};
use crate::{
    config::RotaryPairing,
    cpu::rotary::{self as kernel, Pairing},
};

const OP: &str = "rotate";

/// Rotates the first `2·pairs` dimensions of every head, pair by pair: `(a, b)` becomes
/// `(a cos - b sin, b cos + a sin)` (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
///
/// # Shapes
/// `x` `[batch, n_heads, seq, head_dim]`, `cos` and `sin` `[batch or 1, seq, pairs]`; the result has the shape
/// of `x`. The tables get no gradient.
///
/// # Errors
/// If the shapes or types do not fit.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Tensor> {
    let (batch, _, seq, head_dim) = x.dims4()?;
    let (tables, rows, pairs) = cos.dims3()?;
    let fits = sin.dims() == cos.dims()
        && rows == seq
        && (tables == 1 || tables == batch)
        && 2 * pairs <= head_dim;
    if !fits || cos.dtype() != x.dtype() || sin.dtype() != x.dtype() {
        bail!(
            "{OP}: cos {:?} {:?} and sin {:?} do not fit an input of {:?} {:?}",
            cos.dtype(),
            cos.dims(),
            sin.dims(),
            x.dtype(),
            x.dims()
        );
    }
    if !x.device().is_cpu() {
        return composed(x, cos, sin, pairing);
    }
    let op = Rotate(pairing.into());
    x.contiguous()?
        .apply_op3(&cos.contiguous()?, &sin.contiguous()?, op)
}

impl From<RotaryPairing> for Pairing {
    fn from(pairing: RotaryPairing) -> Self {
        match pairing {
            RotaryPairing::Halves => Self::Halves,
            RotaryPairing::Interleaved => Self::Interleaved,
        }
    }
}

/// The same, composed of candle's own operations.
fn composed(x: &Tensor, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Tensor> {
    let (batch, heads, seq, head_dim) = x.dims4()?;
    let pairs = cos.dim(D::Minus1)?;
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?); // [batch or 1, 1, seq, pairs]
    let turning = x.narrow(3, 0, 2 * pairs)?;
    let (a, b) = match pairing {
        RotaryPairing::Halves => (
            turning.narrow(3, 0, pairs)?,
            turning.narrow(3, pairs, pairs)?,
        ),
        RotaryPairing::Interleaved => {
            let split = turning.reshape((batch, heads, seq, pairs, 2))?;
            (
                split.narrow(4, 0, 1)?.squeeze(4)?,
                split.narrow(4, 1, 1)?.squeeze(4)?,
            )
        }
    };
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let turned = match pairing {
        RotaryPairing::Halves => Tensor::cat(&[first, second], 3)?,
        RotaryPairing::Interleaved => {
            Tensor::stack(&[first, second], 4)?.reshape((batch, heads, seq, 2 * pairs))?
        }
    };
    let rest = head_dim - 2 * pairs;
    if rest == 0 {
        return Ok(turned);
    }
    Tensor::cat(&[turned, x.narrow(3, 2 * pairs, rest)?], 3)
}

struct Rotate(Pairing);

impl Rotate {
    fn forward<T: Float>(
        &self,
        x: &[T],
        dims: &[usize],
        cos: &[T],
        sin: &[T],
        table: &[usize],
    ) -> Vec<T> {
        let mut y = vec![T::ZERO; x.len()];
        let (heads, seq, width, pairs) = (dims[1], dims[2], dims[3], table[2]);
        let has_own_table = table[0] > 1;
        let table_row = |row: usize| match has_own_table {
            true => row / (heads * seq) * seq + row % seq,
            false => row % seq,
        };
        kernel::rotate(x, width, cos, sin, pairs, self.0, table_row, &mut y);
        y
    }
}

impl CustomOp3 for Rotate {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        cos: &CpuStorage,
        cos_layout: &Layout,
        sin: &CpuStorage,
        sin_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_float!(OP, x.dtype(), T => {
            let (cos, sin) = (slice(OP, cos, cos_layout)?, slice(OP, sin, sin_layout)?);
            let x = slice::<T>(OP, x, x_layout)?;
            let y = self.forward(x, x_layout.dims(), cos, sin, cos_layout.dims());
            Ok(output(y, x_layout))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // The transpose of a rotation is the rotation by the opposite angle.
        let grad = cotangent(OP, grad)?;
        let (dy, dy_layout) = grad.storage_and_layout();
        let (cos_storage, cos_layout) = cos.storage_and_layout();
        let (sin_storage, sin_layout) = sin.storage_and_layout();
        let dx = with_float!(OP, x.dtype(), T => {
            let dy = tensor_slice::<T>(OP, &dy, dy_layout)?;
            let cos_table = tensor_slice(OP, &cos_storage, cos_layout)?;
            let back = kernel::negated(tensor_slice::<T>(OP, &sin_storage, sin_layout)?);
            gradient(self.forward(dy, x.dims(), cos_table, &back, cos.dims()), x)
        })?;
        Ok((Some(dx), None, None))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn fused_and_composed_agree_in_value_and_gradient() {
        for (tables, pairing) in [(1, RotaryPairing::Halves), (2, RotaryPairing::Interleaved)] {
            let x = Var::randn(0f64, 1.0, (2, 3, 5, 8), &Device::Cpu).unwrap();
            let angles = Tensor::randn(0f64, 3.0, (tables, 5, 3), &Device::Cpu).unwrap();
            let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
            let cotangent = Tensor::randn(0f64, 1.0, (2, 3, 5, 8), &Device::Cpu).unwrap();
            let results = [rotate, composed].map(|f| {
                let y = f(&x, &cos, &sin, pairing).unwrap();
                let loss = (&y * &cotangent).unwrap().sum_all().unwrap();
                let gradient = loss.backward().unwrap().get(&x).unwrap().clone();
                [y.detach(), gradient]
            });
            for (fused, composed) in results[0].iter().zip(&results[1]) {
                let difference = (fused - composed).unwrap().abs().unwrap();
                let largest: f64 = difference.max_all().unwrap().to_scalar().unwrap();
                assert!(
                    largest < 4.0 * f64::EPSILON * 5.0,
                    "{pairing:?} {largest:e}"
                );
            }
        }
    }

    #[test]
    fn tables_of_another_shape_or_type_are_refused() {
        let x = Tensor::zeros((2, 3, 5, 8), DType::F32, &Device::Cpu).unwrap();
        for (shape, dtype) in [
            ((1, 4, 3), DType::F32),
            ((3, 5, 3), DType::F32),
            ((1, 5, 5), DType::F32),
            ((1, 5, 3), DType::F64),
        ] {
            let table = Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
            let error = rotate(&x, &table, &table, RotaryPairing::Halves).unwrap_err();
            assert!(error.to_string().contains("do not fit"), "{error}");
        }
    }
}
