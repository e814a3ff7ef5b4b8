//! The rows of a batch without the padding around its sequences.

use candle_blocks_kernels::attention::Origin;
use candle_core::{Device, Result, Tensor, bail};

use super::with_elements;

/// The rows of a batch that are computed.
pub(crate) struct UnpaddedRows {
    /// The first row of each sequence. The total number comes last.
    pub starts: Vec<usize>,
    /// The index of each row in the batch.
    pub rows: Vec<usize>,
    /// The number of rows in the batch, with padding.
    n_all: usize,
}

/// The sequences of a pass with a cache, which has no positions for the padding before each of them. A sequence has then
/// the same bits as it has alone.
pub(crate) struct CachedSequences {
    /// The position of each sequence's first new query.
    pub first_queries: Vec<usize>,
    /// Each sequence's origin in the mask and in biases of all positions.
    pub origins: Vec<Origin>,
    /// True if the mask hides other positions too.
    pub has_gaps: bool,
}

impl CachedSequences {
    /// Counts the padding before sequences, by the mask `[batch, all positions]` (1 = keep) of `seen` earlier and `seq`
    /// new positions. Returns `None` if there is none, and the rows that are computed if some new rows are padding.
    pub fn new(mask: &[u8], (seen, seq): (usize, usize)) -> Option<(Self, Option<UnpaddedRows>)> {
        let all = seen + seq;
        let sequences = mask.chunks_exact(all.max(1));
        let padding = |mask: &[u8]| mask.iter().take_while(|&&keep| keep == 0).count();
        let before: Vec<usize> = sequences.clone().map(padding).collect();
        if before.iter().all(|&padding| padding == 0) {
            return None;
        }
        let new = |&padding: &usize| padding.saturating_sub(seen);
        let of = |padding: &usize| Origin {
            query: new(padding),
            key: *padding,
        };
        let places = Self {
            first_queries: before
                .iter()
                .map(|padding| seen.saturating_sub(*padding))
                .collect(),
            origins: before.iter().map(of).collect(),
            has_gaps: sequences
                .zip(&before)
                .any(|(mask, &n)| mask[n..].contains(&0)),
        };
        let has_padding = before.iter().any(|padding| new(padding) > 0);
        let rows = has_padding.then(|| {
            let rows = |(b, padding)| b * seq + new(padding)..(b + 1) * seq;
            UnpaddedRows::of(before.iter().enumerate().map(rows), before.len() * seq)
        });
        Some((places, rows))
    }
}

impl UnpaddedRows {
    /// Selects the given rows of each sequence.
    fn of(sequences: impl Iterator<Item = std::ops::Range<usize>>, n_all: usize) -> Self {
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for of_sequence in sequences {
            rows.extend(of_sequence);
            starts.push(rows.len());
        }
        Self {
            starts,
            rows,
            n_all,
        }
    }

    /// Selects rows by a mask `[batch, seq]`, 1 = keep. Returns `None` if there is no padding, or if a sequence has a
    /// gap, because leaving it out would shrink distances across it.
    pub fn new(mask: &[u8], seq: usize) -> Option<Self> {
        let mut sequences = Vec::new();
        for (b, mask) in mask.chunks_exact(seq.max(1)).enumerate() {
            let first = mask.iter().position(|&keep| keep != 0).unwrap_or(seq);
            let end = mask
                .iter()
                .rposition(|&keep| keep != 0)
                .map_or(first, |last| last + 1);
            if mask[first..end].contains(&0) {
                return None;
            }
            sequences.push(b * seq + first..b * seq + end);
        }
        let unpadded = Self::of(sequences.into_iter(), mask.len());
        (unpadded.rows.len() < unpadded.n_all).then_some(unpadded)
    }

    /// Selects the rows to compute out of `[batch, seq, width]`, as `[rows, width]`.
    ///
    /// # Errors
    /// If the rows belong to another batch.
    pub fn gathered(&self, all: &Tensor) -> Result<Tensor> {
        let width = all.dims().last().copied().unwrap_or(1);
        if all.elem_count() != self.n_all * width {
            let (found, n_all) = (all.dims(), self.n_all);
            bail!("stack: rows have shape {found:?}, expected {n_all} rows with padding");
        }
        let rows: Vec<u32> = self.rows.iter().map(|&row| row as u32).collect();
        let rows = Tensor::new(rows, all.device())?;
        let all = all.reshape((self.n_all, width))?;
        all.contiguous()?.index_select(&rows, 0)
    }

    /// Puts f32 rows back among zeros, in a tensor with these dimensions.
    pub fn scattered(&self, rows: &Tensor, dims: Vec<usize>) -> Result<Tensor> {
        let width = rows.dims().last().copied().unwrap_or(1);
        let mut all = vec![0f32; self.n_all * width];
        with_elements("stack", rows, |rows| {
            for (row, &at) in rows.chunks_exact(width.max(1)).zip(&self.rows) {
                all[at * width..(at + 1) * width].copy_from_slice(row);
            }
            Ok(())
        })?;
        Tensor::from_vec(all, dims, &Device::Cpu)
    }
}
