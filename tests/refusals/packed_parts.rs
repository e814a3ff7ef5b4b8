//! Layers whose parts do not fit each other are refused when they are made, or packed, with the culprit and what was expected.

use candle_blocks::{
    CheckpointOptions, FeedForward, FeedForwardConfig, ForwardContext, Linear, Precision, Stack,
    Sublayer, SublayerNorm, TransformerBlock,
    candle_core::{DType, Device, Module, Tensor},
    candle_nn::VarBuilder,
    checkpoint::scheme::StackPart,
};

use crate::{
    kinds,
    norm::norm,
    numbers::bits,
    refused::refusal,
    small::{self, made, made_of, numbers, stack},
    weights::{is_present, weights},
};

#[test]
fn a_linear_layer_without_inputs_is_refused_when_it_is_packed() {
    let linear = |d_out, d_in| Linear::from_parts(numbers(&[d_out, d_in], 1), None).unwrap();
    for precision in [
        Precision::F32,
        Precision::F16,
        Precision::Bf16,
        Precision::Int8,
        Precision::INT4,
    ] {
        let message = refusal("no inputs", || linear(3, 0).pack(precision));
        assert!(message.contains("[3, 0]"), "{message}");
        let packed = linear(0, 3).pack(precision).unwrap();
        assert_eq!(packed.forward(&numbers(&[4, 3], 1)).unwrap().dims(), [4, 0]);
    }
}

#[test]
fn a_bound_that_nothing_is_within_is_refused() {
    for clip in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut config = small::encoder();
        config.blocks[0].attention_mut().unwrap().clip = Some(clip);
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("positive"), "{message}");
    }
}

#[test]
fn norms_of_another_width_than_their_inner_layer_are_refused_when_they_are_packed() {
    let pack = |norm| {
        let inner = made(|vb| FeedForward::new(&FeedForwardConfig::new(8), vb));
        Sublayer::new(inner, norm).pack(Precision::F32)
    };
    pack(SublayerNorm::Pre(norm(8))).unwrap();
    let (input, output) = (norm(8), norm(9));
    for norm in [
        SublayerNorm::Post(norm(9)),
        SublayerNorm::Sandwich { input, output },
    ] {
        let message = refusal("the norm", || pack(norm));
        assert!(
            message.contains("the norm has width 9, expected 8"),
            "{message}"
        );
    }
}

#[test]
fn attention_that_reads_a_table_of_its_stack_is_not_packed_alone() {
    for kind in [kinds::disentangled(), kinds::gated_bias()] {
        let stack = stack(&kind);
        let block = &stack.blocks()[0];
        for message in [
            refusal("alone", || block.pack(Precision::F32)),
            refusal("alone", || {
                block
                    .mixer()
                    .inner()
                    .attention()
                    .unwrap()
                    .pack(Precision::F32)
            }),
        ] {
            assert!(message.contains("pack the stack"), "{message}");
        }
        let x = numbers(&[2, 5, small::WIDTH], 1);
        let message = refusal("no table", || block.forward(&x));
        assert!(message.contains("with_relative_embeddings"), "{message}");
        // With the table, the blocks one after the other are the stack.
        let table = stack.relative_embeddings().unwrap().rows().unwrap();
        let context = ForwardContext::evaluation().with_relative_embeddings(table);
        let through =
            |x: Tensor, block: &TransformerBlock| block.forward_with(&x, &context).unwrap();
        let last = stack.blocks().iter().fold(x.clone(), through);
        let norm = stack.final_norm().unwrap().forward(&last).unwrap();
        assert_eq!(bits(&norm), bits(&stack.forward(&x).unwrap()));
    }
}

#[test]
fn the_stacks_of_t5_umt5_and_albert_can_be_made_of_tensors_by_name() {
    let encoder = CheckpointOptions::default().part(StackPart::Encoder);
    for (family, options) in [
        ("t5", encoder.clone()),
        ("umt5", encoder),
        ("albert", CheckpointOptions::default()),
    ] {
        let folder = format!("families/{family}");
        if !is_present(&folder) {
            continue;
        }
        let checkpoint = options.open(weights(&folder)).unwrap();
        let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
        let stack = loader.stack().unwrap();
        let parameters = loader.parameters();
        let tensors = parameters.iter();
        let tensors = tensors.map(|(role, of)| (role.clone(), of.as_detached_tensor()));
        let vb = VarBuilder::from_tensors(tensors.collect(), DType::F32, &Device::Cpu);
        let made = Stack::new(checkpoint.config(), vb).unwrap();
        let width = checkpoint.config().blocks[0].d_model();
        let x = numbers(&[2, 5, width], 1);
        let (ours, theirs) = (made.forward(&x).unwrap(), stack.forward(&x).unwrap());
        assert_eq!(bits(&ours), bits(&theirs), "{family}");
    }
}

#[test]
fn a_weight_beyond_the_range_of_f16_is_refused_with_its_name_where_it_is_packed_in_f16() {
    let stacks = [
        small::encoder(),
        small::decoder(),
        kinds::cross_decoder(),
        kinds::experts(),
    ];
    for config in stacks {
        let value = |i, _, dims: &[usize]| numbers(dims, i);
        let (stack, parameters) = made_of(DType::F32, |vb| Stack::new(&config, vb), value);
        for role in stack.linears().map(|(role, _)| role) {
            let parameter = &parameters[&format!("{role}.weight")];
            let (before, dims) = (parameter.as_tensor().copy().unwrap(), parameter.dims());
            let with = |number: f32| {
                let mut weight = vec![0.5; dims[0] * dims[1]];
                weight[(dims[0] - 1) * dims[1]] = number;
                let weight = Tensor::from_vec(weight, dims, &Device::Cpu).unwrap();
                parameter.set(&weight).unwrap();
                &stack
            };
            let role = role.as_str();
            for precision in [Precision::F16, Precision::INT4] {
                with(-65504.0).pack(precision).unwrap();
            }
            let beyond = with(-65505.0);
            for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
                beyond.pack(precision).unwrap();
            }
            if role.contains("router") || role.contains("shared_gate") {
                beyond.pack(Precision::F16).unwrap(); // these stay in f32
                parameter.set(&before).unwrap();
                continue;
            }
            for precision in [Precision::F16, Precision::INT4] {
                let message = refusal(role, || beyond.pack(precision));
                for words in [
                    &format!("{role}.weight holds -65505 at ["),
                    ", 0]",
                    "pack it in f32 or bf16",
                ] {
                    assert!(message.contains(words), "{message}");
                }
            }
            parameter.set(&before).unwrap();
        }
    }
    let alone = Linear::from_parts(numbers(&[1, 1], 1).affine(0.0, 7e4).unwrap(), None).unwrap();
    let message = refusal("weight", || alone.pack(Precision::F16));
    assert!(
        message.contains("weight holds 70000 at [0, 0]"),
        "{message}"
    );
    // Not finite already: what products make of it is as in f32.
    let infinite = Linear::from_parts(
        numbers(&[1, 1], 1).affine(0.0, f64::INFINITY).unwrap(),
        None,
    )
    .unwrap();
    let y = infinite
        .pack(Precision::F16)
        .unwrap()
        .forward(&numbers(&[1, 1], 2))
        .unwrap();
    assert!(!y.to_vec2::<f32>().unwrap()[0][0].is_finite());
}
