//! Interpolation of position tables to another grid size.

use candle_core::{Device, Result, Tensor};

use crate::config::Resizing;
use crate::ops::wide;

/// Interpolates a table `[down * across, d]` for the grid `from` to the grid `to`.
pub(super) fn resized(
    table: &Tensor,
    from: [usize; 2],
    to: [usize; 2],
    resizing: Resizing,
) -> Result<Tensor> {
    let (_, d) = table.dims2()?;
    let dtype = table.dtype();
    // A sum of sixteen products must not be rounded to a half type on the way.
    let exact = wide(dtype);
    let matrix = |i: usize| {
        let shares = match resizing {
            Resizing::Cubic => interpolated(from[i], to[i]),
            Resizing::SmoothCubic => smoothed(from[i], to[i], |at| cubic(at, -0.5)),
            Resizing::SmoothLinear => smoothed(from[i], to[i], |at| (1.0 - at.abs()).max(0.0)),
        };
        let matrix = Tensor::from_vec(shares, (to[i], from[i]), &Device::Cpu)?;
        matrix.to_dtype(exact)?.to_device(table.device())
    };
    let table = table.to_dtype(exact)?;
    let rows = matrix(0)?.matmul(&table.reshape((from[0], from[1] * d))?)?;
    let rows = rows.reshape((to[0], from[1], d))?;
    let both = matrix(1)?.unsqueeze(0)?.broadcast_matmul(&rows)?; // [down, across, d]
    both.reshape((to[0] * to[1], d))?.to_dtype(dtype)
}

/// Returns the interpolation weights `[n_to, n_from]`: each new place reads the four nearest old places.
fn interpolated(n_from: usize, n_to: usize) -> Vec<f64> {
    let mut shares = vec![0.0; n_to * n_from];
    for (place, shares) in shares.chunks_exact_mut(n_from).enumerate() {
        let at = n_from as f64 / n_to as f64 * (place as f64 + 0.5) - 0.5;
        for tap in -1..=2 {
            let source = at.floor() + f64::from(tap);
            // Places beyond the edge repeat the edge.
            let nearest = source.clamp(0.0, (n_from - 1) as f64);
            shares[nearest as usize] += cubic(at - source, -0.75);
        }
    }
    shares
}

/// Returns interpolation weights with antialiasing: a place in a smaller grid reads all places that it covers. The
/// weights sum to 1.
fn smoothed(n_from: usize, n_to: usize, share_at: fn(f64) -> f64) -> Vec<f64> {
    let mut shares = vec![0.0; n_to * n_from];
    let step = n_from as f64 / n_to as f64;
    for (place, shares) in shares.chunks_exact_mut(n_from).enumerate() {
        let at = step * (place as f64 + 0.5) - 0.5;
        for (source, share) in shares.iter_mut().enumerate() {
            *share = share_at((at - source as f64) / step.max(1.0));
        }
        let sum: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
    }
    shares
}

/// Returns the weight in Keys's cubic convolution with the parameter `a`. It is 0 at distances from 2 on.
fn cubic(distance: f64, a: f64) -> f64 {
    let x = distance.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
