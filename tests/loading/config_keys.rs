//! Keys in `config.json` that are absent, null, or request an unsupported feature, family by family.
//!
//! Absent keys have the defaults in transformers 5.24's configuration classes.

use std::{fs, path::PathBuf};

use candle_blocks::{
    Architecture, BlockConfig, Checkpoint, Position, Result, RotaryConfig, StackConfig, Visibility,
    config::{OutputWeight, RotaryScaling},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{
    committed::{self, Committed},
    weights::is_present,
};

/// Returns a family's first committed stack, and fails if there is none.
fn family(name: &str) -> Committed {
    let name = format!("families/{name}");
    let stack = committed::families().into_iter().find(|s| s.name == name);
    stack.unwrap_or_else(|| panic!("{name} is not committed"))
}

/// Writes a family's configuration after a change.
fn changed(stack: &Committed, change: impl FnOnce(&mut Map<String, Value>)) -> (TempDir, PathBuf) {
    let text = fs::read_to_string(stack.folder().join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    change(&mut config);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, Value::from(config).to_string()).unwrap();
    (folder, path)
}

/// Opens a family's committed checkpoint with its configuration changed.
pub fn open(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Checkpoint> {
    let stack = family(name);
    let (_folder, path) = changed(&stack, change);
    stack.options().config(path).open(stack.folder())
}

/// Returns the architecture in a committed configuration after a change.
fn described(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Architecture {
    let stack = family(name);
    let (_folder, path) = changed(&stack, change);
    stack.options().architecture(&path).unwrap()
}

/// Returns the configuration with `keys`; null removes a key.
pub fn config(name: &str, keys: &[(&str, Value)]) -> StackConfig {
    let opened = open(name, |config| {
        for (key, value) in keys {
            match value {
                Value::Null => drop(config.remove(*key)),
                value => drop(config.insert(key.to_string(), value.clone())),
            }
        }
    });
    let opened = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
    opened.config().clone()
}

fn windows(stack: &StackConfig) -> Vec<Option<usize>> {
    let blocks = stack.blocks.iter();
    blocks
        .map(|block| block.attention().unwrap().window)
        .collect()
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    if !is_present("families") {
        return;
    }
    let absent = |name: &str, keys: &[&str]| {
        let keys: Vec<(&str, Value)> = keys.iter().map(|&key| (key, Value::Null)).collect();
        config(name, &keys)
    };
    let mistral = absent("mistral", &["sliding_window"]);
    assert_eq!(mistral.blocks[0].attention().unwrap().window, Some(4096));
    let gemma2 = absent("gemma2", &["sliding_window", "attn_logit_softcapping"]);
    assert_eq!(gemma2.blocks[0].attention().unwrap().window, Some(4096));
    assert_eq!(gemma2.blocks[0].attention().unwrap().soft_cap, Some(50.0));
    for (name, eps) in [
        ("phi3", 1e-5),
        ("mixtral", 1e-5),
        ("olmo2", 1e-5),
        ("olmo3", 1e-5),
        ("olmoe", 1e-5),
        ("arcee", 1e-5),
        ("ernie4_5", 1e-5),
        ("exaone4", 1e-5),
        ("glm", 1.5625e-7),
        ("glm4", 1.5625e-7),
        ("helium", 1e-8),
        ("hunyuan_v1_dense", 1e-5),
        ("seed_oss", 1e-6),
    ] {
        let stack = absent(name, &["rms_norm_eps"]);
        assert_eq!(stack.blocks[0].norm.eps, eps, "{name}");
    }
    let keys = ["rope_theta", "rope_parameters", "rope_scaling"];
    for (name, theta) in [
        ("mixtral", 1e6),
        ("cohere", 5e5),
        ("cohere2", 1e4),
        ("llama", 1e4),
        ("smollm3", 2e6),
        ("helium", 1e5),
        ("ernie4_5", 5e5),
        ("olmo3", 5e5),
    ] {
        let stack = absent(name, &keys);
        assert_eq!(rotary(&stack).theta, theta, "{name}");
    }
}

#[test]
fn null_switches_a_sliding_window_off() {
    if !is_present("families") {
        return;
    }
    let opened = open("mistral", |config| {
        config.insert("sliding_window".to_string(), Value::Null);
    });
    assert_eq!(
        opened.unwrap().config().blocks[0]
            .attention()
            .unwrap()
            .window,
        None
    );
}

#[test]
fn qwens_windows_are_in_the_layers_that_each_model_means() {
    if !is_present("families") {
        return;
    }
    let keys = [
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(3)),
        ("max_window_layers", json!(1)),
        ("layer_types", Value::Null),
    ];
    for (name, is_sliding) in [
        ("qwen2", (|i| i >= 1) as fn(usize) -> bool),
        ("qwen3", |i| i >= 1),
        ("qwen2_moe", |i| i == 0),
        ("qwen3_moe", |_| true),
    ] {
        let stack = config(name, &keys);
        let expected = (0..stack.blocks.len()).map(|i| is_sliding(i).then_some(3));
        assert_eq!(windows(&stack), expected.collect::<Vec<_>>(), "{name}");
    }
}

fn rotary(stack: &StackConfig) -> &RotaryConfig {
    match &stack.blocks[0].attention().unwrap().position {
        Position::Rotary(rotary) => rotary,
        other => panic!("{other:?}"),
    }
}

/// `attribute_map` in the configuration classes.
#[test]
fn sizes_are_read_under_the_names_that_all_families_share() {
    if !is_present("families") {
        return;
    }
    let shared = ["hidden_size", "num_attention_heads", "num_hidden_layers"];
    for (name, own) in [
        ("distilbert", ["dim", "n_heads", "n_layers"]),
        ("mpt", ["d_model", "n_heads", "n_layers"]),
        ("gpt2-cross", ["n_embd", "n_head", "n_layer"]),
        (
            "bart",
            ["d_model", "encoder_attention_heads", "encoder_layers"],
        ),
        ("t5", ["d_model", "num_heads", "num_layers"]),
        ("gpt_neo", ["hidden_size", "num_heads", "num_layers"]),
        ("xglm", ["d_model", "attention_heads", "num_layers"]),
    ] {
        let renamed = open(name, |config| {
            for (own, shared) in own.iter().zip(shared) {
                let size = config.remove(*own).unwrap();
                config.insert(shared.to_string(), size);
            }
        });
        let (renamed, original) = (renamed, open(name, |_| ()));
        let renamed = renamed.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(renamed.config(), original.unwrap().config(), "{name}");
    }
    let experts = open("mixtral", |config| {
        let n_experts = config.remove("num_local_experts").unwrap();
        config.insert("num_experts".to_string(), n_experts);
    });
    assert!(
        experts.unwrap().config().blocks[0]
            .feed_forward
            .experts
            .is_some()
    );
}

#[test]
fn keys_that_transformers_does_not_apply_change_nothing() {
    if !is_present("families") {
        return;
    }
    for (name, key, value) in [
        ("nomic_bert", "partial_rotary_factor", json!(0.5)),
        ("mistral", "partial_rotary_factor", json!(0.5)),
        ("gemma3_text", "attn_logit_softcapping", json!(1.5)),
        ("mistral", "mlp_bias", json!(true)),
        ("granitemoe", "mlp_bias", json!(true)),
        ("deepseek_v3", "mlp_bias", json!(true)),
        ("roberta", "embedding_size", json!(5)),
        ("gpt_neox", "rope_theta", json!(70.0)),
        ("phi3", "rotary_pct", json!(0.5)),
        ("mistral", "use_bidirectional_attention", json!(true)),
        ("modernbert", "is_causal", json!(false)),
    ] {
        let (with, without) = (config(name, &[(key, value)]), config(name, &[]));
        assert_eq!(with, without, "{name}: {key}");
    }
    let phi3 = config("phi3", &[("partial_rotary_factor", json!(0.5))]);
    assert_eq!(
        rotary(&phi3).dim,
        phi3.blocks[0].attention().unwrap().head_dim / 2
    );
}

/// `NTKScalingRotaryEmbedding` in GTE's own code: a base times the factor, and frequencies divided by its root.
#[test]
fn gtes_own_model_type_has_its_defaults_and_its_rotation() {
    if !is_present("families") {
        return;
    }
    let keys = [
        ("model_type", json!("new")),
        ("rope_parameters", Value::Null),
        ("rope_theta", Value::Null),
    ];
    let (new, gte) = (config("gte", &keys), config("gte", &keys[1..]));
    assert_eq!(rotary(&new).theta, 10000.0);
    assert_eq!(rotary(&gte).theta, 160000.0);
    let keys = [
        ("rope_parameters", Value::Null),
        ("rope_theta", json!(500.0)),
        ("rope_scaling", json!({"type": "ntk", "factor": 2.0})),
    ];
    let gte = config("gte", &keys);
    let found = rotary(&gte);
    let factor = 2f64.powf(2.0 / found.dim as f64);
    assert_eq!(found.theta, 1000.0);
    assert_eq!(found.scaling, RotaryScaling::Linear { factor });
    for (key, value) in [("mixed_b", json!(1.0)), ("factor", json!(0.5))] {
        let opened = open("gte", |config| {
            config.remove("rope_parameters");
            let mut scaling = json!({"type": "ntk", "factor": 2.0});
            scaling[key] = value;
            config.insert("rope_scaling".to_string(), scaling);
        });
        let text = opened.expect_err(key).to_string();
        assert!(text.contains(&format!("key \"{key}\": ")), "{text}");
    }
}

#[test]
fn older_rotary_keys_count_before_newer_ones() {
    if !is_present("families") {
        return;
    }
    let keys = [
        (
            "rope_parameters",
            json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}),
        ),
        ("rope_scaling", json!({"type": "linear", "factor": 3.0})),
        ("rope_theta", json!(70.0)),
    ];
    let llama = config("llama", &keys);
    assert_eq!(rotary(&llama).theta, 70.0);
    assert_eq!(
        rotary(&llama).scaling,
        RotaryScaling::Linear { factor: 3.0 }
    );
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8});
    let keys = [
        ("rope_scaling", yarn),
        ("original_max_position_embeddings", json!(16)),
    ];
    let llama = config("llama", &keys);
    let RotaryScaling::Yarn {
        original_positions, ..
    } = rotary(&llama).scaling
    else {
        panic!("{:?}", rotary(&llama).scaling);
    };
    assert_eq!(original_positions, 16);
}

#[test]
fn a_mistral_with_layer_types_is_a_ministral() {
    if !is_present("families") {
        return;
    }
    let types = json!(["full_attention", "sliding_attention"]);
    let stack = config("mistral", &[("layer_types", types)]);
    assert_eq!(windows(&stack), [None, Some(3)]);
}

/// EmbeddingGemma: a window of 512 shows 256 keys on each side.
#[test]
fn a_bidirectional_gemma_sees_half_its_window_on_each_side() {
    if !is_present("families") {
        return;
    }
    let keys = [
        ("use_bidirectional_attention", json!(true)),
        ("sliding_window", json!(512)),
    ];
    let stack = config("gemma3_text", &keys);
    assert_eq!(windows(&stack), [Some(256), Some(256), None]);
    let sees_all = |visibility| visibility == Visibility::Bidirectional;
    let visibilities = stack
        .blocks
        .iter()
        .map(|block| block.attention().unwrap().visibility);
    assert!(visibilities.into_iter().all(sees_all));
}

#[test]
fn the_value_0_means_no_experts_and_no_clipping() {
    if !is_present("families") {
        return;
    }
    for name in ["qwen2_moe", "qwen3_moe"] {
        let described = described(name, |config| {
            config.insert("num_experts".to_string(), json!(0));
            config.insert("num_local_experts".to_string(), Value::Null);
        });
        let blocks = &described.config.blocks;
        let is_dense = |block: &BlockConfig| block.feed_forward.experts.is_none();
        assert!(!blocks.is_empty() && blocks.iter().all(is_dense), "{name}");
    }
    let clip = json!({"clip_qkv": 0.0}); // MPT-30B
    let stack = config("mpt", &[("attn_config", clip)]);
    assert_eq!(stack.blocks[0].attention().unwrap().clip, None);
}

#[test]
fn keys_that_contradict_each_other_are_refused_by_name() {
    if !is_present("families") {
        return;
    }
    let sliding = json!(["sliding_attention", "full_attention"]);
    let stretched = json!({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5});
    for (name, keys, named) in [
        (
            "qwen2",
            vec![
                ("use_sliding_window", json!(false)),
                ("layer_types", sliding),
            ],
            "layer_types",
        ),
        (
            "llama",
            vec![("rope_scaling", stretched)],
            "partial_rotary_factor",
        ),
        (
            "gemma3_text",
            vec![(
                "rope_scaling",
                json!({"rope_type": "linear", "factor": 2.0}),
            )],
            "rope_scaling",
        ),
    ] {
        let opened = open(name, |config| {
            for (key, value) in keys {
                config.insert(key.to_string(), value);
            }
            if named == "rope_scaling" {
                let types = json!({"full_attention": {"rope_theta": 10.0}});
                config.insert("rope_parameters".to_string(), types);
            }
        });
        let text = opened.expect_err(name).to_string();
        assert!(text.contains(&format!("\"{named}\"")), "{text}");
    }
}

#[test]
fn a_setting_that_no_block_has_is_an_error_that_names_it() {
    if !is_present("families") {
        return;
    }
    let settings = [
        ("roberta", "position_embedding_type", json!("relative_key")),
        ("bart", "normalize_before", json!(true)),
        ("gemma", "hidden_activation", json!("relu")),
        (
            "gemma2",
            "layer_types",
            json!(["conv", "full_attention", "conv"]),
        ),
        ("gptj", "rotary_dim", Value::Null),
        ("mpt", "norm_type", json!("rmsnorm")),
        ("olmoe", "clip_qkv", json!(8.0)),
        ("smollm3", "no_rope_layers", json!([1])),
        ("mpt", "no_bias", json!(false)),
        ("deepseek_v2", "topk_method", json!("noaux_tc")),
        ("deepseek_v2", "mlp_bias", json!(true)),
        ("deepseek_v3", "num_key_value_heads", json!(1)),
        ("glm4_moe_lite", "mlp_layer_types", json!(["sparse"])),
        ("nomic_bert-hub", "causal", json!(true)),
        ("nomic_bert-hub", "rotary_scaling_factor", json!(2.0)),
        (
            "phi3",
            "rope_scaling",
            json!({"type": "yarn", "factor": 4.0}),
        ),
        ("t5", "feed_forward_proj", json!("gated-gleu")),
        // transformers makes its blocks causal only in a batch without padding.
        ("roberta", "is_causal", json!(true)),
        ("llama4_text", "is_causal", json!(false)),
        ("gpt_neo", "is_causal", json!(false)),
        ("deepseek_v3", "partial_rotary_factor", json!(0.5)),
        ("llama", "is_causal", Value::Null),
        ("gpt_neox", "head_dim", json!(6)),
        ("modernbert", "head_dim", json!(6)),
        ("mpnet", "relative_attention_num_buckets", json!(64)),
        ("gte", "layer_norm_type", json!("rms_norm")),
        ("gte", "logn_attention_scale", json!(true)),
        ("gte", "position_embedding_type", json!("absolute")),
        ("gte", "pack_qkv", json!(false)),
    ];
    for (name, key, value) in settings {
        let opened = open(name, |config| {
            config.remove("rope_parameters");
            config.insert(key.to_string(), value);
        });
        let text = opened.expect_err(name).to_string();
        let named = if key == "rope_scaling" { "type" } else { key };
        assert!(text.contains(&format!("key \"{named}\": ")), "{text}");
    }
}

/// transformers' `convert_rope_params_to_dict` for OLMo 3: keys beside both layer types' parameters only apply to global
/// layers.
#[test]
fn olmo_3_reads_an_older_base_for_global_layers_only() {
    if !is_present("families") {
        return;
    }
    let keys = [
        ("rope_parameters", Value::Null),
        ("rope_theta", json!(70.0)),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 3.0}),
        ),
    ];
    let stack = config("olmo3", &keys);
    let found = stack.blocks.iter().map(|block| block.attention().unwrap());
    let found = found.map(|attention| match &attention.position {
        Position::Rotary(rotary) => (attention.window, rotary.theta, rotary.scaling.clone()),
        other => panic!("{other:?}"),
    });
    let linear = RotaryScaling::Linear { factor: 3.0 };
    let expected = [(Some(3), 5e5, RotaryScaling::None), (None, 70.0, linear)];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

/// The classes' `layer_types` where a file has none.
#[test]
fn layers_rotate_and_slide_where_each_class_says() {
    if !is_present("families") {
        return;
    }
    let every_fourth = [Some(4096), Some(4096), Some(4096), None];
    for (name, expected, rotates) in [
        ("smollm3", [None; 4], [true, true, true, false]),
        ("cohere2", every_fourth, [true, true, true, false]),
        ("exaone4", every_fourth, [true, true, true, false]),
        ("olmo3", every_fourth, [true; 4]),
        ("ministral", [Some(4096); 4], [true; 4]),
    ] {
        let keys = ["layer_types", "sliding_window", "no_rope_layers"];
        let described = described(name, |config| {
            config.retain(|key, _| !keys.contains(&key.as_str()));
            config.insert("num_hidden_layers".to_string(), json!(4));
        });
        let stack = described.config;
        assert_eq!(windows(&stack), expected, "{name}");
        let is_none = |position: &Position| *position == Position::None;
        let found = stack
            .blocks
            .iter()
            .map(|b| !is_none(&b.attention().unwrap().position));
        assert_eq!(found.collect::<Vec<_>>(), rotates, "{name}");
    }
}

/// Like Qwen2-VL's files, which describe the text stack at the top level.
#[test]
fn older_files_of_qwen_vl_describe_the_text_outside() {
    if !is_present("families") {
        return;
    }
    for name in ["qwen2_vl", "qwen2_5_vl"] {
        let flat = open(name, |config| {
            let text = config.remove("text_config").unwrap();
            let Value::Object(mut text) = text else {
                panic!("{text}")
            };
            text.remove("model_type");
            // Their name for a rotation over three axes.
            let axes = text["rope_parameters"].as_object().unwrap().clone();
            text.remove("rope_parameters");
            text.insert("rope_theta".to_string(), axes["rope_theta"].clone());
            text.insert(
                "rope_scaling".to_string(),
                json!({"type": "mrope", "mrope_section": axes["mrope_section"]}),
            );
            config.extend(text);
        });
        let (flat, nested) = (flat, open(name, |_| ()));
        assert_eq!(flat.unwrap().config(), nested.unwrap().config(), "{name}");
    }
}

/// `Mistral3Config` ties embeddings and head whatever `text_config` says, `LlavaConfig` if one of the two does.
#[test]
fn a_text_side_is_tied_as_the_whole_says() {
    if !is_present("families") {
        return;
    }
    let key = "tie_word_embeddings";
    for (name, inside, outside, weight) in [
        ("mistral3", Some(false), None, OutputWeight::Words),
        ("mistral3", None, Some(false), OutputWeight::Own),
        ("gemma3", None, None, OutputWeight::Words),
        ("llava", None, None, OutputWeight::Own),
        ("llava", Some(true), Some(false), OutputWeight::Words),
        ("llava", None, Some(true), OutputWeight::Words),
    ] {
        let described = described(name, |config| {
            if let Some(tied) = inside {
                config["text_config"][key] = json!(tied);
            }
            if let Some(tied) = outside {
                config.insert(key.to_string(), json!(tied));
            }
        });
        let head = described.model_config().unwrap().head.as_ref().unwrap();
        let output = head.readout.output.as_ref().unwrap();
        assert_eq!(output.weight, weight, "{name} {inside:?} {outside:?}");
    }
}

#[test]
fn a_text_side_of_an_unknown_kind_is_an_error_that_names_it() {
    if !is_present("families") {
        return;
    }
    for (kind, reason) in [
        ("rwkv", "recurrent layers"),
        ("t5", "several stacks"),
        ("llava", "expected a text model's type"),
        ("of_no_one", "is not a known family"),
    ] {
        let opened = open("llava", |config| {
            config["text_config"]["model_type"] = json!(kind);
        });
        let text = opened.expect_err(kind).to_string();
        assert!(text.contains("\"text_config.model_type\""), "{text}");
        assert!(text.contains(kind) && text.contains(reason), "{text}");
    }
}

#[test]
fn a_temperature_by_position_has_its_beta_and_its_interval() {
    if !is_present("families") {
        return;
    }
    for (family, section) in [
        ("ministral3", "rope_parameters"),
        ("mistral4", "rope_scaling"),
    ] {
        for key in ["llama_4_scaling_beta", "original_max_position_embeddings"] {
            let opened = open(family, |config| {
                let parameters = config[section].as_object_mut().unwrap();
                parameters.remove(key).unwrap();
            });
            let text = opened.expect_err(key).to_string();
            assert!(text.contains(&format!("{key}\": missing")), "{text}");
        }
    }
}

#[test]
fn the_rotation_of_mistral4_is_yarn_over_the_rotated_part_of_its_heads() {
    if !is_present("families") {
        return;
    }
    for (key, value) in [
        ("rope_type", json!("linear")),
        ("partial_rotary_factor", json!(0.5)),
    ] {
        let opened = open("mistral4", |config| {
            config["rope_scaling"][key] = value;
        });
        let text = opened.expect_err(key).to_string();
        assert!(text.contains(key) && text.contains("expected"), "{text}");
    }
    // The parameters of the class.
    let described = described("mistral4", |config| {
        config["rope_scaling"] = Value::Null;
    });
    let attention = described.config.blocks[0].attention().unwrap();
    let temperature = attention.temperature.unwrap();
    assert_eq!((temperature.beta, temperature.interval), (0.1, 8192));
    let stretch = (0.1 * 128f64.ln() + 1.0).powi(2);
    assert!((attention.scale - stretch / 10f64.sqrt()).abs() < 1e-15);
}

#[test]
fn the_text_side_of_mistral3_may_be_a_ministral3() {
    if !is_present("families") {
        return;
    }
    let parameters = json!({"rope_type": "default", "rope_theta": 100.0, "original_max_position_embeddings": 6,
        "llama_4_scaling_beta": 0.2});
    let described = described("mistral3", |config| {
        config["text_config"]["model_type"] = json!("ministral3");
        config["text_config"]["rope_parameters"] = parameters;
    });
    let temperature = described.config.blocks[0]
        .attention()
        .unwrap()
        .temperature
        .unwrap();
    assert_eq!((temperature.beta, temperature.interval), (0.2, 6));
}
