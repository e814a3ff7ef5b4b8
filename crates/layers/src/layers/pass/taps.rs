//! The rows that the taps of convolutions read in a pass.

use std::sync::Arc;

use candle_blocks_kernels::rows::convolution::NO_ROW;
use candle_core::{Result, bail};

use super::Pass;
use crate::ops::TapTable;

impl Pass<'_> {
    /// Returns the table of a convolution with this number of taps. With `has_state`, earlier rows precede each sequence.
    ///
    /// # Errors
    /// If the mask does not cover all positions, or is an additive one, which hides keys and not rows.
    pub(crate) fn tap_table(&self, taps: usize, has_state: bool) -> Result<Arc<TapTable>> {
        if self.context.mask().additive().is_some() {
            bail!(
                "a convolution has no scores to which an additive mask could be added; give a padding mask"
            );
        }
        self.taps.get(&(taps, has_state), || {
            let keep = self.keep_of_last(self.seq)?;
            let marks = keep.map(|keep| keep.host.flatten_all()?.to_vec1::<u8>());
            let marks = marks.transpose()?;
            let mut sequences = vec![Vec::new(); self.batch];
            let mut put = |(at, row): (usize, usize)| {
                let is_kept = marks.as_ref().is_none_or(|marks| marks[row] != 0);
                sequences[row / self.seq].push(if is_kept { at as u32 } else { NO_ROW });
            };
            let n_rows = match &self.unpadded {
                Some(unpadded) => {
                    unpadded.rows.iter().copied().enumerate().for_each(put);
                    unpadded.rows.len()
                }
                None => {
                    let n_rows = self.batch * self.seq;
                    (0..n_rows).for_each(|row| put((row, row)));
                    n_rows
                }
            };
            for rows in &mut sequences {
                let end = rows.iter().rposition(|&row| row != NO_ROW);
                rows.truncate(end.map_or(0, |last| last + 1));
                let padding = rows.iter().take_while(|&&row| row == NO_ROW).count();
                rows.drain(..padding);
            }
            Ok(Arc::new(TapTable::new(taps, n_rows, &sequences, has_state)))
        })
    }
}
