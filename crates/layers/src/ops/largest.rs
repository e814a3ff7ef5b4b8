//! Activation sparsity: keeps only each row's largest elements.

use std::f64::consts::SQRT_2;

use candle_blocks_kernels::Cpu;
use candle_core::{Result, cpu::erf::erf_inv};

use super::kernels::{same_type, same_types};
use super::numbers::{Number, Numbers};
use super::tape::Taped;
use super::value::{Value, on_either};

impl Value {
    /// Computes `max(x - mean - z · deviation, 0)` over each row, where z is the `quantile` for a share of zeros:
    /// transformers' `Gemma3nTextMLP._gaussian_topk`
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>).
    pub fn largest(&self, share: f64) -> Result<Value> {
        on_either!(self, x => Ok(x.largest(quantile(share))?.into()))
    }
}

/// Returns the standard normal quantile: the value below which a normal variable is with this probability.
pub(crate) fn quantile(probability: f64) -> f64 {
    SQRT_2 * erf_inv(2.0 * probability - 1.0)
}

/// Subtracts `mean + z · deviation` from a row's elements, and clamps negative results to 0.
pub(crate) fn keep_largest<T: Number>(row: &mut [T], z: f64) {
    let (mean, deviation) = mean_and_deviation(row);
    for x in row {
        let above = x.wide() - mean - z * deviation;
        *x = T::rounded(if above <= 0.0 { 0.0 } else { above }); // NaN is preserved
    }
}

fn mean_and_deviation<T: Number>(row: &[T]) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = row.iter().map(|x| x.wide()).sum::<f64>() / n;
    let squares = row.iter().map(|x| (x.wide() - mean).powi(2));
    (mean, (squares.sum::<f64>() / n).sqrt())
}

impl Taped<Cpu> {
    fn largest(&self, z: f64) -> Result<Self> {
        let x = self.whole()?;
        let width = x.slot.width.max(1);
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        same_type!(y.slice_mut(), x.data.read().slice(), |y, x| {
            let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
            for (y, x) in rows {
                y.copy_from_slice(x);
                keep_largest(y, z);
            }
        });
        let (data, slot) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(dy.dtype(), dy.len())?;
            same_types!(
                dx.slice_mut(),
                dy.slice(),
                data.read().slice(),
                |dx, dy, x| {
                    let rows = dy.chunks_exact(width).zip(x.chunks_exact(width));
                    for (dx, (dy, x)) in dx.chunks_exact_mut(width).zip(rows) {
                        gradient(dx, dy, x, z);
                    }
                }
            );
            pass.add(&slot, dx)
        }))
    }
}

/// With S the sum over kept elements: `dx = dy if kept - S / n · (1 + z · (x - mean) / deviation)`. If the deviation
/// is 0, the last term is 0, as in PyTorch.
fn gradient<T: Number>(dx: &mut [T], dy: &[T], x: &[T], z: f64) {
    let (mean, deviation) = mean_and_deviation(x);
    let kept_gradient = |dy: &T, x: &T| match x.wide() - mean - z * deviation <= 0.0 {
        true => 0.0,
        false => dy.wide(),
    };
    let sum: f64 = dy.iter().zip(x).map(|(dy, x)| kept_gradient(dy, x)).sum();
    let share = sum / x.len() as f64;
    let slope = if deviation > 0.0 { z / deviation } else { 0.0 };
    for (dx, (dy, x)) in dx.iter_mut().zip(dy.iter().zip(x)) {
        let statistics_part = share * (1.0 + slope * (x.wide() - mean));
        *dx = T::rounded(kept_gradient(dy, x) - statistics_part);
    }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_equal_published_tables() {
        // The first two are Wichura's test values (1988, algorithm AS 241).
        for (probability, expected) in [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_814),
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_7),
        ] {
            let found = quantile(probability);
            assert!((found - expected).abs() <= 2e-15, "{probability}: {found}");
        }
    }
}
