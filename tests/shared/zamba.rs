//! A small stack whose blocks share a transformer.

use candle_blocks::{
    Activation, AttentionConfig, BlockConfig, NormConfig, Position, RotaryConfig, StackConfig,
    config::{Mamba2Config, OwnConfig, SharedTransformerConfig, ZambaConfig},
};

use crate::small::WIDTH;

/// A stack in which two of three blocks run the same transformer before Mamba-2, as Zamba 2's.
pub fn zamba() -> StackConfig {
    let rotary = Position::Rotary(RotaryConfig::new(2, 100.0));
    let attention = AttentionConfig::with_head_dim(2 * WIDTH, 3, 4);
    let used = |number: usize| SharedTransformerConfig {
        attention: attention.clone().with_position(rotary.clone()).causal(),
        d_ff: 5,
        activation: Activation::Gelu,
        adapter_rank: Some(2),
        adapts_attention: true,
        block: 0,
        number,
        uses: if number == 0 { vec![0, 1] } else { vec![] },
    };
    let norm = NormConfig::rms_norm(WIDTH, 1e-6);
    let block = |of: Option<usize>| {
        let transformer = of.map(|number| Box::new(used(number)));
        let own = OwnConfig::Zamba(ZambaConfig { transformer });
        BlockConfig::of_mixer(Mamba2Config::new(WIDTH, [4, 3], 5), norm).with_own(own)
    };
    StackConfig::new(
        vec![block(Some(0)), block(None), block(Some(1))],
        Some(norm),
    )
}
