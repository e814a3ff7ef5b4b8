//! Rows in which several streams lie side by side.

use candle_core::{Result, bail};

use crate::ops::Value;

/// Splits rows into streams.
///
/// # Errors
/// If the row width is not a multiple of `n_streams`.
pub(in crate::layers) fn apart(x: &Value, n_streams: usize) -> Result<Vec<Value>> {
    let all = x.width();
    if n_streams == 0 || !all.is_multiple_of(n_streams) {
        bail!("streams: rows of {all} columns, expected {n_streams} side by side");
    }
    let width = all / n_streams;
    let part = |i: usize| x.columns(i * width..(i + 1) * width);
    Ok((0..n_streams).map(part).collect())
}

/// Joins streams side by side.
pub(in crate::layers) fn side_by_side<'v>(
    streams: impl Iterator<Item = &'v Value>,
) -> Result<Value> {
    let mut joined: Option<Value> = None;
    let (mut dims, mut dtype) = (vec![], None);
    for stream in streams {
        (dims, dtype) = (stream.dims().to_vec(), Some(stream.dtype()));
        let (width, rows) = (stream.width(), dims.iter().product::<usize>());
        let rows = stream
            .widened()?
            .reshape(vec![rows / width.max(1), 1, width])?;
        joined = Some(match joined {
            Some(before) => before.joined(&rows)?,
            None => rows,
        });
    }
    let (Some(joined), Some(dtype)) = (joined, dtype) else {
        bail!("streams: none to join");
    };
    if let Some(last) = dims.last_mut() {
        *last = joined.width();
    }
    joined.reshape(dims)?.to_dtype(dtype)
}
