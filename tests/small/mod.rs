//! Small stacks of every kind of block, with parameters by rule.
#![allow(
    dead_code,
    reason = "each of the tests that include this file uses a part of it"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_blocks::{
    AlibiConfig, AlibiRounding, AlibiSlopes, AttentionConfig, AttentionMask, BlockConfig,
    ExpertsConfig, FeedForwardConfig, FeedForwardForm, ForwardContext, Norm, NormConfig,
    NormPlacement, ParallelNorm, Position, RelativeBiasConfig, RotaryConfig, RoutingWeights, Stack,
    StackConfig, Topology,
    candle_core::{self, DType, Device, Tensor},
    candle_nn::{VarBuilder, VarMap},
};

/// The width of every stack's rows.
pub const WIDTH: usize = 12;
/// The width of what cross-attention reads.
pub const MEMORY: usize = 10;

const HEADS: usize = 4;

/// An evaluation in which cross-attention reads a memory of this shape.
pub fn with_memory(shape: &[usize]) -> ForwardContext {
    ForwardContext::evaluation().with_memory(numbers(shape, 5), AttentionMask::none())
}

pub fn bits(x: &Tensor) -> Vec<u32> {
    let values = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// A layer made by `make` from parameters without a pattern that it could hide behind.
pub fn made<L>(make: impl FnOnce(VarBuilder) -> candle_core::Result<L>) -> L {
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
    let layer = make(vb).unwrap();
    let parameters = parameters.data().lock().unwrap();
    let mut names: Vec<&String> = parameters.keys().collect();
    names.sort();
    for (i, name) in names.into_iter().enumerate() {
        let parameter = &parameters[name];
        let value =
            numbers(parameter.dims(), i).affine(0.4, if name.contains("norm") { 1.0 } else { 0.0 });
        parameter.set(&value.unwrap()).unwrap();
    }
    layer
}

/// Numbers of order 1, others for each `start`.
pub fn numbers(shape: &[usize], start: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (((i + 7 * start) * 37 % 101) as f32 - 50.0) / 40.0);
    Tensor::from_vec(values.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

/// A root mean square norm of rows of a width.
pub fn norm(width: usize) -> Norm {
    Norm::from_parts(
        numbers(&[width], 1),
        None,
        NormConfig::rms_norm(width, 1e-6),
    )
    .unwrap()
}

fn attention() -> AttentionConfig {
    AttentionConfig::new(WIDTH, HEADS).unwrap()
}

/// A block of these two, normalised before.
pub fn block(attention: AttentionConfig) -> BlockConfig {
    BlockConfig::new(
        attention,
        FeedForwardConfig::new(WIDTH).with_d_ff(20),
        NormConfig::layer_norm(WIDTH, 1e-5),
        NormPlacement::Pre,
    )
}

fn two(block: BlockConfig) -> StackConfig {
    StackConfig::uniform(block, 2, Some(NormConfig::rms_norm(WIDTH, 1e-6)))
}

/// An encoder as BERT's.
pub fn encoder() -> StackConfig {
    let mut block = block(attention());
    block.attention_placement = NormPlacement::Post;
    block.feed_forward_placement = NormPlacement::Post;
    StackConfig::uniform(block, 2, None)
}

/// A decoder that turns its queries and keys, with grouped heads and a sliding window in its second block.
pub fn decoder() -> StackConfig {
    let head_dim = 6;
    let rotary = Position::Rotary(RotaryConfig::new(4, 10_000.0));
    let attention = AttentionConfig::with_head_dim(WIDTH, HEADS, head_dim)
        .with_kv_heads(2)
        .with_position(rotary)
        .causal();
    let mut first = block(attention.clone());
    first.feed_forward = first.feed_forward.with_form(FeedForwardForm::Gated);
    StackConfig::new(vec![first, block(attention.with_window(Some(3)))], None)
}

/// A decoder with linear biases and its branches side by side, as Falcon's.
pub fn falcon() -> StackConfig {
    let alibi = AlibiConfig {
        slopes: AlibiSlopes::Appended,
        scale: 0.5,
        rounding: AlibiRounding::Bf16,
    };
    let mut block = block(attention().with_position(Position::Alibi(alibi)).causal());
    block.topology = Topology::Parallel(ParallelNorm::Separate);
    two(block)
}

/// A decoder that attends to an encoder, with a learned bias by distance, as T5's.
pub fn cross_decoder() -> StackConfig {
    let mut block = block(attention().causal());
    block.cross_attention = Some(attention().with_memory(MEMORY));
    let mut stack = two(block);
    stack.relative_bias = Some(RelativeBiasConfig {
        n_buckets: 8,
        max_distance: 16,
        n_heads: HEADS,
    });
    stack
}

/// A decoder whose cross-attention has linear biases of its own.
pub fn cross_alibi() -> StackConfig {
    let mut stack = cross_decoder();
    let alibi = AlibiConfig {
        slopes: AlibiSlopes::Appended,
        scale: 1.0,
        rounding: AlibiRounding::Bf16,
    };
    for block in &mut stack.blocks {
        let cross = attention().with_memory(MEMORY);
        block.cross_attention = Some(cross.with_position(Position::Alibi(alibi)));
    }
    stack
}

/// An encoder of experts.
pub fn experts() -> StackConfig {
    let mut block = block(attention());
    block.feed_forward = block.feed_forward.with_experts(Some(ExpertsConfig {
        n_experts: 3,
        top_k: 2,
        weights: RoutingWeights::Renormalised,
        shared_d_ff: Some(9),
    }));
    two(block)
}

/// The stack of a configuration.
pub fn stack(config: &StackConfig) -> Stack {
    made(|vb| Stack::new(config, vb))
}

/// What came of a call, a panic in words as well.
pub fn outcome<T>(call: impl FnOnce() -> candle_core::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| format!("error: {error}")),
        Err(_) => Err("panic".to_string()),
    }
}

/// The message of a refusal.
#[track_caller]
pub fn refusal<T>(what: &str, call: impl FnOnce() -> candle_core::Result<T>) -> String {
    match outcome(call) {
        Ok(_) => panic!("{what} was not refused"),
        Err(message) => {
            assert_ne!(message, "panic", "{what}");
            message
        }
    }
}
