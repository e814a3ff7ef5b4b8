//! The measured layers, with random weights or a checkpoint's, and their input.

use anyhow::{Result, bail};
use candle_blocks::{
    AttentionConfig, AttentionMask, BlockConfig, Checkpoint, FeedForwardConfig, ForwardContext,
    NormConfig, NormPlacement, StackConfig, Sublayer, SublayerNorm, TransformerBlock, Weights,
    candle_core::{DType, Device, ModuleT, Result as CandleResult, Tensor},
    layers::BlockFeedForward,
};

use super::{Args, operations, seeded};

/// The sizes of a BERT block.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
}

type Run = Box<dyn Fn(&Tensor, &ForwardContext) -> CandleResult<Tensor>>;

/// Layers and their input.
pub struct Subject {
    layers: Run,
    /// The operations in all matrix products.
    pub operations: f64,
    config: StackConfig,
    pub family: String,
    x: Tensor,
    context: ForwardContext,
}

impl Subject {
    /// Makes BERT's `norm(x + down(gelu(up(x))))`.
    pub fn feed_forward(sizes: Sizes, args: &Args) -> Result<Self> {
        // Heads do not matter here, but a block has some.
        let sizes = Sizes {
            n_heads: 1,
            ..sizes
        };
        let config = StackConfig::uniform(bert_block(sizes)?, 1, None);
        let mut subject = Self::new(config, "bert", args, |config| {
            let block = &config.blocks[0];
            let sublayer = seeded::weights(|vb| {
                let inner = BlockFeedForward::new(&block.feed_forward, vb.pp("feed_forward"))?;
                let placement = block.feed_forward_placement;
                let norm = SublayerNorm::new(placement, &block.norm, "feed_forward", vb)?;
                Ok(Sublayer::new(inner, norm))
            })?;
            Ok(match args.packing() {
                None => Box::new(move |x, _| sublayer.forward_t(x, false)),
                Some(precision) => {
                    let packed = sublayer.pack(precision)?;
                    Box::new(move |x, _| packed.forward(x))
                }
            })
        })?;
        let config = &subject.block_config().feed_forward;
        subject.operations = operations::of_feed_forward(config, args.batch * args.seq);
        Ok(subject)
    }

    /// Makes a BERT block.
    pub fn block(sizes: Sizes, args: &Args) -> Result<Self> {
        let config = StackConfig::uniform(bert_block(sizes)?, 1, None);
        Self::new(config, "bert", args, |config| {
            let block = seeded::weights(|vb| TransformerBlock::new(&config.blocks[0], vb))?;
            Ok(match args.packing() {
                None => Box::new(move |x, context| block.forward_with(x, context)),
                Some(precision) => {
                    let packed = block.pack(precision)?;
                    Box::new(move |x, context| packed.forward_with(x, context))
                }
            })
        })
    }

    /// Loads a checkpoint's stack.
    pub fn model(checkpoint: &Checkpoint, args: &Args) -> Result<Self> {
        let config = checkpoint.config().clone();
        Self::new(config, checkpoint.family(), args, |_| {
            Ok(match args.packing() {
                None => {
                    let stack = checkpoint
                        .load(Weights::Dense(DType::F32, &Device::Cpu))
                        .stack()?;
                    Box::new(move |x, context| stack.forward_with(x, context))
                }
                Some(precision) => {
                    let stack = checkpoint.load(Weights::Packed(precision)).stack()?;
                    Box::new(move |x, context| stack.forward_with(x, context))
                }
            })
        })
    }

    fn new(
        config: StackConfig,
        family: &str,
        args: &Args,
        layers: impl FnOnce(&StackConfig) -> Result<Run>,
    ) -> Result<Self> {
        let (batch, seq) = (args.batch, args.seq);
        check_memory(&config, batch, seq)?;
        let Some(block) = config.blocks.first() else {
            bail!("the checkpoint has no blocks; there is nothing to measure");
        };
        let x = seeded::hidden_states((batch, seq, block.d_model()))?;
        let mut context = ForwardContext::evaluation();
        if let Some(cross) = &block.cross_attention {
            let memory = seeded::hidden_states((batch, seq, cross.d_encoder))?;
            context = context.with_encoder_output(memory, AttentionMask::none());
        }
        Ok(Self {
            layers: layers(&config)?,
            operations: operations::of_stack(&config, batch, seq),
            family: family.to_string(),
            config,
            x,
            context,
        })
    }

    /// Runs the layers once.
    pub fn run(&self) -> CandleResult<Tensor> {
        (self.layers)(&self.x, &self.context)
    }

    /// Returns the first block's configuration.
    pub fn block_config(&self) -> &BlockConfig {
        &self.config.blocks[0]
    }

    /// Returns how many blocks run one after another.
    pub fn layers(&self) -> usize {
        self.config.layers.len()
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

/// Refuses weights and an input that need more memory than there is: candle ends the process where it allocates them. A
/// pass refuses for itself.
fn check_memory(config: &StackConfig, batch: usize, seq: usize) -> Result<()> {
    let weights = |block: &BlockConfig| {
        let facts = block.facts();
        let query = facts.heads.map_or(facts.d_model, |heads| {
            heads.n_heads.saturating_mul(heads.head_dim)
        });
        let experts = block.feed_forward.experts;
        let n_experts = experts.map_or(1.0, |experts| experts.n_experts as f64);
        let hidden = block.feed_forward.d_ff as f64 * n_experts;
        facts.d_model as f64 * (4.0 * query as f64 + 3.0 * hidden)
    };
    let weights: f64 = config.blocks.iter().map(weights).sum();
    let width = config.blocks.first().map_or(0, BlockConfig::d_model);
    let input = batch as f64 * seq as f64 * width as f64;
    // The input is drawn in f64.
    let bytes = 4.0 * (weights + 3.0 * input);
    // The system refuses at once what is more than all its memory.
    let fits =
        bytes < isize::MAX as f64 && Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok();
    if !fits {
        bail!(
            "these sizes need about {:.0} GiB of memory, more than there is; give smaller ones, such as --batch or --seq",
            bytes / f64::from(1 << 30)
        );
    }
    Ok(())
}
