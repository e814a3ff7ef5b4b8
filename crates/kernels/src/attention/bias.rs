//! Biases on attention scores.

use std::iter::zip;

/// A bias that is added to scores.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// The place of each score's element.
    pub layout: BiasLayout,
}

impl<'a> Bias<'a> {
    /// Returns the same bias, starting with sequence number `sequence`.
    pub fn from_sequence(&self, sequence: usize) -> Self {
        let layout = self.layout;
        Self {
            data: &self.data[sequence * layout.strides[0].unsigned_abs()..],
            layout,
        }
    }

    /// Returns the elements from the one for `at` (sequence, head, query, key) on.
    #[inline(always)]
    pub(crate) fn from(&self, at: [usize; 4]) -> &'a [f32] {
        &self.data[self.layout.index(at)..]
    }
}

/// The places of a bias's elements for the scores `[batch, heads, queries, keys]`.
///
/// A stride of 0 broadcasts along a dimension: ALiBi slopes have one row per head, a key mask has one per sequence. With a stride of -1
/// for queries and 1 for keys, a head has one element for each distance between query and key.
#[derive(Clone, Copy, Debug)]
pub struct BiasLayout {
    /// The index of the element for the first sequence, head, query and key.
    pub first: usize,
    /// Strides for sequence, head, query and key, in elements. Only the stride for queries may be negative.
    pub strides: [isize; 4],
}

impl BiasLayout {
    /// Returns the layout of a bias whose first element is that of the first score.
    pub fn strided(strides: [usize; 4]) -> Self {
        Self {
            first: 0,
            strides: strides.map(|stride| stride as isize),
        }
    }

    /// Returns the layout of a bias by distance, `[heads, queries + keys - 1]`. Query `i` and key `j` have the element
    /// `j - i + queries - 1` of their head.
    pub fn by_distance(queries: usize, keys: usize) -> Self {
        let distances = (queries + keys).saturating_sub(1);
        Self {
            first: queries.saturating_sub(1),
            strides: [0, distances as isize, -1, 1],
        }
    }

    /// Returns the index of a score's element.
    #[inline(always)]
    pub(crate) fn index(&self, at: [usize; 4]) -> usize {
        let offsets = zip(at, self.strides).map(|(i, stride)| i as isize * stride);
        self.first.wrapping_add_signed(offsets.sum())
    }

    /// Returns the stride for keys.
    #[inline(always)]
    pub(crate) fn key_stride(&self) -> usize {
        self.strides[3].unsigned_abs()
    }

    /// Checks that every score has an element among `n`.
    ///
    /// # Panics
    /// If a score has none, or if a stride other than the one for queries is negative.
    pub(crate) fn check(&self, lengths: [usize; 4], n: usize) {
        let [sequence, head, query, key] = self.strides;
        assert!(
            sequence >= 0 && head >= 0 && key >= 0,
            "a bias's strides {:?}: only the stride for queries may be negative",
            self.strides
        );
        if lengths.contains(&0) {
            return;
        }
        let reached =
            |(length, stride): (usize, isize)| (length - 1).checked_mul(stride.unsigned_abs());
        let last = zip(lengths, self.strides)
            .filter(|(_, stride)| *stride >= 0)
            .try_fold(self.first, |at, of| at.checked_add(reached(of)?));
        assert!(
            last.is_some_and(|last| last < n),
            "a bias with {n} elements is too short"
        );
        let before = if query < 0 {
            reached((lengths[2], query))
        } else {
            Some(0)
        };
        assert!(
            before.is_some_and(|before| before <= self.first),
            "a bias with {} elements before the first score's is too short",
            self.first
        );
    }
}
