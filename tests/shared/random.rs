//! Random values to compute with, and a loss to differentiate.

use candle_blocks::candle_core::{DType, Device, Result, Tensor};

use crate::device::device;

/// Returns irregular values of unit size, in f64.
pub fn random(shape: &[usize], seed: u64) -> Tensor {
    random_in(DType::F64, shape, seed)
}

/// The same, rounded to a type.
pub fn random_in(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n as u64)
        .map(|i| {
            let mut z = (i + 1000 * seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 3.4
        })
        .collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    tensor
        .to_dtype(dtype)
        .unwrap()
        .to_device(&device())
        .unwrap()
}

/// A function with tensor arguments.
pub type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// `Σ c · f(args)` with a cotangent `c` that no two elements share.
pub fn loss(f: Function, args: &[Tensor]) -> Result<Tensor> {
    let y = f(args)?;
    (&y * random_in(y.dtype(), y.dims(), 77))?.sum_all()
}
