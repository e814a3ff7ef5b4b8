//! Every place with dropout, alone: training uses the given source, and evaluation drops nothing.

use candle_blocks::{
    Activation, AttentionConfig, Dropout, DropoutSource, ForwardContext, Mlp, NormPlacement,
    Position, Precision, Stack, StackConfig, SublayerNorm, Topology, TransformerBlock,
    candle_core::{Module, ModuleT, Tensor},
    checkpoint::Parameters,
    config::{OwnConfig, ParallelNorm},
    train::{Gradients, Lora, LoraConfig, backward_recomputing},
};

use crate::{
    cpu_only::cpu_only,
    device::device,
    kinds::{self, MEMORY},
    same::assert_same,
    small::{self, WIDTH, block},
    small_on_device::{made, numbers, stack},
};

const P: f64 = 0.5;

fn rows(y: &Tensor) -> Vec<f32> {
    y.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns a stack's output in training; the same seed determines every mask.
fn trained(stack: &mut Stack, context: &ForwardContext, seed: u64) -> Vec<f32> {
    stack.set_dropout_source(&DropoutSource::seeded(seed));
    let x = numbers(&[4, 5, WIDTH], 1);
    rows(
        &stack
            .forward_with(&x, &context.clone().with_train(true))
            .unwrap(),
    )
}

#[track_caller]
fn drops_in_training_only(what: &str, mut stack: Stack) {
    let memory = numbers(&[4, 3, MEMORY], 2);
    let context = ForwardContext::evaluation().with_encoder_output(memory, Default::default());
    let x = numbers(&[4, 5, WIDTH], 1);
    let evaluated = rows(&stack.forward_with(&x, &context).unwrap());
    let mut of_seed = |seed| trained(&mut stack, &context, seed);
    assert_eq!(of_seed(1), of_seed(1), "{what}");
    // A single draw may keep everything, twelve hardly ever.
    let of_seeds: Vec<_> = (1..=12).map(of_seed).collect();
    let distinct = |y: &&Vec<f32>| **y != evaluated;
    assert!(of_seeds.iter().filter(distinct).count() >= 3, "{what}");
    assert!(of_seeds.iter().any(|y| *y != of_seeds[0]), "{what}");
}

#[test]
fn each_place_drops_alone() {
    type Make = fn() -> StackConfig;
    type Change = fn(&mut StackConfig);
    let places: [(&str, Make, Change); 16] = [
        ("attention", small::encoder, |c| {
            c.blocks[0].attention_mut().unwrap().dropout = P
        }),
        ("attention to latents", kinds::latent, |c| {
            c.blocks[0].attention_mut().unwrap().dropout = P
        }),
        ("attention with a gated bias", kinds::gated_bias, |c| {
            c.blocks[0].attention_mut().unwrap().dropout = P
        }),
        ("cross-attention", kinds::cross_decoder, |c| {
            c.blocks[1].cross_attention.as_mut().unwrap().dropout = P;
        }),
        (
            "cross-attention with linear biases",
            kinds::cross_alibi,
            |c| {
                c.blocks[1].cross_attention.as_mut().unwrap().dropout = P;
            },
        ),
        ("hidden", small::encoder, |c| {
            c.blocks[0].feed_forward.dropout = P
        }),
        ("gated", small::decoder, |c| {
            c.blocks[0].feed_forward.dropout = P
        }),
        ("experts", kinds::experts, |c| {
            c.blocks[0].feed_forward.dropout = P
        }),
        ("after attention", small::encoder, |c| {
            c.blocks[0].residual.attention_dropout = P
        }),
        ("after cross-attention", kinds::cross_decoder, |c| {
            c.blocks[0].residual.attention_dropout = P;
        }),
        ("after feed-forward", small::encoder, |c| {
            c.blocks[1].residual.feed_forward_dropout = P;
        }),
        ("branches", kinds::falcon, |c| {
            c.blocks[0].own = OwnConfig::Falcon {
                parallel_dropout: P,
            }
        }),
        ("paths", small::encoder, |c| {
            c.blocks[0].residual.drop_path = P
        }),
        ("distances", kinds::disentangled, |c| {
            if let Position::Disentangled(of) = &mut c.blocks[1].attention_mut().unwrap().position {
                of.dropout = P;
            }
        }),
        ("layers", small::encoder, |c| c.layer_drop = P),
        ("output", small::encoder, |c| c.output_dropout = P),
    ];
    for (what, config, change) in places {
        let mut config = config();
        change(&mut config);
        drops_in_training_only(what, stack(&config));
    }
}

const ADAPTED: [&str; 2] = ["blocks.0.attention.value", "blocks.1.feed_forward.up"];

/// Returns a stack whose only dropout is in one linear layer's adapter, and the adapter's parameters.
fn adapted(adapted: &str, mut stack: Stack) -> (Stack, Parameters) {
    let config = LoraConfig::new(2, 1.4, &[adapted]).with_dropout(P);
    let lora = Lora::attach(&mut stack, config, 0).unwrap();
    for (_, parameter) in &lora.parameters() {
        let value = small::numbers(parameter.dims(), 4);
        let value = value.to_device(parameter.device()).unwrap();
        parameter.set(&value).unwrap();
    }
    (stack, lora.parameters())
}

#[test]
fn adapters_drop_and_are_recomputed_with_the_same_masks() {
    for role in ADAPTED {
        let fresh = || adapted(role, stack(&small::encoder()));
        drops_in_training_only(role, fresh().0);
        let (mut stack, parameters) = fresh();
        let x = numbers(&[4, 5, WIDTH], 1);
        let context = ForwardContext::training();
        let loss = |y: &Tensor| (y.sqr()? * numbers(&[4, 5, WIDTH], 6))?.sum_all();
        stack.set_dropout_source(&DropoutSource::seeded(3));
        let direct = loss(&stack.forward_with(&x, &context).unwrap()).unwrap();
        let direct = Gradients::of(&parameters, &direct.backward().unwrap());
        stack.set_dropout_source(&DropoutSource::seeded(3));
        let again = backward_recomputing(&stack, &x, &context, &parameters, loss).unwrap();
        for (name, _) in &parameters {
            let gradient = |all: &Gradients| all.get(name).unwrap().unwrap();
            assert_same(&gradient(&direct), &gradient(&again.gradients), name);
        }
    }
}

#[test]
fn an_adapter_is_packed_with_its_layer() {
    cpu_only("packed weights");
    for role in ADAPTED {
        let (stack, _) = adapted(role, small::stack(&small::encoder()));
        let x = small::numbers(&[4, 5, WIDTH], 1);
        let layers = rows(&stack.forward(&x).unwrap());
        let packed = rows(&stack.pack(Precision::F32).unwrap().forward(&x).unwrap());
        for (ours, theirs) in packed.iter().zip(layers) {
            assert!((ours - theirs).abs() < 2e-5, "{role}: {ours} {theirs}");
        }
    }
}

/// `x + dropout(attention(norm(x)) + feed_forward(norm(x)))`, with the mask that NumPy draws.
#[test]
fn a_parallel_block_drops_the_sum_of_its_branches() {
    let mut config = block(AttentionConfig::new(WIDTH, 2).unwrap());
    config.topology = Topology::Parallel(ParallelNorm::Shared);
    config.own = OwnConfig::Falcon {
        parallel_dropout: P,
    };
    let mut parallel = made(|vb| TransformerBlock::new(&config, vb));
    parallel.set_dropout_source(&DropoutSource::numpy(5));
    let SublayerNorm::Pre(norm) = parallel.mixer().norm() else {
        panic!("normalized before its branches");
    };
    let x = numbers(&[2, 3, WIDTH], 1);
    let normal = norm.forward(&x).unwrap();
    let attended = parallel
        .mixer()
        .inner()
        .attention()
        .unwrap()
        .forward(&normal)
        .unwrap();
    let fed = parallel.feed_forward().inner().forward(&normal).unwrap();
    let sum = (attended + fed).unwrap();
    let dropout = Dropout::new(P, DropoutSource::numpy(5)).unwrap();
    let expected = (&x + dropout.forward_t(&sum, true).unwrap()).unwrap();
    let ours = parallel.forward_t(&x, true).unwrap();
    for (ours, expected) in rows(&ours).iter().zip(rows(&expected)) {
        assert!((ours - expected).abs() < 1e-5, "{ours} {expected}");
    }
}

#[test]
fn a_perceptron_activates_between_its_layers_only() {
    let layer = |d_out: usize, d_in: usize, seed| {
        let weight = numbers(&[d_out, d_in], seed);
        candle_blocks::Linear::from_parts(weight, None).unwrap()
    };
    let layers = [layer(5, 4, 1), layer(6, 5, 2), layer(3, 6, 3)];
    let x = numbers(&[2, 4], 4);
    let tanh = |x: Tensor| x.tanh().unwrap();
    let hidden = tanh(layers[0].forward(&x).unwrap());
    let hidden = tanh(layers[1].forward(&hidden).unwrap());
    let expected = layers[2].forward(&hidden).unwrap();
    let ours = Mlp::from_parts(layers.to_vec(), Activation::Tanh).unwrap();
    for (ours, expected) in rows(&ours.forward(&x).unwrap()).iter().zip(rows(&expected)) {
        assert!((ours - expected).abs() < 1e-5, "{ours} {expected}");
    }
}

/// DINOv2's `layerscale_value` is 1: a fresh block is the same block without its layer scale.
#[test]
fn a_fresh_layer_scale_changes_nothing() {
    let mut config = block(AttentionConfig::new(WIDTH, 2).unwrap());
    config.feed_forward_placement = NormPlacement::None;
    config.residual.layer_scale = true;
    let parameters = candle_blocks::candle_nn::VarMap::new();
    let vb = candle_blocks::candle_nn::VarBuilder::from_varmap(
        &parameters,
        candle_blocks::candle_core::DType::F32,
        &device(),
    );
    TransformerBlock::new(&config, vb).unwrap();
    let parameters = parameters.data().lock().unwrap();
    let scales = parameters
        .iter()
        .filter(|(name, _)| name.contains("layer_scale"));
    let scales: Vec<_> = scales.map(|(_, scale)| rows(scale)).collect();
    assert_eq!(scales, [[1.0; WIDTH]; 2]);
}
