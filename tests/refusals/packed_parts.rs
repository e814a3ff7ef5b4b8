//! Layers whose parts do not fit each other are refused when they are made, or packed, with the culprit and what was expected.

use candle_blocks::{
    Attention, AttentionConfig, BlockConfig, CheckpointOptions, FeedForwardConfig, ForwardContext,
    Linear, NormConfig, NormPlacement, Precision, RelativeBias, Stack, Sublayer, SublayerNorm,
    Topology, TransformerBlock, Visibility,
    candle_core::{DType, Device, Module, Tensor},
    checkpoint::scheme::StackPart,
    config::{ParallelNorm, RelativeBiasConfig},
    layers::{BlockFeedForward, BranchScale},
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
fn a_parallel_block_has_no_place_for_cross_attention() {
    let (attention, feed_forward) = parts(8);
    let message = refusal("the layer", || {
        TransformerBlock::from_parts(
            attention.clone(),
            Some(attention),
            feed_forward,
            Topology::Parallel(ParallelNorm::Shared),
        )
    });
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

/// The two sublayers of a block of this width.
fn parts(width: usize) -> (Sublayer<Attention>, Sublayer<BlockFeedForward>) {
    let block = block_of(width);
    (block.attention().clone(), block.feed_forward().clone())
}

#[test]
fn parts_that_do_not_fit_each_other_are_refused() {
    let says = |words: [&str; 2], attention: &Sublayer<Attention>, width| {
        let message = refusal(words[0], || {
            TransformerBlock::from_parts(
                attention.clone(),
                None,
                parts(width).1,
                Topology::Sequential,
            )
        });
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    let (attention, _) = parts(8);
    says(["8", "12"], &attention, 12);
    let inner = || attention.inner().clone();
    let of_nine = Sublayer::from_parts(inner(), SublayerNorm::Post(norm(9))).unwrap();
    says(["norm", "9"], &of_nine, 8);
    let scaled = attention
        .clone()
        .with_scale(BranchScale::Learned(numbers(&[7], 1)));
    says(["scale", "7"], &scaled, 8);
    let (input, output) = (norm(8), norm(9));
    refusal("two norms", || {
        Sublayer::from_parts(inner(), SublayerNorm::Sandwich { input, output })
    });

    let bias = |n_heads| {
        let config = RelativeBiasConfig {
            n_buckets: 8,
            max_distance: 16,
            n_heads,
        };
        let table = numbers(&[8, n_heads], 1);
        RelativeBias::from_parts(table, &config, Visibility::Bidirectional).unwrap()
    };
    let of = |widths: [usize; 2], layers: &[usize], n_heads, last| {
        let blocks = widths.map(block_of).to_vec();
        Stack::from_parts(
            blocks,
            layers.to_vec(),
            Some(bias(n_heads)),
            Some(norm(last)),
        )
    };
    let of_biases = |n_biases| {
        let biases = (0..n_biases).map(|_| bias(2));
        Stack::from_parts([8, 8].map(block_of).to_vec(), vec![0, 1], biases, None)
    };
    of_biases(2).unwrap();
    let refused = [
        ("3 relative biases for 2 blocks", of_biases(3)),
        ("12", of([8, 12], &[0, 1], 2, 8)),
        ("12", of([8, 8], &[0, 1], 2, 12)),
        ("heads", of([8, 8], &[0, 1], 3, 8)),
        ("block 2", of([8, 8], &[0, 2], 2, 8)),
        ("block 1", of([8, 8], &[0, 0], 2, 8)),
    ];
    for (word, stack) in refused {
        let message = refusal(word, || stack);
        assert!(message.contains(word), "{message}");
    }
    of([8, 8], &[0, 1, 0], 2, 8)
        .unwrap()
        .pack(Precision::F32)
        .unwrap();
}

#[test]
fn attention_that_reads_a_table_of_its_stack_is_not_packed_alone() {
    let stack = stack(&kinds::disentangled());
    let block = &stack.blocks()[0];
    for message in [
        refusal("alone", || block.pack(Precision::F32)),
        refusal("alone", || block.attention().inner().pack(Precision::F32)),
    ] {
        assert!(message.contains("pack the stack"), "{message}");
    }
    let x = numbers(&[2, 5, small::WIDTH], 1);
    let message = refusal("no table", || block.forward(&x));
    assert!(message.contains("with_relative_embeddings"), "{message}");
    // With the table, the blocks one after the other are the stack.
    let table = stack.relative_embeddings().unwrap().rows().unwrap();
    let context = ForwardContext::evaluation().with_relative_embeddings(table);
    let through = |x: Tensor, block: &TransformerBlock| block.forward_with(&x, &context).unwrap();
    let last = stack.blocks().iter().fold(x.clone(), through);
    let norm = stack.final_norm().unwrap().forward(&last).unwrap();
    assert_eq!(bits(&norm), bits(&stack.forward(&x).unwrap()));
}

#[test]
fn the_stacks_of_t5_umt5_and_albert_can_be_made_from_parts() {
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
        let stack = checkpoint.stack(DType::F32, &Device::Cpu).unwrap();
        let made = Stack::from_parts(
            stack.blocks().to_vec(),
            stack.layers().to_vec(),
            stack.relative_biases().to_vec(),
            stack.final_norm().cloned(),
        );
        let width = stack.blocks()[0].attention().inner().config().d_model;
        let x = numbers(&[2, 5, width], 1);
        let (ours, theirs) = (
            made.unwrap().forward(&x).unwrap(),
            stack.forward(&x).unwrap(),
        );
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
                beyond.pack(Precision::F16).unwrap(); // which stay in f32
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
