//! The rows of a batch without the padding around its sequences.

use candle_core::{Device, Result, Tensor, bail};

use super::with_elements;

/// Which rows of a batch are computed.
pub(crate) struct Kept {
    /// The first row of each sequence, and how many there are.
    pub starts: Vec<usize>,
    /// Where they are in the batch.
    pub rows: Vec<usize>,
    /// Rows of the batch, those of padding too.
    n_all: usize,
}

impl Kept {
    /// From marks `[batch, seq]`, 1 = keep. `None` if there is no padding, or a sequence has a gap: without its rows
    /// distances across it would shrink.
    pub fn new(marks: &[u8], seq: usize) -> Option<Self> {
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for (b, marks) in marks.chunks_exact(seq.max(1)).enumerate() {
            let first = marks.iter().position(|&mark| mark != 0).unwrap_or(seq);
            let end = marks
                .iter()
                .rposition(|&mark| mark != 0)
                .map_or(first, |last| last + 1);
            if marks[first..end].contains(&0) {
                return None;
            }
            rows.extend(b * seq + first..b * seq + end);
            starts.push(rows.len());
        }
        let n_all = marks.len();
        (rows.len() < n_all).then_some(Self {
            starts,
            rows,
            n_all,
        })
    }

    /// Those of the rows `[batch, seq, width]`, as `[rows, width]`.
    ///
    /// # Errors
    /// If the rows are of another batch.
    pub fn gathered(&self, all: &Tensor) -> Result<Tensor> {
        let width = all.dims().last().copied().unwrap_or(1);
        if all.elem_count() != self.n_all * width {
            let (found, n_all) = (all.dims(), self.n_all);
            bail!("stack: rows of shape {found:?}, expected {n_all} of a batch with its padding");
        }
        let rows: Vec<u32> = self.rows.iter().map(|&row| row as u32).collect();
        let rows = Tensor::new(rows, all.device())?;
        let all = all.reshape((self.n_all, width))?;
        all.contiguous()?.index_select(&rows, 0)
    }

    /// Rows of f32 put back among zeros, in a tensor of these dimensions.
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
