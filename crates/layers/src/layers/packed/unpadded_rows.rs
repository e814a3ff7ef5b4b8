//! The rows of a batch without the padding around its sequences.

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

impl UnpaddedRows {
    /// Selects rows by a mask `[batch, seq]`, 1 = keep. Returns `None` if there is no padding, or if a sequence has a
    /// gap, because leaving it out would shrink distances across it.
    pub fn new(mask: &[u8], seq: usize) -> Option<Self> {
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for (b, mask) in mask.chunks_exact(seq.max(1)).enumerate() {
            let first = mask.iter().position(|&keep| keep != 0).unwrap_or(seq);
            let end = mask
                .iter()
                .rposition(|&keep| keep != 0)
                .map_or(first, |last| last + 1);
            if mask[first..end].contains(&0) {
                return None;
            }
            rows.extend(b * seq + first..b * seq + end);
            starts.push(rows.len());
        }
        let n_all = mask.len();
        (rows.len() < n_all).then_some(Self {
            starts,
            rows,
            n_all,
        })
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
