//! Streams of hidden states, what a low rank adds to the attention, and gates that are cut: what does not fit is refused.

use candle_blocks::{
    Activation, BlockConfig, FeedForwardConfig, NormConfig, StackConfig,
    config::{
        AltUpConfig, FeedForwardForm, GateClamp, GemmaConfig, LayerInputConfig, OwnConfig,
        ParallelNorm, Topology,
    },
};

use crate::{
    said::assert_says,
    small::{attention, block},
};

/// Returns two layers with two streams.
fn streams() -> StackConfig {
    let input = LayerInputConfig::new(3, Activation::Gelu);
    let altup = AltUpConfig::new(2, 1);
    let stack = StackConfig::uniform(block(attention().causal()), 2, None);
    stack
        .with_each(|_, block| {
            block.own = OwnConfig::Gemma(GemmaConfig {
                layer_input: Some(input),
                altup: Some(altup),
                ..GemmaConfig::default()
            });
        })
        .with_layer_inputs(Some(NormConfig::rms_norm(3, 1e-6)))
}

fn gemma(block: &mut BlockConfig) -> &mut GemmaConfig {
    match &mut block.own {
        OwnConfig::Gemma(gemma) => gemma,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut StackConfig), words: &[&str]) {
    let mut config = streams();
    config.validate().unwrap();
    change(&mut config);
    assert_says(config.validate().unwrap_err(), words);
}

#[test]
fn streams_are_the_same_in_all_blocks_which_have_inputs_for_themselves() {
    refused(
        |c| gemma(&mut c.blocks[0]).altup.as_mut().unwrap().active = 2,
        &["stream 2", "there are 2"],
    );
    refused(
        |c| gemma(&mut c.blocks[0]).altup.as_mut().unwrap().n_streams = 0,
        &["the number of streams is 0"],
    );
    refused(
        |c| gemma(&mut c.blocks[0]).altup.as_mut().unwrap().n_streams = 1,
        &["one stream", "at least 2"],
    );
    refused(
        |c| gemma(&mut c.blocks[1]).altup = None,
        &["None", "the same in all"],
    );
    refused(
        |c| gemma(&mut c.blocks[0]).output_scale = true,
        &["output_scale", "altup"],
    );
    refused(
        |c| {
            c.layer_inputs = None;
            c.blocks
                .iter_mut()
                .for_each(|block| gemma(block).layer_input = None);
        },
        &["requires layer_input", "altup"],
    );
}

#[test]
fn a_low_rank_is_beside_the_attention_of_a_sequential_block() {
    refused(
        |c| gemma(&mut c.blocks[0]).laurel_rank = Some(0),
        &["laurel_rank is 0"],
    );
    refused(
        |c| {
            gemma(&mut c.blocks[0]).laurel_rank = Some(2);
            c.blocks[0].topology = Topology::Parallel(ParallelNorm::Shared);
        },
        &["laurel_rank", "Topology::Sequential"],
    );
}

#[test]
fn only_gates_without_a_clamp_are_cut_off() {
    let gated = FeedForwardConfig::new(8).with_form(FeedForwardForm::Gated);
    gated.clone().with_sparsity(Some(0.5)).validate().unwrap();
    for share in [0.0, 1.0, -0.5, f64::NAN] {
        let cut = gated.clone().with_sparsity(Some(share));
        assert_says(cut.validate().unwrap_err(), &["sparsity", "expected"]);
    }
    let plain = FeedForwardConfig::new(8).with_sparsity(Some(0.5));
    assert_says(plain.validate().unwrap_err(), &["sparsity", "gated"]);
    let clamp = GateClamp::new(7.0, 1.0);
    let both = gated.with_clamp(Some(clamp)).with_sparsity(Some(0.5));
    assert_says(both.validate().unwrap_err(), &["sparsity", "clamp"]);
}
