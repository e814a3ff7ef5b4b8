//! Resizing in f32, for processors that rescale first.

use super::filter::Filter;
use super::size::Size;

/// Resizes an image's three planes, `[3, height, width]`, as torchvision's `resize` with `antialias=True` does for an f32
/// tensor on a CPU.
pub(super) fn resize(planes: &[f32], from: Size, to: Size, filter: Filter) -> Vec<f32> {
    let mut narrowed = Vec::new();
    let mut planes = planes;
    if to.width != from.width {
        let taps = Taps::new(filter, from.width, to.width);
        for row in planes.chunks_exact(from.width) {
            narrowed.extend(taps.iter().map(|(start, weights)| {
                let pixels = row[start..].iter().zip(weights);
                pixels.fold(0.0, |sum: f32, (&pixel, &weight)| {
                    pixel.mul_add(weight, sum)
                })
            }));
        }
        planes = &narrowed;
    }
    if to.height == from.height {
        return planes.to_vec();
    }
    let taps = Taps::new(filter, from.height, to.height);
    let mut result = Vec::with_capacity(3 * to.width * to.height);
    for plane in planes.chunks_exact(from.height * to.width) {
        for (start, weights) in taps.iter() {
            let rows = plane[start * to.width..].chunks_exact(to.width);
            let mut sums = vec![0.0f32; to.width];
            for (&weight, row) in weights.iter().zip(rows) {
                for (sum, &pixel) in sums.iter_mut().zip(row) {
                    *sum = pixel.mul_add(weight, *sum);
                }
            }
            result.extend(sums);
        }
    }
    result
}

/// Weights that are computed in f32.
struct Taps {
    runs: Vec<(usize, Vec<f32>)>,
}

impl Taps {
    fn new(filter: Filter, from: usize, to: usize) -> Self {
        let step = from as f32 / to as f32;
        let stretch = step.max(1.0);
        let support = filter.support() as f32 * stretch;
        let shrink = 1.0 / stretch;
        let run = |i: usize| {
            let center = step * (i as f32 + 0.5);
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weight = |j: usize| {
                let distance = (j as f32 + (start as f32 - center) + 0.5) * shrink;
                filter.weight(f64::from(distance)) as f32
            };
            let mut weights: Vec<f32> = (0..end.saturating_sub(start)).map(weight).collect();
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            (start, weights)
        };
        Self {
            runs: (0..to).map(run).collect(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.runs
            .iter()
            .map(|(start, weights)| (*start, &weights[..]))
    }
}
