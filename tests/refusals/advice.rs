//! An error advises what is missing: not what was done, and not what would not help.

use std::{fs, path::Path};

use candle_blocks::{
    Activation, Architecture, Checkpoint, CheckpointOptions, Error, PlainFile, Result, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{scheme::Orientation, write::write_safetensors},
    train::{AdamW, AdamWConfig, ParameterGroup, split},
};
use serde_json::{Map, Value, json};

use crate::{message::message, said::assert_says, weights::weights};

const CPU: Device = Device::Cpu;

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &CPU).unwrap()
}

/// Returns a copy of a committed checkpoint with changed keys in `config.json`.
fn changed(name: &str, keys: Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = "model.safetensors";
    fs::copy(weights(name).join(file), folder.path().join(file)).unwrap();
    let text = fs::read_to_string(weights(name).join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.extend(keys.as_object().unwrap().clone());
    let text = Value::Object(config).to_string();
    fs::write(folder.path().join("config.json"), text).unwrap();
    folder
}

// Files begin like those from `numpy.savez`, `numpy.save` and `torch.save`.
#[test]
fn a_numpy_file_is_not_taken_for_a_pickle() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        message(PlainFile::open(path))
    };
    let zip = b"PK\x03\x04\x14\0\0\0\0\0";
    for name in ["m.npy", "renamed.safetensors"] {
        let text = said(name, b"\x93NUMPY\x01\0v\0");
        assert_says(&text, &["a NumPy file", "numpy.save"]);
        assert!(!text.contains("pickle"), "{text}");
    }
    for name in ["m.npz", "m.pt", "m.safetensors"] {
        assert_says(
            said(name, zip),
            &["a zip archive", "cut short", "download it again"],
        );
    }
}

#[test]
fn plain_layers_may_have_lower_case_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mlp.safetensors");
    let tensors = [
        ("w1", ones(&[2, 3])),
        ("b1", ones(&[1, 3])),
        ("w2", ones(&[3, 2])),
        ("b2", ones(&[2])),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_string(), tensor));
    write_safetensors(&path, &tensors, None).unwrap();
    let file = PlainFile::open(path).unwrap();
    let file = file.with_orientation(Orientation::InOut);
    let layer = file.feed_forward(Activation::Relu, DType::F32, &CPU);
    let y = layer.unwrap().forward(&ones(&[2])).unwrap();
    assert_eq!(y.to_vec1::<f32>().unwrap(), [10.0; 2]);
}

/// A table whose rule gives a bias no name, for a configuration in which the layer has one.
#[test]
fn a_rule_without_a_name_for_a_requested_parameter_is_named() {
    let path = weights("../examples/family.json");
    let mut table: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    table["block_rules"][0]["bias"] = json!([]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    fs::write(&path, table.to_string()).unwrap();
    let options = CheckpointOptions::default().family_file(path);
    let load = || {
        options
            .open(weights("tiny-bert"))?
            .load(Weights::Dense(DType::F32, &CPU))
            .stack()
    };
    let text = message(load());
    assert_says(
        &text,
        &["my_bert", "blocks.0.attention.query.bias", "`bias`"],
    );
    assert!(!text.contains("tried ;"), "{text}");
}

fn optimiser(parameters: candle_blocks::Parameters) -> Result<AdamW> {
    let groups = ParameterGroup::decaying_matrices(parameters, 0.01);
    AdamW::new(groups, AdamWConfig::default())
}

#[test]
fn an_optimizer_before_the_layers_is_told_to_make_them_first() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &CPU).unwrap();
    let early = [
        message(optimiser(loader.parameters())),
        message(split(loader.parameters(), &["*norm*"])),
    ];
    for text in early {
        assert_says(
            &text,
            &[
                "none to train",
                "made so far",
                "load the layers first (`loader.stack()`)",
                "Checkpoint::trainable",
            ],
        );
    }
    loader.stack().unwrap();
    optimiser(loader.parameters()).unwrap();
}

/// `quantization_config` in files on the Hub, and words in the error.
#[test]
fn unsupported_quantized_weights_are_refused_by_their_method() {
    let methods: [(Value, &[&str]); 4] = [
        (
            json!({"quant_method": "hqq", "bits": 4, "group_size": 64}),
            &[
                "hqq",
                "bits 4",
                "group_size 64",
                "examples/dequantize.py",
                "transformers 4.57",
            ],
        ),
        (
            json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "gemv"}),
            &["version", "gemv", "gemm"],
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {}}),
            &["format", "marlin-24"],
        ),
        (
            json!({"quant_method": "gptq", "bits": 5, "group_size": 64}),
            &["bits", "5", "8"],
        ),
    ];
    // This file's weights are not quantized.
    let contradictions: [(Value, &[&str]); 3] = [
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": true}),
            &["gptq", "qweight"],
        ),
        (
            // Old files of bitsandbytes do not name the method.
            json!({"load_in_4bit": true, "load_in_8bit": false, "bnb_4bit_quant_type": "nf4"}),
            &["bitsandbytes", "SCB"],
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
            &["fp8", "weight_scale_inv"],
        ),
    ];
    for (quantization, words) in methods.into_iter().chain(contradictions) {
        let folder = changed("tiny-gpt2", json!({"quantization_config": quantization}));
        let text = message(Checkpoint::open(folder.path()));
        assert_says(&text, words);
        assert_says(&text, &["config.json"]);
        assert!(!text.contains("AllowUnused"), "{text}");
    }
    for absent in [Value::Null, json!({})] {
        let folder = changed("tiny-gpt2", json!({"quantization_config": absent}));
        Checkpoint::open(folder.path()).unwrap();
    }
}

/// The names of methods in transformers 5.23, in text-generation-inference and in vLLM that are not read here.
#[test]
fn a_method_that_is_not_read_leads_to_the_unquantized_checkpoint() {
    for method in [
        "aqlm",
        "bitblas",
        "deepspeedfp",
        "eetq",
        "exl2",
        "exl3",
        "fp_quant",
        "gptq_marlin",
        "higgs",
        "hqq",
        "ipex",
        "marlin",
        "modelopt_fp4",
        "nvfp4",
        "qqq",
        "quanto",
        "quark",
        "sinq",
        "spqr",
        "squeezellm",
        "torchao",
        "tpu_int8",
        "vptq",
    ] {
        let folder = changed(
            "tiny-gpt2",
            json!({"quantization_config": {"quant_method": method}}),
        );
        let text = message(Checkpoint::open(folder.path()));
        let words = "use the unquantized checkpoint that they were made from";
        assert_says(&text, &[method, words]);
        assert!(
            !text.contains("()") && !text.contains("base_model"),
            "{text}"
        );
        let is_computed = ["hqq", "torchao"].contains(&method);
        assert_eq!(text.contains("dequantize.py"), is_computed, "{text}");
        for (card, base) in [
            (
                "---\nlicense: mit\nbase_model: owner/name\n---\n# Card",
                "owner/name",
            ),
            (
                "---\nbase_model:\n- owner/first\n- owner/second\n---\n",
                "owner/first",
            ),
        ] {
            fs::write(folder.path().join("README.md"), card).unwrap();
            let text = message(Checkpoint::open(folder.path()));
            assert_says(&text, &[&format!("made from, {base} (`base_model`")]);
        }
        fs::write(folder.path().join("README.md"), "# base_model: none").unwrap();
        let text = message(Checkpoint::open(folder.path()));
        assert!(!text.contains("base_model"), "{text}");
    }
}

/// EXL2's files are beside the index of the unquantized model.
#[test]
fn a_method_that_is_not_read_is_named_before_an_index_without_shards() {
    let keys = json!({"quantization_config": {"quant_method": "exl2", "bits": 4.0}});
    let folder = changed("tiny-gpt2", keys);
    let weights = folder.path().join("model.safetensors");
    fs::rename(weights, folder.path().join("output.safetensors")).unwrap();
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let text = message(Checkpoint::open(folder.path()));
    assert_says(&text, &["exl2", "unquantized"]);
    // The index of a model that is read is still checked.
    fs::write(
        folder.path().join("config.json"),
        r#"{"model_type": "gpt2"}"#,
    )
    .unwrap();
    assert_says(message(Checkpoint::open(folder.path())), &["shards"]);
}

/// The families that are offered for a `model_type`, nearest first.
fn nearest(folder: &Path, model_type: &str) -> Vec<String> {
    let path = folder.join("config.json");
    fs::write(&path, json!({"model_type": model_type}).to_string()).unwrap();
    let error = Architecture::open(path).unwrap_err();
    let text = error.to_string();
    let Error::UnknownFamily { nearest, .. } = error else {
        panic!("{model_type}: {text}");
    };
    assert_eq!(text.contains("nearest"), !nearest.is_empty(), "{text}");
    nearest
}

/// The configuration is that of microsoft/phi-1_5 before its files were converted.
#[test]
fn phi_s_earlier_code_is_refused_with_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for model_type in ["phi-msft", "mixformer-sequential"] {
        let config = json!({"model_type": model_type, "architectures": ["PhiForCausalLM"], "n_embd": 12, "n_head": 2, "n_layer": 1,
            "n_inner": null, "n_positions": 16, "rotary_dim": 4, "vocab_size": 11});
        fs::write(&path, config.to_string()).unwrap();
        let error = Architecture::open(&path).unwrap_err();
        assert!(matches!(error, Error::UnknownFamily { .. }), "{error:?}");
        let text = error.to_string();
        for part in [model_type, "earlier code", "model_type is phi"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(
            !text.contains("nearest") && !text.contains("family_file"),
            "{text}"
        );
    }
}

#[test]
fn families_that_are_near_are_offered() {
    let folder = tempfile::tempdir().unwrap();
    for (model_type, first) in [
        ("cohere2_mix", "cohere2"),
        ("bert-japanese", "bert"),
        ("dinov2_with_regs", "dinov2"),
        ("ernie4_5_mix", "ernie4_5_moe"),
        ("gemma3x_text", "gemma3_text"),
        ("glm4_moe_small", "glm4_moe"),
        ("granitemoe2", "granitemoe"),
        ("llama4_txt", "llama4_text"),
        ("minimax_m", "minimax_m2"),
        ("ministrals", "ministral"),
        ("modernbert_v2", "modernbert"),
        ("olmo_mix", "olmo"),
        ("megatron-gpt-bert", "megatron-bert"),
        ("phimix", "phi"),
        ("qwen2_5_vl_txt", "qwen2_5_vl_text"),
        ("qwen3x_moe", "qwen3_moe"),
        ("siglip3_text_model", "siglip2_text_model"),
        ("t5large", "t5"),
        ("vit_tta", "vit"),
        ("xlm-roberta-xxl", "xlm-roberta-xl"),
        // Slips of the keyboard.
        ("berd", "bert"),
        ("lama", "llama"),
        ("mitsral", "mistral"),
        ("gpt-neox", "gpt_neox"),
        ("starcoder", "starcoder2"),
    ] {
        let nearest = nearest(folder.path(), model_type);
        assert_eq!(
            nearest.first().map(String::as_str),
            Some(first),
            "{model_type}"
        );
        assert!(nearest.len() <= 3, "{model_type}: {nearest:?}");
    }
}
