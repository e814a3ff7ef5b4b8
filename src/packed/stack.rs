//! A sequence of packed blocks with their final norm.

use std::sync::Arc;

use candle_blocks_kernels::{Cpu, rows::RowNorm, threads};
use candle_core::{DType, Device, Module, Result, Tensor, bail};

use super::altup::PackedStreams;
use super::layer_input::PackedLayerInputs;
use super::norm::row_norm;
use super::pass::{PackedPass, check_evaluation};
use super::{PackedKvCache, PackedTransformerBlock, Packing, with_elements};
use crate::config::{Precision, StackConfig, getters};
use crate::layers::{
    BlockStages, ForwardContext, ParameterSource, Pass, RelativeBias, RelativeBiases, SharedParts,
    Stack, check_cached, visit::Visit,
};
use crate::ops::Ranks;

mod walk;

/// A [`Stack`] packed for inference on the CPU, created by [`Stack::pack`] or
/// [`Checkpoint::packed_stack`](crate::Checkpoint::packed_stack).
///
/// It is immutable: share it among threads by reference or in an `Arc`.
#[derive(Clone, Debug)]
pub struct PackedStack {
    blocks: Vec<PackedTransformerBlock>,
    /// The index of the block that runs at each layer.
    layers: Vec<usize>,
    relative_biases: RelativeBiases,
    layer_inputs: Option<PackedLayerInputs>,
    streams: Option<PackedStreams>,
    final_norm: Option<RowNorm>,
    cpu: Cpu,
}

/// The positions whose output is asked for.
#[derive(Clone, Copy)]
enum Asked {
    All,
    /// The last of each sequence.
    Last,
}

/// Receives the intermediate results of each layer.
type Observer<'a> = dyn FnMut(usize, &BlockStages) -> Result<()> + 'a;

/// The role of a block in its stack.
fn role_of_block(i: usize) -> String {
    format!("blocks.{i}")
}

impl Stack {
    /// Packs the weights for inference on the CPU. [`PackedStack::new`] and
    /// [`Checkpoint::packed_stack`](crate::Checkpoint::packed_stack) never hold more than one block unpacked.
    ///
    /// # Errors
    /// If the stack is not on the CPU or is f64, or a weight is beyond the range of the precision.
    pub fn pack(&self, precision: Precision) -> Result<PackedStack> {
        let packing = Packing::new(precision)?.with_relative(self.relative_embeddings())?;
        let blocks = self.blocks().iter().enumerate();
        let blocks = blocks
            .map(|(i, block)| PackedTransformerBlock::new(&packing.at(role_of_block(i)), block));
        let blocks = (blocks.collect::<Result<_>>()?, self.layers().to_vec());
        PackedStack::of_blocks(&packing, blocks, &self.shared)
    }
}

impl PackedStack {
    /// Gets every block and the parts that they share from `vb`, packing each block before the next is read, so that
    /// at most one block is in memory unpacked.
    ///
    /// # Errors
    /// As for [`Stack::new`] and [`Stack::pack`].
    pub fn new<'p>(
        config: &StackConfig,
        vb: impl Into<ParameterSource<'p>>,
        precision: Precision,
    ) -> Result<Self> {
        Self::part(config, vb.into(), precision, None)
    }

    /// As [`Self::new`], of blocks that are parts of those of the ranks, if there are some.
    pub(crate) fn part(
        config: &StackConfig,
        vb: ParameterSource,
        precision: Precision,
        ranks: Option<&Arc<Ranks>>,
    ) -> Result<Self> {
        config.validate()?;
        let shared = SharedParts::new(config, &vb)?;
        let packing =
            Packing::of_file(precision)?.with_relative(shared.relative_embeddings.as_ref())?;
        let blocks = config.blocks.iter().enumerate().map(|(i, block)| {
            let mut block = crate::TransformerBlock::new(block, vb.pp("blocks").pp(i))?;
            if let Some(ranks) = ranks {
                block.divide(ranks);
            }
            PackedTransformerBlock::new(&packing.at(role_of_block(i)), &block)
        });
        let blocks = (blocks.collect::<Result<_>>()?, config.layers.clone());
        packing.check_codes()?;
        Self::of_blocks(&packing, blocks, &shared)
    }

    fn of_blocks(
        packing: &Packing,
        (blocks, layers): (Vec<PackedTransformerBlock>, Vec<usize>),
        shared: &SharedParts,
    ) -> Result<Self> {
        let in_f32 = |bias: &RelativeBias| -> Result<RelativeBias> {
            Ok(bias.with_table(bias.table().detach().to_dtype(DType::F32)?))
        };
        let inputs = shared.layer_inputs.as_ref();
        let inputs = inputs.map(|inputs| PackedLayerInputs::new(packing, inputs));
        let streams = shared.streams.as_ref();
        let streams = streams.map(|streams| PackedStreams::new(packing, streams));
        Ok(Self {
            blocks,
            layers,
            relative_biases: shared.relative_biases.try_map(in_f32)?,
            layer_inputs: inputs.transpose()?,
            streams: streams.transpose()?,
            final_norm: shared.final_norm.as_ref().map(row_norm).transpose()?,
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The distinct blocks.
        blocks(&self) -> &[PackedTransformerBlock] => &self.blocks;
        /// The index of the block that runs at each layer; ALBERT runs one block many times.
        layers(&self) -> &[usize] => &self.layers;
        /// The size of the packed weights in bytes.
        bytes(&self) -> usize => {
            let inputs = self.layer_inputs.as_ref().map_or(0, PackedLayerInputs::bytes);
            let streams = self.streams.as_ref().map_or(0, PackedStreams::bytes);
            inputs + streams + self.blocks.iter().map(PackedTransformerBlock::bytes).sum::<usize>()
        };
    }

    /// Whether a layer attends to the keys of another.
    fn shares_keys(&self) -> bool {
        let mut attentions = self.blocks.iter().map(|b| b.attention().inner().config());
        attentions.any(|attention| attention.shared_keys.is_some())
    }

    /// Whether padding is not computed.
    pub(crate) fn leaves_out_padding(&self) -> bool {
        let has_alibi = self.blocks.iter().any(PackedTransformerBlock::has_alibi);
        self.relative_biases.as_slice().is_empty() && !has_alibi && !self.shares_keys()
    }

    /// Runs all blocks and the final norm: the `last_hidden_state` of transformers.
    ///
    /// Padding before or after a sequence is not computed: its rows are zero in the result, unless an additive mask or a
    /// position bias requires them.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]`, the embeddings, to the same shape. `[seq, d_model]` is a single sequence.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a mask does not fit, or the context is one for training;
    /// also if the input tracks gradients, is f64, or is not on the CPU.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let mut pass = self.pass(Pass::new(context, x.dims())?)?;
        if self.leaves_out_padding() {
            pass.leave_out_padding();
        }
        self.apply(x.clone(), (&pass, None), None, None)
    }

    /// Like [`Self::forward_with`], but also hands the intermediate results of every layer to `observer` as they are
    /// computed. This costs time, but gives the same bits in every row that the mask keeps; padding is computed too.
    ///
    /// # Errors
    /// As for [`Self::forward_with`].
    pub fn observe(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        mut observer: impl FnMut(usize, &BlockStages) -> Result<()>,
    ) -> Result<Tensor> {
        let pass = self.pass(Pass::new(context, x.dims())?)?;
        self.apply(x.clone(), (&pass, None), None, Some(&mut observer))
    }

    /// An empty cache for [`Self::forward_cached`].
    pub fn new_cache(&self) -> PackedKvCache {
        PackedKvCache::new(self.layers.len())
    }

    /// The output for new positions that follow those in `cache`, to which they are added; see
    /// [`Stack::forward_cached`]. The [crate's front page](crate#decoding) has an example.
    ///
    /// # Shapes
    /// `[batch, new positions, d_model]` to the same shape.
    ///
    /// # Errors
    /// As for [`Self::forward_with`]; also if the attention of a block is not causal, the context has an additive mask, or
    /// the cache belongs to another stack or batch, or to an encoder output of another length. The cache then stays as it
    /// was.
    pub fn forward_cached(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        cache: &mut PackedKvCache,
    ) -> Result<Tensor> {
        self.behind_cached(x.clone(), context, cache, Asked::All)
    }

    /// The output for the last of each sequence's new positions, `[batch, 1, d_model]`, in the bits of [`Self::forward_cached`]:
    /// all a next token needs, for which the last block computes no more than keys and values of the others.
    pub(crate) fn last_cached(
        &self,
        x: Tensor,
        context: &ForwardContext,
        cache: &mut PackedKvCache,
    ) -> Result<Tensor> {
        self.behind_cached(x, context, cache, Asked::Last)
    }

    fn behind_cached(
        &self,
        x: Tensor,
        context: &ForwardContext,
        cache: &mut PackedKvCache,
        asked: Asked,
    ) -> Result<Tensor> {
        check_evaluation(context)?;
        let attentions = self.blocks.iter().map(|b| b.attention().inner().config());
        let n_layers = (cache.layers.len(), self.layers.len());
        let sizes = check_cached(&x, context, n_layers, attentions)?;
        for (layer, &block) in cache.layers.iter().zip(&self.layers) {
            self.blocks[block].check_cache(layer, sizes.0)?;
        }
        let seen = cache.seen();
        let added = |cache: &mut PackedKvCache| {
            let keep = cache.extend(context.mask().marks(), sizes)?;
            let last = match (asked, sizes) {
                (Asked::Last, (batch, seq @ 2..)) => {
                    let pass = Pass::behind(context, (batch, 1), seen + seq - 1, keep.clone());
                    Some(self.pass(pass)?)
                }
                _ => None,
            };
            let pass = self.pass(Pass::behind(context, sizes, seen, keep))?;
            self.apply(x, (&pass, last.as_ref()), Some(cache), None)
        };
        match added(cache) {
            Ok(y) => Ok(y),
            Err(error) => {
                cache.forget_from(seen)?;
                Err(error)
            }
        }
    }

    fn pass<'c>(&self, pass: Pass<'c>) -> Result<PackedPass<'c>> {
        PackedPass::new(pass, self.relative_biases.shared())
    }

    /// The output for the positions of a pass, or for the last ones alone, which are those of the pass `last`. The input is given
    /// back, if nobody else holds it, before the first block.
    fn apply(
        &self,
        x: Tensor,
        (pass, last): (&PackedPass, Option<&PackedPass>),
        cache: Option<&mut PackedKvCache>,
        observer: Option<&mut Observer>,
    ) -> Result<Tensor> {
        let Some(width) = self.blocks.first().map(PackedTransformerBlock::d_model) else {
            bail!("a stack without blocks cannot be run packed");
        };
        let (mut dims, dtype) = (x.dims().to_vec(), x.dtype());
        if dims.last() != Some(&width) {
            bail!("stack: input has shape {dims:?}, expected [.., {width}]");
        }
        let mut rows = with_elements("stack", &x, |x| Ok(x.to_vec()))?;
        drop(x);
        // An observer may wait for the pool, and must not find its threads kept by teams that wait for it.
        let team = if observer.is_some() {
            1
        } else {
            self.cpu.threads
        };
        let kept = pass.kept();
        let n_rows = kept.map_or(rows.len(), |kept| gather(kept, &mut rows, width));
        let (passes, form) = ((pass, last.unwrap_or(pass)), (&dims[..], dtype));
        threads::with_team(team, || {
            self.apply_layers(&mut rows[..n_rows], passes, cache, observer, form)
        })?;
        if let Some(kept) = kept {
            scatter(kept, &mut rows, width);
        }
        if let Some(last) = last {
            dims = vec![last.batch(), 1, width];
            rows.truncate(last.batch() * width);
            rows.shrink_to_fit();
        }
        Tensor::from_vec(rows, dims, &Device::Cpu)?.to_dtype(dtype)
    }
}

/// Puts some rows, in their order, before all others, and returns how many numbers they have.
fn gather(kept: &[usize], rows: &mut [f32], width: usize) -> usize {
    for (i, &at) in kept.iter().enumerate() {
        rows.copy_within(at * width..(at + 1) * width, i * width);
    }
    kept.len() * width
}

/// Puts gathered rows back, with zeros between.
fn scatter(kept: &[usize], rows: &mut [f32], width: usize) {
    let mut end = rows.len();
    for (i, &at) in kept.iter().enumerate().rev() {
        rows.copy_within(i * width..(i + 1) * width, at * width);
        rows[(at + 1) * width..end].fill(0.0);
        end = at * width;
    }
    rows[..end].fill(0.0);
}

impl Module for PackedStack {
    /// The output with nothing masked; shapes and errors as for [`Self::forward_with`].
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }
}
