//! A block that no layer runs is refused: it would be loaded, reported as used and trained, and change nothing.

use candle_blocks::{
    AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement, Precision, Stack,
    StackConfig,
    candle_core::{DType, Device},
    candle_nn::VarBuilder,
};

use crate::{message::message, said::assert_says};

const WORDS: [&str; 3] = ["no layer runs block 3 of 5", "`layers`", "`blocks`"];

/// Five blocks that run in this order.
fn stack(layers: &[usize]) -> StackConfig {
    let block = BlockConfig::new(
        AttentionConfig::new(8, 2).unwrap(),
        FeedForwardConfig::new(8),
        NormConfig::layer_norm(8, 1e-5),
        NormPlacement::Pre,
    );
    StackConfig::uniform(block, 5, None).with_layers(layers.to_vec())
}

fn zeros() -> VarBuilder<'static> {
    VarBuilder::zeros(DType::F32, &Device::Cpu)
}

#[test]
fn layers_that_leave_blocks_out_are_refused() {
    let idle = stack(&[0, 1, 2]);
    assert_says(message(idle.validate()), &WORDS);
    assert_says(message(Stack::new(&idle, zeros())), &WORDS);
    let packed = Stack::packed(&idle, zeros(), Precision::F32);
    assert_says(message(packed), &WORDS);
}

#[test]
fn blocks_may_run_in_any_order_and_again() {
    for layers in [&[4, 2, 0, 3, 1][..], &[0, 1, 2, 3, 4, 0, 0]] {
        let config = stack(layers);
        config.validate().unwrap();
        assert_eq!(Stack::new(&config, zeros()).unwrap().layers(), layers);
    }
}
