//! Keys in a GGUF file: each is read, changes nothing, or is refused by its name. `weights/sweep/gguf_keys.py` compares all
//! of them with llama.cpp.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::config::{Position, RotaryScaling, Visibility};
use candle_blocks::{Checkpoint, Result, Weights};

use crate::gguf_file::{GgufFile, flag, number, text, whole, wholes, with_keys, without_key};
use crate::weights::{is_present, weights};

/// Returns an architecture's committed file.
fn bytes(name: &str) -> Vec<u8> {
    let folders = ["gguf", "gguf-architectures"];
    let mut paths = folders
        .map(|folder| weights(&format!("{folder}/{name}/model.gguf")))
        .into_iter();
    fs::read(paths.find(|path| path.exists()).unwrap()).unwrap()
}

/// Opens an architecture's committed file with additional or replaced keys.
fn opened(name: &str, keys: &[(&str, Vec<u8>)]) -> Result<Checkpoint> {
    of_bytes(with_keys(bytes(name), keys))
}

fn of_bytes(bytes: Vec<u8>) -> Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    Checkpoint::open(path)
}

#[track_caller]
fn scaling(name: &str, keys: &[(&str, Vec<u8>)]) -> RotaryScaling {
    let checkpoint = opened(name, keys).unwrap();
    match &checkpoint.config().blocks[0].attention().unwrap().position {
        Position::Rotary(rotary) => rotary.scaling.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_that_change_results_are_read_or_refused_by_name() {
    if !is_present("gguf") {
        return;
    }
    let refused = [
        ("qwen2", "qwen2.logit_scale", number(0.5)),
        ("qwen2", "qwen2.residual_scale", number(0.5)),
        ("qwen2", "qwen2.attention.scale", number(0.5)),
        ("llama", "llama.attention.clamp_kqv", number(0.5)),
        ("llama", "llama.attention.sliding_window", whole(4)),
        ("llama", "llama.rope.dimension_count", whole(4)),
        ("qwen3", "qwen3.final_logit_softcapping", number(30.0)),
        ("qwen3", "qwen3.attention.value_length", whole(4)),
        ("qwen3moe", "qwen3moe.expert_weights_norm", flag(false)),
        ("mixtral", "llama.expert_gating_func", whole(2)),
        ("gemma2", "gemma2.rope.freq_base_swa", number(5.0)),
        ("gemma3", "gemma3.attention.causal", flag(false)),
        ("bert", "bert.attention.causal", flag(true)),
        ("lfm2", "lfm2.attention.causal", flag(false)),
        ("llama", "llama.something_new", whole(1)),
        // The configuration that a file stands for has other names.
        ("llama", "llama.rope.freq_base", number(0.0)),
        ("qwen3", "qwen3.rope.freq_base", number(-1.0)),
        ("gemma3", "gemma3.rope.freq_base_swa", number(0.0)),
        ("qwen2", "qwen2.rope.scaling.type", text("other")),
        ("gemma2", "gemma2.attention.head_count_kv", wholes(&[2, 4])),
        ("gemma2", "gemma2.feed_forward_length", wholes(&[64, 32])),
        ("llama", "llama.feed_forward_length", whole(0)),
        ("qwen3moe", "qwen3moe.expert_feed_forward_length", whole(0)),
    ];
    for (file, key, value) in refused {
        let said = opened(file, &[(key, value)]).unwrap_err().to_string();
        assert!(said.contains(&format!("{key:?}")), "{key}: {said}");
    }
    let neutral = [
        ("qwen2", "qwen2.logit_scale", number(1.0)),
        ("qwen2", "qwen2.attention.causal", flag(true)),
        ("qwen3", "qwen3.attention.scale", number(0.25)),
        ("qwen3", "qwen3.rope.scaling.attn_factor", number(1.0)),
        ("llama", "llama.rope.scaling.finetuned", flag(true)),
        ("gemma2", "gemma2.attention.head_count_kv", wholes(&[2, 2])),
        ("gemma2", "gemma2.feed_forward_length", wholes(&[64, 64])),
        ("bert", "bert.pooling_type", whole(1)),
        // A model without experts, as some converters say it.
        ("llama", "llama.expert_count", whole(0)),
        ("llama", "llama.expert_used_count", whole(0)),
        ("llama", "mradermacher.quantized_by", text("someone")),
    ];
    for (file, key, value) in neutral {
        let plain = opened(file, &[]).unwrap();
        let changed = opened(file, &[(key, value)]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(changed.config(), plain.config(), "{key}");
    }
}

/// Returns keys for YaRN, with a factor and an original length.
fn yarn(architecture: &str, factor: f32, original: u32) -> [(String, Vec<u8>); 3] {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    [
        (key("type"), text("yarn")),
        (key("factor"), number(factor)),
        (key("original_context_length"), whole(original)),
    ]
}

#[test]
fn keys_that_llama_cpp_reads_in_other_ways_are_refused() {
    if !is_present("gguf") || !is_present("gguf-architectures") {
        return;
    }
    let refused = [
        // A factor on scores, which latent attention squares.
        ("deepseek2", "rope.scaling.attn_factor", number(3.0)),
        ("deepseek2", "rope.scaling.yarn_log_multiplier", number(0.0)),
        ("deepseek2", "rope.scaling.type", text("none")),
        ("mistral3", "rope.scaling.attn_factor", number(3.0)),
        ("mistral3", "rope.scaling.yarn_beta_slow", number(0.0)),
        ("gpt-oss", "attention.sliding_window", whole(0)),
        // Layers with a window would see all that follows.
        ("gpt-oss", "attention.causal", flag(false)),
        ("olmo3", "attention.causal", flag(false)),
        // A window to both sides, of which half is to each.
        ("modern-bert", "attention.sliding_window", whole(1)),
        // Layers with a window are scaled, though the type is none.
        ("llama4", "rope.scaling.type", text("none")),
    ];
    for (file, key, value) in refused {
        let architecture = if file == "olmo3" { "olmo2" } else { file };
        let key = format!("{architecture}.{key}");
        let factor = format!("{architecture}.rope.scaling.factor");
        let mut keys = vec![(&key[..], value)];
        if file == "llama4" {
            keys.push((&factor, number(4.0)));
        }
        let said = opened(file, &keys).unwrap_err().to_string();
        assert!(said.contains(&format!("{key:?}")), "{key}: {said}");
    }
    for (factor, original, key) in [(0.5, 16, "factor"), (4.0, 1, "original_context_length")] {
        let keys = yarn("qwen2", factor, original);
        let mut keys: Vec<(&str, Vec<u8>)> = keys
            .iter()
            .map(|(key, value)| (&key[..], value.clone()))
            .collect();
        keys.push(("qwen2.rope.freq_base", number(100.0)));
        let said = opened("qwen2", &keys).unwrap_err().to_string();
        assert!(
            said.contains(&format!("\"qwen2.rope.scaling.{key}\"")),
            "{said}"
        );
    }
}

#[test]
fn a_missing_key_has_the_default_of_llama_cpp() {
    if !is_present("gguf-architectures") {
        return;
    }
    let without = |name: &str, key: &str| of_bytes(without_key(bytes(name), key));
    let said = without("mpt", "mpt.attention.max_alibi_bias")
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("\"mpt.attention.max_alibi_bias\": missing, expected 8.0"),
        "{said}"
    );
    let said = without("deepseek2", "deepseek2.expert_gating_func")
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("\"deepseek2.expert_gating_func\": missing, expected 2"),
        "{said}"
    );
    for (name, key, value) in [
        ("deepseek2", "deepseek2.expert_weights_norm", flag(false)),
        ("glm4moe", "glm4moe.expert_weights_norm", flag(false)),
        ("modern-bert", "modern-bert.rope.freq_base", number(10000.0)),
        // Whole heads are turned.
        ("glm4", "glm4.rope.dimension_count", whole(8)),
        ("nemotron", "nemotron.rope.dimension_count", whole(6)),
    ] {
        let plain = opened(name, &[]).unwrap();
        let said = opened(name, &[(key, value)]).unwrap();
        let missing = without(name, key).unwrap();
        assert_eq!(missing.config(), said.config(), "{key}");
        assert_ne!(missing.config(), plain.config(), "{key}");
    }
}

#[test]
fn a_zero_is_for_the_usual_value() {
    if !is_present("gguf-architectures") {
        return;
    }
    for (name, key, zero, usual) in [
        (
            "granitemoe-shared",
            "granitemoe.residual_scale",
            number(0.0),
            number(1.0),
        ),
        (
            "granitemoe-shared",
            "granitemoe.embedding_scale",
            number(0.0),
            number(1.0),
        ),
        (
            "minicpm",
            "minicpm.embedding_scale",
            number(0.0),
            number(1.0),
        ),
        (
            "deepseek2",
            "deepseek2.expert_weights_scale",
            number(0.0),
            number(1.0),
        ),
        ("apertus", "apertus.context_length", whole(0), whole(1)),
    ] {
        let [zero, usual] = [zero, usual].map(|value| opened(name, &[(key, value)]).unwrap());
        let [zero, usual] = [zero, usual].map(|checkpoint| {
            let whole = checkpoint.model_config().unwrap();
            format!("{:?} {whole:?}", checkpoint.config())
        });
        assert_eq!(zero, usual, "{key}");
    }
}

#[test]
fn a_factor_on_the_rotation_needs_no_other_key() {
    if !is_present("gguf-architectures") {
        return;
    }
    let key = "falcon.rope.scaling.attn_factor";
    let found = opened("falcon-40b", &[(key, number(1.5))]).unwrap();
    assert!(format!("{:?}", found.config()).contains("attention_factor: 1.5"));
    // A part of each head turns.
    let found = scaling("glm4", &[("glm4.rope.scaling.factor", number(4.0))]);
    assert_eq!(found, RotaryScaling::Linear { factor: 4.0 });
}

#[test]
fn tensors_that_do_not_fit_name_the_keys_that_they_depend_on() {
    if !is_present("gguf") || !is_present("gguf-architectures") {
        return;
    }
    for (name, key, value) in [
        ("llama", "llama.feed_forward_length", 3),
        ("llama", "llama.attention.head_count_kv", 1),
        ("gemma2", "gemma2.block_count", 1),
        ("qwen2", "qwen2.block_count", 9),
        ("qwen3moe", "qwen3moe.expert_count", 2),
        ("qwen3moe", "qwen3moe.expert_feed_forward_length", 3),
        ("deepseek2", "deepseek2.attention.kv_lora_rank", 3),
        ("ernie4_5-moe", "ernie4_5-moe.expert_shared_count", 3),
        ("ernie4_5-moe", "ernie4_5-moe.interleave_moe_layer_step", 3),
        ("qwen35", "qwen35.ssm.time_step_rank", 4),
        ("qwen35moe", "qwen35moe.ssm.group_count", 1),
        ("qwen3next", "qwen3next.ssm.conv_kernel", 3),
        ("granitehybrid", "granitehybrid.ssm.state_size", 3),
        ("bamba", "granitehybrid.ssm.inner_size", 96),
    ] {
        let loaded = opened(name, &[(key, whole(value))]).and_then(|checkpoint| {
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()
        });
        let said = loaded.unwrap_err().to_string();
        assert!(said.contains(&format!("{key:?} {value}")), "{key}: {said}");
    }
}

#[test]
fn a_block_that_predicts_no_further_token_is_not_left_out() {
    if !is_present("gguf-architectures") {
        return;
    }
    for (name, n_blocks) in [("glm4moe", 2), ("qwen35", 2)] {
        let key = format!("{name}.nextn_predict_layers");
        let said = opened(name, &[(&key, whole(n_blocks))]).unwrap_err();
        let said = said.to_string();
        for part in [&key, "nextn.eh_proj.weight", "model.gguf"] {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn keys_that_contradict_others_name_both() {
    if !is_present("gguf-architectures") {
        return;
    }
    for (name, key, value, other) in [
        (
            "deepseek2",
            "deepseek2.rope.scaling.yarn_log_multiplier",
            number(0.0),
            "deepseek2.rope.scaling.type",
        ),
        (
            "mistral3",
            "mistral3.rope.scaling.yarn_beta_slow",
            number(9.0),
            "mistral3.rope.scaling.original_context_length",
        ),
    ] {
        let said = opened(name, &[(key, value)]).unwrap_err().to_string();
        let is_named = [key, other].map(|key| said.contains(&format!("{key:?}")));
        assert_eq!(is_named, [true; 2], "{said}");
    }
}

#[test]
fn a_pattern_of_windows_counts_every_number_but_zero() {
    if !is_present("gguf") {
        return;
    }
    let windows = |value: Vec<u8>| {
        let keys = [("gemma2.attention.sliding_window_pattern", value)];
        let checkpoint = opened("gemma2", &keys).unwrap();
        let config = checkpoint.config();
        let has = |layer: &usize| config.blocks[*layer].attention().unwrap().window.is_some();
        config.layers.iter().map(has).collect::<Vec<_>>()
    };
    assert_eq!(windows(wholes(&[4, 4])), [true, true]);
    assert_eq!(windows(wholes(&[0, 2])), [false, true]);
    assert_eq!(windows(whole(2)), [true, false]);
}

/// Returns each layer's window, and whether it turns, in a file without tensors.
#[track_caller]
fn layers(
    architecture: &str,
    n_blocks: u32,
    keys: &[(&str, Vec<u8>)],
) -> (Vec<Option<usize>>, Vec<bool>) {
    let sizes = [
        ("block_count", n_blocks),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
        ("vocab_size", 7),
    ];
    let sizes = sizes.map(|(key, size)| (key, whole(size)));
    let epsilon = ("attention.layer_norm_rms_epsilon", number(1e-5));
    let all = sizes.iter().chain([&epsilon]).chain(keys);
    let file = all.fold(GgufFile::new(architecture), |file, (key, value)| {
        file.key(&format!("{architecture}.{key}"), value.clone())
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let checkpoint = Checkpoint::open(path).unwrap();
    let blocks = checkpoint.config().blocks.iter().map(|block| {
        let attention = block.attention().unwrap();
        (attention.window, attention.position != Position::None)
    });
    blocks.unzip()
}

/// A window does not say that a layer turns, as in llama.cpp.
#[test]
fn every_fourth_layer_of_afmoe_has_no_rotation() {
    let experts = [
        ("expert_count", whole(2)),
        ("expert_used_count", whole(1)),
        ("expert_feed_forward_length", whole(6)),
        ("expert_shared_count", whole(1)),
        ("expert_weights_norm", flag(true)),
    ];
    let size = ("attention.sliding_window", whole(3));
    let pattern = ("attention.sliding_window_pattern", whole(2));
    let [has, no] = [Some(3), None];
    for (keys, windows) in [
        (vec![], [no; 5]),
        (vec![size.clone()], [has, has, has, no, has]),
        (vec![size, pattern], [has, no, has, no, has]),
    ] {
        let found = layers("afmoe", 5, &[&experts[..], &keys].concat());
        let rotates = [true, true, true, false, true];
        assert_eq!(found, (windows.to_vec(), rotates.to_vec()));
    }
}

#[test]
fn exaone4_has_windows_without_their_size_if_it_has_64_layers() {
    let (windows, rotates) = layers("exaone4", 64, &[]);
    assert_eq!(windows[..4], [Some(4096), Some(4096), Some(4096), None]);
    assert_eq!(rotates[..4], [true, true, true, false]);
    let no_window = layers("exaone4", 4, &[]);
    assert_eq!(no_window, (vec![None; 4], vec![true; 4]));
}

#[test]
fn a_rotation_is_scaled_as_its_keys_say() {
    if !is_present("gguf") {
        return;
    }
    let yarn = |key: &'static str, value: f32| {
        let keys = [
            ("qwen2.rope.scaling.type", text("yarn")),
            ("qwen2.rope.scaling.factor", number(4.0)),
            ("qwen2.rope.scaling.original_context_length", whole(16)),
            (key, number(value)),
        ];
        let RotaryScaling::Yarn {
            attention_factor,
            beta_fast,
            ..
        } = scaling("qwen2", &keys)
        else {
            panic!("no yarn");
        };
        (attention_factor, beta_fast)
    };
    let inferred = 0.1 * 4f64.ln() + 1.0;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(close(
        yarn("qwen2.rope.scaling.attn_factor", 1.5).0,
        1.5 * inferred
    ));
    assert!(close(
        yarn("qwen2.rope.scaling.yarn_attn_factor", 1.5).0,
        1.5
    ));
    assert!(close(yarn("qwen2.rope.scaling.yarn_beta_fast", 8.0).1, 8.0));
    for key in ["qwen2.rope.scaling.factor", "qwen2.rope.scale_linear"] {
        let found = scaling("qwen2", &[(key, number(4.0))]);
        assert_eq!(found, RotaryScaling::Linear { factor: 4.0 }, "{key}");
    }
    let RotaryScaling::LongRope {
        attention_factor,
        short_factor,
        ..
    } = scaling("qwen2", &[("qwen2.rope.scaling.attn_factor", number(1.5))])
    else {
        panic!("no factors");
    };
    assert!(close(attention_factor, 1.5) && short_factor.iter().all(|&factor| factor == 1.0));
}

#[test]
fn bidirectional_attention_sees_both_sides() {
    if !is_present("gguf") {
        return;
    }
    let found = opened("llama", &[("llama.attention.causal", flag(false))]).unwrap();
    let blocks = &found.config().blocks;
    assert!(
        blocks
            .iter()
            .all(|block| block.attention().unwrap().visibility == Visibility::Bidirectional)
    );
}

#[test]
fn a_file_that_is_no_model_is_called_what_it_is() {
    if !is_present("gguf") {
        return;
    }
    for (key, value, what) in [
        ("general.type", "adapter", "an adapter"),
        ("general.type", "mmproj", "image or audio"),
        ("adapter.type", "lora", "an adapter"),
    ] {
        let said = opened("llama", &[(key, text(value))])
            .unwrap_err()
            .to_string();
        assert!(
            said.contains(what) && said.contains("not a model"),
            "{said}"
        );
    }
}
