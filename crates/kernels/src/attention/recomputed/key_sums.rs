//! Sums of the gradients for keys and values over the queries.

use std::collections::BTreeMap;
use std::ops::Range;

use super::tile::Tile;
use crate::memory::{Buffer, Recycled};
use crate::products::Plain;

/// The gradients for keys and values from some of the queries.
pub(super) struct KeyGradients<T: Recycled> {
    /// The positions that these queries see.
    pub keys: Range<usize>,
    /// `[keys, head_dim]`
    pub key: Buffer<T>,
    /// `[keys, head_dim of the values]`
    pub value: Buffer<T>,
}

impl<T: Plain + Recycled> KeyGradients<T> {
    pub(super) fn zeros(keys: Range<usize>, [of_key, of_value]: [usize; 2]) -> Self {
        let zeros = |width: usize| {
            let mut zeros = Buffer::new(keys.len() * width);
            zeros.fill(T::ZERO);
            zeros
        };
        let [key, value] = [of_key, of_value].map(zeros);
        Self { keys, key, value }
    }

    /// Adds a tile's gradients for its keys.
    pub(super) fn add_keys(&mut self, tile: &Tile, gradient: &[T]) {
        add(
            &mut self.key,
            tile.keys.start - self.keys.start,
            tile,
            gradient,
        );
    }

    /// Adds a tile's gradients for its values.
    pub(super) fn add_values(&mut self, tile: &Tile, gradient: &[T]) {
        add(
            &mut self.value,
            tile.keys.start - self.keys.start,
            tile,
            gradient,
        );
    }
}

/// Adds rows, the first one to row `first`.
fn add<T: Plain>(sum: &mut [T], first: usize, tile: &Tile, rows: &[T]) {
    let width = rows.len() / tile.keys.len();
    let sum = sum[first * width..].iter_mut().zip(rows);
    sum.for_each(|(sum, &x)| *sum += x);
}

/// A head's parts, which are added in the order of their indices, whichever is there first.
pub(super) struct InOrder<T: Recycled> {
    next: usize,
    early: BTreeMap<usize, KeyGradients<T>>,
}

impl<T: Recycled> Default for InOrder<T> {
    fn default() -> Self {
        Self {
            next: 0,
            early: BTreeMap::new(),
        }
    }
}

impl<T: Recycled> InOrder<T> {
    /// Passes a part to `add`, and those that waited for it, if all before it have been added.
    pub(super) fn add(
        &mut self,
        number: usize,
        part: KeyGradients<T>,
        add: impl Fn(&KeyGradients<T>),
    ) {
        self.early.insert(number, part);
        while let Some(part) = self.early.remove(&self.next) {
            add(&part);
            self.next += 1;
        }
    }
}
