//! The packed transformer block.

use candle_blocks_kernels::rows::{RowNorm, Source};
use candle_blocks_kernels::{Cpu, memory::lend, rows, scratch};
use candle_core::{Module, Result, Tensor, bail};

use super::altup::{PackedAltUp, add_scaled};
use super::laurel::PackedLaurel;
use super::layer_input::{InputRows, PackedGatedInput};
use super::sublayer::Seen;
use super::{PackedAttention, PackedFeedForward, PackedSublayer, Packing, elements, map_rows};
use super::{cache::LayerCaches, cache::PackedLayerCache, linear::Finishing};
use super::{mixture::PackedMixtureOfExperts, pass::PackedPass};
use crate::config::{ParallelNorm, Position, Precision, Topology, getters};
use crate::layers::{BlockFeedForward, BlockStages, ForwardContext, TransformerBlock};

/// The feed-forward of a packed block: a single network or a mixture of experts. Created by [`BlockFeedForward::pack`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PackedBlockFeedForward {
    /// A single network.
    Dense(PackedFeedForward),
    /// A mixture of experts, of which each position uses a few.
    Experts(PackedMixtureOfExperts),
}

impl PackedBlockFeedForward {
    pub(super) fn new(packing: &Packing, feed_forward: &BlockFeedForward) -> Result<Self> {
        Ok(match feed_forward {
            BlockFeedForward::Dense(dense) => Self::Dense(PackedFeedForward::new(packing, dense)?),
            BlockFeedForward::Experts(experts) => {
                Self::Experts(PackedMixtureOfExperts::new(packing, experts)?)
            }
        })
    }

    /// The width of the input and the output.
    pub fn d_model(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.d_model(),
            Self::Experts(experts) => experts.d_model(),
        }
    }

    /// The size of the packed weights in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.bytes(),
            Self::Experts(experts) => experts.bytes(),
        }
    }

    pub(super) fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        match self {
            Self::Dense(dense) => dense.apply(x, finishing, y),
            Self::Experts(experts) => experts.apply(x, finishing, y),
        }
    }
}

packs!(BlockFeedForward, PackedBlockFeedForward);

impl Module for PackedBlockFeedForward {
    /// The output of the original layer in evaluation mode; shapes and errors as for [`PackedFeedForward`].
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }
}

/// A [`TransformerBlock`] packed for inference on the CPU, created by [`TransformerBlock::pack`].
#[derive(Clone, Debug)]
pub struct PackedTransformerBlock {
    attention: PackedSublayer<PackedAttention>,
    cross_attention: Option<PackedSublayer<PackedAttention>>,
    feed_forward: PackedSublayer<PackedBlockFeedForward>,
    layer_input: Option<PackedSublayer<PackedGatedInput>>,
    output_scale: Option<f32>,
    laurel: Option<PackedLaurel>,
    altup: Option<PackedAltUp>,
    topology: Topology,
    cpu: Cpu,
}

/// What a block needs besides its rows.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, 'c> {
    pub pass: &'a PackedPass<'c>,
    /// That of the positions whose output is asked for, which is the same, or that of the last ones alone.
    pub asked: &'a PackedPass<'c>,
    /// The rows of the input that the block has for itself, if it has one.
    pub input: Option<InputRows<'a>>,
}

impl<'a> Run<'a, '_> {
    /// The rows of the input that the block has for itself, of the positions that are asked for.
    ///
    /// # Errors
    /// If it has none.
    fn own_input(&self) -> Result<InputRows<'a>> {
        let Some(input) = self.input else {
            bail!(
                "layer input: the block has an input for itself, which its stack makes; run the block there"
            )
        };
        Ok(input.of_last(self.pass.seq() / self.asked.seq().max(1)))
    }

    /// How many of so many rows of the pass are those of positions that are asked for.
    fn n_asked(&self, n_rows: usize) -> usize {
        self.pass.n_asked(self.asked, n_rows)
    }
}

/// The intermediate results of a block's sublayers, for an observer.
#[derive(Default)]
pub(super) struct SeenBlock {
    pub attention: Seen,
    pub cross_attention: Option<Seen>,
    pub feed_forward: Seen,
    pub layer_input: Option<Seen>,
}

scratch!(BETWEEN_ROWS);
scratch!(BRANCHES_ROWS);
scratch!(STREAM_ROWS);

packs!(TransformerBlock, PackedTransformerBlock);

impl PackedTransformerBlock {
    pub(super) fn new(packing: &Packing, block: &TransformerBlock) -> Result<Self> {
        let (attention, feed_forward) = (block.attention(), block.feed_forward());
        let cross = block.cross_attention().map(|cross| {
            let inner = PackedAttention::cross(&packing.at("cross_attention"), cross.inner())?;
            PackedSublayer::new(packing, cross, inner)
        });
        let inner = PackedAttention::new(&packing.at("attention"), attention.inner())?;
        let network =
            PackedBlockFeedForward::new(&packing.at("feed_forward"), feed_forward.inner())?;
        let beside = block.beside.as_deref();
        let layer_input = beside.and_then(|of| of.layer_input.as_ref());
        let layer_input = layer_input.map(|input| {
            let inner = PackedGatedInput::new(&packing.at("layer_input"), input.inner())?;
            PackedSublayer::new(packing, input, inner)
        });
        let laurel = beside.and_then(|of| of.laurel.as_ref());
        let laurel = laurel.map(|laurel| PackedLaurel::new(&packing.at("laurel"), laurel));
        let altup = beside.and_then(|of| of.altup.as_ref());
        let altup = altup.map(|altup| PackedAltUp::new(&packing.at("altup"), altup));
        Ok(Self {
            attention: PackedSublayer::new(packing, attention, inner)?,
            cross_attention: cross.transpose()?,
            feed_forward: PackedSublayer::new(packing, feed_forward, network)?,
            layer_input: layer_input.transpose()?,
            output_scale: beside
                .and_then(|of| of.output_scale.as_ref())
                .map(elements)
                .transpose()?
                .map(|scale| scale[0]),
            laurel: laurel.transpose()?,
            altup: altup.transpose()?,
            topology: block.topology(),
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The width of the input and the output, or of one of their streams.
        d_model(&self) -> usize => self.attention.inner().config().d_model;
        /// The self-attention sublayer.
        attention(&self) -> &PackedSublayer<PackedAttention> => &self.attention;
        /// The feed-forward sublayer.
        feed_forward(&self) -> &PackedSublayer<PackedBlockFeedForward> => &self.feed_forward;
    }

    /// Whether scores are biased by position.
    pub(super) fn has_alibi(&self) -> bool {
        let attention = self.attention.inner().config();
        matches!(attention.position, Position::Alibi(_))
    }

    /// # Errors
    /// If a cache holds keys of other heads than this block's, or of another number of sequences.
    pub(super) fn check_cache(&self, cache: &PackedLayerCache, batch: usize) -> Result<()> {
        let shape = |attention: &PackedAttention| attention.cached(batch);
        let memory = self.cross_attention.as_ref();
        let memory = memory.map(|cross| shape(cross.inner()));
        cache.check(shape(self.attention.inner()), memory)
    }

    /// The cross-attention sublayer.
    pub fn cross_attention(&self) -> Option<&PackedSublayer<PackedAttention>> {
        self.cross_attention.as_ref()
    }

    /// The size of the packed weights in bytes.
    pub fn bytes(&self) -> usize {
        let cross = self.cross_attention.iter();
        let cross: usize = cross.map(|cross| cross.inner().bytes()).sum();
        let input = self.layer_input.iter();
        let input: usize = input.map(|input| input.inner().bytes()).sum();
        let beside = self.laurel.as_ref().map_or(0, PackedLaurel::bytes)
            + self.altup.as_ref().map_or(0, PackedAltUp::bytes);
        self.attention.inner().bytes() + cross + self.feed_forward.inner().bytes() + input + beside
    }

    /// The output with the context's mask, positions and memory.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position.
    ///
    /// # Errors
    /// As for [`PackedAttention::forward_with`].
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = PackedPass::of_context(context, x)?;
        let n_streams = self
            .altup
            .as_ref()
            .map_or(1, |altup| altup.config.n_streams);
        let widths = (n_streams * self.d_model(), n_streams * self.d_model());
        map_rows("block", x, widths, self.cpu.threads, |x, y| {
            let run = Run {
                pass: &pass,
                asked: &pass,
                input: None,
            };
            y.copy_from_slice(x);
            self.apply(y, run, None, None)
        })
    }

    /// Puts the output in the place of rows `[batch · seq, d_model]` of a pass, of positions after the cached ones: the rows of
    /// those that are asked for come first, and those behind are worth nothing.
    pub(super) fn apply(
        &self,
        rows: &mut [f32],
        run: Run,
        cache: Option<LayerCaches>,
        mut seen: Option<&mut SeenBlock>,
    ) -> Result<()> {
        if let Some(altup) = &self.altup {
            return self.apply_to_streams(altup, rows, run, cache, seen);
        }
        self.apply_branches(rows, run, cache, seen.as_deref_mut())?;
        let n_asked = run.n_asked(rows.len() / self.d_model());
        let y = &mut rows[..n_asked * self.d_model()];
        if let Some(sublayer) = &self.layer_input {
            let input = run.own_input()?;
            lend(BRANCHES_ROWS, y.len(), |fed: &mut [f32]| {
                fed.copy_from_slice(y);
                let of_input = seen.map(|seen| seen.layer_input.insert(Seen::default()));
                let fed = self.normal(fed, sublayer.input_norm());
                sublayer.apply(fed, fed, of_input, y, |inner, x, last, y| {
                    inner.apply(x, input, last, y);
                    Ok(())
                })
            })?;
        }
        if let Some(scale) = self.output_scale {
            rows::elements::scale(self.cpu, y.into(), f64::from(scale));
        }
        Ok(())
    }

    /// The streams behind the block, side by side: the active one computed, all corrected, and the block's own input added to
    /// all but the first.
    fn apply_to_streams(
        &self,
        altup: &PackedAltUp,
        rows: &mut [f32],
        run: Run,
        cache: Option<LayerCaches>,
        mut seen: Option<&mut SeenBlock>,
    ) -> Result<()> {
        let (d_model, all) = (self.d_model(), altup.config.n_streams * self.d_model());
        let n_read = rows.len() / all;
        let n_asked = run.n_asked(n_read);
        let n_memory = rows.len() + (n_read + n_asked) * d_model;
        lend(STREAM_ROWS, n_memory, |memory: &mut [f32]| {
            let (predicted, memory) = memory.split_at_mut(rows.len());
            let (active, added) = memory.split_at_mut(n_read * d_model);
            altup.predict(rows, predicted);
            altup.copy_active(predicted, active);
            self.apply_branches(active, run, cache, seen.as_deref_mut())?;
            let (fed, y) = (&mut active[..n_asked * d_model], &mut rows[..n_asked * all]);
            let of_each = predicted.chunks_exact((predicted.len() / n_asked.max(1)).max(1));
            for (to, of) in y.chunks_exact_mut(all).zip(of_each) {
                to.copy_from_slice(&of[of.len() - all..]); // the last of each
            }
            altup.correct(fed, y);
            if let Some(sublayer) = &self.layer_input {
                let input = run.own_input()?;
                altup.copy_active(y, fed);
                rows::elements::multiply_rows(
                    self.cpu,
                    (&mut *fed).into(),
                    altup.input_scale[..].into(),
                );
                let of_input = seen.map(|seen| seen.layer_input.insert(Seen::default()));
                let scaled = self.normal(fed, sublayer.input_norm());
                sublayer.apply_onto(scaled, None, of_input, added, |inner, x, last, y| {
                    inner.apply(x, input, last, y);
                    Ok(())
                })?;
                let rows = y.chunks_exact_mut(all).zip(added.chunks_exact(d_model));
                for (streams, added) in rows {
                    for stream in streams[d_model..].chunks_exact_mut(d_model) {
                        add_scaled(stream, 1.0, added);
                    }
                }
            }
            Ok(())
        })
    }

    /// Attention and feed-forward, in sequence or in parallel, in the place of their rows as [`Self::apply`].
    fn apply_branches(
        &self,
        rows: &mut [f32],
        run: Run,
        mut cache: Option<LayerCaches>,
        mut seen: Option<&mut SeenBlock>,
    ) -> Result<()> {
        let Run { pass, asked, .. } = run;
        let d_model = self.d_model();
        let n_asked = run.n_asked(rows.len() / d_model) * d_model;
        // Rows that are read while others, or the output, take their place.
        let is_parallel = matches!(self.topology, Topology::Parallel(_));
        let asks_all = n_asked == rows.len();
        let n_kept = if is_parallel || !asks_all { n_asked } else { 0 };
        let n_between = (1 + usize::from(self.cross_attention.is_some())) * n_asked;
        lend(BETWEEN_ROWS, n_between + n_kept, |memory: &mut [f32]| {
            let (attended, memory) = memory.split_at_mut(n_asked);
            let (kept, crossed) = memory.split_at_mut(n_kept);
            let of_each = rows.chunks_exact((pass.seq() * d_model).max(1));
            if asks_all {
                kept.copy_from_slice(&rows[..n_kept]);
            } else {
                for (row, of) in kept.chunks_exact_mut(d_model).zip(of_each) {
                    row.copy_from_slice(&of[of.len() - row.len()..]);
                }
            }
            let last = if asks_all { &*rows } else { &*kept };
            let norm = self.attention.input_norm();
            self.attention.apply(
                self.normal(rows, norm),
                self.normal(last, norm),
                seen.as_deref_mut().map(|seen| &mut seen.attention),
                attended,
                |inner, x, finishing, y| {
                    let own = cache.as_mut().map(LayerCaches::of_positions);
                    inner.apply(x, finishing, (pass, asked), own, y)
                },
            )?;
            if let Some(laurel) = &self.laurel {
                laurel.add_to(&self.normal(last, norm), attended);
            }
            let mut before = &*attended;
            if let Some(cross) = &self.cross_attention {
                let of_cross = seen
                    .as_deref_mut()
                    .map(|seen| seen.cross_attention.insert(Seen::default()));
                let input = self.normal(before, cross.input_norm());
                cross.apply(input, input, of_cross, crossed, |inner, x, finishing, y| {
                    let memory = cache.map(|cache| cache.layer);
                    inner.apply(x, finishing, (asked, asked), memory, y)
                })?;
                before = &*crossed;
            }
            let of_feed_forward = seen.map(|seen| &mut seen.feed_forward);
            let (input, residual) = match self.topology {
                Topology::Sequential => {
                    let input = self.normal(before, self.feed_forward.input_norm());
                    (input, input)
                }
                // Reads the block's input, and is added to the output of the attention sublayer.
                Topology::Parallel(norm) => {
                    let norm = match norm {
                        ParallelNorm::Shared => self.attention.input_norm(),
                        ParallelNorm::Separate => self.feed_forward.input_norm(),
                    };
                    (self.normal(kept, norm), self.normal(before, None))
                }
            };
            let y = &mut rows[..n_asked];
            let feed_forward = &self.feed_forward;
            feed_forward.apply(input, residual, of_feed_forward, y, |inner, x, last, y| {
                inner.apply(x, last, y);
                Ok(())
            })
        })
    }

    /// Its stages, of which the output is that of the active stream.
    pub(super) fn of_streams(&self, stages: BlockStages) -> Result<BlockStages> {
        match &self.altup {
            Some(altup) => stages.of_streams(&altup.config),
            None => Ok(stages),
        }
    }

    fn normal<'a>(&self, rows: &'a [f32], norm: Option<&'a RowNorm>) -> Source<'a> {
        Source::new(rows, self.d_model()).with_norm(norm)
    }
}

impl Module for PackedTransformerBlock {
    /// The output with nothing masked; shapes and errors as for [`Self::forward_with`].
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }
}
