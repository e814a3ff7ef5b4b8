//! Tapes whose steps are composed of candle's operations, for devices without kernels of this crate.
//!
//! Forward and backward passes are written out, so that candle records no graph of them: its fused operations, which have
//! no backward pass, serve in training too, and no gradient is added to zeros. f32 and f64 compute in their own type; f16
//! and bf16 multiply matrices in theirs, and compute and sum everything else in f32.

mod activation;
mod adamw;
mod attention;
mod cross_entropy;
mod elements;
mod experts;
mod linear;
mod norm;
mod relative_bias;
mod rotary;
mod softmax;

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use super::array::Array;
use super::backward::Pass;
use super::gradients::handed_over_from_device;
use super::graph::Computed;
use super::tape::{Engine, Slot, Taped};
use super::value::Value;

pub(super) use adamw::{TOGETHER, adamw, sum_of_squares};

/// Composes steps of candle's operations.
#[derive(Clone, Copy)]
pub(crate) struct Composed;

/// The gradients found so far of one value.
pub(crate) enum Sum {
    /// Of all columns.
    Whole(Array),
    /// Of some columns each, `[rows, columns]`.
    Columns(Vec<(Range<usize>, Array)>),
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

    fn copied(of: &Taped<Self>) -> Result<Array> {
        of.view()?.contiguous()
    }

    fn of(value: &Value) -> Option<&Taped<Self>> {
        match value {
            Value::Composed(value) => Some(value),
            Value::Kernels(_) => None,
        }
    }

    fn tensor(data: Array, dims: &[usize]) -> Result<Tensor> {
        data.reshape(dims).map(Array::into_tensor)
    }

    fn result(data: Array, dims: &[usize]) -> Result<Computed> {
        let contiguous = data.reshape(dims)?;
        Ok(Computed::Copied(
            contiguous.at_its_beginning()?.into_tensor(),
        ))
    }

    fn cotangent(tensor: &Tensor) -> Result<Array> {
        Ok(Array::of(tensor))
    }

    fn add(self, sum: &mut Option<Sum>, to: &Slot, gradient: Array) -> Result<()> {
        let added = match (sum.take(), to.is_whole()) {
            (None, true) => Sum::Whole(gradient),
            (Some(Sum::Whole(sum)), true) => Sum::Whole(sum.add(&gradient.reshape(sum.dims())?)?),
            (Some(Sum::Columns(parts)), true) => {
                let all = joined(parts, to.width)?;
                Sum::Whole(gradient.add(&all.reshape(gradient.dims())?)?)
            }
            (None, false) => Sum::Columns(vec![part(to, &gradient)?]),
            (Some(Sum::Columns(mut parts)), false) => {
                let (columns, gradient) = part(to, &gradient)?;
                match parts.iter_mut().find(|(known, _)| *known == columns) {
                    Some((_, sum)) => *sum = sum.add(&gradient)?,
                    None => parts.push((columns, gradient)),
                }
                Sum::Columns(parts)
            }
            (Some(Sum::Whole(sum)), false) => {
                let all = joined(vec![part(to, &gradient)?], to.width)?;
                Sum::Whole(sum.add(&all.reshape(sum.dims())?)?)
            }
        };
        *sum = Some(added);
        Ok(())
    }

    fn total(sum: Sum, dims: &[usize]) -> Result<Array> {
        match sum {
            Sum::Whole(sum) => sum.reshape(dims),
            Sum::Columns(parts) => joined(parts, dims.last().copied().unwrap_or(1))?.reshape(dims),
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
    /// The numbers of the value, without the columns beside it.
    fn view(&self) -> Result<Array> {
        if self.slot.is_whole() {
            return Ok(self.data.clone());
        }
        let (last, columns) = (self.dims().len() - 1, &self.slot.columns);
        self.data.narrow(last, columns.start, columns.len())
    }
}

/// The columns of a slot with their gradient in rows.
fn part(to: &Slot, gradient: &Array) -> Result<(Range<usize>, Array)> {
    let n_columns = to.columns.len();
    let rows = gradient.tensor().elem_count() / n_columns.max(1);
    Ok((to.columns.clone(), gradient.reshape(&[rows, n_columns])?))
}

/// Rows of `width` columns from parts that do not overlap; columns that no part has are 0.
fn joined(mut parts: Vec<(Range<usize>, Array)>, width: usize) -> Result<Array> {
    parts.sort_by_key(|(columns, _)| columns.start);
    let mut all: Vec<Array> = Vec::new();
    let mut end = 0;
    for (columns, part) in parts {
        if columns.start < end {
            bail!("gradients of columns {columns:?} and of others before {end}");
        }
        if columns.start > end {
            all.push(part.zeros(&[part.dims()[0], columns.start - end])?);
        }
        end = columns.end;
        all.push(part);
    }
    if end < width
        && let Some(last) = all.last()
    {
        let rest = last.zeros(&[last.dims()[0], width - end])?;
        all.push(rest);
    }
    Array::cat(&all, 1)
}

impl Pass<Composed> {
    /// Adds to the gradient of a parameter, in its type, if it asks for one.
    fn add_parameter(&mut self, place: Option<usize>, gradient: Array) -> Result<()> {
        let width = gradient.width();
        self.add(&Slot::whole(place, width), gradient)
    }

    /// Adds the sums of columns to the gradient of a vector of this type, if it asks for one.
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

/// The sum of each column of all rows: a product with ones, which sums in f32, and reads rows as they lie.
fn column_sums(x: &Array) -> Result<Array> {
    let rows = x.rows()?;
    Array::ones(rows.dims()[0], x)?
        .matmul(&rows)?
        .reshape(&[rows.width()])
}

#[cfg(test)]
mod tests;
