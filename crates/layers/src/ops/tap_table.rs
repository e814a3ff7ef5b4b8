//! The rows that the taps of a convolution read, in a pass over sequences of any lengths.

use std::sync::OnceLock;

use candle_blocks_kernels::rows::convolution::NO_ROW;
use candle_core::{Device, Result};

use super::array::Array;

/// The row that each tap reads, for every row of a pass.
///
/// Rows are counted from the earlier ones, `taps - 1` of each sequence, which a state holds. Then come the rows of the pass.
/// Padding before and after a sequence does not exist for it. A hidden row between others is one of zeros.
#[derive(Debug)]
#[doc(hidden)]
pub struct TapTable {
    taps: usize,
    n_rows: usize,
    n_before: usize,
    sources: Vec<u32>,
    after: Vec<u32>,
    on_device: OnceLock<Vec<Array>>,
}

impl TapTable {
    /// Creates the table for `n_rows` rows. Each sequence lists its rows from the first that is kept to the last, where
    /// [`NO_ROW`] stands for a hidden one. Without `has_state`, zeros precede each sequence.
    pub fn new(taps: usize, n_rows: usize, sequences: &[Vec<u32>], has_state: bool) -> Self {
        let n_earlier = taps.saturating_sub(1);
        let n_before = match has_state {
            true => sequences.len() * n_earlier,
            false => 0,
        };
        let mut sources = vec![NO_ROW; n_rows * taps];
        let mut after = Vec::with_capacity(sequences.len() * n_earlier);
        for (i, rows) in sequences.iter().enumerate() {
            let earlier = i * n_earlier..(i + 1) * n_earlier;
            let earlier = earlier.map(|row| if has_state { row as u32 } else { NO_ROW });
            let own = rows.iter().map(|&row| match row {
                NO_ROW => NO_ROW,
                row => row + n_before as u32,
            });
            let chain: Vec<u32> = earlier.chain(own).collect();
            for (at, &row) in rows.iter().enumerate().filter(|(_, row)| **row != NO_ROW) {
                sources[row as usize * taps..][..taps].copy_from_slice(&chain[at..at + taps]);
            }
            after.extend(&chain[rows.len()..]);
        }
        Self {
            taps,
            n_rows,
            n_before,
            sources,
            after,
            on_device: OnceLock::new(),
        }
    }

    /// Returns how many taps each row has.
    pub fn taps(&self) -> usize {
        self.taps
    }

    /// Returns how many rows the pass has.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns how many earlier rows precede those of the pass.
    pub fn n_before(&self) -> usize {
        self.n_before
    }

    /// Returns the rows that the taps read, `[rows, taps]`.
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// Returns the last `taps - 1` rows of each sequence, which precede those of the next pass.
    pub fn after(&self) -> &[u32] {
        &self.after
    }

    /// Returns the table of the gradient: for each row of the pass and each tap, the result whose tap read the row.
    pub fn reversed(&self) -> Vec<u32> {
        let mut reversed = vec![NO_ROW; self.sources.len()];
        for (at, &source) in self.sources.iter().enumerate() {
            if source != NO_ROW && source as usize >= self.n_before {
                let row = source as usize - self.n_before;
                reversed[row * self.taps + at % self.taps] = (at / self.taps) as u32;
            }
        }
        reversed
    }

    /// Returns the row of each tap on a device, one array for each tap. A row of zeros comes after all others.
    pub(super) fn on_device(&self, device: &Device) -> Result<&[Array]> {
        if let Some(known) = self.on_device.get() {
            return Ok(known);
        }
        let made = by_tap(
            &self.sources,
            self.taps,
            self.n_before + self.n_rows,
            device,
        )?;
        Ok(self.on_device.get_or_init(|| made))
    }
}

/// Uploads the rows of each tap. `zeros` stands for those that read none.
pub(super) fn by_tap(
    sources: &[u32],
    taps: usize,
    zeros: usize,
    device: &Device,
) -> Result<Vec<Array>> {
    let of_tap = |tap: usize| {
        let rows = sources.iter().skip(tap).step_by(taps.max(1));
        let ids = rows.map(|&row| if row == NO_ROW { zeros as u32 } else { row });
        let ids: Vec<u32> = ids.collect();
        let n = ids.len();
        Array::upload_ids(ids, &[n], device)
    };
    (0..taps).map(of_tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_around_a_sequence_is_skipped_and_hidden_rows_are_zeros() {
        // Rows 0 to 3 are padding, a, hidden, b; row 4 is the only one of a second sequence.
        let sequences = [vec![1, NO_ROW, 3], vec![4]];
        let table = TapTable::new(3, 5, &sequences, true);
        let none = [NO_ROW; 3];
        let expected = [none, [0, 1, 5], none, [5, NO_ROW, 7], [2, 3, 8]];
        assert_eq!(table.sources(), expected.concat());
        assert_eq!(table.after(), [NO_ROW, 7, 3, 8]);
        let reversed = [
            none,
            [3, NO_ROW, 1],
            none,
            [NO_ROW, NO_ROW, 3],
            [NO_ROW, NO_ROW, 4],
        ];
        assert_eq!(table.reversed(), reversed.concat());
    }

    #[test]
    fn zeros_precede_a_sequence_without_state() {
        let table = TapTable::new(2, 2, &[vec![0, 1]], false);
        assert_eq!((table.n_before(), table.after()), (0, &[1][..]));
        assert_eq!(table.sources(), [NO_ROW, 0, 0, 1]);
    }
}
