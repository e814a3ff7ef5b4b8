//! What is measured: layers with weights, and an input.

use anyhow::{Result, bail};
use candle_blocks::{
    AttentionConfig, AttentionMask, BlockConfig, BlockFeedForward, Checkpoint, FeedForwardConfig,
    ForwardContext, NormConfig, NormPlacement, PackedBlockFeedForward, PackedStack, PackedSublayer,
    PackedTransformerBlock, Precision, Stack, StackConfig, Sublayer, SublayerNorm,
    TransformerBlock,
    candle_core::{DType, Device, Module, ModuleT, Result as CandleResult, Tensor},
};

use super::{Args, operations, seeded};

/// The sizes of a block of BERT.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
}

/// Layers and their input.
pub struct Subject {
    layers: Layers,
    config: StackConfig,
    family: String,
    x: Tensor,
    context: ForwardContext,
}

enum Layers {
    FeedForward(Box<Sublayer<BlockFeedForward>>),
    Block(Box<TransformerBlock>),
    Stack(Stack),
    PackedFeedForward(Box<PackedSublayer<PackedBlockFeedForward>>),
    PackedTransformerBlock(Box<PackedTransformerBlock>),
    PackedStack(PackedStack),
}

impl Layers {
    fn pack(self, precision: Precision) -> CandleResult<Self> {
        Ok(match self {
            Self::FeedForward(sublayer) => {
                Self::PackedFeedForward(Box::new(sublayer.pack(precision)?))
            }
            Self::Block(block) => Self::PackedTransformerBlock(Box::new(block.pack(precision)?)),
            Self::Stack(stack) => Self::PackedStack(stack.pack(precision)?),
            packed => packed,
        })
    }
}

impl Subject {
    /// BERT's `norm(x + down(gelu(up(x))))`.
    pub fn feed_forward(sizes: Sizes, args: &Args) -> Result<Self> {
        // Heads do not matter here, but a block has some.
        let config = bert_block(Sizes {
            n_heads: 1,
            ..sizes
        })?;
        Self::new(
            StackConfig::uniform(config, 1, None),
            "bert",
            args,
            |config| {
                let (block, vb) = (&config.blocks[0], seeded::weights());
                let inner = BlockFeedForward::new(&block.feed_forward, vb.pp("feed_forward"))?;
                let placement = block.feed_forward_placement;
                let norm = SublayerNorm::new(placement, &block.norm, "feed_forward", &vb)?;
                let sublayer = Sublayer::from_parts(inner, norm)?;
                Ok(Layers::FeedForward(Box::new(sublayer)))
            },
        )
    }

    /// A block of BERT.
    pub fn block(sizes: Sizes, args: &Args) -> Result<Self> {
        let config = StackConfig::uniform(bert_block(sizes)?, 1, None);
        Self::new(config, "bert", args, |config| {
            let block = TransformerBlock::new(&config.blocks[0], seeded::weights())?;
            Ok(Layers::Block(Box::new(block)))
        })
    }

    /// A checkpoint's stack.
    pub fn model(checkpoint: &Checkpoint, args: &Args) -> Result<Self> {
        let config = checkpoint.config().clone();
        Self::new(config, checkpoint.family(), args, |_| {
            Ok(match args.precision.packing() {
                None => Layers::Stack(checkpoint.stack(DType::F32, &Device::Cpu)?),
                Some(precision) => Layers::PackedStack(checkpoint.packed_stack(precision)?),
            })
        })
    }

    fn new(
        config: StackConfig,
        family: &str,
        args: &Args,
        layers: impl FnOnce(&StackConfig) -> Result<Layers>,
    ) -> Result<Self> {
        let (batch, seq) = (args.batch, args.seq);
        check_memory(&config, batch, seq)?;
        let Some(block) = config.blocks.first() else {
            bail!("the checkpoint has no blocks; there is nothing to measure");
        };
        let x = seeded::hidden_states((batch, seq, block.d_model()))?;
        let mut context = ForwardContext::evaluation();
        if let Some(cross) = &block.cross_attention {
            let memory = seeded::hidden_states((batch, seq, cross.d_memory))?;
            context = context.with_memory(memory, AttentionMask::none());
        }
        let layers = layers(&config)?;
        Ok(Self {
            layers: match args.precision.packing() {
                None => layers,
                Some(precision) => layers.pack(precision)?,
            },
            family: family.to_string(),
            config,
            x,
            context,
        })
    }

    /// Computes once.
    pub fn run(&self) -> CandleResult<Tensor> {
        match &self.layers {
            Layers::FeedForward(sublayer) => sublayer.forward_t(&self.x, false),
            Layers::Block(block) => block.forward_with(&self.x, &self.context),
            Layers::Stack(stack) => stack.forward_with(&self.x, &self.context),
            Layers::PackedFeedForward(sublayer) => sublayer.forward(&self.x),
            Layers::PackedTransformerBlock(block) => block.forward_with(&self.x, &self.context),
            Layers::PackedStack(stack) => stack.forward_with(&self.x, &self.context),
        }
    }

    /// Operations of all its matrix products.
    pub fn operations(&self) -> f64 {
        let (batch, seq) = (self.x.dims()[0], self.x.dims()[1]);
        match &self.layers {
            Layers::FeedForward(_) | Layers::PackedFeedForward(_) => {
                operations::of_feed_forward(&self.block_config().feed_forward, batch * seq)
            }
            _ => operations::of_stack(&self.config, batch, seq),
        }
    }

    /// The first block.
    pub fn block_config(&self) -> &BlockConfig {
        &self.config.blocks[0]
    }

    /// How many blocks run one after the other.
    pub fn layers(&self) -> usize {
        self.config.layers.len()
    }

    pub fn family(&self) -> &str {
        &self.family
    }
}

fn bert_block(sizes: Sizes) -> Result<BlockConfig> {
    let Sizes {
        d_model,
        d_ff,
        n_heads,
    } = sizes;
    let config = BlockConfig::new(
        AttentionConfig::new(d_model, n_heads)?,
        FeedForwardConfig::new(d_model).with_d_ff(d_ff),
        NormConfig::layer_norm(d_model, 1e-12),
        NormPlacement::Post,
    );
    config.validate()?;
    Ok(config)
}

/// Refuses what would end in the middle, for want of memory: that is no error one can catch.
fn check_memory(config: &StackConfig, batch: usize, seq: usize) -> Result<()> {
    let sizes = |block: &BlockConfig| {
        let [d_model, d_ff, query, heads] = [
            block.d_model(),
            block.feed_forward.d_ff,
            block.attention.query_width(),
            block.attention.n_heads,
        ]
        .map(|size| size as f64);
        let (batch, seq) = (batch as f64, seq as f64);
        let experts = block.feed_forward.experts;
        let n_experts = experts.map_or(1.0, |experts| experts.n_experts as f64);
        let weights = d_model * (4.0 * query + 3.0 * d_ff * n_experts);
        let activations = batch * seq * (6.0 * d_model + 4.0 * query + 2.0 * d_ff);
        let scores = 2.0 * batch * heads * seq * seq;
        (weights, activations + scores)
    };
    let weights: f64 = config.blocks.iter().map(|block| sizes(block).0).sum();
    let most = config
        .blocks
        .iter()
        .map(|block| sizes(block).1)
        .fold(0.0, f64::max);
    let bytes = 4.0 * (weights + most);
    // The system refuses at once what is more than all its memory.
    let fits =
        bytes < isize::MAX as f64 && Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok();
    if !fits {
        bail!(
            "these sizes need about {:.0} GiB of memory, more than there is; give smaller ones, as of --batch or --seq",
            bytes / f64::from(1 << 30)
        );
    }
    Ok(())
}
