//! Products of many pairs of matrices, as attention takes them, through this crate's own kernels.

use candle_core::{
    CpuStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor, WithDType,
    backend::BackendStorage, bail,
};

use super::{
    linear::{selected_isa, with_product},
    storage::{Float, cotangent, gradient},
};
use crate::cpu::{
    gemm::{self, Epilogue, Plain},
    parallel,
    view::View,
};

const OP: &str = "batched-product";

/// `a·b` for every pair of matrices: `torch.matmul`.
///
/// On the CPU a row's bits depend on that row and its own `b` alone, as in [`super::linear()`]; trailing zeros in
/// a row, such as the weights of padding, change none.
///
/// # Shapes
/// `[batch, heads, m, k]` and `[batch, heads, k, n]`, contiguous or not; the result is `[batch, heads, m, n]`.
/// f32 or f64 on the CPU.
///
/// # Errors
/// If the shapes or types do not fit.
pub(crate) fn batched_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (of_a, of_b) = (a.dims4()?, b.dims4()?);
    if (of_a.0, of_a.1, of_a.3) != (of_b.0, of_b.1, of_b.2) || a.dtype() != b.dtype() {
        bail!(
            "{OP}: {:?} {:?} does not fit {:?} {:?}",
            a.dtype(),
            a.dims(),
            b.dtype(),
            b.dims()
        );
    }
    if !a.device().is_cpu() {
        return a.contiguous()?.matmul(&b.contiguous()?);
    }
    a.apply_op2(b, BatchedProduct)
}

struct BatchedProduct;

impl CustomOp2 for BatchedProduct {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_product!(OP, a.dtype(), T => {
            let a = Batch::new(a.as_slice::<T>()?, a_layout)?;
            let b = Batch::new(b.as_slice::<T>()?, b_layout)?;
            let shape = Shape::from((a.batch, a.heads, a.shape.0, b.shape.1));
            Ok((T::to_cpu_storage_owned(products(a, b)?), shape))
        })
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(OP, grad)?;
        with_product!(OP, a.dtype(), T => {
            let (dy, dy_layout) = grad.storage_and_layout();
            let dy = Batch::<T>::of_storage(&dy, dy_layout)?;
            let da = || {
                let (b, layout) = b.storage_and_layout();
                gradient(products(dy, Batch::<T>::of_storage(&b, layout)?.transposed())?, a)
            };
            let db = || {
                let (a, layout) = a.storage_and_layout();
                gradient(products(Batch::<T>::of_storage(&a, layout)?.transposed(), dy)?, b)
            };
            Ok((
                a.track_op().then(da).transpose()?,
                b.track_op().then(db).transpose()?,
            ))
        })
    }
}

/// `[batch, heads]` matrices, read in place.
#[derive(Clone, Copy)]
struct Batch<'a, T> {
    data: &'a [T],
    batch: usize,
    heads: usize,
    shape: (usize, usize),
    batch_stride: usize,
    head_stride: usize,
    strides: (usize, usize),
}

impl<'a, T: Float> Batch<'a, T> {
    fn new(data: &'a [T], layout: &Layout) -> Result<Self> {
        let (batch, heads, rows, columns) = layout.shape().dims4()?;
        let stride = layout.stride();
        Ok(Self {
            data: data.get(layout.start_offset()..).unwrap_or(&[]),
            batch,
            heads,
            shape: (rows, columns),
            batch_stride: stride[0],
            head_stride: stride[1],
            strides: (stride[2], stride[3]),
        })
    }

    fn of_storage(storage: &'a Storage, layout: &Layout) -> Result<Self> {
        match storage {
            Storage::Cpu(storage) => Self::new(storage.as_slice::<T>()?, layout),
            _ => bail!("{OP}: expected a tensor on the CPU"),
        }
    }

    /// Every matrix with rows and columns exchanged.
    fn transposed(self) -> Self {
        Self {
            shape: (self.shape.1, self.shape.0),
            strides: (self.strides.1, self.strides.0),
            ..self
        }
    }

    /// Matrix number `i`, heads counted through the batches.
    fn matrix(&self, i: usize) -> View<'a, T> {
        let (batch, head) = (i / self.heads, i % self.heads);
        let start = batch * self.batch_stride + head * self.head_stride;
        View::new(
            self.data.get(start..).unwrap_or(&[]),
            self.shape,
            self.strides,
        )
    }
}

/// The products of all pairs, one after the other, on candle's number of threads.
fn products<T: Float + Plain>(a: Batch<T>, b: Batch<T>) -> Result<Vec<T>> {
    let isa = selected_isa()?;
    let (rows, columns) = (a.shape.0, b.shape.1);
    let mut y = vec![<T as crate::cpu::Element>::ZERO; a.batch * a.heads * rows * columns];
    if y.is_empty() {
        return Ok(y);
    }
    let work = y.len().saturating_mul(a.shape.1);
    let threads = if work < PARALLEL_FROM {
        1
    } else {
        crate::ops::threads()
    };
    parallel::for_pieces(threads, &mut y, rows * columns, |i, y| {
        gemm::multiply(isa, a.matrix(i), b.matrix(i), &Epilogue::NONE, y, 1);
    });
    Ok(y)
}

/// Multiplications below which all work stays on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn largest(a: &Tensor, b: &Tensor) -> f64 {
        let difference = (a - b).unwrap().abs().unwrap();
        difference.max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn values_and_gradients_are_those_of_candle_for_views_too() {
        let of = |shape: (usize, usize, usize, usize)| {
            Var::from_tensor(&Tensor::randn(0f64, 1.0, shape, &Device::Cpu).unwrap()).unwrap()
        };
        for (m, k, n) in [(1, 1, 1), (5, 7, 3), (33, 130, 17), (4, 1, 260)] {
            let (a, b) = (of((2, m, 3, k)), of((2, 3, n, k)));
            let a_view = a.transpose(1, 2).unwrap(); // [2, 3, m, k]
            let b_view = b.transpose(2, 3).unwrap(); // [2, 3, k, n]
            let ours = batched_product(&a_view, &b_view).unwrap();
            let copy = |t: &Tensor| t.contiguous().unwrap();
            let candle = copy(&a_view).matmul(&copy(&b_view)).unwrap();
            let bound = 4.0 * f64::EPSILON * k as f64 * 10.0;
            assert!(largest(&ours, &candle) < bound, "{m} {k} {n}");
            let cotangent = Tensor::randn(0f64, 1.0, ours.shape(), &Device::Cpu).unwrap();
            let gradients = [ours, candle].map(|y| {
                (y * &cotangent)
                    .unwrap()
                    .sum_all()
                    .unwrap()
                    .backward()
                    .unwrap()
            });
            for var in [&a, &b] {
                let [ours, candle] = [0, 1].map(|i| gradients[i].get(var).unwrap());
                let bound = 4.0 * f64::EPSILON * m.max(n) as f64 * 10.0;
                assert!(largest(ours, candle) < bound, "{m} {k} {n}");
            }
        }
    }

    #[test]
    fn a_row_alone_has_the_bits_of_the_batch_and_trailing_zeros_change_none() {
        let random = |shape: (usize, usize, usize, usize)| {
            Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
        };
        let (a, b) = (random((2, 3, 20, 150)), random((2, 3, 150, 40)));
        let bits = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let whole = batched_product(&a, &b).unwrap();
        let row = |t: &Tensor| t.narrow(0, 1, 1).unwrap().narrow(2, 7, 1).unwrap();
        let alone = batched_product(&row(&a), &b.narrow(0, 1, 1).unwrap()).unwrap();
        assert_eq!(bits(alone), bits(row(&whole)));
        let padded = a.pad_with_zeros(3, 0, 30).unwrap();
        let more = Tensor::cat(&[&b, &random((2, 3, 30, 40))], 2).unwrap();
        assert_eq!(bits(batched_product(&padded, &more).unwrap()), bits(whole));
    }
}
