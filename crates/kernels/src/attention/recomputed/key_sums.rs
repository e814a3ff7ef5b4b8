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

    /// Returns the gradients for a tile's keys.
    pub(super) fn key(&mut self, tile: &Tile) -> &mut [T] {
        rows_of(&mut self.key, &self.keys, &tile.keys)
    }

    /// Returns the gradients for a tile's values.
    pub(super) fn value(&mut self, tile: &Tile) -> &mut [T] {
        rows_of(&mut self.value, &self.keys, &tile.keys)
    }
}

/// Returns the rows for some of the positions `all`.
fn rows_of<'a, T>(rows: &'a mut [T], all: &Range<usize>, positions: &Range<usize>) -> &'a mut [T] {
    let width = rows.len() / all.len();
    let start = (positions.start - all.start) * width;
    &mut rows[start..start + positions.len() * width]
}

/// The parts of a block of keys in a head, which are added in the order of their indices, whichever is there first.
pub(super) struct InOrder<T: Recycled> {
    next: usize,
    early: BTreeMap<usize, Option<KeyGradients<T>>>,
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
    /// Passes a part to `add`, and those that waited for it, if all before it have been added. A part that sees none of
    /// the keys has no gradients.
    pub(super) fn add(
        &mut self,
        number: usize,
        part: Option<KeyGradients<T>>,
        add: impl Fn(&KeyGradients<T>),
    ) {
        self.early.insert(number, part);
        while let Some(part) = self.early.remove(&self.next) {
            if let Some(part) = &part {
                add(part);
            }
            self.next += 1;
        }
    }
}
