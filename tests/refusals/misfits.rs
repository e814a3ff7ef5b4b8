//! Inputs and parts that do not fit a layer are named, with the expected values; packed layers give the same errors.

use std::collections::HashMap;

use candle_blocks::{
    Activation, Attention, AttentionConfig, AttentionMask, ExpertsConfig, FeedForward,
    FeedForwardConfig, ForwardContext, MixtureOfExperts, NormConfig, Precision, RelativeBias,
    StackConfig, Visibility,
    candle_core::{DType, Device, Tensor},
    candle_nn::VarBuilder,
    config::{
        GateClamp, NormWeight, QueryKeyNorm, QueryKeyNormSpan, RelativeBiasConfig, RoutingConfig,
        SharedExpertConfig,
    },
};

use crate::{
    kinds::{self, MEMORY},
    refused::{outcome, refusal},
    small::{self, WIDTH, made_of, numbers, stack},
};

/// Asserts that a call is refused with an error that contains these words.
#[track_caller]
fn says<T>(words: &[&str], call: impl FnOnce() -> candle_blocks::candle_core::Result<T>) {
    let message = refusal(words[0], call);
    let missing = words.iter().find(|word| !message.contains(**word));
    assert!(missing.is_none(), "{message:?} does not say {missing:?}");
}

/// Asserts that layers and their packed form refuse a context with these words.
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
    ForwardContext::evaluation().with_encoder_output(numbers(&[2, 4, MEMORY], 2), mask)
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
fn key_masks_are_not_mistaken_for_additive_masks() {
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
fn values_next_to_one_are_no_mask() {
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
    for config in [small::decoder(), kinds::latent()] {
        let words = ["position_ids", "[3, 5]", "[2, 5] or [1, 5]"];
        both_say(&words, &config, &context);
    }
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
        let config = RelativeBiasConfig::new(n_buckets, max_distance, 2);
        let zeros = VarBuilder::zeros(DType::F32, &Device::Cpu);
        RelativeBias::new(&config, visibility, zeros)
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
    says(&["5 queries, expected at most 3"], || least.bias(5, 3));
}

#[test]
fn a_clamp_without_a_gate_is_refused() {
    let clamp = GateClamp::new(7.0, 1.0);
    let plain = FeedForwardConfig::new(4).with_clamp(Some(clamp));
    says(&["no gate to clamp"], || {
        FeedForward::new(&plain, VarBuilder::zeros(DType::F32, &Device::Cpu))
    });
}

#[test]
fn a_norm_per_head_is_the_norm_of_all_heads_if_they_share_their_parameters() {
    for weight in [NormWeight::Plain, NormWeight::OnePlus, NormWeight::Absent] {
        for bias in [false, true] {
            let config = NormConfig::layer_norm(3, 1e-5)
                .with_bias(bias)
                .with_weight(weight);
            let plain = AttentionConfig::new(12, 4).unwrap().with_kv_heads(2);
            let value = |i, _, dims: &[usize]| numbers(dims, i);
            let (_, parameters) = made_of(DType::F32, |vb| Attention::new(&plain, vb), value);
            let with = |span, [queries, keys]: [&[&str]; 2]| {
                let parameters = parameters.iter();
                let mut tensors: HashMap<String, Tensor> = parameters
                    .map(|(name, parameter)| (name.clone(), parameter.as_detached_tensor()))
                    .collect();
                for (of, heads, seed) in [("query_norm", queries, 5), ("key_norm", keys, 8)] {
                    for head in heads {
                        for (part, seed) in [("weight", seed), ("bias", seed + 1)] {
                            tensors.insert(format!("{of}{head}.{part}"), numbers(&[3], seed));
                        }
                    }
                }
                let norms = QueryKeyNorm::new(config, span);
                let config = plain.clone().with_query_key_norm(Some(norms));
                let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
                Attention::new(&config, vb).unwrap()
            };
            let shared = with(QueryKeyNormSpan::Head, [&[""], &[""]]);
            let heads = [&[".0", ".1", ".2", ".3"][..], &[".0", ".1"]];
            let each = with(QueryKeyNormSpan::EachHead, heads);
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
fn experts_that_cannot_be_chosen_or_do_not_fit_their_router_are_refused() {
    let config = |top_k| {
        let shared = SharedExpertConfig::new(4, true);
        let experts = ExpertsConfig::new(3, RoutingConfig::renormalized(top_k));
        let experts = experts.with_shared(Some(shared)).with_correction(true);
        let plain = FeedForwardConfig::new(6).with_d_ff(5);
        plain.with_experts(Some(experts))
    };
    for top_k in [4, 0] {
        let zeros = VarBuilder::zeros(DType::F32, &Device::Cpu);
        says(&[&format!("uses {top_k} of 3")], || {
            MixtureOfExperts::new(&config(top_k), zeros)
        });
    }
    let value = |i, _, dims: &[usize]| numbers(dims, i);
    let (mixture, parameters) = made_of(
        DType::F32,
        |vb| MixtureOfExperts::new(&config(2), vb),
        value,
    );
    for (name, parameter) in &parameters {
        let mut tensors: HashMap<String, Tensor> = parameters
            .iter()
            .map(|(name, parameter)| (name.clone(), parameter.as_detached_tensor()))
            .collect();
        let mut dims = parameter.dims().to_vec();
        dims[0] += 1;
        tensors.insert(name.clone(), numbers(&dims, 1));
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        says(&[name, "shape"], || MixtureOfExperts::new(&config(2), vb));
    }
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
    says(&["one fused projection", "bias"], || {
        Attention::new(&config, tensors(&fused))
    });
}

/// bfloat16 would round the router's first two rows to the same values.
#[test]
fn a_packed_router_tells_experts_apart_that_a_narrow_type_would_not() {
    let tensor = |values: &[f32], shape: [usize; 2]| {
        Tensor::from_slice(values, &shape, &Device::Cpu).unwrap()
    };
    let mut tensors = HashMap::from([(
        "router.weight".to_string(),
        tensor(&[1.0, 0.0, 1.001, 0.0, -1.0, 0.0], [3, 2]),
    )]);
    for (e, sign) in [1.0, -1.0, 8.0].into_iter().enumerate() {
        let (up, down) = (tensor(&[1.0, 0.0], [1, 2]), tensor(&[sign, sign], [2, 1]));
        tensors.insert(format!("experts.{e}.up.weight"), up);
        tensors.insert(format!("experts.{e}.down.weight"), down);
    }
    let experts = ExpertsConfig::new(3, RoutingConfig::renormalized(1));
    let config = FeedForwardConfig::new(2)
        .with_d_ff(1)
        .with_activation(Activation::Relu)
        .with_bias(false)
        .with_experts(Some(experts));
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let mixture = MixtureOfExperts::new(&config, vb).unwrap();
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
