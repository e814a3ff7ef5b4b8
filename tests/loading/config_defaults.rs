//! The meaning of a short `config.json`: the defaults in transformers 5.24's configuration classes.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::{
    Architecture, AttentionConfig, BlockConfig, Checkpoint, CheckpointOptions, Position,
    RotaryPairing, StackConfig, Weights,
    checkpoint::scheme::StackPart,
    config::{Distribution, RotaryScaling},
};
use serde_json::{Value, json};

use crate::weights::{is_present, weights};

/// Returns the blocks that a `config.json` with these keys describes.
fn stack(keys: Value) -> StackConfig {
    architecture(keys).config
}

fn architecture(keys: Value) -> Architecture {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, keys.to_string()).unwrap();
    Architecture::open(&path).unwrap_or_else(|e| panic!("{keys}: {e}"))
}

/// Published files contain only each tower's differences from the class: SigLIP's base model has none.
#[test]
fn a_tower_without_sizes_has_those_of_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (family, part, [d_model, d_ff, n_heads]) in [
        ("siglip", StackPart::Text, [768, 3072, 12]),
        ("siglip", StackPart::Vision, [768, 3072, 12]),
        ("clip", StackPart::Text, [512, 2048, 8]),
        ("clip", StackPart::Vision, [768, 3072, 12]),
    ] {
        let json = json!({
            "model_type": family,
            "text_config": {"model_type": format!("{family}_text_model")},
            "vision_config": null,
        });
        fs::write(&path, json.to_string()).unwrap();
        let options = CheckpointOptions::default().part(part);
        let stack = options.architecture(&path).unwrap().config;
        let block = &stack.blocks[0];
        assert_eq!(block.d_model(), d_model, "{family} {part}");
        assert_eq!(block.feed_forward.d_ff, d_ff, "{family} {part}");
        assert_eq!(
            block.attention().unwrap().n_heads,
            n_heads,
            "{family} {part}"
        );
        assert_eq!(stack.blocks.len(), 12, "{family} {part}");
    }
}

/// The text classes of CLAP and BridgeTower have one type, BERT's has two.
#[test]
fn absent_types_are_those_of_each_class() {
    if !is_present("families") {
        return;
    }
    let source = Checkpoint::open(weights("families/roberta")).unwrap();
    let files = source.files();
    let tensors: Vec<_> = files
        .names()
        .filter_map(|name| {
            let own = name.strip_prefix("roberta.")?.to_string();
            Some((own, files.read(name).unwrap()))
        })
        .collect();
    let text = fs::read(weights("families/roberta/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    config.as_object_mut().unwrap().remove("type_vocab_size");
    for (model_type, class) in [
        ("clap_text_model", "ClapTextModel"),
        ("bridgetower_text_model", "BridgeTowerTextModel"),
    ] {
        config["model_type"] = json!(model_type);
        config["architectures"] = json!([class]);
        let folder = tempfile::tempdir().unwrap();
        write_safetensors(folder.path().join("model.safetensors"), &tensors, None).unwrap();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let copy = Checkpoint::open(folder.path()).unwrap();
        let model = copy.load(Weights::Dense(DType::F32, &Device::Cpu)).model();
        model.unwrap_or_else(|e| panic!("{model_type}: {e}"));
    }
}

/// `int(i / (num_hidden_layers / num_hidden_groups))` in transformers' `AlbertTransformer` in Python: layer 9 is 6, not 7.
#[test]
fn alberts_groups_are_those_of_the_rounded_quotient() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let json = json!({"model_type": "albert", "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 6,
        "num_hidden_layers": 18, "num_hidden_groups": 14});
    fs::write(&path, json.to_string()).unwrap();
    let stack = Architecture::open(&path).unwrap().config;
    let expected = [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13];
    assert_eq!(stack.layers, expected);
}

/// Defaults in the configuration classes, which differ from Llama's.
#[test]
fn absent_heads_are_those_of_each_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (family, n_kv_heads, head_dim) in [
        ("llama", 32, 2),
        ("mistral", 8, 2),
        ("qwen2", 32, 2),
        ("qwen3", 32, 128),
        ("gemma", 16, 256),
        ("gemma2", 4, 256),
        ("gemma3_text", 4, 256),
        ("starcoder2", 2, 2),
        ("stablelm", 32, 2),
        ("ministral", 8, 2),
        ("smollm3", 4, 2),
        ("arcee", 32, 2),
        ("nemotron", 32, 2),
        ("ernie4_5", 2, 128),
        ("seed_oss", 8, 128),
        ("glm", 2, 128),
        ("glm4", 2, 128),
        ("cohere2", 32, 2),
        ("olmo3", 32, 2),
        ("exaone4", 32, 2),
        ("exaone_moe", 32, 2),
        ("ernie4_5_moe", 4, 2),
        ("gpt_oss", 8, 64),
    ] {
        let json = json!({"model_type": family, "hidden_size": 64, "num_attention_heads": 32,
            "intermediate_size": 6, "num_hidden_layers": 1, "partial_rotary_factor": 1.0, "max_position_embeddings": 99,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4});
        fs::write(&path, json.to_string()).unwrap();
        let stack = Architecture::open(&path).unwrap_or_else(|e| panic!("{family}: {e}"));
        let attention = stack.config.blocks[0].attention().unwrap();
        assert_eq!(attention.n_kv_heads, n_kv_heads, "{family}");
        assert_eq!(attention.head_dim, head_dim, "{family}");
    }
}

#[test]
fn absent_latents_are_those_of_each_class() {
    for (family, query_rank, [rank, plain, rotary_dim, value_dim], pairing) in [
        (
            "deepseek_v2",
            1536,
            [512, 128, 64, 128],
            RotaryPairing::Interleaved,
        ),
        (
            "deepseek_v3",
            1536,
            [512, 128, 64, 128],
            RotaryPairing::Interleaved,
        ),
        (
            "glm4_moe_lite",
            768,
            [512, 192, 64, 256],
            RotaryPairing::Interleaved,
        ),
        (
            "youtu",
            1536,
            [512, 128, 64, 128],
            RotaryPairing::Interleaved,
        ),
        ("minicpm3", 768, [256, 64, 32, 24], RotaryPairing::Halves),
    ] {
        let mut keys = json!({"model_type": family, "hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 6,
            "num_hidden_layers": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "n_routed_experts": 16});
        let of = |keys: &Value| stack(keys.clone()).blocks[0].attention().unwrap().clone();
        let attention = of(&keys);
        let latent = attention.latent.unwrap();
        assert_eq!(latent.query_rank, Some(query_rank), "{family}");
        let found = [
            latent.rank,
            attention.head_dim - rotary_dim,
            latent.rotary_dim,
            latent.value_dim,
        ];
        assert_eq!(found, [rank, plain, rotary_dim, value_dim], "{family}");
        assert_eq!(latent.norm.eps, 1e-6, "{family}");
        let Position::Rotary(rotary) = &attention.position else {
            panic!("{family}");
        };
        assert_eq!(
            (rotary.dim, rotary.pairing),
            (rotary_dim, pairing),
            "{family}"
        );
        assert_eq!(
            attention.scale,
            1.0 / ((plain + rotary_dim) as f64).sqrt(),
            "{family}"
        );
        // DeepSeek-V3's own: `yarn_get_mscale(40, 1) ** 2`.
        keys["rope_scaling"] = json!({"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096});
        keys["q_lora_rank"] = Value::Null;
        let stretched = of(&keys);
        let times = stretched.scale / attention.scale;
        assert!(
            (times - 1.3688879454f64.powi(2)).abs() < 1e-9,
            "{family}: {times}"
        );
        assert_eq!(stretched.latent.unwrap().query_rank, None, "{family}");
    }
}

fn scales(stack: &StackConfig) -> Vec<f64> {
    let scale = |block: &BlockConfig| block.attention().unwrap().scale;
    stack.blocks.iter().map(scale).collect()
}

/// Defaults in the configuration classes, which differ from BERT's.
#[test]
fn absent_settings_of_an_encoder_are_those_of_its_class() {
    for (family, eps, dropouts, theta) in [
        ("ernie", 1e-12, [0.1, 0.1], None),
        ("megatron-bert", 1e-12, [0.1, 0.1], None),
        ("roberta-prelayernorm", 1e-12, [0.1, 0.1], None),
        ("xlm-roberta-xl", 1e-5, [0.1, 0.0], None),
        ("rembert", 1e-12, [0.0, 0.0], None),
        ("roformer", 1e-12, [0.1, 0.1], Some(10_000.0)),
        ("esm", 1e-12, [0.1, 0.1], None),
        ("eurobert", 1e-5, [0.0, 0.0], Some(10_000.0)),
        ("gte", 1e-12, [0.1, 0.1], Some(160_000.0)),
        ("jina_embeddings_v3", 1e-5, [0.1, 0.1], Some(20_000.0)),
        ("vit_msn", 1e-6, [0.0, 0.0], None),
        ("ijepa", 1e-12, [0.0, 0.0], None),
        ("wav2vec2", 1e-5, [0.1, 0.1], None),
    ] {
        let keys = json!({"model_type": family, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8,
            "num_hidden_layers": 1, "vocab_size": 10});
        let block = stack(keys).blocks.remove(0);
        assert_eq!(block.norm.eps, eps, "{family}");
        let residual = block.residual;
        let found = [residual.attention_dropout, residual.feed_forward_dropout];
        assert_eq!(found, dropouts, "{family}");
        let found = match &block.attention().unwrap().position {
            Position::Rotary(rotary) => Some(rotary.theta),
            _ => None,
        };
        assert_eq!(found, theta, "{family}");
    }
}

/// Defaults in the configuration classes, which differ from BART's.
#[test]
fn absent_settings_of_an_encoder_decoder_are_those_of_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (family, dropout, attention_dropout, layer_drop) in [
        ("bart", 0.1, 0.0, 0.0),
        ("whisper", 0.0, 0.0, 0.0),
        ("mbart", 0.1, 0.0, 0.0),
        ("plbart", 0.1, 0.1, 0.0),
        ("mvp", 0.1, 0.0, 0.0),
        ("blenderbot", 0.1, 0.0, 0.0),
        ("blenderbot-small", 0.1, 0.0, 0.0),
        ("marian", 0.1, 0.0, 0.0),
        ("pegasus", 0.1, 0.0, 0.0),
        ("m2m_100", 0.1, 0.1, 0.05),
    ] {
        for part in [StackPart::Encoder, StackPart::Decoder] {
            let json = json!({"model_type": family, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
                "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8});
            fs::write(&path, json.to_string()).unwrap();
            let options = CheckpointOptions::default().part(part);
            let stack = options.architecture(&path).unwrap().config;
            let block = &stack.blocks[0];
            let found = (
                block.residual.feed_forward_dropout,
                block.attention().unwrap().dropout,
            );
            assert_eq!(found, (dropout, attention_dropout), "{family} {part}");
            assert_eq!(stack.layer_drop, layer_drop, "{family} {part}");
        }
    }
}

/// `attn.scaling` in transformers' `GPT2Attention` and `GPTBigCodeAttention`.
#[test]
fn scores_are_scaled_as_the_flags_say() {
    let keys = json!({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 3,
        "scale_attn_by_inverse_layer_idx": true});
    assert_eq!(scales(&stack(keys)), [0.5, 0.25, 0.5 / 3.0]);
    for (family, flag, expected) in [
        ("gpt2", true, 0.5),
        ("gpt2", false, 1.0),
        ("gpt_bigcode", true, 0.5),
        ("gpt_bigcode", false, 1.0),
    ] {
        let keys = json!({"model_type": family, "n_embd": 8, "n_head": 2, "n_layer": 1,
            "scale_attn_weights": flag});
        assert_eq!(scales(&stack(keys)), [expected], "{family} {flag}");
    }
}

/// The classes of the layers' `mlp` in transformers' `Qwen2MoeModel`.
#[test]
fn experts_are_in_every_second_layer_but_those_that_are_named() {
    let stack = stack(
        json!({"model_type": "qwen2_moe", "hidden_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 8, "moe_intermediate_size": 4, "num_experts": 4,
        "shared_expert_intermediate_size": 4, "num_experts_per_tok": 2, "num_hidden_layers": 5,
        "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    );
    let has_experts = |block: &BlockConfig| block.feed_forward.experts.is_some();
    let found: Vec<bool> = stack.blocks.iter().map(has_experts).collect();
    assert_eq!(found, [false, true, false, false, false]);
}

#[test]
fn ernies_experts_begin_at_the_second_layer_unless_the_file_says_otherwise() {
    let of = |more: Value| {
        let mut keys = json!({"model_type": "ernie4_5_moe", "hidden_size": 16, "num_attention_heads": 4,
            "intermediate_size": 6, "num_hidden_layers": 6});
        keys.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let blocks = stack(keys).blocks;
        let has_experts = |block: &BlockConfig| block.feed_forward.experts.is_some();
        blocks.iter().map(has_experts).collect::<Vec<_>>()
    };
    assert_eq!(of(json!({})), [false, true, true, true, true, true]);
    let some =
        json!({"moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_layer_interval": 2});
    assert_eq!(of(some), [false, false, false, true, false, false]);
}

#[test]
fn gpt_osss_rotation_is_stretched_unless_the_file_says_otherwise() {
    let of = |more: Value| {
        let mut keys = json!({"model_type": "gpt_oss", "hidden_size": 16, "num_attention_heads": 8,
            "intermediate_size": 6, "num_hidden_layers": 2, "max_position_embeddings": 131072});
        keys.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let attention = stack(keys).blocks[0].attention().unwrap().clone();
        let Position::Rotary(rotary) = attention.position else {
            panic!("{:?}", attention.position)
        };
        (rotary.theta, rotary.scaling, attention.window)
    };
    let (theta, scaling, window) = of(json!({}));
    assert_eq!((theta, window), (150_000.0, Some(128)));
    let RotaryScaling::Yarn {
        factor,
        truncate,
        original_positions,
        ..
    } = scaling
    else {
        panic!("{scaling:?}")
    };
    assert_eq!((factor, truncate, original_positions), (32.0, false, 4096));
    let plain = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}});
    assert_eq!(of(plain), (7.0, RotaryScaling::None, Some(128)));
}

#[test]
fn qwens_windows_begin_at_layer_28_unless_the_file_says_otherwise() {
    let stack = stack(
        json!({"model_type": "qwen2", "hidden_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 8, "num_hidden_layers": 30,
        "use_sliding_window": true, "sliding_window": 5}),
    );
    let window = |attention: &AttentionConfig| attention.window;
    let windows = stack
        .blocks
        .iter()
        .map(|block| window(block.attention().unwrap()));
    let expected = (0..30).map(|i| (i >= 28).then_some(5));
    assert_eq!(windows.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn gptj_rotates_64_dimensions_unless_the_file_says_otherwise() {
    for family in ["gptj", "codegen"] {
        let keys = json!({"model_type": family, "n_embd": 512, "n_head": 4, "n_layer": 1});
        match &stack(keys).blocks[0].attention().unwrap().position {
            Position::Rotary(rotary) => assert_eq!(rotary.dim, 64, "{family}"),
            other => panic!("{family}: {other:?}"),
        }
    }
}

/// The widths in transformers' `Dinov2SwiGLUFFN`.
#[test]
fn dinov2s_gated_width_is_two_thirds_rounded_up_to_a_multiple_of_8() {
    for (d_model, d_ff) in [(1536, 4096), (100, 272)] {
        let stack = stack(
            json!({"model_type": "dinov2", "hidden_size": d_model, "num_attention_heads": 2,
            "num_hidden_layers": 1, "mlp_ratio": 4, "use_swiglu_ffn": true}),
        );
        assert_eq!(stack.blocks[0].feed_forward.d_ff, d_ff);
    }
}

/// The attention factors in transformers' `_compute_yarn_parameters`.
#[test]
fn yarns_attention_factor_goes_by_both_mscales_or_by_none() {
    for (mscale, mscale_all_dim, expected) in [
        (json!(0.707), json!(1.0), 0.9210423553163399),
        (json!(1.0), json!(1.0), 1.0),
        (json!(0.707), Value::Null, 1.3688879454113936),
        (Value::Null, Value::Null, 1.3688879454113936),
    ] {
        let stack = stack(
            json!({"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2,
            "intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 163840,
            "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "mscale": mscale,
                "mscale_all_dim": mscale_all_dim, "original_max_position_embeddings": 4096}}),
        );
        let Position::Rotary(rotary) = &stack.blocks[0].attention().unwrap().position else {
            panic!("{:?}", stack.blocks[0].attention().unwrap().position);
        };
        match rotary.scaling {
            RotaryScaling::Yarn {
                attention_factor, ..
            } => assert!((attention_factor - expected).abs() < 1e-15, "{mscale}"),
            _ => panic!("{:?}", rotary.scaling),
        }
    }
}

/// `initializer_range or 0.02` in transformers' `_init_weights`.
#[test]
fn a_deviation_of_0_is_none() {
    for (deviation, expected) in [(0.0, 0.02), (0.5, 0.5)] {
        let bert = architecture(
            json!({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2,
            "intermediate_size": 8, "num_hidden_layers": 1, "initializer_range": deviation}),
        );
        let draw = bert
            .initialization
            .distribution("blocks.0.attention.query.weight");
        let expected = Distribution::Normal {
            deviation: expected,
        };
        assert_eq!(draw, expected);
    }
}

/// Like LLaVA 1.5's file, which only has the differences from `LlamaConfig`.
#[test]
fn a_llava_without_sizes_has_those_of_llama() {
    let text = json!({"model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32064});
    let stack = stack(json!({"model_type": "llava", "text_config": text}));
    let block = &stack.blocks[0];
    assert_eq!(stack.blocks.len(), 32);
    assert_eq!([block.d_model(), block.feed_forward.d_ff], [4096, 11008]);
    assert_eq!(block.attention().unwrap().n_kv_heads, 32);
}
