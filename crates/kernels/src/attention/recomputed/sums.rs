//! Gradients that several tasks add to: biases and sinks.

use super::{Typed, tile::Tile};
use crate::attention::{BiasLayout, RelativeProducts, TermGradients};
use crate::memory::{Buffer, Recycled};
use crate::products::Plain;
use crate::threads::Shared;
use crate::vectors::{Element, Stored};

/// Gradients that several tasks add to.
pub(super) struct SharedGradients<'a, T> {
    pub biases: Vec<BiasGradient<'a, T>>,
    /// The relative terms' gradients.
    pub relative: Vec<TermGradients<'a, T>>,
    /// A value per query head.
    pub sinks: Option<Shared<'a, T>>,
}

impl<T> SharedGradients<'_, T> {
    pub(super) fn is_empty(&self) -> bool {
        self.biases.is_empty() && self.relative.is_empty() && self.sinks.is_none()
    }
}

/// A head's products with relative embeddings, and the sums of their gradients.
pub(super) struct HeadRelative<'a, T: Recycled> {
    pub products: RelativeProducts<'a, T>,
    pub sums: Vec<Buffer<T>>,
}

/// A bias's gradient. Several tasks add to it, at different places.
pub(super) struct BiasGradient<'a, T> {
    pub to: Shared<'a, T>,
    pub layout: BiasLayout,
}

impl<T: Plain + Recycled + Stored> Typed<'_, T> {
    /// Returns how many tasks may run concurrently. If sequences share a gradient, the same task adds to it in
    /// sequence order. If heads share one, a single task adds to it.
    pub(super) fn at_once(&self, sums: &SharedGradients<T>) -> usize {
        let mut biases = sums.biases.iter();
        match biases.all(|bias| self.heads_lie_apart(bias.layout)) {
            true => self.of.key.heads,
            false => 1,
        }
    }

    /// Returns whether each head's elements are disjoint from all other heads', in every sequence.
    fn heads_lie_apart(&self, layout: BiasLayout) -> bool {
        let [sequence, head, query, key] = layout.strides.map(isize::unsigned_abs);
        let last = |n: usize, stride: usize| n.saturating_sub(1) * stride;
        let per_head = last(self.of.query.seq, query) + last(self.of.key.seq, key);
        let per_sequence = last(self.of.query.heads, head) + per_head;
        head > per_head && (sequence == 0 || sequence > per_sequence)
    }

    /// Adds a tile's gradients for its scores, and for its rows' sinks.
    pub(super) fn add_to(
        &self,
        sums: &SharedGradients<T>,
        tile: &Tile,
        ds: &[T],
        sinks: Option<&[T]>,
        relative: Option<&mut HeadRelative<T>>,
    ) {
        if let Some(HeadRelative { products, sums }) = relative {
            let rows = tile.queries.clone().zip(ds.chunks_exact(tile.keys.len()));
            rows.for_each(|(query, ds)| products.add_gradients(sums, query, tile.keys.start, ds));
        }
        for bias in &sums.biases {
            self.add_bias_gradient(bias, tile, ds);
        }
        if let (Some(to), Some(sinks)) = (&sums.sinks, sinks) {
            let group = self.group();
            // SAFETY: concurrent tasks have different heads, as `at_once` ensures.
            let to = unsafe { to.range(tile.head * group..(tile.head + 1) * group) };
            for (to, sinks) in to.iter_mut().zip(sinks.chunks_exact(tile.queries.len())) {
                // In the wider type: a head has one row per query.
                let mut sum = <T as Element>::Wide::ZERO;
                sinks
                    .iter()
                    .for_each(|of_row| sum += Element::to_wide(*of_row));
                *to += T::from_wide(sum);
            }
        }
    }

    fn add_bias_gradient(&self, bias: &BiasGradient<T>, tile: &Tile, ds: &[T]) {
        let (keys, stride) = (tile.keys.len(), bias.layout.key_stride());
        for (row, ds) in ds.chunks_exact(keys).enumerate() {
            let start = self.at(bias.layout, tile, row);
            let end = start + (keys - 1) * stride + 1;
            // SAFETY: concurrent tasks have different heads, and `at_once` allows several tasks only if different
            // heads' elements are disjoint.
            let to = unsafe { bias.to.range(start..end) };
            for (key, &ds) in ds.iter().enumerate() {
                to[key * stride] += ds;
            }
        }
    }
}
