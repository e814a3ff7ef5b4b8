//! Users can share the public types between threads, print them and copy them.

use std::fmt::Debug;

use candle_blocks::{
    checkpoint::{scheme::*, *},
    config::*,
    layers::*,
    train::*,
    verify::*,
    *,
};

use crate::cpu_only::cpu_only;

fn shared<T: Send + Sync + Debug>() {}
fn cloned<T: Clone + Send + Sync + Debug>() {}

// Each line is a promise that the compiler checks.
#[test]
fn layers_and_configurations_are_clone_send_sync_and_debug() {
    cpu_only("the compiler checks types");
    cloned::<Activation>();
    cloned::<Attention>();
    cloned::<AttentionConfig>();
    cloned::<AttentionMask>();
    cloned::<BlockConfig>();
    cloned::<BlockFeedForward>();
    cloned::<BlockStages>();
    cloned::<Dropout>();
    cloned::<DropoutSource>();
    cloned::<FeedForward>();
    cloned::<FeedForwardConfig>();
    cloned::<ForwardContext>();
    cloned::<Initialization>();
    cloned::<KvCache>();
    cloned::<Linear>();
    cloned::<LowRank>();
    cloned::<MixtureOfExperts>();
    cloned::<Mlp>();
    cloned::<Norm>();
    cloned::<NormConfig>();
    cloned::<RelativeBias>();
    cloned::<RotaryTables>();
    cloned::<Stack>();
    cloned::<StackConfig>();
    cloned::<Sublayer<FeedForward>>();
    cloned::<TransformerBlock>();
    cloned::<Architecture>();
    cloned::<CheckpointOptions>();
    cloned::<Family>();
    cloned::<LoadReport>();
    cloned::<SaveOptions>();
    cloned::<AdamWConfig>();
    cloned::<Gradients>();
    cloned::<LoraConfig>();
    cloned::<ParameterGroup>();
    cloned::<Schedule>();
    cloned::<Comparison>();
    cloned::<Report>();
    cloned::<Tolerance>();
}

#[test]
fn checkpoints_and_optimizers_are_send_sync_and_debug() {
    cpu_only("the compiler checks types");
    shared::<Checkpoint>();
    shared::<Loader>();
    shared::<PlainFile>();
    shared::<AdamW>();
    shared::<Fresh>();
    shared::<Lora>();
    shared::<Fixture>();
    shared::<Error>();
}
