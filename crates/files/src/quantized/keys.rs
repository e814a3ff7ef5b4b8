//! The keys of a `quantization_config`: each is read, or known to change no weight, or refused by name.

use serde_json::Value;

use crate::config_json::{ConfigJson, abbreviated};
use candle_blocks_base::Result;

/// Keys for every method that change no weight. The tensors determine which modules are quantized.
const OF_ALL: [&str; 15] = [
    "quant_method",
    "modules_to_not_convert",
    "modules_to_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "dequantize",
    "use_optimized_inference",
    "run_compressed",
    "quantization_status",
    "version",
    "producer",
    "dtype",
    "lm_head",
    "quantize_embeddings",
];

/// Keys that AutoRound writes, also for the formats of other methods: how weights were optimized, and how activations are rounded.
const OF_AUTO_ROUND: [&str; 25] = [
    "amp",
    "autoround_version",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "enable_alg_ext",
    "gradient_accumulate_steps",
    "iters",
    "lr",
    "minmax_lr",
    "low_gpu_mem_usage",
    "low_cpu_mem_usage",
    "not_use_best_mse",
    "nsamples",
    "seqlen",
    "scale_dtype",
    "sampler",
    "seed",
    "super_bits",
    "super_group_size",
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
];

/// Returns a method's keys that describe how weights were optimized, how fast they run, or how activations are rounded.
/// Activations are not rounded here.
fn of_method(method: &str) -> &'static [&'static str] {
    match method {
        "gptq" | "auto-round" => &[
            "zero_point",
            "sym",
            "damp_percent",
            "damp_auto_increment",
            "desc_act",
            "act_group_aware",
            "static_groups",
            "true_sequential",
            "dataset",
            "tokenizer",
            "model_seqlen",
            "batch_size",
            "pad_token_id",
            "block_name_to_quantize",
            "to_quant_block_names",
            "quant_block_list",
            "module_name_preceding_first_block",
            "modules_in_block_to_quantize",
            "cache_block_outputs",
            "model_name_or_path",
            "model_file_base_name",
            "quantize_backend",
            "method",
            "meta",
            "mse",
            "v2",
            "v2_alpha",
            "gptaq",
            "failsafe",
            "fail_safe",
            "rotation",
            "hyb_act",
            "offload_to_disk",
            "offload_to_disk_path",
            "pack_impl",
            "vram_strategy",
            "mock_quantization",
            // speed
            "backend",
            "use_cuda_fp16",
            "use_exllama",
            "disable_exllama",
            "exllama_config",
            "max_input_length",
            "is_marlin_format",
        ],
        "awq" => &[
            "zero_point",
            "backend",
            "do_fuse",
            "fuse_max_seq_len",
            "modules_to_fuse",
            "exllama_config",
            "format",
            "method",
            "meta",
            "desc_act",
            "sym",
        ],
        "compressed-tensors" | "modelopt" => &[
            "global_compression_ratio",
            "kv_cache_scheme",
            "kv_cache_quant_algo",
            "quant_algo",
            "quant_level",
            "has_zero_point",
            "quantized_layers",
            "targets",
            "quantization",
        ],
        "fp8" | "fbgemm_fp8" => &[
            "scale_fmt",
            "activation_scheme",
            "activation_scale_ub",
            "kv_cache_scheme",
            "ignored_modules",
        ],
        "bitnet" => &["rms_norm_eps"],
        "bitsandbytes" => &[
            "load_in_4bit",
            "load_in_8bit",
            "_load_in_4bit",
            "_load_in_8bit",
            "bnb_4bit_compute_dtype",
            "bnb_4bit_quant_storage",
            "bnb_4bit_quant_type",
            "bnb_4bit_use_double_quant",
            "llm_int8_enable_fp32_cpu_offload",
            "llm_int8_has_fp16_weight",
            "llm_int8_skip_modules",
            "llm_int8_threshold",
        ],
        _ => &[],
    }
}

/// Refuses keys for unsupported features, and unread keys that may change the weights.
///
/// # Errors
/// If there is one.
pub(super) fn check(found: &ConfigJson, method: &str) -> Result<()> {
    if matches!(method, "compressed-tensors" | "modelopt") {
        check_transforms(found)?;
        check_sparsity(found)?;
    }
    // GPTQModel packs values in 32-bit words by default.
    found.only("pack_dtype", &["int32".into()])?;
    let mut harmless = [&OF_ALL[..], of_method(method)].concat();
    if matches!(method, "gptq" | "awq" | "auto-round") {
        found.only("data_type", &["int".into()])?;
        harmless.extend(OF_AUTO_ROUND);
    }
    let unread = found.unread(&harmless);
    let object = found.value().as_object();
    for (key, value) in object.into_iter().flatten() {
        let inside = format!(".{key}.");
        let is_unread = |path: &String| format!(".{path}.").contains(&inside);
        let is_module = method == "mlx" && (value.is_object() || value.is_boolean());
        if unread.iter().any(is_unread) && !is_module && !is_off(value) {
            let reason = format!(
                "found {}, but the key is unknown for {method}, and may change the weights; remove the key if it does not",
                shown(value)
            );
            return Err(found.error(&[key], reason));
        }
    }
    Ok(())
}

/// Returns a value as messages show it.
pub(super) fn shown(value: &Value) -> String {
    abbreviated(match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    })
}

/// Returns whether a key's value is empty or false.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty() || text == "none",
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Rotations of weights are part of the stored values. Rotations of inputs, outputs and caches would be computed while the
/// model runs.
fn check_transforms(found: &ConfigJson) -> Result<()> {
    let groups = found
        .at("transform_config")
        .and_then(|all| all.get("config_groups"));
    let groups = groups.and_then(Value::as_object);
    for (name, scheme) in groups.into_iter().flatten() {
        let applied = scheme.get("apply").and_then(Value::as_array);
        for one in applied.into_iter().flatten() {
            let location = one.get("location").and_then(Value::as_str);
            if !matches!(location, Some("weight_input" | "weight_output")) {
                let kind = scheme.get("type").and_then(Value::as_str);
                let reason = format!(
                    "its group {name} rotates by a matrix of the type {} at {} while the model \
                     runs, which is not supported; open the checkpoint that this one was made \
                     from",
                    kind.unwrap_or("unknown"),
                    location.unwrap_or("an unknown place")
                );
                return Err(found.error(&["transform_config"], reason));
            }
        }
    }
    Ok(())
}

/// Sparse weights are stored without their zeros, unless their format is dense.
fn check_sparsity(found: &ConfigJson) -> Result<()> {
    let format = found
        .at("sparsity_config")
        .and_then(|all| all.get("format"));
    match format.and_then(Value::as_str) {
        None | Some("dense") => Ok(()),
        Some(format) => {
            let reason = format!("its format {format} is not supported; save the weights dense");
            Err(found.error(&["sparsity_config"], reason))
        }
    }
}
