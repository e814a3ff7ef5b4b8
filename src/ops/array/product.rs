//! Matrix products.

use candle_blocks_kernels::products::{Added, multiply};
use candle_core::{Result, Tensor};

use super::Array;
use crate::ops::{cpu::cpu, kernels::Data, ledger::issued, numbers::Numbers};

impl Array {
    /// The matrix product of the last two dimensions; those before must be the same. Sums are in f32, or f64 for f64.
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        let (a, b) = (self.for_product()?, other.for_product()?);
        let rank = a.dims().len();
        let mut dims = a.dims().to_vec();
        dims[rank - 1] = b.dims()[rank - 1];
        if dims.contains(&0) || a.is_empty() {
            return self.zeros(&dims);
        }
        issued("matmul", &[&a.0, &b.0], None)?;
        match a.device().is_cpu() {
            true => rehearsed_product(&a.0, &b.0)?.reshape(dims).map(Self),
            false => a.0.matmul(&b.0).map(Self),
        }
    }

    /// As it is, where both back ends' products read its strides: each matrix in order or transposed, one behind the
    /// other; else a copy in order.
    fn for_product(&self) -> Result<Self> {
        let (dims, strides) = (self.dims(), self.0.stride());
        let rank = dims.len();
        let (rows, columns) = (dims[rank - 2], dims[rank - 1]);
        let in_order = |n: usize, stride: usize, expected: usize| n == 1 || stride == expected;
        let (down, right) = (strides[rank - 2], strides[rank - 1]);
        let straight = in_order(rows, down, columns) && in_order(columns, right, 1);
        let transposed = in_order(rows, down, 1) && in_order(columns, right, rows);
        let mut expected = rows * columns;
        let behind_each_other = (0..rank - 2).rev().all(|dim| {
            let fits = in_order(dims[dim], strides[dim], expected);
            expected *= dims[dim];
            fits
        });
        match (straight || transposed) && behind_each_other {
            true => Ok(self.clone()),
            false => self.contiguous(),
        }
    }
}

/// The product in a rehearsal, by this crate's kernels: candle's CPU has none of bfloat16, and adds up f32 in one chain, whose
/// error is many times that of parallel sums.
fn rehearsed_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() > 2 {
        let each = (0..a.dim(0)?).map(|i| rehearsed_product(&a.get(i)?, &b.get(i)?));
        return Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0);
    }
    let ((rows, inner), (_, columns)) = (a.dims2()?, b.dims2()?);
    let dtype = a.dtype();
    let (a, b) = (Data::Tensor(a.clone()), Data::Tensor(b.clone()));
    let (a, b) = (a.read(), b.read());
    let (a, b) = (a.matrix((rows, inner)), b.matrix((inner, columns)));
    let mut y = Numbers::new(dtype, rows * columns)?;
    multiply(cpu()?, a, b, Added::default(), y.slice_mut());
    y.into_tensor((rows, columns))
}
