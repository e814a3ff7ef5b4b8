//! Keys that layers share, and inputs that each has for itself: what does not fit is refused by name, where it is configured,
//! made or run.

use candle_blocks::{
    Activation, ForwardContext, NormConfig, Precision, StackConfig,
    candle_core::Result,
    config::{
        GemmaConfig, LatentConfig, LayerInputConfig, OwnConfig, ResidualSource,
        SharedTransformerConfig,
    },
};

use crate::{
    refused::refusal,
    said::assert_says,
    small::{WIDTH, attention, block, numbers, stack},
    zamba::zamba,
};

/// The width of a per-layer input.
const OWN: usize = 3;

/// Returns three causal layers; the last one attends to the first one's keys.
fn shared() -> StackConfig {
    let block = block(attention().causal());
    let stack = StackConfig::uniform(block, 3, None);
    stack.with_each_attention(|i, attention| attention.shared_keys = (i == 2).then_some(0))
}

/// Layers with an input each.
fn with_inputs() -> StackConfig {
    let input = LayerInputConfig::new(OWN, Activation::Gelu);
    let stack = StackConfig::uniform(block(attention().causal()), 2, None);
    stack
        .with_each(|_, block| {
            block.own = OwnConfig::Gemma(GemmaConfig {
                layer_input: Some(input),
                ..GemmaConfig::default()
            });
        })
        .with_layer_inputs(Some(NormConfig::rms_norm(OWN, 1e-6)))
}

#[track_caller]
fn refused(mut config: StackConfig, change: impl FnOnce(&mut StackConfig), words: &[&str]) {
    config.validate().unwrap();
    change(&mut config);
    assert_says(config.validate().unwrap_err(), words);
}

#[track_caller]
fn says<T>(words: &[&str], call: impl FnOnce() -> Result<T>) {
    let message = refusal(words[0], call);
    let missing = words.iter().find(|word| !message.contains(**word));
    assert!(missing.is_none(), "{message:?} does not say {missing:?}");
}

#[test]
fn keys_are_shared_with_an_earlier_layer_of_the_same_heads_and_window() {
    for of in [2, 3, 9] {
        let words = ["layer 2", &format!("layer {of}"), "an earlier one"];
        refused(
            shared(),
            |c| c.blocks[2].attention_mut().unwrap().shared_keys = Some(of),
            &words,
        );
    }
    let of_shared =
        |c: &mut StackConfig| c.blocks[1].attention_mut().unwrap().shared_keys = Some(0);
    refused(
        shared(),
        |c| {
            of_shared(c);
            c.blocks[2].attention_mut().unwrap().shared_keys = Some(1);
        },
        &["layer 2", "that has its own"],
    );
    refused(
        shared(),
        |c| c.blocks[0].attention_mut().unwrap().window = Some(3),
        &["other heads or shows others", "window"],
    );
    refused(
        shared(),
        |c| c.blocks[2].attention_mut().unwrap().n_kv_heads = 1,
        &["other heads"],
    );
    refused(shared(), |c| c.layers = vec![0, 1, 2, 1], &["once each"]);
    refused(shared(), |c| c.layer_drop = 0.1, &["layer_drop"]);
}

#[test]
fn shared_keys_are_of_plain_self_attention() {
    let latent = LatentConfig::new(None, 4, 2, 2, NormConfig::rms_norm(WIDTH, 1e-6));
    refused(
        shared(),
        |c| c.blocks[2].attention_mut().unwrap().latent = Some(latent),
        &["without a latent"],
    );
    refused(
        shared(),
        |c| c.blocks[2].cross_attention = Some(attention().with_shared_keys(Some(0))),
        &["cross-attention", "shared_keys"],
    );
    refused(
        shared(),
        |c| c.blocks[0].attention_mut().unwrap().value_norm = Some(-1.0),
        &["eps"],
    );
}

#[test]
fn a_block_that_reads_what_its_stack_makes_is_not_run_alone() {
    let (x, context) = (numbers(&[2, 5, WIDTH], 1), ForwardContext::evaluation());
    for (config, words) in [
        (shared(), ["layer", "run the block in its stack"]),
        (
            with_inputs(),
            ["which its stack computes", "run the block in its stack"],
        ),
    ] {
        let layers = stack(&config);
        let block = layers.blocks().last().unwrap();
        says(&words, || block.forward_with(&x, &context));
        let packed = layers.pack(Precision::F32).unwrap();
        let packed = packed.blocks().last().unwrap();
        says(&words, || packed.forward_with(&x, &context));
    }
}

#[test]
fn inputs_of_layers_are_one_for_each_and_as_wide_as_they_read() {
    refused(
        with_inputs(),
        |c| c.layer_inputs = None,
        &["Some(3)", "None", "the same"],
    );
    refused(
        with_inputs(),
        |c| c.blocks[1].own = OwnConfig::None,
        &["None", "Some(3)"],
    );
    let layers = stack(&with_inputs());
    let x = numbers(&[2, 5, WIDTH], 1);
    for dims in [vec![2, 5, OWN], vec![2, 4, 2 * OWN]] {
        let context = ForwardContext::evaluation().with_layer_inputs(numbers(&dims, 2));
        says(&["layer inputs", "token rows"], || {
            layers.forward_with(&x, &context)
        });
        let packed = layers.pack(Precision::F32).unwrap();
        says(&["layer inputs", "token rows"], || {
            packed.forward_with(&x, &context)
        });
    }
    let words = numbers(&[2, 5, 2 * OWN], 2);
    let context = ForwardContext::evaluation().with_layer_inputs(words);
    let without = stack(&StackConfig::uniform(block(attention().causal()), 2, None));
    let none = ["the stack has no such inputs", "with_layer_inputs"];
    says(&none, || without.forward_with(&x, &context));
    let packed = without.pack(Precision::F32).unwrap();
    says(&none, || packed.forward_with(&x, &context));
}

/// Returns a change to the transformer that the last of three blocks runs.
fn of_last(change: impl FnOnce(&mut SharedTransformerConfig)) -> impl FnOnce(&mut StackConfig) {
    |config| match &mut config.blocks[2].own {
        OwnConfig::Zamba(zamba) => change(zamba.transformer.as_mut().unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shared_transformer_is_that_of_an_earlier_block_with_the_same_sizes() {
    let words = ["block 2", "transformer of block", "an earlier block"];
    refused(zamba(), of_last(|of| of.block = 1), &words);
    refused(zamba(), of_last(|of| of.block = 7), &words);
    refused(zamba(), of_last(|of| of.number = 5), &words);
    refused(zamba(), of_last(|of| of.d_ff += 1), &words);
    refused(
        zamba(),
        of_last(|of| of.adapter_rank = Some(0)),
        &["rank", "adapters"],
    );
    let narrow = of_last(|of| of.attention.d_model = WIDTH);
    refused(zamba(), narrow, &["twice the block"]);
    let latent = of_last(|of| of.attention.values_are_keys = true);
    refused(zamba(), latent, &["its own queries, keys and values"]);
    let words = ["each block to be one", "in order"];
    refused(zamba(), |c| c.blocks[1].own = OwnConfig::None, &words);
    refused(zamba(), |c| c.layers = vec![0, 2, 1], &words);
    let after = |c: &mut StackConfig| c.blocks[0].residual.source = ResidualSource::Normalized;
    refused(zamba(), after, &["Zamba", "a sequential block"]);
}

#[test]
fn a_block_that_runs_a_shared_transformer_runs_in_its_stack() {
    let stack = stack(&zamba());
    let x = numbers(&[1, 2, 2 * WIDTH], 1);
    says(&["transformer", "run the block in its stack"], || {
        stack.blocks()[2].forward(&x)
    });
    let packed = stack.pack(Precision::F32).unwrap();
    says(&["transformer", "run the block in its stack"], || {
        packed.blocks()[2].forward(&x)
    });
}
