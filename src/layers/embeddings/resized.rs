//! Tables of positions for grids of another size than the one they were trained on.

use candle_core::{DType, Device, Result, Tensor};

/// The parameter of PyTorch's cubic convolution.
const A: f64 = -0.75;

/// A table `[down * across, d]` of the grid `from` as one of the grid `to`, by bicubic interpolation: PyTorch's
/// `interpolate(mode="bicubic", align_corners=False)`.
pub(super) fn resized(table: &Tensor, from: [usize; 2], to: [usize; 2]) -> Result<Tensor> {
    let (_, d) = table.dims2()?;
    let dtype = table.dtype();
    // A sum of sixteen products is not rounded to a half type on the way.
    let exact = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let matrix = |i: usize| {
        matrix(from[i], to[i])?
            .to_dtype(exact)?
            .to_device(table.device())
    };
    let table = table.to_dtype(exact)?;
    let rows = matrix(0)?.matmul(&table.reshape((from[0], from[1] * d))?)?;
    let rows = rows.reshape((to[0], from[1], d))?;
    let both = matrix(1)?.unsqueeze(0)?.broadcast_matmul(&rows)?; // [down, across, d]
    both.reshape((to[0] * to[1], d))?.to_dtype(dtype)
}

/// What each of `n_to` places takes of each of `n_from`, `[n_to, n_from]`.
fn matrix(n_from: usize, n_to: usize) -> Result<Tensor> {
    let mut shares = vec![0f64; n_to * n_from];
    for (place, shares) in shares.chunks_exact_mut(n_from).enumerate() {
        let at = n_from as f64 / n_to as f64 * (place as f64 + 0.5) - 0.5;
        for tap in -1..=2 {
            let source = at.floor() + f64::from(tap);
            // Beyond the edge lies the edge.
            let nearest = source.clamp(0.0, (n_from - 1) as f64);
            shares[nearest as usize] += share((at - source).abs());
        }
    }
    Tensor::from_vec(shares, (n_to, n_from), &Device::Cpu)
}

/// What a place takes of one so far away, at most 2.
fn share(distance: f64) -> f64 {
    let x = distance;
    match x <= 1.0 {
        true => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        false => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
    }
}
