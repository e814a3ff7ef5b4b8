//! Computing activations a second time changes no gradient.

use candle_blocks::{
    AttentionMask, BlockConfig, Checkpoint, CheckpointOptions, DropoutSource, ForwardContext,
    Parameters, Position, Stack, StackConfig, Topology,
    candle_core::{DType, Tensor, Var},
    checkpoint::scheme::StackPart,
    config::OwnConfig,
    train::{Gradients, Recomputed, backward_recomputing},
};

use crate::{
    all::all,
    device::device,
    numbers::{bits, numbers},
    patches::in_one_row,
    weights::{is_present, weights},
};

/// A loss that is neither linear nor symmetric.
fn loss(y: &Tensor) -> candle_blocks::candle_core::Result<Tensor> {
    let weights: Vec<f32> = (0..y.elem_count())
        .map(|i| (i as f32 * 0.91).sin())
        .collect();
    let weights = Tensor::from_vec(weights, y.shape(), y.device())?.to_dtype(y.dtype())?;
    (y.sqr()? * 0.5)?.mul(&weights)?.sum_all()
}

fn directly(
    stack: &Stack,
    x: &Tensor,
    context: &ForwardContext,
    parameters: &Parameters,
) -> (Tensor, Gradients) {
    let loss = loss(&stack.forward_with(x, context).unwrap()).unwrap();
    let store = loss.backward().unwrap();
    (loss.detach(), Gradients::of(parameters, &store))
}

fn recomputed(
    stack: &Stack,
    x: &Tensor,
    context: &ForwardContext,
    parameters: &Parameters,
) -> Recomputed {
    backward_recomputing(stack, x, context, parameters, loss).unwrap()
}

fn random(dims: &[usize], salt: f32) -> Tensor {
    let n = dims.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.63 + salt).sin()).collect();
    Tensor::from_vec(values, dims, &device()).unwrap()
}

/// The same gradients to the last bit, except of parameters that several layers share: those are sums whose order
/// is another.
fn compare(
    label: &str,
    parameters: &Parameters,
    ours: &Gradients,
    theirs: &Gradients,
    is_shared: impl Fn(&str) -> bool,
) {
    let roles: Vec<&str> = ours.roles().collect();
    assert_eq!(roles, theirs.roles().collect::<Vec<_>>(), "{label}");
    assert!(!roles.is_empty(), "{label}");
    for (role, _) in parameters {
        let (Some(ours), Some(theirs)) = (ours.get(role).unwrap(), theirs.get(role).unwrap())
        else {
            continue; // an expert that no row chose
        };
        if !is_shared(role) {
            assert!(bits(&ours) == bits(&theirs), "{label}: {role}");
            continue;
        }
        let (ours, theirs) = (numbers(&ours), numbers(&theirs));
        let largest = theirs.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!(
                (ours - theirs).abs() <= 1e-5 * largest,
                "{label}: {role}: {ours} {theirs}"
            );
        }
    }
}

fn shares_keys(config: &StackConfig) -> bool {
    let mut attentions = config.blocks.iter().flat_map(BlockConfig::attention);
    attentions.any(|attention| attention.shared_keys.is_some())
}

/// Returns a checkpoint's stack with dropout everywhere, whatever its configuration says.
fn with_dropout(config: &StackConfig) -> StackConfig {
    let mut config = config.clone();
    for block in &mut config.blocks {
        if let Ok(attention) = block.attention_mut() {
            attention.dropout = 0.2;
            if let Position::Disentangled(of) = &mut attention.position {
                of.dropout = 0.1;
            }
        }
        block.feed_forward.dropout = 0.1;
        *block = block.clone().with_residual_dropout(0.3);
        block.residual.drop_path = 0.2;
        if block.topology != Topology::Sequential {
            block.own = OwnConfig::Falcon {
                parallel_dropout: 0.1,
            };
        }
    }
    // A layer whose keys others attend to is never skipped.
    let layer_drop = if shares_keys(&config) { 0.0 } else { 0.2 };
    config.with_layer_drop(layer_drop).with_output_dropout(0.1)
}

#[test]
fn every_familys_gradients_are_those_without_with_dropout_and_padding() {
    let mut n_stacks = 0;
    for committed in all() {
        let label = committed.label();
        let checkpoint = committed.open();
        let config = with_dropout(checkpoint.config());
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        let mut stack = Stack::new(&config, loader.var_builder()).unwrap();
        let parameters = loader.parameters();
        let width = config.blocks[0].d_model();
        let x = random(&[2, 5, width], 0.0);
        let keep = Tensor::new(&[[1u8, 1, 1, 1, 1], [0, 0, 1, 1, 1]], &device()).unwrap();
        let context = ForwardContext::training().with_mask(AttentionMask::padding(&keep).unwrap());
        let mut context = in_one_row(context, &config, 5);
        if let Some(cross) = &config.blocks[0].cross_attention {
            let memory = random(&[2, 4, cross.d_encoder], 1.0);
            context = context.with_encoder_output(memory, AttentionMask::none());
        }
        let source = DropoutSource::seeded(11);
        stack.set_dropout_source(&source);
        let (plain, gradients) = directly(&stack, &x, &context, &parameters);
        let after = source.position();
        source.set_position(0).unwrap();
        let found = recomputed(&stack, &x, &context, &parameters);
        assert_eq!(bits(&found.loss), bits(&plain), "{label}");
        assert_eq!(
            source.position(),
            after,
            "{label}: the stream goes on where it would have"
        );
        assert!(after.unwrap() > 0, "{label}");
        let n_layers = config.layers.len();
        let (of_keys, of_inputs) = (shares_keys(&config), config.layer_inputs.is_some());
        let is_shared = |role: &str| {
            let is_of_all = role.starts_with("relative_") || of_inputs || of_keys;
            is_of_all || config.blocks.len() < n_layers
        };
        compare(&label, &parameters, &found.gradients, &gradients, is_shared);
        n_stacks += 1;
    }
    assert!(n_stacks >= 4, "{n_stacks}");
}

#[test]
fn inputs_get_their_gradients() {
    let part = StackPart::Decoder;
    let name = "families/t5";
    if !is_present(name) {
        return;
    }
    let open = |part| {
        CheckpointOptions::default()
            .part(part)
            .open(weights(name))
            .unwrap()
    };
    let (encoder, decoder) = (open(StackPart::Encoder), open(part));
    let loaders = [&encoder, &decoder].map(|c| c.trainable(DType::F32, &device()).unwrap());
    let stacks = [loaders[0].stack().unwrap(), loaders[1].stack().unwrap()];
    let width = decoder.config().blocks[0].d_model();
    let n_heads = decoder.config().blocks[0].attention().unwrap().n_heads;
    let variable = |dims: &[usize], salt| Var::from_tensor(&random(dims, salt)).unwrap();
    let tables = [
        ("embeddings", variable(&[2, 5, width], 0.0)),
        ("encoder embeddings", variable(&[2, 4, width], 1.0)),
        ("additive", variable(&[1, n_heads, 5, 5], 2.0)),
        (
            "additive of the encoder",
            variable(&[1, n_heads, 5, 4], 3.0),
        ),
    ];
    let mut parameters: Parameters = tables
        .iter()
        .map(|(role, v)| (role.to_string(), v.clone()))
        .collect();
    for (loader, prefix) in loaders.iter().zip(["encoder.", "decoder."]) {
        let named = loader.parameters().into_iter();
        parameters.extend(named.map(|(role, v)| (format!("{prefix}{role}"), v)));
    }
    let [x, source, additive, cross] = tables.map(|(_, v)| v);
    let run = |recompute: bool| {
        // Graphs in front of the stack: a product, and a whole encoder.
        let x = x.as_tensor().affine(1.5, 0.0).unwrap();
        let memory = stacks[0].forward(source.as_tensor()).unwrap();
        let mask = AttentionMask::none().with_additive(additive.as_tensor().clone());
        let memory_mask = AttentionMask::none().with_additive(cross.as_tensor().sqr().unwrap());
        let context = ForwardContext::training()
            .with_mask(mask)
            .with_encoder_output(memory, memory_mask);
        let mut stack = stacks[1].clone();
        stack.set_dropout_source(&DropoutSource::numpy(4));
        match recompute {
            false => directly(&stack, &x, &context, &parameters).1,
            true => recomputed(&stack, &x, &context, &parameters).gradients,
        }
    };
    let (ours, theirs) = (run(true), run(false));
    assert_eq!(ours.roles().count(), parameters.len());
    // All blocks share the encoder and the biases: their sums have another order.
    let is_shared = |role: &str| !role.starts_with("decoder.blocks") && role != "embeddings";
    compare(name, &parameters, &ours, &theirs, is_shared);
}

#[test]
fn blocks_that_cannot_be_recomputed_are_an_error() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = Stack::new(&with_dropout(checkpoint.config()), loader.var_builder()).unwrap();
    let parameters = loader.parameters();
    let x = random(&[1, 3, 24], 0.0);
    let run = |stack: &Stack, context: ForwardContext, detach: bool| {
        backward_recomputing(stack, &x, &context, &parameters, |y| {
            let y = if detach { y.detach() } else { y.clone() };
            let variable = parameters[0].1.as_tensor().sum_all()?;
            loss(&y)? + variable
        })
    };
    let message = run(&stack, ForwardContext::training(), false)
        .unwrap_err()
        .to_string();
    assert!(message.contains("DropoutSource::seeded"), "{message}");
    // Evaluation draws nothing.
    run(&stack, ForwardContext::evaluation(), false).unwrap();
    stack.set_dropout_source(&DropoutSource::seeded(1));
    run(&stack, ForwardContext::training(), false).unwrap();
    let message = run(&stack, ForwardContext::training(), true)
        .unwrap_err()
        .to_string();
    assert!(message.contains("does not depend"), "{message}");
}
