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
        self.taps.get(&(taps, has_state), || {
            let n_rows = match &self.unpadded {
                Some(unpadded) => unpadded.rows.len(),
                None => self.batch * self.seq,
            };
            let sequences = self.kept_rows()?;
            Ok(Arc::new(TapTable::new(taps, n_rows, &sequences, has_state)))
        })
    }

    /// Returns the rows of each sequence, without those that the mask hides.
    ///
    /// # Errors
    /// Same as [`Self::tap_table`].
    pub(crate) fn sequence_rows(&self) -> Result<Arc<Vec<Vec<u32>>>> {
        self.sequence_rows.get(&(), || {
            let mut sequences = self.kept_rows()?;
            for rows in &mut sequences {
                rows.retain(|&row| row != NO_ROW);
            }
            Ok(Arc::new(sequences))
        })
    }

    /// Returns the first row of each sequence that begins in this pass.
    ///
    /// # Errors
    /// Same as [`Self::tap_table`].
    pub(crate) fn first_rows(&self) -> Result<Arc<Vec<u32>>> {
        self.first_rows.get(&(), || {
            let has_begun = match &self.keep {
                _ if self.seen == 0 => vec![0; self.batch],
                None => vec![1; self.batch],
                Some(keep) => keep.narrow(0, self.seen)?.host.max(1)?.to_vec1::<u8>()?,
            };
            let sequences = self.sequence_rows()?;
            let beginning = sequences
                .iter()
                .zip(has_begun)
                .filter(|(_, begun)| *begun == 0);
            let first = beginning.filter_map(|(rows, _)| rows.first().copied());
            Ok(Arc::new(first.collect()))
        })
    }

    /// Returns each sequence's rows from the first that is kept to the last, with [`NO_ROW`] for a hidden one.
    fn kept_rows(&self) -> Result<Vec<Vec<u32>>> {
        if self.context.mask().additive().is_some() {
            bail!(
                "a recurrent mixer has no scores to which an additive mask could be added; give a padding mask"
            );
        }
        let keep = self.keep_of_last(self.seq)?;
        let marks = keep.map(|keep| keep.host.flatten_all()?.to_vec1::<u8>());
        let marks = marks.transpose()?;
        let mut sequences = vec![Vec::new(); self.batch];
        let mut put = |(at, row): (usize, usize)| {
            let is_kept = marks.as_ref().is_none_or(|marks| marks[row] != 0);
            sequences[row / self.seq].push(if is_kept { at as u32 } else { NO_ROW });
        };
        match &self.unpadded {
            Some(unpadded) => unpadded.rows.iter().copied().enumerate().for_each(put),
            None => (0..self.batch * self.seq).for_each(|row| put((row, row))),
        }
        for rows in &mut sequences {
            let end = rows.iter().rposition(|&row| row != NO_ROW);
            rows.truncate(end.map_or(0, |last| last + 1));
            let padding = rows.iter().take_while(|&&row| row == NO_ROW).count();
            rows.drain(..padding);
        }
        Ok(sequences)
    }
}
