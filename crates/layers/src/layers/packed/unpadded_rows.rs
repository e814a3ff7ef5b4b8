//! The rows of a batch without the padding around its sequences.

use candle_blocks_kernels::attention::Origin;
use candle_core::{Device, Result, Tensor, bail};

use super::with_elements;
use crate::layers::padding_mask::padding_before;

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
    /// Each sequence's origin in the mask and in biases of all positions.
    pub origins: Vec<Origin>,
    /// True if the mask hides other positions too.
    pub has_gaps: bool,
}

impl CachedSequences {
    /// Counts the padding before sequences, by the mask `[batch, all positions]` (1 = keep) of `seen` earlier and `seq`
    /// new positions. Returns `None` if there is none, and the rows that are computed if some new rows are padding.
    pub fn new(mask: &[u8], (seen, seq): (usize, usize)) -> Option<(Self, Option<UnpaddedRows>)> {
        let marks = mask.chunks_exact((seen + seq).max(1));
        let origin = |marks: &[u8]| {
            let key = padding_before(marks);
            let query = key.saturating_sub(seen);
            Origin { query, key }
        };
        let origins: Vec<Origin> = marks.clone().map(origin).collect();
        if origins.iter().all(|of| of.key == 0) {
            return None;
        }
        let has_gaps = marks
            .zip(&origins)
            .any(|(marks, of)| marks[of.key..].contains(&0));
        let has_padding = origins.iter().any(|of| of.query > 0);
        let rows = has_padding.then(|| {
            let rows = |(b, of): (usize, &Origin)| b * seq + of.query..(b + 1) * seq;
            UnpaddedRows::of(origins.iter().enumerate().map(rows), origins.len() * seq)
        });
        Some((Self { origins, has_gaps }, rows))
    }
}

/// Returns how many of a pass's earlier positions are padding before a sequence.
pub(crate) fn padding_seen(of: Origin) -> usize {
    of.key.saturating_sub(of.query)
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
