//! What layers are given or made of that does not fit is named, with what was expected; packed layers answer alike.

use candle_blocks::{
    Attention, AttentionConfig, AttentionMask, FeedForward, FeedForwardConfig, ForwardContext,
    Linear, MixtureOfExperts, Norm, NormConfig, Precision, RelativeBias, StackConfig, Sublayer,
    SublayerNorm, Topology, TransformerBlock, Visibility,
    candle_core::{DType, Device, Module, Tensor},
    candle_nn::VarBuilder,
    config::{
        GateClamp, NormWeight, ParallelNorm, QueryKeyNorm, QueryKeyNormSpan, RelativeBiasConfig,
        RoutingConfig,
    },
    layers::{LatentProjections, QueryKeyNorms, QueryKeyValue},
};

use crate::{
    kinds::{self, MEMORY},
    norm::norm,
    refused::{outcome, refusal},
    small::{self, WIDTH, block, made, numbers, stack},
};

/// That a call is refused in words that contain these.
#[track_caller]
fn says<T>(words: &[&str], call: impl FnOnce() -> candle_blocks::candle_core::Result<T>) {
    let message = refusal(words[0], call);
    let missing = words.iter().find(|word| !message.contains(**word));
    assert!(missing.is_none(), "{message:?} does not say {missing:?}");
}

/// That layers and their packed form refuse a context in these words.
#[track_caller]
fn both_say(words: &[&str], config: &StackConfig, context: &ForwardContext) {
    let x = numbers(&[2, 5, WIDTH], 1);
    let layers = stack(config);
    says(words, || layers.forward_with(&x, context));
    says(words, || {
        layers.pack(Precision::F32)?.forward_with(&x, context)
    });
}

fn with_memory(mask: AttentionMask) -> ForwardContext {
    ForwardContext::evaluation().with_memory(numbers(&[2, 4, MEMORY], 2), mask)
}

#[test]
fn a_mask_of_an_encoders_output_is_called_so() {
    let ones = Tensor::ones((2, 7), DType::U8, &Device::Cpu).unwrap();
    let context = with_memory(AttentionMask::padding(&ones).unwrap());
    let words = [
        "encoder_attention_mask",
        "[2, 7]",
        "[2, 4] of encoder_hidden_states",
    ];
    both_say(&words, &kinds::cross_decoder(), &context);
}

#[test]
fn marks_are_not_taken_for_numbers_to_add() {
    let ones = Tensor::ones((2, 1, 5, 5), DType::U8, &Device::Cpu).unwrap();
    let mask = AttentionMask::none().with_additive(ones);
    let context = ForwardContext::evaluation().with_mask(mask);
    both_say(
        &["additive mask", "U8", "padding"],
        &small::encoder(),
        &context,
    );
}

#[test]
fn numbers_next_to_one_are_not_marks() {
    for value in [0.999_999_999_99, 1.000_000_000_01, 1e-60, f64::NAN] {
        let mask = Tensor::new(&[[value, 1.0]], &Device::Cpu).unwrap();
        let refused = AttentionMask::padding(&mask).unwrap_err().to_string();
        assert!(
            refused.contains("expected 1 (keep) or 0 (drop)"),
            "{refused}"
        );
    }
}

#[test]
fn positions_are_whole_numbers_that_rotary_embeddings_can_count_to() {
    let said = |ids: &Tensor| {
        let refused = ForwardContext::evaluation().with_position_ids(ids);
        refused.unwrap_err().to_string()
    };
    let message = said(&Tensor::new(&[[0.5f64, 1.7]], &Device::Cpu).unwrap());
    assert!(
        message.contains("F64") && message.contains("integer"),
        "{message}"
    );
    for wrong in [-1i64, 5_000_000_000] {
        let message = said(&Tensor::new(&[[0, wrong]], &Device::Cpu).unwrap());
        assert!(
            message.contains(&wrong.to_string()) && message.contains("4294967295"),
            "{message}"
        );
    }
    let ids = Tensor::zeros((3, 5), DType::U32, &Device::Cpu).unwrap();
    let context = ForwardContext::evaluation()
        .with_position_ids(&ids)
        .unwrap();
    both_say(
        &["position_ids", "[3, 5]", "[2, 5] or [1, 5]"],
        &small::decoder(),
        &context,
    );
    let message = said(&Tensor::zeros((2, 2, 5), DType::U32, &Device::Cpu).unwrap());
    assert!(message.contains("[2, 2, 5]"), "{message}");
    assert!(message.contains("[3, batch, seq]"), "{message}");
    let of_axes = Tensor::zeros((3, 2, 5), DType::U32, &Device::Cpu).unwrap();
    let context = ForwardContext::evaluation().with_position_ids(&of_axes);
    both_say(
        &["position_ids", "time, row and column", "[2, 5]"],
        &small::decoder(),
        &context.unwrap(),
    );
}

#[test]
fn buckets_that_cannot_be_told_apart_are_refused() {
    let bias = |n_buckets, max_distance, visibility| {
        let config = RelativeBiasConfig {
            n_buckets,
            max_distance,
            n_heads: 2,
        };
        RelativeBias::from_parts(numbers(&[n_buckets, 2], 1), &config, visibility)
    };
    for (n_buckets, max_distance, visibility) in [
        (0, 16, Visibility::Causal),
        (1, 16, Visibility::Causal),
        (3, 16, Visibility::Bidirectional),
        (8, 4, Visibility::Causal),
        (8, 0, Visibility::Bidirectional),
    ] {
        says(&["relative bias", "buckets"], || {
            bias(n_buckets, max_distance, visibility)
        });
    }
    bias(2, 2, Visibility::Causal).unwrap();
    let least = bias(4, 2, Visibility::Bidirectional).unwrap();
    says(&["5 queries of 3 positions"], || least.bias(5, 3));
    let config = RelativeBiasConfig {
        n_buckets: 8,
        max_distance: 16,
        n_heads: 2,
    };
    says(&["[8, 3]", "[8, 2]"], || {
        RelativeBias::from_parts(numbers(&[8, 3], 1), &config, Visibility::Causal)
    });
}

#[test]
fn sinks_that_do_not_fit_the_heads_are_refused() {
    let attention = made(|vb| Attention::new(&AttentionConfig::new(12, 4)?, vb));
    let of = |sinks: Option<usize>, config: &AttentionConfig| {
        let (projections, output) = (attention.projections().clone(), attention.output().clone());
        let sinks = sinks.map(|n| numbers(&[n], 1));
        Attention::from_parts(projections, None, sinks, output, config.clone())
    };
    let (without, with) = (
        attention.config(),
        attention.config().clone().with_sinks(true),
    );
    assert!(of(Some(4), &with).is_ok());
    says(&["sinks", "[3]", "[4]"], || of(Some(3), &with));
    says(&["has sinks", "none were given"], || of(None, &with));
    says(&["sinks were given", "has none"], || of(Some(4), without));
}

#[test]
fn a_clamp_without_a_gate_is_refused() {
    let clamp = GateClamp {
        limit: 7.0,
        offset: 1.0,
    };
    let plain = made(|vb| FeedForward::new(&FeedForwardConfig::new(4), vb));
    says(&["no gate to clamp"], || plain.clone().with_clamp(clamp));
}

#[test]
fn norms_that_do_not_fit_the_heads_are_refused() {
    let attention = made(|vb| Attention::new(&AttentionConfig::new(12, 4)?, vb)); // heads of 3
    let x = numbers(&[2, 5, 12], 1);
    let of = |norms, config: &AttentionConfig| {
        let (projections, output) = (attention.projections().clone(), attention.output().clone());
        Attention::from_parts(projections, norms, None, output, config.clone())
    };
    let with = |query: Vec<Norm>, key| {
        let norms = QueryKeyNorms::from_parts(query, key).unwrap();
        of(Some(norms), attention.config())
    };
    let heads = |n: usize| vec![norm(3); n];
    for fitting in [with(heads(1), heads(1)), with(vec![norm(12)], heads(4))] {
        let fitting = fitting.unwrap();
        assert!(fitting.forward(&x).is_ok());
        assert!(fitting.pack(Precision::F32).is_ok());
    }
    for (of, query, key) in [
        ("queries", vec![norm(5)], heads(1)),
        ("keys", heads(1), heads(3)),
        ("queries", heads(5), heads(4)),
    ] {
        let words = ["norms of ", of, "expected to fill 12 columns"];
        says(&words, || with(query.clone(), key.clone()));
    }
    says(&["no norm of queries"], || {
        QueryKeyNorms::from_parts(vec![], heads(1))
    });
    says(&["norms of keys differ"], || {
        QueryKeyNorms::from_parts(heads(1), vec![norm(3), norm(4)])
    });
    // The configuration has norms, and the parts have none.
    let mut config = attention.config().clone();
    let norm = NormConfig::rms_norm(3, 1e-6);
    config.query_key_norm = Some(QueryKeyNorm::new(norm, QueryKeyNormSpan::Head));
    says(&["QueryKeyNorms"], || of(None, &config));
}

#[test]
fn projections_through_a_latent_that_do_not_fit_are_refused() {
    let config = kinds::latent().blocks[0].attention.clone();
    let attention = made(|vb| Attention::new(&config, vb));
    let QueryKeyValue::Latent(parts) = attention.projections() else {
        panic!("{:?}", attention.projections());
    };
    let of = |projections: QueryKeyValue, config: &AttentionConfig| {
        let output = attention.output().clone();
        Attention::from_parts(projections, None, None, output, config.clone())
    };
    let with = |change: fn(&mut LatentProjections)| {
        let mut parts = parts.clone();
        change(&mut parts);
        of(QueryKeyValue::Latent(parts), &config)
    };
    assert!(with(|_| {}).is_ok());
    says(&["latent_norm is of 3", "expected 7"], || {
        with(|parts| parts.latent_norm = norm(3))
    });
    says(&["no latent of queries", "Some(5)"], || {
        with(|parts| parts.query_latent = None)
    });
    says(&["latent has shape [24, 5]"], || {
        with(|parts| parts.latent = parts.query.clone())
    });
    says(&["key_value has a bias"], || {
        with(|parts| {
            let weight = parts.key_value.weight().unwrap();
            let bias = weight.narrow(1, 0, 1).unwrap().flatten_all().unwrap();
            parts.key_value = Linear::from_parts(weight, Some(bias)).unwrap();
        })
    });
    let plain = made(|vb| Attention::new(&small::attention(), vb));
    says(&["has a latent", "LatentProjections"], || {
        of(plain.projections().clone(), &config)
    });
    says(&["the configuration says nothing"], || {
        of(attention.projections().clone(), &small::attention())
    });
}

#[test]
fn a_norm_per_head_is_the_norm_of_all_heads_if_they_share_their_parameters() {
    for weight in [NormWeight::Plain, NormWeight::OnePlus, NormWeight::Absent] {
        for bias in [false, true] {
            let config = NormConfig::layer_norm(3, 1e-5)
                .with_bias(bias)
                .with_weight(weight);
            let of = |seed| {
                let bias = bias.then(|| numbers(&[3], seed + 1));
                Norm::from_parts(numbers(&[3], seed), bias, config).unwrap()
            };
            let attention = made(|vb| {
                let config = AttentionConfig::new(12, 4)?.with_kv_heads(2);
                Attention::new(&config, vb)
            });
            let with = |n: [usize; 2]| {
                let [query, key] = [vec![of(5); n[0]], vec![of(8); n[1]]];
                let norms = QueryKeyNorms::from_parts(query, key).unwrap();
                let (projections, output) = (attention.projections(), attention.output());
                let (projections, output) = (projections.clone(), output.clone());
                let config = attention.config().clone();
                Attention::from_parts(projections, Some(norms), None, output, config).unwrap()
            };
            let (shared, each) = (with([1, 1]), with([4, 2]));
            let x = numbers(&[2, 5, 12], 1);
            let expected = shared.forward(&x).unwrap();
            let packed = each.pack(Precision::F32).unwrap().forward(&x).unwrap();
            for ours in [each.forward(&x).unwrap(), packed] {
                let difference = (ours - &expected)
                    .unwrap()
                    .abs()
                    .unwrap()
                    .max_all()
                    .unwrap();
                let difference = difference.to_scalar::<f32>().unwrap();
                assert!(difference < 1e-5, "{weight:?}, bias {bias}: {difference}");
            }
        }
    }
}

#[test]
fn a_parallel_block_has_no_place_for_a_norm_of_the_sum() {
    let parts = made(|vb| TransformerBlock::new(&block(AttentionConfig::new(WIDTH, 2)?), vb));
    let post = || SublayerNorm::Post(norm(WIDTH));
    let attention = Sublayer::from_parts(parts.attention().inner().clone(), post()).unwrap();
    let feed_forward = parts.feed_forward().inner().clone();
    let feed_forward = Sublayer::from_parts(feed_forward, post()).unwrap();
    for (attention, feed_forward) in [
        (attention, parts.feed_forward().clone()),
        (parts.attention().clone(), feed_forward),
    ] {
        let topology = Topology::Parallel(ParallelNorm::Separate);
        says(&["SublayerNorm::Post", "Topology::Sequential"], || {
            TransformerBlock::from_parts(attention.clone(), None, feed_forward.clone(), topology)
        });
    }
}

#[test]
fn experts_that_do_not_fit_their_router_are_refused() {
    let expert = |d_ff| {
        let linear = |shape: [usize; 2]| Linear::from_parts(numbers(&shape, 1), None).unwrap();
        let (up, down) = (linear([d_ff, 6]), linear([6, d_ff]));
        FeedForward::from_parts(None, up, down, candle_blocks::Activation::Relu).unwrap()
    };
    let router = |n| Linear::from_parts(numbers(&[n, 6], 3), None).unwrap();
    let of = |n_experts, n, shared, top_k| {
        let experts = (0..n_experts).map(|e| expert(e + 2)).collect();
        MixtureOfExperts::from_parts(
            (router(n), None),
            experts,
            shared,
            RoutingConfig::renormalized(top_k),
        )
    };
    says(&["uses 4 of 3"], || of(3, 3, None, 4));
    says(&["uses 0 of 3"], || of(3, 3, None, 0));
    says(&["router", "[4, 6]", "[3, 6]"], || of(3, 4, None, 2));
    says(&["shared gate", "[1, 6]"], || {
        of(3, 3, Some((expert(4), Some(router(2)))), 2)
    });
    says(&["correction", "[2]", "[3]"], || {
        let experts = (0..3).map(|e| expert(e + 2)).collect();
        let parts = (router(3), Some(numbers(&[2], 1)));
        MixtureOfExperts::from_parts(parts, experts, None, RoutingConfig::renormalized(1))
    });
    let mixture = of(3, 3, Some((expert(4), Some(router(1)))), 2).unwrap();
    let x = numbers(&[2, 5, 6], 1);
    let (ours, packed) = (
        mixture.forward(&x).unwrap(),
        mixture.pack(Precision::F32).unwrap(),
    );
    let difference = (packed.forward(&x).unwrap() - ours).unwrap().abs().unwrap();
    assert!(difference.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
    says(&["mixture of experts", "[.., 6]"], || {
        packed.forward(&numbers(&[2, 7], 1))
    });
}

#[test]
fn a_fused_projection_has_a_bias_for_all_or_none() {
    let mut config = AttentionConfig::new(4, 2).unwrap();
    let tensors = |shapes: &[(&str, &[usize])]| {
        let tensors = shapes
            .iter()
            .map(|(name, shape)| (name.to_string(), numbers(shape, 1)));
        VarBuilder::from_tensors(tensors.collect(), DType::F32, &Device::Cpu)
    };
    let fused: [(&str, &[usize]); 4] = [
        ("query_key_value.weight", &[12, 4]),
        ("query_key_value.bias", &[12]),
        ("output.weight", &[4, 4]),
        ("output.bias", &[4]),
    ];
    assert!(outcome(|| Attention::new(&config, tensors(&fused))).is_ok());
    config.bias.key = false;
    says(&["one projection", "bias"], || {
        Attention::new(&config, tensors(&fused))
    });
}

/// bfloat16 would round the two first rows of the router to the same numbers.
#[test]
fn a_packed_router_tells_experts_apart_that_a_narrow_type_would_not() {
    let linear = |values: &[f32], shape: [usize; 2]| {
        let weight = Tensor::from_slice(values, &shape, &Device::Cpu).unwrap();
        Linear::from_parts(weight, None).unwrap()
    };
    let expert = |sign: f32| {
        let (up, down) = (linear(&[1.0, 0.0], [1, 2]), linear(&[sign, sign], [2, 1]));
        FeedForward::from_parts(None, up, down, candle_blocks::Activation::Relu).unwrap()
    };
    let router = linear(&[1.0, 0.0, 1.001, 0.0, -1.0, 0.0], [3, 2]);
    let experts = vec![expert(1.0), expert(-1.0), expert(8.0)];
    let parts = (router, None);
    let mixture =
        MixtureOfExperts::from_parts(parts, experts, None, RoutingConfig::renormalized(1)).unwrap();
    let x = Tensor::new(&[[2f32, 0.0]], &Device::Cpu).unwrap();
    for precision in [
        Precision::F32,
        Precision::F16,
        Precision::Bf16,
        Precision::Int8,
        Precision::INT4,
    ] {
        let y = mixture.pack(precision).unwrap().forward(&x).unwrap();
        let y = y.to_vec2::<f32>().unwrap();
        assert!((y[0][0] + 2.0).abs() < 0.05, "{precision:?}: {y:?}");
    }
}
