//! Adapters in PEFT's files. `weights/check_adapters.py` compares the results with PEFT itself.

use std::{collections::HashMap, fs, path::Path};

use candle_blocks::{
    Checkpoint, CheckpointOptions, Weights,
    candle_core::{DType, Device, Tensor, safetensors},
    train::{Lora, LoraConfig},
};
use serde_json::{Value, json};

use crate::{
    committed::present,
    device::device,
    numbers::{bits, numbers},
    trained::trained,
    weights::weights,
};

#[test]
fn an_adapter_has_the_name_of_its_module() {
    let folder = tempfile::tempdir().unwrap();
    let attach = |name: &str, targets: &[&str]| {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let lora = Lora::attach(&mut stack, LoraConfig::new(2, 4.0, targets), 3).unwrap();
        (checkpoint, lora)
    };
    let (checkpoint, lora) = attach("tiny-bert", &["blocks.1.attention.query"]);
    lora.save_peft(&checkpoint, folder.path()).unwrap();
    let path = folder.path().join("adapter_model.safetensors");
    let saved = safetensors::load(path, &Device::Cpu).unwrap();
    let module = "encoder.layer.1.attention.self.query";
    for (part, own) in [("lora_A", 0), ("lora_B", 1)] {
        let saved = &saved[&format!("base_model.model.{module}.{part}.weight")];
        assert_eq!(bits(saved), bits(&lora.parameters()[own].1), "{part}");
    }
    assert_eq!(saved.len(), 2);
    let config = config_of(folder.path());
    assert_eq!(config["target_modules"], json!([module]));
    assert_eq!(
        (&config["r"], &config["lora_alpha"]),
        (&2.into(), &4.0.into())
    );
}

fn config_of(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// PEFT adds `alpha / rank · B·A` to a module's weight, transposed for a `Conv1D`; merging our file must give the same.
#[test]
fn adapters_of_a_fused_tensors_parts_are_one_of_the_whole() {
    let cases = [
        ("tiny-gpt2", "h.0.attn.c_attn", true),
        (
            "families/gpt_neox",
            "gpt_neox.layers.0.attention.query_key_value",
            false,
        ),
        (
            "families/falcon-groups",
            "transformer.h.0.self_attention.query_key_value",
            false,
        ),
        ("families/codegen", "transformer.h.0.attn.qkv_proj", false),
    ];
    for (name, module, is_conv1d) in present(cases, |case| case.0) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let roles = ["blocks.0.attention.query", "blocks.0.attention.value"];
        let lora = Lora::attach(&mut stack, LoraConfig::new(2, 4.0, &roles), 3).unwrap();
        fill(&lora);
        let folder = tempfile::tempdir().unwrap();
        lora.save_peft(&checkpoint, folder.path()).unwrap();
        let config = config_of(folder.path());
        assert_eq!(config["target_modules"], json!([module]), "{name}");
        assert_eq!(config["fan_in_fan_out"], is_conv1d, "{name}");
        assert_eq!(config["rank_pattern"], json!({ module: 4 }), "{name}");
        assert_eq!(config["alpha_pattern"], json!({ module: 8.0 }), "{name}");
        let saved = folder.path().join("adapter_model.safetensors");
        let saved = safetensors::load(saved, &device()).unwrap();
        let part = |part| &saved[&format!("base_model.model.{module}.{part}.weight")];
        let change = part("lora_B").matmul(part("lora_A")).unwrap();
        let change = change.affine(8.0 / 4.0, 0.0).unwrap();
        let change = if is_conv1d {
            change.t().unwrap()
        } else {
            change
        };

        let parameters = trained(&checkpoint, DType::F32).into_iter();
        let mut by_role: HashMap<String, Tensor> = parameters
            .map(|(role, v)| (role, v.as_detached_tensor()))
            .collect();
        by_role.extend(lora.merge(&mut stack).unwrap());
        let merged: HashMap<String, Tensor> =
            checkpoint.to_disk(&by_role).unwrap().into_iter().collect();
        let on_disk = format!("{module}.weight");
        let before = checkpoint
            .files()
            .read(&on_disk)
            .unwrap()
            .to_device(&device())
            .unwrap();
        let expected = numbers(&(before + change).unwrap());
        for (i, (ours, theirs)) in numbers(&merged[&on_disk])
            .into_iter()
            .zip(expected)
            .enumerate()
        {
            // Sums of a rank's two terms.
            let off = (ours - theirs).abs();
            assert!(
                off < 4.0 * f64::from(f32::EPSILON) * theirs.abs().max(1.0),
                "{name} {i}: {off}"
            );
        }
    }
}

/// Changes the adapters' variables, because `B` starts at 0.
fn fill(lora: &Lora) {
    for (i, (_, variable)) in lora.parameters().into_iter().enumerate() {
        let n = variable.elem_count();
        let values = (0..n).map(|j| ((j * 31 + i * 17) % 47) as f32 / 47.0 - 0.5);
        let values = Tensor::from_iter(values, &device()).unwrap();
        let values = values.reshape(variable.shape()).unwrap();
        variable.set(&values).unwrap();
    }
}

/// transformers 5.24's parameters for the experts in these families, from `named_parameters()`. The fixtures in
/// `tests/loading/adapters.rs` show that PEFT computes the same with such files.
#[test]
fn adapters_of_experts_are_those_of_the_parameters_that_stack_them() {
    let cases = [
        ("families/mixtral", "model.layers.0.mlp", "gate"),
        ("families/phimoe", "model.layers.0.mlp", "router"),
        ("families/qwen3_moe", "model.layers.0.mlp", "gate"),
        (
            "families/granitemoe",
            "model.layers.0.block_sparse_moe",
            "router",
        ),
        ("families/gpt_oss", "model.layers.0.mlp", "router"),
        (
            "families/llama4_text",
            "model.layers.0.feed_forward",
            "router",
        ),
        ("families/deepseek_v3", "model.layers.1.mlp", "gate"),
    ];
    for (name, mlp, router) in present(cases, |case| case.0) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let mut roles = vec!["attention.output", "feed_forward.router", "*.down"];
        roles.extend(["feed_forward.experts.*.gate", "feed_forward.experts.0.up"]);
        let config = LoraConfig::new(2, 4.0, &roles).with_dropout(0.5);
        let lora = Lora::attach(&mut stack, config, 3).unwrap();
        fill(&lora);
        let folder = tempfile::tempdir().unwrap();
        let adapter = folder.path().join("adapter");
        lora.save_peft(&checkpoint, &adapter).unwrap();
        let config = config_of(&adapter);
        let listed =
            |key: &str| -> Vec<String> { serde_json::from_value(config[key].clone()).unwrap() };
        let parameters = listed("target_parameters");
        for parameter in ["experts.gate_up_proj", "experts.down_proj"] {
            let parameter = format!("{mlp}.{parameter}");
            assert!(parameters.contains(&parameter), "{name} {parameters:?}");
        }
        let router = format!("{mlp}.{router}.weight");
        assert!(parameters.contains(&router), "{name} {parameters:?}");
        let modules = listed("target_modules");
        let is_attention = |name: &String| name.contains("self_attn");
        assert!(!modules.is_empty() && modules.iter().all(is_attention));
        assert_eq!(config["lora_dropout"], 0.0, "{name}");

        let merged = folder.path().join("merged");
        checkpoint
            .save(&merged, lora.merge(&mut stack).unwrap())
            .unwrap();
        let options = CheckpointOptions::default();
        let adapted = options.adapter(&adapter).open(weights(name)).unwrap();
        let merged = Checkpoint::open(&merged).unwrap();
        let mut n_changed = 0;
        for tensor in merged.files().names() {
            let read = |of: &Checkpoint| numbers(&of.files().read(tensor).unwrap());
            let (ours, expected) = (read(&adapted), read(&merged));
            n_changed += usize::from(expected != read(&checkpoint));
            for (ours, expected) in ours.iter().zip(&expected) {
                // Sums of a rank's four terms.
                let bound = 8.0 * f64::from(f32::EPSILON) * expected.abs().max(1.0);
                assert!((ours - expected).abs() <= bound, "{name} {tensor}");
            }
        }
        assert!(n_changed > 4, "{name} {n_changed}");
    }
}

#[test]
fn an_adapter_without_a_tensor_in_the_checkpoint_is_refused() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let config = LoraConfig::new(2, 4.0, &["attention.query"]);
    let lora = Lora::attach(&mut stack, config, 3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = Checkpoint::open(weights("tiny-bert-bf16")).unwrap();
    let message = lora
        .save_peft(&other, folder.path())
        .unwrap_err()
        .to_string();
    assert!(message.contains("blocks.2.attention.query"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The names in transformers' classes, from each one's `named_modules()`.
#[test]
fn adapters_go_by_the_names_of_the_class_and_not_of_the_files() {
    let cases = [
        (
            "tiny-gpt2",
            Some("GPT2LMHeadModel"),
            "transformer.h.0.attn.c_attn",
        ),
        ("tiny-gpt2", Some("GPT2Model"), "h.0.attn.c_attn"),
        (
            "tiny-bert",
            Some("BertForSequenceClassification"),
            "bert.encoder.layer.0.attention.self.query",
        ),
        ("families/vit", None, "vit.layers.0.attention.q_proj"),
        ("families/vit_msn", None, "layers.0.attention.q_proj"),
        ("families/deit", None, "deit.layers.0.attention.q_proj"),
        ("families/dinov2", None, "encoder.layer.0.attention.q_proj"),
        (
            "families/dinov3_vit",
            None,
            "model.layer.0.attention.q_proj",
        ),
        ("families/gte", None, "gte.layers.0.self_attn.q_proj"),
        (
            "families/opt",
            Some("OPTModel"),
            "decoder.layers.0.self_attn.q_proj",
        ),
        (
            "families/qwen2_vl",
            None,
            "model.language_model.layers.0.self_attn.q_proj",
        ),
        (
            "families/llava",
            None,
            "model.language_model.layers.0.self_attn.q_proj",
        ),
        (
            "families/siglip2",
            None,
            "text_model.encoder.layers.0.self_attn.q_proj",
        ),
        (
            "families/llama",
            Some("LlamaForQuestionAnswering"),
            "transformer.layers.0.self_attn.q_proj",
        ),
    ];
    for (name, class, module) in present(cases, |case| case.0) {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(weights(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        let path = folder.path().join("config.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        if let Some(class) = class {
            json["architectures"] = json!([class]);
        }
        fs::write(&path, json.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let config = LoraConfig::new(2, 4.0, &["blocks.0.attention.query"]);
        let lora = Lora::attach(&mut stack, config, 3).unwrap();
        let out = folder.path().join("adapters");
        lora.save_peft(&checkpoint, &out).unwrap();
        let written: Value =
            serde_json::from_slice(&fs::read(out.join("adapter_config.json")).unwrap()).unwrap();
        assert_eq!(
            written["target_modules"],
            json!([module]),
            "{name} {class:?}"
        );
    }
}
