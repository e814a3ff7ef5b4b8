//! Tapes whose steps are composed of candle operations, for devices without this crate's kernels.
//!
//! Forward and backward passes are written out, so that candle records no graph for them. Its fused operations,
//! which have no backward pass, can therefore be used in training too, and no gradient is added to zeros. f32 and
//! f64 compute in their own type. f16 and bf16 multiply matrices in their own type, and compute and sum everything
//! else in f32.

mod activation;
#[doc(hidden)]
pub mod adamw;
mod attention;
mod blocks;
mod choice;
mod convolution;
mod cross_entropy;
mod decay_complement;
mod elements;
mod experts;
mod grouped;
mod join;
mod largest;
mod linear;
mod mse;
mod norm;
mod recurrence;
mod relative_scores;
mod rotary;
mod selective;
mod softmax;
mod xielu;

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use super::array::Array;
use super::backward::BackwardPass;
use super::engine::Engine;
use super::gradients::handed_over_from_device;
use super::graph::NodeResult;
use super::slot::Slot;
use super::tape::Taped;

pub(crate) use adamw::TOGETHER;
#[doc(hidden)]
pub use adamw::{adamw, sum_of_squares};
pub(crate) use choice::Chooser;
pub(crate) use grouped::{GroupedLinear, Groups, has_grouped_kernel};

/// The engine that composes steps from candle operations.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct Composed;

/// The gradient so far for one value.
#[doc(hidden)]
pub enum Sum {
    /// The whole gradient.
    Whole(Array),
    /// Gradients for ranges of rows or columns, and the total row or column count.
    Parts((Along, usize), Vec<(Range<usize>, Array)>),
}

/// The direction in which a matrix is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Along {
    Rows,
    Columns,
}

impl Engine for Composed {
    type Data = Array;
    type Output = Array;
    type Sum = Sum;

    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn data(tensor: &Tensor) -> Result<Array> {
        Ok(Array::of(tensor))
    }

    fn dtype(data: &Array) -> DType {
        data.dtype()
    }

    fn reshaped(data: Array, dims: &[usize]) -> Result<Array> {
        data.reshape(dims)
    }

    fn copied(data: &Array, of: &Slot, dims: &[usize]) -> Result<Array> {
        view(data, of, dims)?.contiguous()
    }

    fn tensor(data: Array, dims: &[usize]) -> Result<Tensor> {
        data.reshape(dims).map(Array::into_tensor)
    }

    fn result(data: Array, dims: &[usize]) -> Result<NodeResult> {
        let contiguous = data.reshape(dims)?;
        Ok(NodeResult::Copied(
            contiguous.at_its_beginning()?.into_tensor(),
        ))
    }

    fn zeros(like: &Array, dims: &[usize]) -> Result<Array> {
        like.zeros(dims)
    }

    fn cotangent(tensor: &Tensor) -> Result<Array> {
        Array::of(tensor).contiguous()
    }

    fn add(self, sum: &mut Option<Sum>, to: &Slot, gradient: Array) -> Result<()> {
        if !to.is_whole() {
            let rows = gradient.tensor().elem_count() / to.columns.len().max(1);
            let gradient = gradient.reshape(&[rows, to.columns.len()])?;
            return add_part(
                sum,
                (Along::Columns, to.width),
                to.columns.clone(),
                gradient,
            );
        }
        *sum = Some(Sum::Whole(match sum.take() {
            None => gradient,
            Some(Sum::Whole(sum)) => sum.add(&gradient.reshape(sum.dims())?)?,
            Some(Sum::Parts(of, parts)) => {
                gradient.add(&joined(parts, of)?.reshape(gradient.dims())?)?
            }
        }));
        Ok(())
    }

    fn total(sum: Sum, dims: &[usize]) -> Result<Array> {
        match sum {
            Sum::Whole(sum) => sum.reshape(dims),
            Sum::Parts(of, parts) => joined(parts, of)?.reshape(dims),
        }
    }

    fn handed_over(gradient: Array, of: &Tensor) -> Result<Option<Tensor>> {
        handed_over_from_device(gradient.into_tensor(), of)
    }

    fn working<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}

impl Taped<Composed> {
    /// Returns the value's own columns.
    fn view(&self) -> Result<Array> {
        view(&self.data, &self.slot, self.dims())
    }
}

/// Returns a value's own columns.
fn view(data: &Array, of: &Slot, dims: &[usize]) -> Result<Array> {
    if of.is_whole() {
        return Ok(data.clone());
    }
    let (last, columns) = (dims.len() - 1, &of.columns);
    data.narrow(last, columns.start, columns.len())
}

/// Adds the gradient for a range of rows or columns. `of` holds the direction and the total count.
fn add_part(
    sum: &mut Option<Sum>,
    of: (Along, usize),
    range: Range<usize>,
    gradient: Array,
) -> Result<()> {
    *sum = Some(match sum.take() {
        None => Sum::Parts(of, vec![(range, gradient)]),
        Some(Sum::Parts(known, mut parts)) if known == of => {
            match parts.iter_mut().find(|(of, _)| *of == range) {
                Some((_, sum)) => *sum = sum.add(&gradient)?,
                None => parts.push((range, gradient)),
            }
            Sum::Parts(of, parts)
        }
        Some(Sum::Parts(known, _)) => {
            bail!("a gradient split along {of:?} does not match one split along {known:?}")
        }
        Some(Sum::Whole(sum)) => {
            let all = joined(vec![(range, gradient)], of)?;
            Sum::Whole(sum.add(&all.reshape(sum.dims())?)?)
        }
    });
    Ok(())
}

/// Concatenates disjoint parts to a matrix with `n` rows or columns. Gaps are filled with zeros.
fn joined(mut parts: Vec<(Range<usize>, Array)>, (along, n): (Along, usize)) -> Result<Array> {
    parts.sort_by_key(|(range, _)| range.start);
    let dim = along as usize;
    let mut all: Vec<Array> = Vec::new();
    let mut end = 0;
    let missing = |like: &Array, n: usize| {
        let mut dims = like.dims().to_vec();
        dims[dim] = n;
        like.zeros(&dims)
    };
    for (range, part) in parts {
        if range.start < end {
            bail!("gradients for {range:?} overlap others that end at {end}");
        }
        if range.start > end {
            all.push(missing(&part, range.start - end)?);
        }
        end = range.end;
        all.push(part);
    }
    if let Some(last) = all.last().filter(|_| end < n) {
        let rest = missing(last, n - end)?;
        all.push(rest);
    }
    Array::cat(&all, dim)
}

impl BackwardPass<Composed> {
    /// Adds to the gradient for some rows in a value with `n` rows.
    fn add_rows(
        &mut self,
        place: usize,
        n: usize,
        rows: Range<usize>,
        gradient: Array,
    ) -> Result<()> {
        add_part(self.sum(place), (Along::Rows, n), rows, gradient)
    }

    /// Adds to a parameter's gradient, in the parameter's type, if it is required.
    fn add_parameter(&mut self, place: Option<usize>, gradient: Array) -> Result<()> {
        let width = gradient.width();
        self.add(&Slot::whole(place, width), gradient)
    }

    /// Adds column sums to a vector's gradient in this type, if it is required.
    fn add_column_sums(
        &mut self,
        of: Option<usize>,
        rows: impl FnOnce() -> Result<Array>,
        dtype: DType,
    ) -> Result<()> {
        match of {
            Some(_) => self.add_parameter(of, column_sums(&rows()?)?.to_dtype(dtype)?),
            None => Ok(()),
        }
    }
}

/// Sums each column over all rows, as a product with ones, which sums in f32 and reads rows in place.
#[doc(hidden)]
pub fn column_sums(x: &Array) -> Result<Array> {
    let rows = x.rows()?;
    Array::ones(rows.dims()[0], x)?
        .matmul(&rows)?
        .reshape(&[rows.width()])
}

#[cfg(test)]
mod tests;
