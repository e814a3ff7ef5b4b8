//! Matrix products.

use candle_blocks_kernels::products::{Added, multiply};
use candle_core::{Result, Tensor};
use candle_nn::moe::moe_gemm;

use super::Array;
use crate::ops::{cpu::cpu, kernels::Data, numbers::Numbers, recorder::issued};

impl Array {
    /// Multiplies matrices in the last two dimensions. Leading dimensions must be equal. Sums are in f32, or f64 for
    /// f64.
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

    /// Multiplies each row by its expert's weight in `[experts, d_out, d_in]`: candle's `moe_gemm`. `places` holds
    /// the row indices sorted by expert, and `experts` their experts. Sums are in f32.
    ///
    /// candle's kernel requires bf16 on CUDA, and `d_in` a multiple of 8.
    pub fn matmul_by_expert(&self, weights: &Self, places: &Self, experts: &Self) -> Result<Self> {
        // It reads whole storages.
        let x = self.contiguous()?.at_its_beginning()?;
        issued("moe_gemm", &[&x.0, &weights.0], None)?;
        match x.device().is_cpu() {
            true => rehearsed_by_expert(&x.0, &weights.0, &places.0, &experts.0),
            // The variant for few rows, because the one for many rows waits for the device.
            false => moe_gemm(&x.0, &weights.0, &None, &places.0, &experts.0, 1, false),
        }
        .map(Self)
    }

    /// Returns the array itself, if both backends' products support its strides: contiguous or transposed matrices,
    /// one after the other. Otherwise returns a contiguous copy.
    fn for_product(&self) -> Result<Self> {
        let (dims, strides) = (self.dims(), self.0.stride());
        let rank = dims.len();
        let (rows, columns) = (dims[rank - 2], dims[rank - 1]);
        let in_order = |n: usize, stride: usize, expected: usize| n == 1 || stride == expected;
        let (down, right) = (strides[rank - 2], strides[rank - 1]);
        let straight = in_order(rows, down, columns) && in_order(columns, right, 1);
        let transposed = in_order(rows, down, 1) && in_order(columns, right, rows);
        let mut expected = rows * columns;
        let items_are_adjacent = (0..rank - 2).rev().all(|dim| {
            let fits = in_order(dims[dim], strides[dim], expected);
            expected *= dims[dim];
            fits
        });
        match (straight || transposed) && items_are_adjacent {
            true => Ok(self.clone()),
            false => self.contiguous(),
        }
    }
}

/// Computes the product in an emulation, with this crate's kernels: candle's CPU backend has no bfloat16 product,
/// and sums f32 in one chain, whose error is far larger than that of parallel sums.
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

/// [`Array::matmul_by_expert`] in an emulation.
fn rehearsed_by_expert(
    x: &Tensor,
    weights: &Tensor,
    places: &Tensor,
    experts: &Tensor,
) -> Result<Tensor> {
    let (rows, d_out) = (x.dim(0)?, weights.dim(1)?);
    let (places, experts) = (places.to_vec1::<u32>()?, experts.to_vec1::<u32>()?);
    let mut products = vec![None; rows];
    for (place, expert) in places.into_iter().zip(experts) {
        let weight = weights.get(expert as usize)?.t()?;
        let row = x.narrow(0, place as usize, 1)?;
        products[place as usize] = Some(rehearsed_product(&row, &weight)?);
    }
    let products: Vec<Tensor> = products.into_iter().flatten().collect();
    Tensor::cat(&products, 0)?.reshape((rows, d_out))
}
