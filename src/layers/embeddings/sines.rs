//! Positions as sines and cosines.

use candle_core::{Device, Result, Tensor};

use crate::config::{Counted, LastFrequency, PositionTableConfig, PositionVectors};

/// The base of the frequencies, of Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>.
const BASE: f64 = 10000.0;

/// The vectors of the rows of a table that nothing stores, `[batch, seq, width]` in the type and on the device of `x`.
pub(super) fn sines(
    table: &PositionTableConfig,
    rows: &[i64],
    (batch, seq): (usize, usize),
    x: &Tensor,
) -> Result<Tensor> {
    let width = x.dim(2)?;
    let half = width / 2;
    let steps = match table.vectors {
        PositionVectors::Sines(LastFrequency::Reached) => half.saturating_sub(1),
        _ => half,
    };
    let frequency = |i: usize| BASE.powf(-(i as f64) / steps.max(1) as f64);
    let uncounted = match table.counted {
        Counted::All => None,
        Counted::Kept | Counted::Except(_) => Some(table.first_row as i64 - 1),
    };
    let (low, high) = match (rows.iter().min(), rows.iter().max()) {
        (Some(&low), Some(&high)) => (low, high),
        _ => return Tensor::zeros((batch, seq, width), x.dtype(), x.device()),
    };
    let mut values = Vec::with_capacity((high - low + 1) as usize * width);
    for row in low..=high {
        let angle = |i: usize| row as f64 * frequency(i);
        match Some(row) == uncounted {
            true => values.extend(std::iter::repeat_n(0.0, width)),
            false => {
                values.extend((0..half).map(|i| angle(i).sin()));
                values.extend((0..half).map(|i| angle(i).cos()));
            }
        }
    }
    let values = Tensor::from_vec(values, ((), width), &Device::Cpu)?.to_dtype(x.dtype())?;
    let rows: Vec<u32> = rows.iter().map(|row| (row - low) as u32).collect();
    let rows = Tensor::from_vec(rows, batch * seq, x.device())?;
    let values = values.to_device(x.device())?.index_select(&rows, 0)?;
    values.reshape((batch, seq, width))
}
