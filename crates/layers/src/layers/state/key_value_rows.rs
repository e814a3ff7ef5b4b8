//! Keys and values as rows: the cache of a layer whose sequences are copied, for beam search.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{Heads, KeyValue, PanelShape};

use super::latents::LatentRows;

/// Keys and values for a batch, side by side in a row for each position. Attention packs these rows at every step,
/// which costs more than panels. In return, they can be copied from one sequence to another.
#[derive(Clone, Debug)]
pub(crate) struct KeyValueRows {
    shape: PanelShape,
    rows: LatentRows,
}

impl KeyValueRows {
    /// Creates empty rows for keys and values with this shape.
    pub fn new(shape: PanelShape) -> Self {
        let width = 2 * shape.n_kv_heads * shape.head_dim;
        Self {
            shape,
            rows: LatentRows::new(PanelShape {
                n_kv_heads: 1,
                head_dim: width,
                ..shape
            }),
        }
    }

    pub fn shape(&self) -> PanelShape {
        self.shape
    }

    /// Returns how many positions each sequence has.
    pub fn positions(&self) -> usize {
        self.rows.positions()
    }

    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Appends new positions to each sequence, from the columns `column` on in rows with `width` columns.
    pub fn append(&mut self, projected: &[f32], width: usize, column: usize) {
        let n = self.width();
        let rows = projected.chunks_exact(width);
        let new: Vec<f32> = rows
            .flat_map(|row| &row[column..column + n])
            .copied()
            .collect();
        self.rows.append(&new);
    }

    /// Returns all rows, `[batch, positions, keys and values]`.
    pub fn to_vec(&self, cpu: Cpu) -> Vec<f32> {
        let mut all = vec![0.0; self.rows.len()];
        self.rows.copy_to(cpu, &mut all);
        all
    }

    /// Returns the keys and values in the rows from [`Self::to_vec`].
    pub fn key_value<'a>(&self, all: &'a [f32]) -> KeyValue<'a> {
        let width = self.width();
        let heads = |offset| Heads {
            data: all,
            row_stride: width,
            offset,
        };
        KeyValue::Projected {
            keys: self.rows.sequences(),
            key: heads(0),
            value: heads(width / 2),
        }
    }

    /// Replaces the batch by copies of the given sequences.
    pub fn take_sequences(&mut self, sequences: &[usize]) {
        self.rows.keep_sequences(sequences);
        self.shape.batch = sequences.len();
    }

    /// Removes the positions from `positions` on.
    pub fn truncate(&mut self, positions: usize) {
        self.rows.truncate(positions);
    }

    fn width(&self) -> usize {
        2 * self.shape.n_kv_heads * self.shape.head_dim
    }
}
