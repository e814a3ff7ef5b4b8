//! The keys visible to a query.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::{config::Visibility, device::is_one};

/// The keys visible to each query. By default all keys are visible.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// A key mask `[batch, keys]`, u8, 1 for a visible key. `None` keeps all.
    pub keep: Option<&'a Tensor>,
    /// The same key mask on the host. Required together with `keep`.
    pub on_host: Option<&'a Tensor>,
    /// Causal or bidirectional visibility.
    pub visibility: Visibility,
    /// A sliding window. Causal: the last `window` keys, including the query's own. Bidirectional: the keys at most
    /// `window` positions away. The same as transformers' `sliding_window`
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/masking_utils.py>).
    pub window: Option<usize>,
    /// The first query's position among the keys: the key count in the cache before it.
    pub first_query: usize,
}

impl Default for Visible<'_> {
    fn default() -> Self {
        Self {
            keep: None,
            on_host: None,
            visibility: Visibility::Bidirectional,
            window: None,
            first_query: 0,
        }
    }
}

impl Visible<'_> {
    /// Returns whether each query sees a key.
    pub(crate) fn all_see(&self, queries: usize, keys: usize) -> Result<bool> {
        let reach = Reach::of(self);
        let Some(marks) = self.on_host else {
            return Ok((0..queries).all(|query| !reach.range(query, keys).is_empty()));
        };
        let rows = marks.to_vec2::<u8>()?;
        Ok(rows.iter().all(|row| {
            let mut kept = vec![0; keys + 1]; // before each key
            for (key, &mark) in row.iter().enumerate() {
                kept[key + 1] = kept[key] + usize::from(mark != 0);
            }
            let sees = |query| {
                let range = reach.range(query, keys);
                kept[range.end] > kept[range.start]
            };
            (0..queries).all(sees)
        }))
    }
}

/// Checks that a key mask `[batch, keys]` has the right shape and device.
pub(super) fn check_keep(
    visible: &Visible,
    device: &Device,
    (batch, keys): (usize, usize),
) -> Result<()> {
    if let Some(keep) = visible.keep {
        if keep.dtype() != DType::U8 {
            let dtype = keep.dtype();
            bail!("attention: keep is {dtype:?}; expected U8 with 1 for visible keys");
        }
        if keep.dims() != [batch, keys] {
            let found = keep.shape();
            bail!("attention: keep has shape {found:?}; expected [{batch}, {keys}]");
        }
        if !is_one(keep.device(), device) {
            bail!("attention: keep and queries are on different devices; move one with to_device")
        }
    }
    Ok(())
}

/// The keys that a query may see by its position.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct Reach {
    visibility: Visibility,
    window: Option<usize>,
    first_query: usize,
}

impl Reach {
    pub(crate) fn of(visible: &Visible) -> Self {
        Self {
            visibility: visible.visibility,
            window: visible.window,
            first_query: visible.first_query,
        }
    }

    /// Returns the same reach for a sequence that lacks some positions before its first query.
    pub(crate) fn without(self, positions: usize) -> Self {
        Self {
            first_query: self.first_query.saturating_sub(positions),
            ..self
        }
    }

    /// Returns the range of keys, out of `keys`, visible to query number `query`.
    pub(crate) fn range(self, query: usize, keys: usize) -> Range<usize> {
        let position = self.first_query.saturating_add(query);
        let after = |distance: usize| position.saturating_add(distance).min(keys);
        match (self.visibility, self.window) {
            (Visibility::Bidirectional, None) => 0..keys,
            (Visibility::Bidirectional, Some(window)) => {
                position.saturating_sub(window).min(keys)..after(window.saturating_add(1))
            }
            (Visibility::Causal, None) => 0..after(1),
            (Visibility::Causal, Some(window)) => {
                let end = position.saturating_add(1);
                end.saturating_sub(window).min(keys)..end.min(keys)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys, out of 6, visible to queries 0 to 2 after `first_query` cached keys.
    fn seen(
        visibility: Visibility,
        window: Option<usize>,
        first_query: usize,
    ) -> [Range<usize>; 3] {
        let reach = Reach {
            visibility,
            window,
            first_query,
        };
        [0, 1, 2].map(|query| reach.range(query, 6))
    }

    #[test]
    fn the_reach_counts_the_cache_and_the_query_itself() {
        use Visibility::{Bidirectional, Causal};
        assert_eq!(seen(Bidirectional, None, 3), [0..6, 0..6, 0..6]);
        assert_eq!(seen(Causal, None, 0), [0..1, 0..2, 0..3]);
        assert_eq!(seen(Causal, None, 3), [0..4, 0..5, 0..6]);
        assert_eq!(seen(Causal, Some(2), 3), [2..4, 3..5, 4..6]);
        assert_eq!(seen(Causal, Some(9), 3), [0..4, 0..5, 0..6]);
        assert_eq!(seen(Bidirectional, Some(1), 0), [0..2, 0..3, 1..4]);
        assert_eq!(seen(Bidirectional, Some(1), 4), [3..6, 4..6, 5..6]);
    }

    #[test]
    fn positions_after_the_last_key_see_no_wrong_range() {
        let reach = Reach {
            visibility: Visibility::Causal,
            window: Some(2),
            first_query: usize::MAX,
        };
        assert_eq!(reach.range(7, 6), 6..6);
        let reach = Reach {
            visibility: Visibility::Bidirectional,
            window: Some(usize::MAX),
            first_query: 9,
        };
        assert_eq!(reach.range(7, 6), 0..6);
    }
}
