//! Biases on attention scores, in the layouts that layers compute.

use candle_blocks_kernels::attention::BiasLayout;
use candle_core::{D, DType, Device, Result, Tensor, bail};

use super::constants::uploaded;

/// A bias that is added to attention scores.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct BiasTensor {
    /// The elements.
    pub tensor: Tensor,
    /// The scores that share an element.
    #[doc(hidden)]
    pub by: BiasBy,
}

/// The scores that share an element of a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub enum BiasBy {
    /// The bias broadcasts to `[batch, n_heads, queries, keys]`.
    Score,
    /// The bias has one element for each distance, `[n_heads, queries + keys - 1]`. Query `i` and key `j` have the
    /// element `j - i + queries - 1` of their head.
    Distance,
}

impl BiasTensor {
    /// Creates a bias that broadcasts to the scores.
    pub fn by_score(tensor: Tensor) -> Self {
        let by = BiasBy::Score;
        Self { tensor, by }
    }

    /// Creates a bias with one element for each distance.
    pub fn by_distance(tensor: Tensor) -> Self {
        let by = BiasBy::Distance;
        Self { tensor, by }
    }

    /// Returns the bias in a type on a device.
    pub fn uploaded(&self, dtype: DType, device: &Device) -> Result<Self> {
        let tensor = uploaded(&self.tensor, dtype, device)?;
        Ok(Self { tensor, ..*self })
    }

    /// Returns the bias on the scores of the last `keys` of `all` keys.
    pub fn last_keys(&self, all: usize, keys: usize) -> Result<Self> {
        let columns = self.tensor.dims().last().copied().unwrap_or(1);
        let is_shared = self.by == BiasBy::Score && columns != all;
        if keys == all || is_shared {
            return Ok(self.clone());
        }
        let (dropped, by) = (all - keys, self.by);
        let tensor = self.tensor.narrow(D::Minus1, dropped, columns - dropped)?;
        Ok(Self { tensor, by })
    }

    /// Checks the shape.
    ///
    /// # Errors
    /// If the bias does not fit scores with these lengths, `[batch, n_heads, queries, keys]`.
    pub fn check(&self, lengths: [usize; 4]) -> Result<()> {
        let [_, n_heads, queries, keys] = lengths;
        match self.by {
            BiasBy::Score => check_broadcast(self.tensor.dims(), lengths),
            BiasBy::Distance => {
                let expected = (n_heads, (queries + keys).saturating_sub(1));
                match self.tensor.dims2()? == expected {
                    true => Ok(()),
                    false => bail!(
                        "relative position bias: has shape {:?}, expected [n_heads, queries + keys - 1] = {expected:?}",
                        self.tensor.dims()
                    ),
                }
            }
        }
    }

    /// Returns the places of the elements for `queries` and `keys` in the contiguous tensor.
    pub fn layout(&self, queries: usize, keys: usize) -> BiasLayout {
        match self.by {
            BiasBy::Score => {
                let dims = four(self.tensor.dims()).unwrap_or([1; 4]);
                BiasLayout::strided(broadcast_strides(dims))
            }
            BiasBy::Distance => BiasLayout::by_distance(queries, keys),
        }
    }

    /// Returns the bias for every score, in a tensor that broadcasts to `[batch, n_heads, queries, keys]`.
    pub fn of_scores(&self, queries: usize, keys: usize) -> Result<Tensor> {
        if self.by == BiasBy::Score {
            return Ok(self.tensor.clone());
        }
        let (n_heads, distances) = self.tensor.dims2()?;
        if queries < 2 {
            return self.tensor.reshape((1, n_heads, queries, keys));
        }
        // Row `i` begins one element earlier than the row before it. With rows one element shorter than the copies of
        // the distances, that is a reshape.
        let copies = self
            .tensor
            .unsqueeze(1)?
            .broadcast_as((n_heads, queries, distances))?;
        let copies = copies.reshape((n_heads, queries * distances))?;
        let rows = copies.narrow(1, queries - 1, queries * (distances - 1))?;
        let rows = rows.reshape((1, n_heads, queries, distances - 1))?;
        rows.narrow(3, 0, keys)?.contiguous()
    }
}

/// Checks a bias's shape.
///
/// # Errors
/// If it does not broadcast to `[batch, n_heads, queries, keys]`.
fn check_broadcast(dims: &[usize], to: [usize; 4]) -> Result<()> {
    let fits = |dims: [usize; 4]| dims.iter().zip(to).all(|(&dim, n)| dim == 1 || dim == n);
    if !four(dims).is_some_and(fits) {
        bail!(
            "additive mask: has shape {dims:?}, expected a shape that broadcasts to [batch, n_heads, queries, keys] = {to:?}"
        );
    }
    Ok(())
}

/// Returns up to four dimensions, padded with leading ones.
pub(super) fn four(dims: &[usize]) -> Option<[usize; 4]> {
    let mut all = [1; 4];
    all[4usize.checked_sub(dims.len())?..].copy_from_slice(dims);
    Some(all)
}

/// Returns a contiguous tensor's strides, with 0 along broadcast dimensions.
fn broadcast_strides(dims: [usize; 4]) -> [usize; 4] {
    let mut stride = 1;
    let mut strides = dims.map(|_| 0);
    for (to, dim) in strides.iter_mut().zip(dims).rev() {
        *to = if dim == 1 { 0 } else { stride };
        stride *= dim;
    }
    strides
}
