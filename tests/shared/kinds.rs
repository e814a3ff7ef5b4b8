//! Small stacks with rarer kinds of blocks.

use candle_blocks::{
    AttentionConfig, BlockConfig, ExpertsConfig, NormConfig, Position, RotaryConfig, RotaryPairing,
    StackConfig, Topology,
    config::{
        AlibiConfig, AlibiRounding, AlibiSlopes, DisentangledConfig, LatentConfig, ParallelNorm,
        RelativeBiasConfig, RelativeEmbeddingsConfig, RoutingConfig, SharedExpertConfig,
    },
};

use crate::small::{HEADS, WIDTH, attention, block};

/// The width of the encoder output for cross-attention.
pub const MEMORY: usize = 10;

fn two(block: BlockConfig) -> StackConfig {
    StackConfig::uniform(block, 2, Some(NormConfig::rms_norm(WIDTH, 1e-6)))
}

/// A decoder with linear biases and its branches side by side, as Falcon's.
pub fn falcon() -> StackConfig {
    let alibi = AlibiConfig::new(AlibiSlopes::Appended, 0.5, AlibiRounding::Bf16);
    let mut block = block(attention().with_position(Position::Alibi(alibi)).causal());
    block.topology = Topology::Parallel(ParallelNorm::Separate);
    two(block)
}

/// A decoder that attends to an encoder, with a learned bias by distance, as T5's.
pub fn cross_decoder() -> StackConfig {
    let mut block = block(attention().causal());
    block.cross_attention = Some(attention().with_encoder_width(MEMORY));
    let mut stack = two(block);
    stack.relative_bias = Some(RelativeBiasConfig::new(8, 16, HEADS));
    stack
}

/// Returns a decoder whose cross-attention has its own linear position biases.
pub fn cross_alibi() -> StackConfig {
    let mut stack = cross_decoder();
    let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::Bf16);
    for block in &mut stack.blocks {
        let cross = attention().with_encoder_width(MEMORY);
        block.cross_attention = Some(cross.with_position(Position::Alibi(alibi)));
    }
    stack
}

/// Sizes in [`latent`]'s attention: its latent, the rotated dimensions, and a value.
pub const LATENT: [usize; 3] = [7, 4, 3];

/// A decoder whose keys and values are made from a latent, as DeepSeek's, with a sliding window in its second block.
pub fn latent() -> StackConfig {
    let [rank, rotary_dim, value_dim] = LATENT;
    let latent = LatentConfig::new(
        Some(5),
        rank,
        rotary_dim,
        value_dim,
        NormConfig::rms_norm(WIDTH, 1e-6),
    );
    let rotary = RotaryConfig::new(rotary_dim, 100.0).with_pairing(RotaryPairing::Interleaved);
    let attention = AttentionConfig::with_head_dim(WIDTH, HEADS, 6)
        .with_latent(Some(latent))
        .with_position(Position::Rotary(rotary))
        .causal();
    let windowed = attention.clone().with_window(Some(3));
    StackConfig::new(vec![block(attention), block(windowed)], None)
}

/// An encoder whose scores depend on distances, as DeBERTa's.
pub fn disentangled() -> StackConfig {
    let span = 3;
    let position = Position::Disentangled(DisentangledConfig::new(span));
    let table = RelativeEmbeddingsConfig::new(2 * span, Some(NormConfig::layer_norm(WIDTH, 1e-5)));
    two(block(attention().with_position(position))).with_relative_embeddings(table)
}

/// An encoder whose queries gate a bias by distance, as WavLM's.
pub fn gated_bias() -> StackConfig {
    let position = Position::GatedBias(RelativeBiasConfig::new(8, 5, HEADS));
    let table = RelativeEmbeddingsConfig::new(8, None);
    two(block(attention().with_position(position))).with_relative_embeddings(table)
}

/// Returns an encoder with experts.
pub fn experts() -> StackConfig {
    let mut block = block(attention());
    let shared = SharedExpertConfig::new(9, true);
    let experts = ExpertsConfig::new(3, RoutingConfig::renormalized(2)).with_shared(Some(shared));
    block.feed_forward = block.feed_forward.with_experts(Some(experts));
    two(block)
}
