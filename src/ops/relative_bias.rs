//! Relative position bias: looks up a table's rows by query and key.

use candle_blocks_kernels::Cpu;
use candle_core::{Result, Tensor};

use super::constants::Constants;
use super::kernels::same_type;
use super::numbers::Numbers;
use super::tape::Taped;
use super::value::{Value, on_either};

/// The row in a table `[n_buckets, n_heads]` for each query and key.
pub(crate) struct Buckets<'a> {
    pub queries: usize,
    pub keys: usize,
    /// Returns the row for a query and a key, given their indices.
    pub of: &'a dyn Fn(usize, usize) -> u32,
    /// Identifies the map.
    pub name: String,
}

impl Buckets<'_> {
    /// Returns the row for each query-key pair.
    pub(super) fn all(&self) -> Vec<u32> {
        let rows = (0..self.queries).flat_map(|query| (0..self.keys).map(move |key| (query, key)));
        rows.map(|(query, key)| (self.of)(query, key)).collect()
    }
}

/// Returns the bias `[1, n_heads, queries, keys]` from a table. The table gets a gradient.
pub(crate) fn relative_bias(
    table: &Tensor,
    buckets: &Buckets,
    constants: &Constants,
) -> Result<Tensor> {
    on_either!(Value::of(table)?, x => x.relative_bias(buckets, constants)?.finish())
}

impl Taped<Cpu> {
    fn relative_bias(&self, buckets: &Buckets, _: &Constants) -> Result<Self> {
        let (n_heads, n_pairs) = (self.slot.width, buckets.queries * buckets.keys);
        let (all, slot, n_rows) = (buckets.all(), self.slot.clone(), self.rows());
        let mut y = Numbers::new(self.dtype(), n_heads * n_pairs)?;
        same_type!(y.slice_mut(), self.data.read().slice(), |to, table| {
            for (pair, &row) in all.iter().enumerate() {
                for head in 0..n_heads {
                    to[head * n_pairs + pair] = table[row as usize * n_heads + head];
                }
            }
        });
        let dims = vec![1, n_heads, buckets.queries, buckets.keys];
        Ok(
            self.computed((y, dims), &[self.slot.place], move |pass, dy| {
                let mut dtable = Numbers::zeros(dy.dtype(), n_rows * n_heads)?;
                same_type!(dtable.slice_mut(), dy.slice(), |to, dy| {
                    for (pair, &row) in all.iter().enumerate() {
                        for head in 0..n_heads {
                            to[row as usize * n_heads + head] += dy[head * n_pairs + pair];
                        }
                    }
                });
                pass.add(&slot, dtable)
            }),
        )
    }
}
