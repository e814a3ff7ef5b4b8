//! The keys of a `quantization_config`: if one contradicts the tensors, the tensors count; unsupported ones are refused by
//! name.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, Result, Weights};
use serde_json::{Value, json};

use crate::message::message;
use crate::numbers::bits;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

/// Opens a copy of a quantized checkpoint with a changed configuration.
fn changed<T>(
    name: &str,
    change: impl FnOnce(&mut Value),
    read: impl FnOnce(Result<Checkpoint>) -> T,
) -> T {
    let copy = tempfile::tempdir().unwrap();
    let folder = weights(name);
    fs::copy(
        folder.join("model.safetensors"),
        copy.path().join("model.safetensors"),
    )
    .unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let key = match config.get("quantization") {
        Some(_) => "quantization",
        None => "quantization_config",
    };
    change(&mut config[key]);
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    read(Checkpoint::open(copy.path()))
}

fn logits(checkpoint: &Checkpoint) -> Vec<u64> {
    let ids = Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    bits(
        &model
            .forward(&ModelInput::tokens(&ids))
            .unwrap()
            .logits
            .unwrap(),
    )
}

/// Asserts that a checkpoint with these keys has the committed one's logits, which are transformers'.
#[track_caller]
fn assert_same(name: &str, keys: Value) {
    if !is_present(name) {
        return;
    }
    let extended = |config: &mut Value| {
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
    };
    let ours = changed(name, extended, |checkpoint| {
        let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name} {keys}: {error}"));
        logits(&checkpoint)
    });
    assert_eq!(
        ours,
        logits(&Checkpoint::open(weights(name)).unwrap()),
        "{name} {keys}"
    );
}

#[track_caller]
fn assert_refused(name: &str, keys: Value, words: &[&str]) {
    if !is_present(name) {
        return;
    }
    let extended = |config: &mut Value| {
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
    };
    let said = changed(name, extended, message);
    assert_says(&said, words);
    assert_says(&said, &["config.json"]);
}

/// The zero points in gptq-4 are asymmetric and stored minus one, those in gptq-8 are the middle.
#[test]
fn zero_points_of_gptq_are_read_whatever_the_configuration_calls_them() {
    assert_same("quantized/gptq-4", json!({"sym": true}));
    assert_same("quantized/gptq-4", json!({"sym": null}));
    assert_same(
        "quantized/gptq-4",
        json!({"sym": true, "checkpoint_format": "gptq", "meta": {"quantizer": ["x:1"]}}),
    );
    assert_same("quantized/gptq-4", json!({"sym": null, "format": "gptq"}));
    assert_same("quantized/gptq-3", json!({"sym": true}));
    assert_same("quantized/gptq-3", json!({"sym": null}));
    assert_same("quantized/gptq-8", json!({"checkpoint_format": "gptq_v2"}));
    assert_same(
        "quantized/gptq-8",
        json!({"checkpoint_format": "gptq_v2", "sym": null}),
    );
}

#[test]
fn auto_round_s_tensors_are_those_of_the_method_that_it_names() {
    let keys = |format: &str| {
        json!({
            "quant_method": "auto-round", "packing_format": format, "sym": false, "data_type": "int", "autoround_version": "0.5.1",
            "iters": 200, "low_gpu_mem_usage": true, "nsamples": 128, "seqlen": 2048, "enable_quanted_input": true,
            "block_name_to_quantize": "model.layers", "version": null, "zero_point": null, "desc_act": null,
        })
    };
    assert_same("quantized/gptq-4", keys("auto_round:auto_gptq"));
    // Under the name of the method whose tensors it writes.
    for folder in ["quantized/gptq-4", "quantized/awq"] {
        assert_same(
            folder,
            json!({"data_type": "int", "iters": 200, "autoround_version": "0.5.1"}),
        );
        assert_refused(
            folder,
            json!({"data_type": "mx_fp"}),
            &["data_type", "mx_fp"],
        );
    }
    assert_same("quantized/awq", keys("auto_round:auto_awq"));
    for format in [
        json!("auto_round"),
        json!("auto_round:llm_compressor"),
        Value::Null,
    ] {
        let mut keys = keys("");
        keys["packing_format"] = format;
        assert_refused(
            "quantized/gptq-4",
            keys,
            &["packing_format", "auto_round:auto_gptq"],
        );
    }
}

#[test]
fn modules_of_gptq_may_have_bits_of_their_own() {
    // No module has the configuration's number of bits.
    assert_same(
        "quantized/gptq-4",
        json!({"bits": 8, "dynamic": {"+:.*": {"bits": 4}}}),
    );
    assert_same(
        "quantized/gptq-3",
        json!({"bits": 4, "extra_config": {"model.layers.0.mlp.up_proj": {"bits": 3}}}),
    );
}

#[test]
fn bits_of_an_mlx_module_that_do_not_fit_its_tensors_are_named() {
    if !is_present("quantized/mlx-mixed") {
        return;
    }
    let module = "model.layers.0.mlp.down_proj";
    let said = changed(
        "quantized/mlx-mixed",
        |config| drop(config.as_object_mut().unwrap().remove(module)),
        message,
    );
    let own = format!("in quantization.{module}");
    let all = ["quantization.bits = 4", "quantization.group_size = 32"];
    assert_says(&said, &[&own, all[0], all[1]]);
    assert!(!said.contains("belong"), "{said}");
    assert_refused(
        "quantized/mlx",
        json!({"mode": "mxfp4"}),
        &["biases", "affine", "mode in quantization.model.layers.0"],
    );
    assert_refused(
        "quantized/mlx",
        json!({"mode": "nvfp4"}),
        &["group_size", "only 16"],
    );
    assert_refused(
        "quantized/mlx",
        json!({"mode": "mxfp5"}),
        &["mode", "mxfp5", "nvfp4"],
    );
    assert_refused("quantized/mlx", json!({"bits": 1}), &["bits", "found 1"]);
    assert_same(
        "quantized/mlx",
        json!({"mode": "affine", "lm_head": false, "model.layers.0.mlp.down_proj": true}),
    );
}

fn transform(location: &str) -> Value {
    json!({"transform_config": {"config_groups": {"R4": {
        "type": "hadamard", "randomize": false, "head_dim": null,
        "apply": [
            {"targets": ["re:.*down_proj$"], "location": "weight_input", "inverse": true, "ignore": []},
            {"targets": ["re:.*down_proj$"], "location": location, "inverse": false, "ignore": []},
        ],
    }}}})
}

#[test]
fn rotations_are_refused_unless_the_stored_weights_have_them_already() {
    for location in ["input", "output", "k_cache", "q_attn", "elsewhere"] {
        let words = ["transform_config", "R4", "hadamard", location];
        assert_refused("quantized/int8", transform(location), &words);
    }
    assert_same("quantized/int8", transform("weight_output"));
    assert_same("quantized/int8", json!({"transform_config": {}}));
}

#[test]
fn keys_of_every_method_are_read_or_harmless_or_refused() {
    for name in [
        "awq",
        "bnb-int8",
        "float8",
        "fp8",
        "gptq-4",
        "int8",
        "mlx",
        "modelopt",
        "mxfp4-experts",
        "packed-4",
    ] {
        let name = format!("quantized/{name}");
        assert_refused(
            &name,
            json!({"unheard_of": 3}),
            &["unheard_of", "found 3", "remove the key"],
        );
        for off in [json!(null), json!(false), json!({}), json!([]), json!("")] {
            if name.ends_with("experts") {
                continue; // has another kind of logits
            }
            assert_same(&name, json!({"unheard_of": off}));
        }
    }
    for (name, keys) in [
        (
            "gptq-4",
            json!({"damp_percent": 0.1, "true_sequential": true, "static_groups": false, "use_exllama": true, "dataset": "c4", "tokenizer": null, "model_seqlen": 2048, "is_marlin_format": false, "lm_head": false, "pack_dtype": "int32"}),
        ),
        (
            "awq",
            json!({"backend": "autoawq", "do_fuse": false, "modules_to_not_convert": ["x"], "exllama_config": {"version": 2}}),
        ),
        (
            "int8",
            json!({"quantization_status": "compressed", "global_compression_ratio": 1.5, "version": "0.9", "kv_cache_scheme": {"num_bits": 8}, "sparsity_config": {}}),
        ),
        (
            "int8",
            json!({"sparsity_config": {"format": "dense", "global_sparsity": 0.1}}),
        ),
        (
            "fp8",
            json!({"modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0"}),
        ),
        (
            "bnb-nf4",
            json!({"llm_int8_threshold": 6.0, "bnb_4bit_compute_dtype": "bfloat16", "_load_in_4bit": true, "llm_int8_skip_modules": ["x"]}),
        ),
        (
            "modelopt",
            json!({"kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"], "producer": {"name": "modelopt"}}),
        ),
    ] {
        assert_same(&format!("quantized/{name}"), keys);
    }
    for (name, keys, words) in [
        (
            "gptq-4",
            json!({"checkpoint_format": "marlin"}),
            &["checkpoint_format", "marlin"][..],
        ),
        (
            "gptq-8",
            json!({"checkpoint_format": "marlin"}),
            &["checkpoint_format", "marlin"],
        ),
        (
            "gptq-4",
            json!({"pack_dtype": "int8"}),
            &["pack_dtype", "int8"],
        ),
        (
            "gptq-4",
            json!({"adapter": {"type": "lora", "rank": 32}}),
            &["adapter"],
        ),
        (
            "int8",
            json!({"sparsity_config": {"format": "sparse-24-bitmask"}}),
            &["sparsity_config", "sparse-24-bitmask"],
        ),
        (
            "int8",
            json!({"moe_sparsity_config": {"method": "x", "num_experts": [1]}}),
            &["moe_sparsity_config"],
        ),
    ] {
        assert_refused(&format!("quantized/{name}"), keys, words);
    }
}

/// A model whose weights are not quantized, with a quantized cache.
#[test]
fn a_scheme_of_the_cache_alone_leaves_weights_as_they_are() {
    if !is_present("families/llama") {
        return;
    }
    let folder: &Path = &weights("families/llama");
    let copy = tempfile::tempdir().unwrap();
    fs::copy(
        folder.join("model.safetensors"),
        copy.path().join("model.safetensors"),
    )
    .unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    });
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let ours = Checkpoint::open(copy.path()).unwrap();
    assert_eq!(logits(&ours), logits(&Checkpoint::open(folder).unwrap()));
}
