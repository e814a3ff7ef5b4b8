//! Layers whose parts do not fit each other are refused when they are packed, with the culprit and what was expected.

use candle_blocks::{
    AttentionConfig, AttentionMask, BlockConfig, BranchScale, FeedForwardConfig, ForwardContext,
    Linear, NormConfig, NormPlacement, ParallelNorm, Precision, Stack, Sublayer, SublayerNorm,
    Topology, TransformerBlock, candle_core::Module,
};

use crate::{
    kinds,
    norm::norm,
    refused::refusal,
    small::{self, made, numbers, stack},
};

#[test]
fn a_linear_layer_without_inputs_is_refused_when_it_is_packed() {
    let linear = |d_out, d_in| Linear::from_parts(numbers(&[d_out, d_in], 1), None).unwrap();
    for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
        let message = refusal("no inputs", || linear(3, 0).pack(precision));
        assert!(message.contains("[3, 0]"), "{message}");
        let packed = linear(0, 3).pack(precision).unwrap();
        assert_eq!(packed.forward(&numbers(&[4, 3], 1)).unwrap().dims(), [4, 0]);
    }
}

#[test]
fn a_parallel_block_has_no_place_for_cross_attention() {
    let layer = block_of(8);
    let cross = layer.attention().clone();
    let layer = layer
        .with_cross_attention(cross)
        .with_topology(Topology::Parallel(ParallelNorm::Shared));
    let memory = ForwardContext::evaluation();
    let memory = memory.with_memory(numbers(&[1, 4, 8], 2), AttentionMask::none());
    let x = numbers(&[1, 2, 8], 1);
    let message = refusal("the layer", || layer.forward_with(&x, &memory));
    assert!(message.contains("Topology::Sequential"), "{message}");
    let message = refusal("its packed form", || layer.pack(Precision::F32));
    assert!(message.contains("Topology::Sequential"), "{message}");
}

#[test]
fn a_bound_that_nothing_is_within_is_refused() {
    for clip in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut config = small::encoder();
        config.blocks[0].attention.clip = Some(clip);
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("positive"), "{message}");
    }
}

/// A block of this width.
fn block_of(width: usize) -> TransformerBlock {
    let config = BlockConfig::new(
        AttentionConfig::new(width, 2).unwrap(),
        FeedForwardConfig::new(width),
        NormConfig::layer_norm(width, 1e-5),
        NormPlacement::Pre,
    );
    made(|vb| TransformerBlock::new(&config, vb))
}

#[test]
fn parts_that_do_not_fit_each_other_are_refused_when_they_are_packed() {
    let pack = |block: TransformerBlock| block.pack(Precision::F32);
    let (attention, feed_forward) = (
        block_of(8).attention().clone(),
        block_of(12).feed_forward().clone(),
    );
    let message = refusal("two widths", || {
        pack(TransformerBlock::from_parts(
            attention.clone(),
            feed_forward,
        ))
    });
    assert!(message.contains('8') && message.contains("12"), "{message}");

    let other_norm = Sublayer::from_parts(attention.inner().clone(), SublayerNorm::Post(norm(9)));
    let feed_forward = block_of(8).feed_forward().clone();
    let message = refusal("a norm", || {
        pack(TransformerBlock::from_parts(
            other_norm,
            feed_forward.clone(),
        ))
    });
    assert!(
        message.contains("norm") && message.contains('9'),
        "{message}"
    );

    let scaled = attention
        .clone()
        .with_scale(BranchScale::Learned(numbers(&[7], 1)));
    let message = refusal("a scale", || {
        pack(TransformerBlock::from_parts(scaled, feed_forward))
    });
    assert!(
        message.contains("scale") && message.contains('7'),
        "{message}"
    );

    let of_blocks = |widths: [usize; 2], last| {
        let blocks = widths.map(block_of).to_vec();
        Stack::from_parts(blocks, Some(norm(last))).pack(Precision::F32)
    };
    refusal("two blocks", || of_blocks([8, 12], 8));
    refusal("a last norm", || of_blocks([8, 8], 12));
    assert!(of_blocks([8, 8], 8).is_ok());
}

#[test]
fn layers_that_were_exchanged_for_others_are_refused_when_they_are_packed() {
    let stacks = [
        small::encoder(),
        small::decoder(),
        kinds::cross_decoder(),
        kinds::experts(),
    ];
    for config in stacks {
        let n_linears = stack(&config).linears_mut().count();
        for i in 0..n_linears {
            for change in [(1, 0), (0, 1)] {
                let mut stack = stack(&config);
                let mut role = String::new();
                for (name, linear) in stack.linears_mut().skip(i).take(1) {
                    let (d_out, d_in) = linear.weight().dims2().unwrap();
                    let weight = numbers(&[d_out + change.0, d_in + change.1], 1);
                    *linear = Linear::from_parts(weight, None).unwrap();
                    role = name;
                }
                let message = refusal(&role, || stack.pack(Precision::F32));
                assert!(message.contains("expected"), "{role}: {message}");
            }
        }
    }
}
