//! Rows in a table, looked up by index.

use candle_core::{Result, Tensor};

use crate::Error;

/// Looks up rows in a table, `[batch, seq, width]`.
pub(super) fn looked_up(
    name: &str,
    table: &Tensor,
    ids: &[i64],
    (batch, seq): (usize, usize),
) -> Result<Tensor> {
    let (n_rows, width) = table.dims2()?;
    let ids = row_numbers(name, n_rows, ids, seq)?;
    let ids = Tensor::from_vec(ids, batch * seq, table.device())?;
    table.index_select(&ids, 0)?.reshape((batch, seq, width))
}

/// Converts the ids of sequences with `seq` tokens to row indices.
///
/// # Errors
/// If an id is not below `n_rows`.
pub(super) fn row_numbers(name: &str, n_rows: usize, ids: &[i64], seq: usize) -> Result<Vec<u32>> {
    let fits = |id: &i64| usize::try_from(*id).is_ok_and(|id| id < n_rows);
    if let Some(at) = ids.iter().position(|id| !fits(id)) {
        let reason = format!(
            "holds {} at [{}, {}], but the table has {n_rows} rows: expected 0 to {}",
            ids[at],
            at / seq,
            at % seq,
            n_rows.saturating_sub(1)
        );
        return Err(Error::input(name, reason).into());
    }
    Ok(ids.iter().map(|&id| id as u32).collect())
}
