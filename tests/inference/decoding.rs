//! Decoding with a cache gives what the full forward gives.

use candle_blocks::{
    AttentionMask, BlockConfig, CheckpointOptions, ForwardContext, Position, Stack, Weights,
    candle_core::{DType, Tensor},
    config::RotaryScaling,
};

use crate::{all::all, device::device, double::has_f64, weights::weights};

/// Every decoder among the committed checkpoints, with its width.
fn decoders() -> Vec<(String, Stack, usize)> {
    let mut decoders = Vec::new();
    for committed in all() {
        let checkpoint = committed.open();
        let first = &checkpoint.config().blocks[0];
        let by_length = |block: &BlockConfig| {
            let attention = block.attention();
            attention.is_ok_and(|of| depends_on_length(&of.position))
        };
        if first.facts().is_causal && !checkpoint.config().blocks.iter().any(by_length) {
            let stack = checkpoint
                .load(Weights::Dense(DType::F64, &device()))
                .stack()
                .unwrap();
            decoders.push((committed.label(), stack, first.d_model()));
        }
    }
    decoders
}

/// These scalings rotate a key by the length of its time, here as in transformers, so that a cache and a
/// full forward differ by design.
fn depends_on_length(position: &Position) -> bool {
    let Position::Rotary(rotary) = position else {
        return false;
    };
    matches!(
        rotary.scaling,
        RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
    )
}

/// Returns the largest difference in the rows that `mask` keeps, which begin at `from`.
fn difference(ours: &Tensor, full: &Tensor) -> f64 {
    let largest = (ours - full).unwrap().abs().unwrap().max_all().unwrap();
    largest.to_scalar().unwrap()
}

fn memory(context: ForwardContext, stack: &Stack, batch: usize) -> ForwardContext {
    let Some(cross) = stack.blocks()[0].cross_attention() else {
        return context;
    };
    let width = cross.inner().config().d_encoder;
    let states = (0..batch * 4 * width).map(|i| ((i * 7 % 11) as f64 - 5.0) / 4.0);
    let states = Tensor::from_iter(states, &device())
        .unwrap()
        .reshape((batch, 4, width))
        .unwrap();
    context.with_encoder_output(states, AttentionMask::none())
}

fn input(batch: usize, seq: usize, width: usize) -> Tensor {
    let values = (0..batch * seq * width).map(|i| ((i * 37 % 101) as f64 - 50.0) / 40.0);
    Tensor::from_iter(values, &device())
        .unwrap()
        .reshape((batch, seq, width))
        .unwrap()
}

/// In f64 only the order of a few additions may differ: 1e-12 for values between 1 and 10.
const BOUND: f64 = 1e-11;

#[test]
fn chunks_and_single_tokens_give_the_full_forward_for_every_decoder() {
    if !has_f64("decoding in f64") {
        return;
    }
    let decoders = decoders();
    assert!(!decoders.is_empty());
    let (batch, seq) = (2, 9);
    for (label, stack, width) in &decoders {
        let x = input(batch, seq, *width);
        let context = memory(ForwardContext::evaluation(), stack, batch);
        let full = stack.forward_with(&x, &context).unwrap();
        for chunks in [
            vec![1; 9],
            vec![9],
            vec![4, 5],
            vec![3, 1, 1, 4],
            vec![5, 1, 1, 1, 1],
        ] {
            let mut cache = stack.new_cache();
            let mut outputs = Vec::new();
            let mut at = 0;
            for n in &chunks {
                let chunk = x.narrow(1, at, *n).unwrap();
                outputs.push(stack.forward_cached(&chunk, &context, &mut cache).unwrap());
                at += n;
            }
            assert_eq!(cache.seen(), seq);
            let ours = Tensor::cat(&outputs, 1).unwrap();
            let difference = difference(&ours, &full);
            assert!(difference < BOUND, "{label} {chunks:?}: {difference:e}");
        }
    }
}

#[test]
fn padding_on_either_side_changes_no_kept_row_of_a_cached_batch() {
    if !has_f64("padding of a cached batch in f64") {
        return;
    }
    let (batch, seq) = (2, 8);
    for (label, stack, width) in &decoders() {
        let x = input(batch, seq, *width);
        for rows in [
            [[1u8; 8], [0, 0, 0, 1, 1, 1, 1, 1]],
            [[1u8; 8], [1, 1, 1, 1, 1, 0, 0, 0]],
        ] {
            let mask = Tensor::new(&rows, &device()).unwrap();
            let of = |mask: &Tensor| AttentionMask::padding(mask).unwrap();
            let plain = memory(ForwardContext::evaluation(), stack, batch);
            let full = stack
                .forward_with(&x, &plain.clone().with_mask(of(&mask)))
                .unwrap();
            let mut cache = stack.new_cache();
            let mut outputs = Vec::new();
            for (at, n) in [(0, 3), (3, 1), (4, 4)] {
                let part = mask.narrow(1, at, n).unwrap().contiguous().unwrap();
                let context = plain.clone().with_mask(of(&part));
                let chunk = x.narrow(1, at, n).unwrap();
                outputs.push(stack.forward_cached(&chunk, &context, &mut cache).unwrap());
            }
            let ours = Tensor::cat(&outputs, 1).unwrap();
            let keep = mask.to_dtype(DType::F64).unwrap().unsqueeze(2).unwrap();
            let kept = |t: &Tensor| t.broadcast_mul(&keep).unwrap();
            let difference = difference(&kept(&ours), &kept(&full));
            assert!(difference < BOUND, "{label} {rows:?}: {difference:e}");
        }
    }
}

#[test]
fn a_cache_refuses_what_it_cannot_serve() {
    if !has_f64("what a cache refuses in f64") {
        return;
    }
    let (_, stack, width) = &decoders()[0];
    let x = input(1, 2, *width);
    let mut cache = stack.new_cache();
    let training = ForwardContext::training();
    let error = stack.forward_cached(&x, &training, &mut cache).unwrap_err();
    assert!(error.to_string().contains("training"), "{error}");
    let encoder = CheckpointOptions::default()
        .open(weights("tiny-bert"))
        .unwrap();
    let encoder = encoder
        .load(Weights::Dense(DType::F64, &device()))
        .stack()
        .unwrap();
    let mut cache = encoder.new_cache();
    let context = ForwardContext::evaluation();
    let error = encoder
        .forward_cached(&input(1, 2, 20), &context, &mut cache)
        .unwrap_err();
    assert!(error.to_string().contains("causal"), "{error}");
}
