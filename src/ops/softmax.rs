//! Softmax over the last dimension: of all elements, or of those that attention may see.

use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use super::{
    composed,
    linear::selected_isa,
    storage::{Float, check_float, cotangent, gradient, output, slice, tensor_slice, with_float},
};
use crate::{
    Visibility,
    cpu::{
        Element,
        softmax::{self as kernel, Seen},
    },
};

const OP: &str = "softmax";

/// Which keys each query may see. The default is all of them.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// `[batch, keys]`, u8, 1 for a key that is kept; `None` keeps all.
    pub keep: Option<&'a Tensor>,
    /// Whether queries see later keys.
    pub visibility: Visibility,
    /// A sliding window. Causal: the last `window` keys, the query's own included. Bidirectional: the keys at
    /// most `window` positions away. The same as transformers' `sliding_window`
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/masking_utils.py>).
    pub window: Option<usize>,
    /// The position of the first query among the keys: the number of keys in the cache before it.
    pub first_query: usize,
}

impl Default for Visible<'_> {
    fn default() -> Self {
        Self {
            keep: None,
            visibility: Visibility::Bidirectional,
            window: None,
            first_query: 0,
        }
    }
}

/// Softmax over the last dimension: `exp(x - max) / Σ exp(x - max)`.
///
/// Equal to `torch.softmax(x, -1)`, except that a row of nothing but `-inf` gives zeros and not NaN.
///
/// # Shapes
/// `x` `[.., n]`, any rank from 1; the result has the shape of `x`.
///
/// # Errors
/// If `x` is not of a float type, or is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    check_float(OP, x)?;
    if x.rank() == 0 {
        bail!("{OP}: the input is a scalar; expected a last dimension to sum over")
    }
    if x.device().is_cpu() {
        x.contiguous()?.apply_op1(Softmax { attention: None })
    } else {
        composed::softmax(x, None)
    }
}

/// Softmax of attention scores over the keys that each query may see.
///
/// Other keys get exactly 0, and no gradient; their scores are not read. A query that sees nothing,
/// or nothing but `-inf`, gets zeros. Equal to `torch.softmax(scores.masked_fill(~mask, -inf), -1)`
/// where that is not NaN (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
///
/// # Shapes
/// `scores` and result `[batch, heads, queries, keys]`, `visible.keep` `[batch, keys]`.
///
/// # Errors
/// If a shape does not fit, `scores` is not of a float type, or `keep` is not u8.
pub fn attention_softmax(scores: &Tensor, visible: &Visible) -> Result<Tensor> {
    check_float(OP, scores)?;
    let &[batch, heads, queries, keys] = scores.dims() else {
        bail!(
            "attention_softmax: the scores have shape {:?}; expected [batch, heads, queries, keys]",
            scores.shape()
        )
    };
    check_keep(visible, scores, (batch, keys))?;
    if !scores.device().is_cpu() {
        return composed::attention_softmax(scores, visible);
    }
    let attention = Attention {
        keep: visible.keep.map(Tensor::contiguous).transpose()?,
        reach: Reach::of(visible),
        heads,
        queries,
    };
    scores.contiguous()?.apply_op1(Softmax {
        attention: Some(attention),
    })
}

/// Checks that marks `[batch, keys]` fit, and are on the device of `x`.
pub(super) fn check_keep(
    visible: &Visible,
    x: &Tensor,
    (batch, keys): (usize, usize),
) -> Result<()> {
    if let Some(keep) = visible.keep {
        if keep.dtype() != DType::U8 {
            bail!(
                "attention_softmax: keep is {:?}; expected U8 with 1 for what is kept",
                keep.dtype()
            )
        }
        if keep.dims() != [batch, keys] {
            bail!(
                "attention_softmax: keep has shape {:?}; expected [{batch}, {keys}]",
                keep.shape()
            )
        }
        if !keep.device().same_device(x.device()) {
            bail!(
                "attention_softmax: keep and scores are on different devices; move one with to_device"
            )
        }
    }
    Ok(())
}

/// The keys that a query may see by its position.
#[derive(Clone, Copy)]
pub(crate) struct Reach {
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

    /// Of `keys` keys, those that query number `query` sees.
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

struct Attention {
    keep: Option<Tensor>, // [batch, keys]
    reach: Reach,
    heads: usize,
    queries: usize,
}

struct Softmax {
    attention: Option<Attention>,
}

impl Softmax {
    fn forward<T: Float>(&self, x: &[T], keys: usize) -> Result<Vec<T>> {
        let mut y = vec![T::ZERO; x.len()];
        let Some(Attention {
            keep,
            reach,
            heads,
            queries,
        }) = &self.attention
        else {
            let everything = |_| Seen {
                range: 0..keys,
                keep: None,
            };
            kernel::forward(selected_isa()?, x, &mut y, keys, everything);
            return Ok(y);
        };
        let keep = keep.as_ref().map(Tensor::storage_and_layout);
        let keep: Option<&[u8]> = match &keep {
            Some((storage, layout)) => Some(tensor_slice(OP, storage, layout)?),
            None => None,
        };
        kernel::forward(selected_isa()?, x, &mut y, keys, |row| {
            let batch = row / (heads * queries);
            Seen {
                range: reach.range(row % queries, keys),
                keep: keep.map(|keep| &keep[batch * keys..][..keys]),
            }
        });
        Ok(y)
    }
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let keys = layout.dims().last().copied().unwrap_or(1);
        with_float!(OP, storage.dtype(), T => {
            let y = self.forward(slice::<T>(OP, storage, layout)?, keys)?;
            Ok(output(y, layout))
        })
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = cotangent(OP, grad)?;
        let (dy, dy_layout) = grad.storage_and_layout();
        let (y_storage, y_layout) = y.storage_and_layout();
        let keys = x.dims().last().copied().unwrap_or(1);
        with_float!(OP, x.dtype(), T => {
            let dy = tensor_slice::<T>(OP, &dy, dy_layout)?;
            let mut dx = vec![T::ZERO; dy.len()];
            let y = tensor_slice(OP, &y_storage, y_layout)?;
            kernel::backward(selected_isa()?, y, dy, &mut dx, keys);
            gradient(dx, x).map(Some)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which keys the queries 0 to 2 behind `first_query` cached keys see of 6.
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
    fn positions_behind_the_last_key_see_no_wrong_range() {
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
