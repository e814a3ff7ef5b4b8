//! A linear projection per head.

use candle_blocks_kernels::{Cpu, rows::Source, threads};
use candle_blocks_kernels::{memory::lend, scratch};
use candle_core::{Result, Tensor};

use crate::layers::linear::packed::PackedProduct;
use crate::layers::packed::Packing;

/// One projection for each head, from one width to another.
#[derive(Clone)]
pub(super) struct HeadMaps(Vec<PackedProduct>);

/// Rows that consist of heads. A projection reads each head's first columns.
#[derive(Clone, Copy)]
pub(super) struct PerHeadRows<'a> {
    pub data: &'a [f32],
    /// The distance from one head to the next. A row holds only its heads.
    pub head_width: usize,
}

scratch!(OF_ONE_HEAD);

/// The largest number of rows in a task, which reads each head's weight once.
const ROWS: usize = 64;

impl HeadMaps {
    /// Packs weights `[heads, d_out, d_in]`.
    pub fn new(packing: &Packing, weights: &Tensor) -> Result<Self> {
        let head_map = |head| {
            let weight = weights.get(head)?.contiguous()?;
            PackedProduct::of_weight(packing, &weight, None)
        };
        let n_heads = weights.dim(0)?;
        Ok(Self((0..n_heads).map(head_map).collect::<Result<_>>()?))
    }

    pub fn n_heads(&self) -> usize {
        self.0.len()
    }

    pub fn bytes(&self) -> usize {
        self.0.iter().map(PackedProduct::bytes).sum()
    }

    /// Applies each head's projection to `x`, and writes the results to the first columns of each head in `y`. The
    /// heads in `y` are `width` apart. Other columns are unchanged.
    pub fn apply(&self, cpu: Cpu, x: PerHeadRows, y: &mut [f32], width: usize) {
        let n_heads = self.0.len();
        let (d_in, d_out) = (self.0[0].d_in(), self.0[0].d_out());
        let n_rows = y.len() / (n_heads * width);
        if n_rows == 0 {
            return;
        }
        // `threads_for` counts an element as sixteen multiplications.
        let elements = n_rows * n_heads * d_in * d_out / 16;
        let threads = threads::threads_for(elements, cpu.threads);
        // Several heads of one row, or all heads of several rows.
        let n_at_once = match n_rows {
            1 => n_heads.div_ceil(threads),
            _ => n_rows.div_ceil(threads).min(ROWS) * n_heads,
        };
        threads::for_chunks(threads, y, n_at_once * width, |start, y| {
            let first = start / width;
            let n_heads_here = n_heads.min(y.len() / width);
            let n_rows = y.len() / width / n_heads_here;
            lend(
                OF_ONE_HEAD,
                n_rows * (d_in + d_out),
                |memory: &mut [f32]| {
                    let (from, to) = memory.split_at_mut(n_rows * d_in);
                    for head in 0..n_heads_here {
                        for (i, from) in from.chunks_exact_mut(d_in).enumerate() {
                            let at = (first + i * n_heads + head) * x.head_width;
                            from.copy_from_slice(&x.data[at..at + d_in]);
                        }
                        let map = &self.0[first % n_heads + head];
                        let from = Source::new(from, d_in);
                        map.apply_on(cpu.alone(), &from, None, to);
                        for (i, to) in to.chunks_exact(d_out).enumerate() {
                            y[(i * n_heads + head) * width..][..d_out].copy_from_slice(to);
                        }
                    }
                },
            );
        });
    }
}
