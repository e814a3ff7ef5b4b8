//! Sinusoidal positions.

use std::collections::BTreeSet;

use candle_core::{Device, Result, Tensor};

use crate::config::{CountedTokens, LastFrequency, PositionTableConfig, PositionVectors};

/// The base of the frequencies in Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>.
const BASE: f64 = 10000.0;

/// Returns sinusoidal position vectors, `[batch, seq, width]`, with the dtype and device of `x`.
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
    let frequencies: Vec<f64> = (0..half).map(frequency).collect();
    let uncounted = match table.counted {
        CountedTokens::All => None,
        CountedTokens::Kept | CountedTokens::Except(_) => Some(table.first_row as i64 - 1),
    };
    if rows.is_empty() {
        return Tensor::zeros((batch, seq, width), x.dtype(), x.device());
    }
    // Each row once, whatever the distance between them.
    let distinct: Vec<i64> = BTreeSet::from_iter(rows).into_iter().copied().collect();
    let mut values = Vec::with_capacity(distinct.len() * width);
    for &row in &distinct {
        let angles = frequencies.iter().map(|frequency| row as f64 * frequency);
        match Some(row) == uncounted {
            true => values.extend(std::iter::repeat_n(0.0, width)),
            false => {
                values.extend(angles.clone().map(f64::sin));
                values.extend(angles.map(f64::cos));
            }
        }
    }
    let values = Tensor::from_vec(values, ((), width), &Device::Cpu)?.to_dtype(x.dtype())?;
    let place = |row: &i64| distinct.partition_point(|known| known < row) as u32;
    let rows: Vec<u32> = rows.iter().map(place).collect();
    let rows = Tensor::from_vec(rows, batch * seq, x.device())?;
    let values = values.to_device(x.device())?.index_select(&rows, 0)?;
    values.reshape((batch, seq, width))
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// The exponent of a position: a table up to it takes more memory than there is.
    const FAR: i32 = if usize::BITS < 64 { 29 } else { 39 };

    #[test]
    #[cfg_attr(
        windows,
        ignore = "the C library's sine of a large value has 7 digits there"
    )]
    fn positions_far_apart_take_no_memory_for_those_between() -> Result<()> {
        let table = PositionTableConfig {
            n_rows: 2 << FAR,
            first_row: 0,
            counted: CountedTokens::All,
            vectors: PositionVectors::Sines(LastFrequency::Before),
        };
        let x = Tensor::zeros((1, 3, 4), DType::F64, &Device::Cpu)?;
        let found = sines(&table, &[1 << FAR, 0, 1 << FAR], (1, 3), &x)?;
        let found = found.squeeze(0)?.to_vec2::<f64>()?;
        let far = f64::from(2f32.powi(FAR));
        let expected = [far, far * 0.01].map(f64::sin_cos);
        let expected = [expected[0].0, expected[1].0, expected[0].1, expected[1].1];
        assert_eq!((&found[0], &found[2]), (&expected.to_vec(), &found[0]));
        assert_eq!(found[1], [0.0, 0.0, 1.0, 1.0]);
        Ok(())
    }
}
