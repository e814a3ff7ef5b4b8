//! AdamW steps, and the gradients' sum of squares, for many parameters at once.
//!
//! There are many parameters, and most are small. Launching an operation on a small one takes a device as long as
//! computing it. Parameters that take the same step are therefore updated as one array: each is copied to it, with
//! its gradient, and back, and everything else is launched once.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};

use super::Array;
use crate::ops::moments::{Moments, ParameterStep};

/// The maximum element count in one array. A larger tensor stays alone. A step holds about eight arrays with this
/// length besides the moments, half a gigabyte in f32. Each operation then moves about 200 MB, beside which its
/// launch is negligible.
pub(crate) const TOGETHER: usize = 16 * 1024 * 1024;

/// Updates parameters and their moments by one step, with at most `most` elements in one array.
#[doc(hidden)]
pub fn adamw(steps: Vec<ParameterStep>, most: usize) -> Result<()> {
    let kind = |step: &ParameterStep| {
        let (dtype, location) = (step.parameter.dtype(), step.parameter.device().location());
        let kind = (dtype, location, step.update);
        (kind, step.parameter.elem_count())
    };
    put_together(steps, most, kind)
        .into_iter()
        .try_for_each(step_together)
}

/// Groups items with the same key, with at most `most` elements per group, or one item.
fn put_together<T, K: PartialEq>(
    items: impl IntoIterator<Item = T>,
    most: usize,
    kind_and_size: impl Fn(&T) -> (K, usize),
) -> Vec<Vec<T>> {
    let mut groups: Vec<(K, usize, Vec<T>)> = Vec::new();
    for item in items {
        let (kind, size) = kind_and_size(&item);
        let last = groups.iter_mut().rev().find(|(of, ..)| *of == kind);
        match last {
            Some((_, total, group)) if *total + size <= most => {
                *total += size;
                group.push(item);
            }
            _ => groups.push((kind, size, vec![item])),
        }
    }
    groups.into_iter().map(|(.., group)| group).collect()
}

/// Concatenates flattened tensors.
fn flat<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Array> {
    let flat = |x: &Tensor| Array::of(x).reshape(&[x.elem_count()]);
    Array::cat(&tensors.map(flat).collect::<Result<Vec<_>>>()?, 0)
}

/// Returns all moments, concatenated: the last step's arrays, if it updated the same parameters.
fn moments(of: &[ParameterStep]) -> Result<[Array; 2]> {
    let mut parts = Vec::with_capacity(of.len());
    for step in of {
        match &*step.moments {
            Moments::Shared { of, at } => parts.push((of, at)),
            _ => bail!("adamw: the moments are on another device"),
        }
    }
    let whole = parts[0].0;
    let mut end = 0;
    let in_place = parts.iter().all(|(of, at)| {
        let follows = Arc::ptr_eq(of, whole) && at.start == end;
        end = at.end;
        follows
    });
    if in_place && end == whole[0].width() {
        return Ok((**whole).clone());
    }
    let joined = |which: usize| {
        let part = parts
            .iter()
            .map(|(of, at)| of[which].narrow(0, at.start, at.len()));
        Array::cat(&part.collect::<Result<Vec<_>>>()?, 0)
    };
    Ok([joined(0)?, joined(1)?])
}

/// Updates parameters with the same type that all take the same step.
fn step_together(steps: Vec<ParameterStep>) -> Result<()> {
    let update = steps[0].update;
    let [first, second] = moments(&steps)?;
    // Factors are combined, and applied in the moments' type: candle rounds them to the array's type.
    let [first, second] = {
        let gradient = flat(steps.iter().map(|step| step.gradient))?.widened()?;
        let first_factor = (1.0 - update.beta1) * update.gradient_scale;
        let second_factor = (1.0 - update.beta2).sqrt() * update.gradient_scale;
        let added = gradient.affine(first_factor, 0.0)?;
        let first = first.affine(update.beta1, 0.0)?.add(&added)?;
        let added = gradient.affine(second_factor, 0.0)?.sqr()?;
        [first, second.affine(update.beta2, 0.0)?.add(&added)?]
    };
    // `rate · (m / c₁) / (√(v / c₂) + eps)`, with both bias corrections in the rate and in eps.
    let (first_correction, second_correction) = update.bias_corrections();
    let (rate, root) = (
        update.learning_rate / first_correction,
        second_correction.sqrt(),
    );
    let eps = second.sqrt()?.affine(1.0, update.eps * root)?;
    let change = first.div(&eps)?.affine(rate * root, 0.0)?;
    let kept = 1.0 - update.learning_rate * update.weight_decay;
    let values = flat(steps.iter().map(|step| step.parameter.as_tensor()))?.widened()?;
    let values = values.affine(kept, 0.0)?.sub(&change)?;
    let values = values.to_dtype(steps[0].parameter.dtype())?;

    let of = Arc::new([first, second]);
    let mut end = 0;
    for step in steps {
        let at = end..end + step.parameter.elem_count();
        end = at.end;
        let part = values.narrow(0, at.start, at.len())?;
        part.reshape(step.parameter.dims())?.store(step.parameter)?;
        *step.moments = Moments::Shared { of: of.clone(), at };
    }
    Ok(())
}

/// Elements per row in the first summation. A device sums a row with one thread group, however long it is.
const ROW: usize = 4096;

/// A factor by which squares of any values can be summed in f32.
const SMALLER: f64 = 1.0 / (1u128 << 90) as f64;

/// Returns `Σ x²` over all tensors, with at most `most` elements in one array.
#[doc(hidden)]
pub fn sum_of_squares(tensors: &[&Tensor], most: usize) -> Result<f64> {
    let sum = scaled_sum(tensors, 1.0, most)?;
    match sum.is_finite() {
        true => Ok(sum),
        false => Ok(scaled_sum(tensors, SMALLER, most)? / SMALLER / SMALLER),
    }
}

/// Returns `Σ (scale · x)²`, with one transfer per device.
fn scaled_sum(tensors: &[&Tensor], scale: f64, most: usize) -> Result<f64> {
    let tensors = tensors.iter().filter(|x| x.elem_count() > 0);
    let kind = |x: &&&Tensor| ((x.dtype(), x.device().location()), x.elem_count());
    let mut sums: Vec<Array> = Vec::new();
    for group in put_together(tensors, most, kind) {
        let squares = flat(group.into_iter().copied())?
            .widened()?
            .affine(scale, 0.0)?
            .sqr()?;
        let n_rows = squares.width() / ROW;
        let rest = squares.width() % ROW;
        if n_rows > 0 {
            let rows = squares
                .narrow(0, 0, n_rows * ROW)?
                .reshape(&[n_rows, ROW])?;
            sums.push(rows.sum(1)?.reshape(&[n_rows])?.sum(0)?);
        }
        if rest > 0 {
            sums.push(squares.narrow(0, n_rows * ROW, rest)?.sum(0)?);
        }
    }
    let mut total = 0.0;
    for sums in put_together(sums, usize::MAX, |sum| (sum.device().location(), 1)) {
        // A device with both types has the conversion.
        let has_f64 = sums.iter().any(|sum| sum.dtype() == DType::F64);
        let dtype = if has_f64 { DType::F64 } else { DType::F32 };
        let sums = sums.iter().map(|sum| sum.to_dtype(dtype));
        let sums = Array::cat(&sums.collect::<Result<Vec<_>>>()?, 0)?;
        total += sums.download()?.iter().sum::<f64>();
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
