//! A configuration that gives no finite result, or takes all memory, is refused by the setting that is wrong.

use candle_blocks::{
    Architecture, AttentionConfig, BlockConfig, Checkpoint, Error, ExpertsConfig,
    FeedForwardConfig, FeedForwardForm, NormConfig, NormPlacement, Position, RotaryConfig,
    StackConfig, Topology, Visibility,
    config::{
        AlibiConfig, AlibiRounding, AlibiSlopes, DisentangledConfig, ExpertGroups, GateClamp,
        LatentConfig, OwnConfig, ParallelNorm, PositionTemperature, QueryKeyNorm, QueryKeyNormSpan,
        RelativeBiasConfig, RelativeEmbeddingsConfig, RotaryScaling, RoutingConfig,
        SharedExpertConfig, TemperatureBy,
    },
};

use serde_json::json;

use crate::{
    hostile::{Folder, valid},
    said::assert_says,
};

fn block() -> BlockConfig {
    let attention = AttentionConfig::new(16, 2).unwrap();
    let norm = NormConfig::layer_norm(16, 1e-5);
    BlockConfig::new(
        attention,
        FeedForwardConfig::new(16),
        norm,
        NormPlacement::Pre,
    )
}

#[track_caller]
fn refused(change: impl FnOnce(&mut BlockConfig), words: &[&str]) {
    let mut block = block();
    change(&mut block);
    let error = block.validate().unwrap_err();
    assert!(matches!(error, Error::InvalidConfig(_)), "{error:?}");
    assert_says(&error, words);
}

#[test]
fn factors_that_give_nan_are_refused() {
    block().validate().unwrap();
    for bad in [f64::NAN, f64::INFINITY] {
        refused(
            |b| b.attention_mut().unwrap().scale = bad,
            &["the factor on the scores"],
        );
        refused(|b| b.residual.multiplier = bad, &["residual multiplier"]);
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(
            |b| b.attention_mut().unwrap().soft_cap = Some(bad),
            &["the soft cap"],
        );
    }
    let temperature = |beta, interval| {
        Some(PositionTemperature::new(
            beta,
            interval,
            0,
            TemperatureBy::Position,
        ))
    };
    for bad in [temperature(f64::NAN, 4), temperature(0.1, 0)] {
        refused(
            |b| b.attention_mut().unwrap().temperature = bad,
            &["temperature by position"],
        );
    }
    let odd = |block: &mut BlockConfig| {
        block.attention_mut().unwrap().head_dim = 3;
        block.attention_mut().unwrap().temperature = temperature(0.1, 4);
    };
    refused(odd, &["temperature by position", "even width, found 3"]);
    let alibi =
        |slopes, scale| Position::Alibi(AlibiConfig::new(slopes, scale, AlibiRounding::None));
    let bad = alibi(AlibiSlopes::Appended, f64::NAN);
    refused(
        |b| b.attention_mut().unwrap().position = bad,
        &["ALiBi bias"],
    );
    let bad = alibi(
        AlibiSlopes::Interleaved {
            max: f64::NEG_INFINITY,
        },
        1.0,
    );
    refused(
        |b| b.attention_mut().unwrap().position = bad,
        &["ALiBi slope"],
    );
    let norm = QueryKeyNorm::new(NormConfig::layer_norm(16, -1.0), QueryKeyNormSpan::Head);
    refused(
        |b| b.attention_mut().unwrap().query_key_norm = Some(norm),
        &["eps is -1"],
    );
    let norm = Some(NormConfig::rms_norm(16, f64::NAN));
    refused(
        |b| b.attention_mut().unwrap().sub_norm = norm,
        &["eps is NaN"],
    );
    refused(|b| b.feed_forward.sub_norm = norm, &["eps is NaN"]);
    let own = OwnConfig::MuseGlimmer {
        output_norm_eps: -1.0,
    };
    refused(|b| b.own = own, &["eps is -1"]);
}

#[test]
fn a_familys_own_part_in_a_block_without_its_place_is_refused() {
    let own = OwnConfig::Falcon {
        parallel_dropout: 0.1,
    };
    refused(|b| b.own = own, &["parallel_dropout", "Topology::Parallel"]);
    let own = OwnConfig::JinaCode;
    refused(
        |b| b.own = own,
        &["JinaCode", "attention_placement", "Post"],
    );
}

#[test]
fn a_norm_before_the_down_projection_of_experts_is_refused() {
    let with_both = |b: &mut BlockConfig| {
        b.feed_forward.sub_norm = Some(b.norm);
        let experts = ExpertsConfig::new(2, RoutingConfig::new(1));
        b.feed_forward.experts = Some(experts);
    };
    refused(with_both, &["sub_norm", "experts"]);
}

#[test]
fn a_norm_after_the_residual_of_a_parallel_block_is_refused() {
    refused(
        |b| {
            b.topology = Topology::Parallel(ParallelNorm::Separate);
            b.feed_forward_placement = NormPlacement::Post;
        },
        &["parallel", "[Pre, Post]"],
    );
}

#[test]
fn cross_attention_in_a_parallel_block_is_refused() {
    refused(
        |b| {
            b.topology = Topology::Parallel(ParallelNorm::Shared);
            b.cross_attention = Some(b.attention().unwrap().clone());
        },
        &["parallel", "cross-attention", "Topology::Sequential"],
    );
}

#[test]
fn key_value_heads_that_do_not_divide_the_query_heads_are_refused() {
    refused(
        |b| {
            (
                b.attention_mut().unwrap().n_heads,
                b.attention_mut().unwrap().n_kv_heads,
                b.attention_mut().unwrap().head_dim,
            ) = (6, 4, 2)
        },
        &["4 key/value heads", "6 query heads"],
    );
}

#[test]
fn latents_that_are_not_of_their_attention_are_refused() {
    let latent = |b: &mut BlockConfig| {
        b.attention_mut().unwrap().latent = Some(LatentConfig::new(None, 5, 2, 3, b.norm));
    };
    let with = |change: fn(&mut BlockConfig)| {
        move |b: &mut BlockConfig| {
            latent(b);
            change(b);
        }
    };
    let set = |change: fn(&mut LatentConfig)| {
        move |b: &mut BlockConfig| {
            latent(b);
            b.attention_mut()
                .unwrap()
                .latent
                .iter_mut()
                .for_each(change);
        }
    };
    refused(set(|l| l.rank = 0), &["rank of keys and values is 0"]);
    refused(set(|l| l.query_rank = Some(0)), &["rank of queries is 0"]);
    refused(set(|l| l.value_dim = 0), &["width of a value is 0"]);
    refused(set(|l| l.value_dim = 1 << 30), &["all values", "at most"]);
    refused(
        set(|l| l.rotary_dim = 400),
        &["rotates 400", "expected fewer"],
    );
    refused(
        with(|b| b.attention_mut().unwrap().n_kv_heads = 1),
        &["1 key/value heads"],
    );
    refused(
        with(|b| b.attention_mut().unwrap().clip = Some(1.0)),
        &["norm or clip"],
    );
    let rotary = |dim| Position::Rotary(RotaryConfig::new(dim, 100.0));
    refused(
        move |b| {
            latent(b);
            b.attention_mut().unwrap().position = rotary(4);
        },
        &["rotates 2 dimensions or none", "dim: 4"],
    );
}

#[test]
fn sizes_whose_products_overflow_are_refused() {
    let huge = usize::MAX / 2;
    refused(
        |b| b.attention_mut().unwrap().d_encoder = 0,
        &["d_encoder is 0"],
    );
    refused(|b| b.feed_forward.d_ff = huge, &["d_ff", "at most"]);
    refused(
        |b| b.attention_mut().unwrap().head_dim = huge,
        &["head_dim", "at most"],
    );
    let wide = |b: &mut BlockConfig| {
        (
            b.attention_mut().unwrap().head_dim,
            b.attention_mut().unwrap().n_heads,
        ) = (1 << 20, 1 << 20);
    };
    refused(wide, &["all heads together", "at most"]);
    let experts = |n_experts, shared: Option<usize>| {
        let shared = shared.map(|d_ff| SharedExpertConfig::new(d_ff, true));
        ExpertsConfig::new(n_experts, RoutingConfig::new(1)).with_shared(shared)
    };
    refused(
        |b| b.feed_forward.experts = Some(experts(huge, None)),
        &["n_experts", "at most"],
    );
    refused(
        |b| b.feed_forward.experts = Some(experts(2, Some(0))),
        &["shared expert's d_ff is 0"],
    );
}

#[test]
fn sinks_beside_linear_biases_are_refused() {
    let alibi = Position::Alibi(AlibiConfig::new(
        AlibiSlopes::Appended,
        1.0,
        AlibiRounding::None,
    ));
    refused(
        |b| {
            (
                b.attention_mut().unwrap().position,
                b.attention_mut().unwrap().sinks,
            ) = (alibi, true)
        },
        &["sink with linear biases"],
    );
}

#[test]
fn bounds_that_nothing_can_meet_are_refused() {
    let of = |form, limit, offset| {
        move |b: &mut BlockConfig| {
            b.feed_forward.form = form;
            b.feed_forward.clamp = Some(GateClamp::new(limit, offset));
        }
    };
    let gated = FeedForwardForm::Gated;
    refused(of(FeedForwardForm::Plain, 7.0, 1.0), &["no gate to clamp"]);
    refused(of(gated, 0.0, 1.0), &["bound of gate and up is 0"]);
    refused(of(gated, 7.0, f64::NAN), &["offset of up is NaN"]);
}

#[test]
fn groups_of_experts_that_cannot_be_chosen_from_are_refused() {
    let of = |n_groups, top_groups, judged_by| {
        move |b: &mut BlockConfig| {
            let groups = ExpertGroups::new(n_groups, top_groups, judged_by);
            let mut routing = RoutingConfig::new(3);
            routing.groups = Some(groups);
            b.feed_forward.experts = Some(ExpertsConfig::new(8, routing));
        }
    };
    refused(of(3, 1, 1), &["8 experts", "3 groups of equal size"]);
    refused(of(0, 1, 1), &["0 groups"]);
    refused(of(4, 1, 1), &["uses 3 experts of 1 groups of 4"]);
    refused(of(2, 3, 1), &["of 3 groups of 2"]);
    refused(of(2, 1, 5), &["groups of 4", "ranked by 5"]);
}

#[test]
fn rotary_settings_that_divide_by_zero_or_leave_pairs_out_are_refused() {
    let rotary = |theta, scaling| {
        let rotary = RotaryConfig::new(8, theta).with_scaling(scaling);
        move |b: &mut BlockConfig| b.attention_mut().unwrap().position = Position::Rotary(rotary)
    };
    for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(rotary(theta, RotaryScaling::None), &["rope_theta"]);
    }
    for factor in [0.0, -2.0, f64::NAN] {
        refused(rotary(1e4, RotaryScaling::Linear { factor }), &["factor"]);
    }
    let dynamic = |max_positions| RotaryScaling::DynamicNtk {
        factor: 2.0,
        max_positions,
    };
    refused(rotary(1e4, dynamic(0)), &["max_positions is 0"]);
    let two = RotaryConfig::new(2, 1e4).with_scaling(dynamic(8));
    refused(
        |b| b.attention_mut().unwrap().position = Position::Rotary(two),
        &["more than 2"],
    );
    let yarn = |beta_fast, original_positions| RotaryScaling::Yarn {
        factor: 2.0,
        attention_factor: 1.0,
        beta_fast,
        beta_slow: 1.0,
        original_positions,
        truncate: true,
    };
    refused(rotary(1e4, yarn(0.0, 8)), &["beta_fast"]);
    refused(rotary(1e4, yarn(32.0, 0)), &["original_positions is 0"]);
    refused(rotary(1.0, yarn(32.0, 8)), &["rope_theta, which is 1"]);
    let llama3 = |low_freq_factor| RotaryScaling::Llama3 {
        factor: 2.0,
        low_freq_factor,
        high_freq_factor: 4.0,
        original_positions: 8,
    };
    refused(rotary(1e4, llama3(0.0)), &["low_freq_factor is 0"]);
    refused(
        rotary(1e4, llama3(4.0)),
        &["high_freq_factor is 4", "above"],
    );
    let long = |short: usize, factor, attention_factor| RotaryScaling::LongRope {
        short_factor: vec![1.0; short],
        long_factor: vec![factor; 4],
        attention_factor,
        long_attention_factor: None,
        original_positions: 8,
    };
    // Fewer divisors than pairs would turn the first pairs only.
    refused(
        rotary(1e4, long(3, 1.0, 1.0)),
        &["short_factor", "3 divisors", "expected 4"],
    );
    refused(rotary(1e4, long(4, 0.0, 1.0)), &["long_factor"]);
    refused(rotary(1e4, long(4, 1.0, f64::NAN)), &["attention_factor"]);
}

#[test]
fn a_relative_bias_needs_near_and_far_buckets_and_a_column_per_head() {
    let validate = |n_buckets, max_distance, n_heads| {
        let bias = RelativeBiasConfig::new(n_buckets, max_distance, n_heads);
        let stack = StackConfig::uniform(block(), 1, None).with_relative_bias(bias);
        stack.validate()
    };
    validate(32, 128, 2).unwrap();
    for (n_buckets, max_distance) in [(0, 128), (1, 128), (3, 128), (32, 8), (32, 0)] {
        let error = validate(n_buckets, max_distance, 2).unwrap_err();
        assert_says(&error, &["buckets"]);
    }
    let error = validate(32, 128, 3).unwrap_err();
    assert_says(&error, &["relative bias has 3 heads", "attention 2"]);
}

#[test]
fn disentangled_attention_needs_a_table_of_twice_its_span_and_to_see_all_of_its_sequence() {
    let of = DisentangledConfig::new(4);
    let with = |of: DisentangledConfig| {
        let mut block = block();
        block.attention_mut().unwrap().position = Position::Disentangled(of);
        StackConfig::uniform(block, 1, None)
    };
    let table = |n_rows, width: Option<usize>| {
        let norm = width.map(|width| NormConfig::layer_norm(width, 1e-5));
        RelativeEmbeddingsConfig::new(n_rows, norm)
    };
    let says = |stack: StackConfig, words: &[&str]| {
        assert_says(stack.validate().unwrap_err(), words);
    };
    let fits = with(of).with_relative_embeddings(table(8, Some(16)));
    fits.validate().unwrap();
    says(with(of), &["with_relative_embeddings"]);
    says(
        with(of).with_relative_embeddings(table(7, None)),
        &["7 rows", "read 8"],
    );
    says(
        with(of).with_relative_embeddings(table(8, Some(15))),
        &["15", "16"],
    );
    let unread = StackConfig::uniform(block(), 1, None).with_relative_embeddings(table(8, None));
    says(unread, &["no block reads"]);

    let says = |of: DisentangledConfig, words: &[&str]| {
        refused(
            |block| block.attention_mut().unwrap().position = Position::Disentangled(of),
            words,
        );
    };
    says(DisentangledConfig::new(0), &["span", "0"]);
    for (span, max) in [(1, 8), (8, 5), (8, 0)] {
        let mut of = DisentangledConfig::new(span);
        of.max_distance = Some(max);
        says(of, &["distance"]);
    }
    let mut dropped = of;
    dropped.dropout = 1.0;
    says(dropped, &["dropout"]);
    let mut idle = of;
    (idle.content_to_position, idle.position_to_content) = (false, false);
    says(idle, &["Position::None"]);
    type Change = fn(&mut AttentionConfig);
    let changes: [Change; 4] = [
        |attention| attention.visibility = Visibility::Causal,
        |attention| attention.n_kv_heads = 1,
        |attention| attention.soft_cap = Some(5.0),
        |attention| attention.d_encoder = 9,
    ];
    let gated = Position::GatedBias(RelativeBiasConfig::new(8, 5, 2));
    for position in [Position::Disentangled(of), gated] {
        for change in changes {
            refused(
                |block| {
                    block.attention_mut().unwrap().position = position.clone();
                    change(block.attention_mut().unwrap());
                },
                &["bidirectional self-attention"],
            );
        }
        refused(
            |block| {
                let cross = block.attention().unwrap().clone();
                block.cross_attention = Some(cross.with_position(position.clone()));
            },
            &["cross-attention", "Disentangled"],
        );
    }
}

#[test]
fn a_gated_bias_needs_a_table_of_its_buckets_for_heads_that_divide_the_input() {
    let with = |bias, n_rows| {
        let mut block = block();
        block.attention_mut().unwrap().position = Position::GatedBias(bias);
        let table = RelativeEmbeddingsConfig::new(n_rows, None);
        StackConfig::uniform(block, 1, None).with_relative_embeddings(table)
    };
    let bias = RelativeBiasConfig::new(8, 5, 2);
    with(bias, 8).validate().unwrap();
    let says = |stack: StackConfig, words: &[&str]| {
        assert_says(stack.validate().unwrap_err(), words);
    };
    says(with(bias, 7), &["7 rows", "read 8"]);
    says(
        with(RelativeBiasConfig::new(8, 2, 2), 8),
        &["8 buckets", "distance 2"],
    );
    says(
        with(RelativeBiasConfig::new(8, 5, 3), 8),
        &["3 heads", "attention 2"],
    );
    let mut wide = with(bias, 8);
    wide.blocks[0].attention_mut().unwrap().head_dim = 5;
    says(wide, &["of width 16", "10 in all"]);
}

/// A few bytes may ask for a billion experts, heads or groups.
#[test]
fn a_config_json_of_a_billion_parts_is_refused_before_it_takes_memory() {
    let llama = r#""hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8,
        "num_hidden_layers": 2"#;
    let (million, billion) = (1 << 20, 1 << 30);
    for (config, words) in [
        (
            format!(
                r#"{{"model_type": "mixtral", {llama}, "num_local_experts": {million}, "num_experts_per_tok": 2}}"#
            ),
            ["parameters or more", "experts"],
        ),
        (
            format!(
                r#"{{"model_type": "stablelm", "hidden_size": {million}, "num_attention_heads": {million},
                "num_key_value_heads": {million}, "intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 1,
                "qk_layernorm": true, "partial_rotary_factor": 0}}"#
            ),
            ["parameters or more", "heads"],
        ),
        (
            format!(
                r#"{{"model_type": "albert", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
                "num_hidden_layers": 2, "num_hidden_groups": {billion}}}"#
            ),
            ["num_hidden_groups", "10000 blocks"],
        ),
        (
            r#"{"model_type": "albert", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
                "num_hidden_layers": 9999, "num_hidden_groups": 2, "inner_group_num": 9999}"#
                .to_string(),
            ["inner_group_num", "10000 in all"],
        ),
        (
            format!(
                r#"{{"model_type": "vit", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": {billion},
                "num_hidden_layers": 2}}"#
            ),
            ["feed_forward.up.weight", "1073741824, 8"],
        ),
        (
            format!(
                r#"{{"model_type": "gpt_oss", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
                "head_dim": 4, "intermediate_size": {billion}, "num_hidden_layers": 2, "num_local_experts": 4,
                "vocab_size": 8}}"#
            ),
            ["experts.0.gate.weight", "check the sizes"],
        ),
    ] {
        let folder = Folder::new();
        folder.write("model.safetensors", &valid());
        folder.write("config.json", config.as_bytes());
        let error = Checkpoint::open(folder.root()).unwrap_err();
        assert_says(&error, &words);
        assert_says(&error, &["config.json"]);
    }
}

#[test]
fn a_size_of_zero_is_refused_with_its_key() {
    let config = json!({"model_type": "mixtral", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "pad_token_id": 0});
    for key in [
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "num_local_experts",
        "num_experts_per_tok",
    ] {
        let folder = Folder::new();
        let mut config = config.clone();
        config[key] = json!(0);
        folder.write("config.json", config.to_string().as_bytes());
        let error = Architecture::open(folder.root()).unwrap_err();
        assert_says(&error, &["config.json", &format!("has 0 for {key}")]);
        assert!(!error.to_string().contains("pad_token_id"), "{error}");
    }
}

#[test]
fn a_number_of_tokens_that_cannot_be_is_refused_with_the_file() {
    let folder = Folder::new();
    let config = r#"{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 8, "num_hidden_layers": 2, "architectures": ["LlamaForCausalLM"], "vocab_size": 0}"#;
    folder.write("config.json", config.as_bytes());
    let architecture = Architecture::open(folder.root()).unwrap();
    let error = architecture.model_config().unwrap_err();
    assert_says(
        &error,
        &["no whole model", "config.json: the number of tokens is 0"],
    );
}

#[test]
fn a_name_of_megabytes_is_refused_at_once_and_not_repeated() {
    let folder = Folder::new();
    let long = "bert".repeat(1 << 20);
    let path = folder.write(
        "config.json",
        format!(r#"{{"model_type": "{long}"}}"#).as_bytes(),
    );
    let start = std::time::Instant::now();
    let error = Architecture::open(path).unwrap_err().to_string();
    assert_says(&error, &["model_type", "\"bertbert", "expected a string"]);
    assert!(error.len() < 1000, "{} bytes", error.len());
    // Comparing it with every known name would take minutes.
    assert!(start.elapsed().as_secs() < 10);
}
