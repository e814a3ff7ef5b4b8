//! A packed residual sublayer.

use std::{fmt, sync::Arc};

use candle_blocks_kernels::rows::{RowNorm, Source};
use candle_blocks_kernels::{Cpu, scratch};
use candle_blocks_kernels::{memory::lend, products::Scale};
use candle_core::{Module, Result, Tensor, bail};

use super::{PackedBlockFeedForward, PackedFeedForward, Packing, elements, map_rows};
use super::{linear::Finishing, norm::row_norm};
use crate::config::{Precision, ResidualSource};
use crate::layers::{BlockFeedForward, BranchScale, FeedForward, Sublayer, SublayerNorm};
use crate::ops::Ranks;

/// A [`Sublayer`] packed for inference on the CPU: norm, inner layer and residual connection.
#[derive(Clone)]
pub struct PackedSublayer<L> {
    pub(super) inner: L,
    norm: SublayerNorm<RowNorm>,
    scale: PackedScale,
    source: ResidualSource,
    ranks: Option<Arc<Ranks>>,
    cpu: Cpu,
}

/// The packed form of [`BranchScale`].
#[derive(Clone)]
enum PackedScale {
    One,
    Constant(f32),
    Columns(Vec<f32>),
}

/// The intermediate results of a sublayer, for an observer.
#[derive(Default)]
pub(super) struct Seen {
    /// The input of the inner layer.
    pub input: Vec<f32>,
    /// The output of the inner layer.
    pub inner_output: Vec<f32>,
    /// The sublayer's output.
    pub output: Vec<f32>,
}

scratch!(BRANCH_ROWS);
scratch!(RESIDUAL_ROWS);

impl<L> PackedSublayer<L> {
    /// Packs norms and scale, which fit, around an inner layer.
    pub(super) fn new<P>(packing: &Packing, sublayer: &Sublayer<P>, inner: L) -> Result<Self> {
        Ok(Self {
            inner,
            norm: sublayer.norm().try_map(row_norm)?,
            scale: match &sublayer.scale {
                BranchScale::One => PackedScale::One,
                BranchScale::Constant(factor) => PackedScale::Constant(*factor as f32),
                BranchScale::Learned(vector) => PackedScale::Columns(elements(vector)?),
            },
            source: sublayer.source,
            ranks: sublayer.ranks.clone(),
            cpu: packing.cpu,
        })
    }

    /// The inner layer.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The norm of the input.
    pub(super) fn input_norm(&self) -> Option<&RowNorm> {
        self.norm.of_input()
    }

    /// `y = residual + scale · inner(norm(x))`, or as the norm is placed; with `inner` for the inner layer. The residual is
    /// normalised too where the sublayer has it so.
    pub(super) fn apply(
        &self,
        x: Source,
        residual: Source,
        seen: Option<&mut Seen>,
        y: &mut [f32],
        inner: impl FnOnce(&L, &Source, &Finishing, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let copied = residual.is_normalized() && self.source == ResidualSource::Normalized;
        let n_copied = if copied { y.len() } else { 0 };
        lend(RESIDUAL_ROWS, n_copied, |copy: &mut [f32]| {
            let residual = if copied {
                residual.copy_to(self.cpu, copy);
                &*copy
            } else {
                residual.stored()
            };
            self.apply_onto(x, Some(residual), seen, y, inner)
        })
    }

    /// As [`Self::apply`], without a residual or onto one that is in memory.
    pub(super) fn apply_onto(
        &self,
        x: Source,
        residual: Option<&[f32]>,
        seen: Option<&mut Seen>,
        y: &mut [f32],
        inner: impl FnOnce(&L, &Source, &Finishing, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let Some(seen) = seen else {
            return self.apply_from(x, residual, None, y, inner);
        };
        seen.input = vec![0.0; x.rows() * x.width()];
        x.copy_to(self.cpu, &mut seen.input);
        let input = Source::new(&seen.input, x.width());
        self.apply_from(input, residual, Some(&mut seen.inner_output), y, inner)?;
        seen.output = y.to_vec();
        Ok(())
    }

    /// As [`Self::apply`], from the input of the inner layer; copies the inner layer's output to `inner_output`.
    fn apply_from(
        &self,
        input: Source,
        residual: Option<&[f32]>,
        inner_output: Option<&mut Vec<f32>>,
        y: &mut [f32],
        inner: impl FnOnce(&L, &Source, &Finishing, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let finishing = Finishing {
            scale: self.scale.as_scale(),
            residual,
        };
        let output_norm = self.norm.of_output();
        if output_norm.is_none() && inner_output.is_none() && self.ranks.is_none() {
            inner(&self.inner, &input, &finishing, y)?;
        } else {
            lend(BRANCH_ROWS, y.len(), |branch: &mut [f32]| {
                inner(&self.inner, &input, &Finishing::NONE, branch)?;
                if let Some(ranks) = &self.ranks {
                    ranks.sum_in_place(branch)?;
                }
                if let Some(kept) = inner_output {
                    *kept = branch.to_vec();
                }
                if let Some(norm) = output_norm {
                    norm.rows_in_place(self.cpu, branch);
                }
                finishing.finish(self.cpu, branch, input.width(), y);
                candle_core::Result::Ok(())
            })?;
        }
        if let Some(norm) = self.norm.of_sum() {
            norm.rows_in_place(self.cpu, y);
        }
        Ok(())
    }
}

impl PackedScale {
    fn as_scale(&self) -> Scale<'_, f32> {
        match self {
            Self::One => Scale::One,
            Self::Constant(factor) => Scale::Constant(*factor),
            Self::Columns(factors) => Scale::Columns(factors),
        }
    }
}

/// An inner layer that computes each row by itself.
pub(super) trait PerRow {
    /// The width of the input and the output.
    fn d_model(&self) -> usize;
    /// `y = finishing(layer(x))`.
    fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]);
}

/// Packs a sublayer around a layer that computes each row by itself.
macro_rules! packs_around {
    ($inner:ident, $packed:ident) => {
        impl PerRow for $packed {
            fn d_model(&self) -> usize {
                self.d_model()
            }

            fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
                self.apply(x, finishing, y);
            }
        }

        packs!(
            Sublayer<$inner>,
            PackedSublayer<$packed>,
            |packing, sublayer| {
                check_widths(sublayer.norm(), sublayer.inner().widths())?;
                let inner = $packed::new(packing, sublayer.inner())?;
                PackedSublayer::new(packing, sublayer, inner)
            }
        );
    };
}

/// # Errors
/// If an inner layer from rows of `d_in` to rows of `d_out` has no place between these norms.
fn check_widths(norms: &SublayerNorm, [d_in, d_out]: [usize; 2]) -> Result<()> {
    if d_in != d_out {
        bail!("sublayer: maps {d_in} columns to {d_out}, expected as many as come in");
    }
    match norms.all().find(|norm| norm.config().d_model != d_in) {
        None => Ok(()),
        Some(norm) => {
            let width = norm.config().d_model;
            bail!("sublayer: a norm of {width} columns for rows of {d_in}")
        }
    }
}

packs_around!(FeedForward, PackedFeedForward);
packs_around!(BlockFeedForward, PackedBlockFeedForward);

impl<L: PerRow> Module for PackedSublayer<L> {
    /// The output of the original sublayer in evaluation mode.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, or the input tracks gradients, is f64, or is not on the CPU.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let d_model = self.inner.d_model();
        let team = self.cpu.threads;
        map_rows("feed-forward", x, (d_model, d_model), team, |x, y| {
            let source = Source::new(x, d_model).with_norm(self.input_norm());
            self.apply(source, source, None, y, |inner, x, finishing, y| {
                inner.apply(x, finishing, y);
                Ok(())
            })
        })
    }
}

impl<L> fmt::Debug for PackedSublayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedSublayer").finish_non_exhaustive()
    }
}
