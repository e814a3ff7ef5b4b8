//! Tensors whose elements are not contiguous: views that `torch.save` keeps as views, and arrays in Fortran order.

use std::io;
use std::ops::Range;

use super::positioned::PositionedFile;

/// Returns whether the elements are in order, without gaps.
pub(crate) fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    let mut fits = |(&dim, &stride): (&usize, &usize)| {
        let fits = dim == 1 || stride == expected;
        expected *= dim;
        fits
    };
    shape.contains(&0) || shape.iter().zip(strides).rev().all(&mut fits)
}

/// Returns the number of elements from the first to the last in storage, both included; `None` if it overflows.
pub(crate) fn reach(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let mut all = shape.iter().zip(strides);
    all.try_fold(1usize, |reach, (&dim, &stride)| {
        reach.checked_add(dim.saturating_sub(1).checked_mul(stride)?)
    })
}

/// Appends spans of elements, counted in the tensor's own order, for a tensor that begins at byte `offset`. The caller has
/// reserved the capacity, and checked that the file contains the tensor.
pub(crate) fn append<T: bytemuck::Pod>(
    file: &PositionedFile,
    offset: u64,
    (shape, strides): (&[usize], &[usize]),
    spans: &[Range<usize>],
    values: &mut Vec<T>,
) -> io::Result<()> {
    let spans = spans.iter().filter(|span| !span.is_empty());
    let (Some(start), Some(end)) = (
        spans.clone().map(|span| span.start).min(),
        spans.clone().map(|span| span.end).max(),
    ) else {
        return Ok(());
    };
    // One read for everything between the first and the last requested row.
    let row: usize = shape[1..].iter().product();
    let begin = start / row * strides[0];
    let last = (end - 1) / row * strides[0];
    let n = reach(&shape[1..], &strides[1..]).map_or(0, |reach| last - begin + reach);
    let mut extent: Vec<T> = Vec::new();
    extent.try_reserve_exact(n)?;
    file.append(&mut extent, n, offset + (begin * size_of::<T>()) as u64)?;
    for span in spans {
        let mut index = vec![0; shape.len()];
        let mut rest = span.start;
        for (index, dim) in index.iter_mut().zip(shape).rev() {
            (*index, rest) = (rest % dim, rest / dim);
        }
        let places = index.iter().zip(strides);
        let mut at = places.map(|(index, stride)| index * stride).sum::<usize>() - begin;
        for _ in 0..span.len() {
            values.push(extent[at]);
            for (d, index) in index.iter_mut().enumerate().rev() {
                *index += 1;
                at += strides[d];
                if *index < shape[d] {
                    break;
                }
                at -= strides[d] * shape[d];
                *index = 0;
            }
        }
    }
    Ok(())
}
