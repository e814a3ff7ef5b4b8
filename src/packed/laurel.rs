//! The packed form of what a block adds to its attention's output besides the residual.

use std::f32::consts::FRAC_1_SQRT_2;

use candle_blocks_kernels::rows::{RowNorm, Source};
use candle_blocks_kernels::{Cpu, memory::lend, scratch};
use candle_core::Result;

use super::linear::{Finishing, Product};
use super::{Packing, norm::row_norm};
use crate::config::getters;
use crate::layers::own::gemma::Laurel;

scratch!(NORMAL_ROWS);
scratch!(LOW_RANK_ROWS);

/// The packed form of [`Laurel`].
#[derive(Clone, Debug)]
pub(super) struct PackedLaurel {
    down: Product,
    up: Product,
    norm: RowNorm,
    cpu: Cpu,
}

impl PackedLaurel {
    pub fn new(packing: &Packing, laurel: &Laurel) -> Result<Self> {
        Ok(Self {
            down: Product::new(&packing.at("down"), &laurel.down)?,
            up: Product::new(&packing.at("up"), &laurel.up)?,
            norm: row_norm(&laurel.norm)?,
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The size of the packed weights in bytes.
        bytes(&self) -> usize => self.down.bytes() + self.up.bytes();
    }

    /// `y = (y + n + norm(up(down(n)))) / √2`, of the attention's normalized input n.
    pub fn add_to(&self, normal: &Source, y: &mut [f32]) {
        let rank = self.down.d_out();
        lend(NORMAL_ROWS, 2 * y.len(), |memory: &mut [f32]| {
            let (n, added) = memory.split_at_mut(y.len());
            normal.copy_to(self.cpu, n);
            lend(LOW_RANK_ROWS, normal.rows() * rank, |low: &mut [f32]| {
                let n = Source::new(n, normal.width());
                self.down.apply(&n, &Finishing::NONE, low);
                self.up
                    .apply(&Source::new(low, rank), &Finishing::NONE, added);
            });
            self.norm.rows_in_place(self.cpu, added);
            for (y, (n, added)) in y.iter_mut().zip(n.iter().zip(added)) {
                *y = (*y + (n + *added)) * FRAC_1_SQRT_2;
            }
        });
    }
}
