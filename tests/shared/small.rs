//! Small layers with parameters by rule: an encoder and a decoder; `kinds.rs` has the rarer kinds.

use std::collections::BTreeMap;

use candle_blocks::{
    AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm, NormConfig, NormPlacement,
    Position, RotaryConfig, Stack, StackConfig,
    candle_core::{self, DType, Device, Tensor, Var},
    candle_nn::{VarBuilder, VarMap},
};

/// The width of every stack's rows.
pub const WIDTH: usize = 12;
/// The number of heads in every attention.
pub const HEADS: usize = 4;

/// Returns a layer made by `make` from irregular parameters, whose pattern cannot hide an error.
pub fn made<L>(make: impl FnOnce(VarBuilder) -> candle_core::Result<L>) -> L {
    let value = |i, around, dims: &[usize]| numbers(dims, i).affine(0.4, around).unwrap();
    made_of(DType::F32, make, value).0
}

/// Returns a layer made by `make` with a dtype, and its parameters by name. `value` makes each parameter, in the order of
/// names, from its index, its mean (1 for a norm, otherwise 0), and its dimensions.
pub fn made_of<L>(
    dtype: DType,
    make: impl FnOnce(VarBuilder) -> candle_core::Result<L>,
    value: impl Fn(usize, f64, &[usize]) -> Tensor,
) -> (L, BTreeMap<String, Var>) {
    made_on(&Device::Cpu, dtype, make, value)
}

/// The same on a device.
pub fn made_on<L>(
    device: &Device,
    dtype: DType,
    make: impl FnOnce(VarBuilder) -> candle_core::Result<L>,
    value: impl Fn(usize, f64, &[usize]) -> Tensor,
) -> (L, BTreeMap<String, Var>) {
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, dtype, device);
    let layer = make(vb).unwrap();
    let parameters = parameters.data().lock().unwrap().clone();
    let parameters: BTreeMap<String, Var> = parameters.into_iter().collect();
    for (i, (name, parameter)) in parameters.iter().enumerate() {
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let value = value(i, around, parameter.dims());
        parameter.set(&value.to_device(device).unwrap()).unwrap();
    }
    (layer, parameters)
}

/// Returns values of unit size, which differ for each `start`.
pub fn numbers(shape: &[usize], start: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (((i + 7 * start) * 37 % 101) as f32 - 50.0) / 40.0);
    Tensor::from_vec(values.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

/// Returns an attention with four heads.
pub fn attention() -> AttentionConfig {
    AttentionConfig::new(WIDTH, HEADS).unwrap()
}

/// Returns a pre-norm block with these parts.
pub fn block(attention: AttentionConfig) -> BlockConfig {
    BlockConfig::new(
        attention,
        FeedForwardConfig::new(WIDTH).with_d_ff(20),
        NormConfig::layer_norm(WIDTH, 1e-5),
        NormPlacement::Pre,
    )
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

/// Returns a configuration's stack.
pub fn stack(config: &StackConfig) -> Stack {
    made(|vb| Stack::new(config, vb))
}
