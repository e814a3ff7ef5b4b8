//! The pixels that make a pixel in a resized row or column, with their weights.

use super::backend::Backend;
use super::filter::Filter;

/// For each pixel in a resized row or column, the pixels that make it, with a weight for each.
pub(super) struct Taps<W> {
    /// Each run's first pixel, and its length.
    runs: Vec<(usize, usize)>,
    /// The longest run's length.
    width: usize,
    /// Each run's weights, filled up with zeros to `width`.
    weights: Vec<W>,
}

impl<W> Taps<W> {
    /// Returns how many pixels the result has.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns the first pixel, and a weight for it and each after it, for each resulting pixel.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[W])> {
        let rows = self.weights.chunks_exact(self.width);
        rows.zip(&self.runs)
            .map(|(weights, &(start, n))| (start, &weights[..n]))
    }

    /// Returns the range with all pixels that count.
    pub fn range(&self) -> std::ops::Range<usize> {
        let start = self.runs.iter().map(|run| run.0).min().unwrap_or(0);
        let end = self.runs.iter().map(|run| run.0 + run.1).max();
        start..end.unwrap_or(start)
    }
}

impl Taps<f64> {
    /// Computes the weights in f64 that make `to` pixels from `from`, with a filter as wide as the step between them.
    pub fn new(filter: Filter, (from, to): (usize, usize), backend: Backend) -> Self {
        let step = from as f64 / to as f64;
        let stretch = step.max(1.0);
        let support = filter.support() * stretch;
        let width = (support.ceil() as usize * 2 + 1).min(from.max(1));
        let shrink = 1.0 / stretch;
        let (mut runs, mut weights) = (Vec::with_capacity(to), vec![0.0; to * width]);
        for (i, weights) in weights.chunks_exact_mut(width).enumerate() {
            let center = (i as f64 + 0.5) * step;
            // A conversion to an integer saturates at 0.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let n = end.saturating_sub(start).min(width);
            let mut sum = 0.0;
            for (j, weight) in weights[..n].iter_mut().enumerate() {
                // Both sums are right. Their last bits differ.
                let distance = match backend {
                    Backend::Pil => (j + start) as f64 - center + 0.5,
                    Backend::Torchvision => j as f64 + (start as f64 - center) + 0.5,
                };
                *weight = filter.weight(distance * shrink);
                sum += *weight;
            }
            if sum != 0.0 {
                weights[..n].iter_mut().for_each(|weight| *weight /= sum);
            }
            runs.push((start, n));
        }
        Self {
            runs,
            width,
            weights,
        }
    }

    /// Rounds the weights to integers, and returns how many bits are after the point.
    pub fn quantized(self, backend: Backend) -> (Taps<i32>, u32) {
        let bits = match backend {
            Backend::Pil => 32 - 8 - 2,
            // The largest weight fills 16 bits.
            Backend::Torchvision => {
                let largest = self.weights.iter().copied().fold(0.0, f64::max);
                let fits = |bits: u32| 0.5 + largest * f64::from(1 << (bits + 1)) < 32768.0;
                (0..22).take_while(|&bits| fits(bits)).count() as u32
            }
        };
        let one = f64::from(1 << bits);
        let weights = self
            .weights
            .iter()
            .map(|weight| (weight * one + 0.5f64.copysign(*weight)) as i32);
        let taps = Taps {
            weights: weights.collect(),
            runs: self.runs,
            width: self.width,
        };
        (taps, bits)
    }
}
