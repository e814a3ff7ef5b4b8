//! Positions of tokens, and a learned position table.

use candle_core::{Result, Tensor};

use crate::Error;
use crate::config::{CountedTokens, PositionTableConfig};

use super::input::{Tokens, integers};
use super::lookup::looked_up;

/// Returns the tokens that count as positions.
pub(super) fn counts(
    counted: CountedTokens,
    ids: &[i64],
    tokens: &Tokens,
    shape: (usize, usize),
) -> Result<Vec<bool>> {
    Ok(match (counted, tokens.mask) {
        (CountedTokens::Except(padding), _) => {
            ids.iter().map(|&id| id != i64::from(padding)).collect()
        }
        (CountedTokens::Kept, Some(mask)) => {
            let mask = integers("attention_mask", mask, shape)?;
            mask.into_iter().map(|mark| mark != 0).collect()
        }
        (CountedTokens::All, _) | (CountedTokens::Kept, None) => vec![true; ids.len()],
    })
}

/// Returns the row in the position table for each token.
pub(super) fn rows(
    table: &PositionTableConfig,
    ids: &[i64],
    tokens: &Tokens,
    (batch, seq): (usize, usize),
) -> Result<Vec<i64>> {
    let first = table.first_row as i64;
    let beyond = |name: &str, reason: String| Err(Error::input(name, reason).into());
    let rows = match tokens.positions {
        Some(positions) => {
            let given = integers("position_ids", positions, (batch, seq))?;
            // RoBERTa's position ids are row indices.
            let first = match table.counted {
                CountedTokens::Except(_) => 0,
                CountedTokens::All | CountedTokens::Kept => first,
            };
            given.into_iter().map(|position| first + position).collect()
        }
        None => {
            let counts = counts(table.counted, ids, tokens, (batch, seq))?;
            let mut rows = Vec::with_capacity(ids.len());
            for (sequence, counts) in counts.chunks_exact(seq.max(1)).enumerate() {
                let before = tokens.counted.get(sequence).copied().unwrap_or(0);
                let mut next = first + i64::from(before);
                for &is_counted in counts {
                    rows.push(if is_counted { next } else { first - 1 });
                    next += i64::from(is_counted);
                }
            }
            rows
        }
    };
    let limit = table.n_rows as i64;
    match rows.iter().find(|row| !(0..limit).contains(row)) {
        Some(row) if tokens.positions.is_some() => beyond(
            "position_ids",
            format!("needs row {row}, but the position table has {limit} rows"),
        ),
        Some(_) => beyond(
            tokens.name,
            format!(
                "is longer than the model's {} positions; shorten the text",
                table.n_positions()
            ),
        ),
        None => Ok(rows),
    }
}

/// Returns position vectors, `[batch or 1, seq, width]`.
pub(super) fn positions(
    table: &Tensor,
    rows: &[i64],
    (batch, seq): (usize, usize),
) -> Result<Tensor> {
    let is_counted_up = |rows: &[i64]| rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let first = rows.first().copied().unwrap_or(0);
    let all_equal = |row: &[i64]| row.first() == Some(&first) && is_counted_up(row);
    if rows.chunks_exact(seq.max(1)).all(all_equal) && !rows.is_empty() {
        return table.narrow(0, first as usize, seq)?.unsqueeze(0);
    }
    looked_up("position_ids", table, rows, (batch, seq))
}
