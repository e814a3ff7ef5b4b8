//! GGUF files of models with recurrent mixers: forms that llama.cpp reads beside its converter's, and files that are refused.
//! `gguf_architectures.rs` compares results with transformers' and llama.cpp's.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Result, Weights};

use crate::gguf_file::{StoredTensor, flag, whole, with_keys, with_tensors, without_key};
use crate::weights::{is_present, weights};

const FOLDER: &str = "gguf-architectures";

/// Returns an architecture's committed file.
fn bytes(name: &str) -> Vec<u8> {
    fs::read(weights(&format!("{FOLDER}/{name}/model.gguf"))).unwrap()
}

/// Returns the logits for a few tokens.
fn logits(bytes: &[u8]) -> Result<Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let checkpoint = CheckpointOptions::default().whole().open(&path)?;
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()?;
    let ids = Tensor::new(&[[5u32, 3, 17, 8, 30, 12]], &Device::Cpu)?;
    let logits = model.forward(&ModelInput::tokens(&ids))?.logits.unwrap();
    Ok(logits.flatten_all()?.to_vec1()?)
}

/// Returns the error for a file whose tensors a function changes.
#[track_caller]
fn refused(name: &str, change: impl FnOnce(&mut Vec<StoredTensor>)) -> String {
    let error = logits(&with_tensors(&bytes(name), change)).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("model.gguf"), "{name}: {said}");
    said
}

fn find<'t>(tensors: &'t mut [StoredTensor], name: &str) -> &'t mut StoredTensor {
    tensors.iter_mut().find(|of| of.name == name).unwrap()
}

#[test]
fn a_missing_tensor_of_a_mixer_is_named() {
    if !is_present(FOLDER) {
        return;
    }
    for (name, tensor, expected) in [
        ("qwen35", "ssm_a", "model.layers.0.linear_attn.A_log"),
        ("qwen35moe", "ssm_dt.bias", "linear_attn.dt_bias"),
        ("qwen3next", "attn_gate.weight", "linear_attn.in_proj_z"),
        ("granitehybrid", "ssm_d", "model.layers.0.mamba.D"),
        ("bamba", "ssm_norm.weight", "model.layers.0.mamba.norm"),
        ("mamba2", "ssm_a", "backbone.layers.0.mixer.A_log"),
        ("nemotron-h", "ssm_dt.bias", "layers.0.mixer.dt_bias"),
        ("mamba", "ssm_a", "backbone.layers.0.mixer.A_log"),
        ("falcon-mamba", "ssm_x.weight", "layers.0.mixer.x_proj"),
        ("jamba", "ssm_b_norm.weight", "layers.0.mamba.b_layernorm"),
        ("falcon-h1", "ssm_d", "model.layers.0.mamba.D"),
    ] {
        let missing = format!("blk.0.{tensor}");
        let said = refused(name, |tensors| tensors.retain(|of| of.name != missing));
        assert!(said.contains(expected), "{name}: {said}");
        assert!(said.contains(".ssm.time_step_rank\" "), "{name}: {said}");
    }
}

#[test]
fn a_tensor_of_a_mixer_with_a_wrong_shape_is_named_with_both() {
    if !is_present(FOLDER) {
        return;
    }
    // As some converters transpose it.
    let said = refused("qwen35", |tensors| {
        find(tensors, "blk.0.ssm_conv1d.weight").shape.reverse();
    });
    for part in ["linear_attn.conv1d.weight", "[4, 1, 80]", "[80, 1, 4]"] {
        assert!(said.contains(part), "{said}");
    }
    for (name, module, found, expected) in [
        ("qwen35", "ssm_out", "[23, 48]", "[24, 48]"),
        ("qwen35", "attn_qkv", "[79, 24]", "[80, 24]"),
        ("granitehybrid", "ssm_in", "[165, 24]", "[166, 24]"),
        ("granitehybrid", "ssm_norm", "[24]", "[48]"),
        ("mamba2", "ssm_in", "[165, 24]", "[166, 24]"),
        ("nemotron-h", "ssm_out", "[23, 48]", "[24, 48]"),
        ("mamba", "ssm_x", "[12, 48]", "[13, 48]"),
        ("jamba", "ssm_dt", "[47, 3]", "[48, 3]"),
        ("falcon-h1", "ssm_out", "[23, 32]", "[24, 32]"),
    ] {
        let said = refused(name, |tensors| {
            let tensor = find(tensors, &format!("blk.0.{module}.weight"));
            let n = tensor.shape[0] - 1;
            tensor.bytes = tensor.rows(0..n);
            tensor.shape[0] = n;
        });
        let are_said = [found, expected].map(|shape| said.contains(shape));
        assert_eq!(are_said, [true; 2], "{name} {module}: {said}");
    }
}

/// Its logarithm is what the model has.
#[test]
fn a_rate_that_is_not_below_zero_is_refused() {
    if !is_present(FOLDER) {
        return;
    }
    for name in [
        "qwen35",
        "granitehybrid",
        "mamba2",
        "nemotron-h",
        "mamba",
        "jamba",
        "falcon-h1",
    ] {
        let said = refused(name, |tensors| find(tensors, "blk.0.ssm_a").bytes.fill(0));
        for part in ["blk.0.ssm_a", "contains 0", "below 0"] {
            assert!(said.contains(part), "{name}: {said}");
        }
    }
}

#[test]
fn keys_of_mixers_that_do_not_fit_are_refused_by_name() {
    if !is_present(FOLDER) {
        return;
    }
    let layers = |n: usize| {
        let head = [9u32.to_le_bytes(), 7u32.to_le_bytes()].concat();
        [head, (n as u64).to_le_bytes().to_vec(), vec![1; n]].concat()
    };
    let sizes = |of: &[u32]| {
        let head = [9u32.to_le_bytes(), 4u32.to_le_bytes()].concat();
        let items = of.iter().flat_map(|size| size.to_le_bytes()).collect();
        [head, (of.len() as u64).to_le_bytes().to_vec(), items].concat()
    };
    for (name, key, value) in [
        ("qwen35", "qwen35.ssm.inner_size", whole(50)),
        ("qwen35", "qwen35.attention.recurrent_layers", layers(3)),
        ("qwen35", "qwen35.rope.dimension_sections", whole(3)),
        ("bamba", "granitehybrid.ssm.inner_size", whole(54)),
        ("bamba", "granitehybrid.residual_scale", whole(2)),
        ("granitehybrid", "granitehybrid.rope.freq_scale", whole(2)),
        ("mamba2", "mamba2.ssm.inner_size", whole(50)),
        ("mamba", "mamba.ssm.inner_size", whole(50)),
        ("falcon-h1", "falcon-h1.ssm.inner_size", whole(34)),
        (
            "jamba",
            "jamba.attention.head_count_kv",
            sizes(&[0, 2, 2, 0, 0]),
        ),
        ("nemotron-h", "nemotron_h.expert_count", whole(2)),
        ("falcon-h1", "falcon-h1.attention.causal", flag(false)),
        ("kimi-linear", "kimi-linear.expert_shared_count", whole(0)),
    ] {
        let error = logits(&with_keys(bytes(name), &[(key, value)])).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(&format!("{key:?}")), "{key}: {said}");
    }
    // llama.cpp turns where the key is missing.
    let key = "granitehybrid.rope.scaling.finetuned";
    let error = logits(&without_key(bytes("granitehybrid"), key)).unwrap_err();
    assert!(error.to_string().contains(key), "{error}");
    let turned = with_keys(bytes("granitehybrid"), &[(key, flag(true))]);
    let said = logits(&turned).unwrap_err().to_string();
    assert!(said.contains("granitehybrid.attention.scale"), "{said}");
}

#[test]
fn layers_with_attention_are_listed_or_come_after_an_interval() {
    if !is_present(FOLDER) {
        return;
    }
    for name in ["qwen35", "qwen35moe", "qwen3next"] {
        let file = bytes(name);
        let expected = logits(&file).unwrap();
        for key in ["attention.recurrent_layers", "full_attention_interval"] {
            let changed = without_key(file.clone(), &format!("{name}.{key}"));
            assert_eq!(logits(&changed).unwrap(), expected, "{name} {key}");
        }
    }
}

/// The experts' tensors of Nemotron 3 are needed by name, and so is the correction of their scores.
#[test]
fn a_missing_tensor_of_experts_alone_in_their_layer_is_named() {
    if !is_present(FOLDER) {
        return;
    }
    for (tensor, expected) in [
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ffn_up_exps.weight", "mixer.experts.0.up_proj"),
        ("ffn_down_shexp.weight", "mixer.shared_experts.down_proj"),
    ] {
        let missing = format!("blk.0.{tensor}");
        let said = refused("nemotron-h-groups", |tensors| {
            tensors.retain(|of| of.name != missing)
        });
        assert!(said.contains(expected), "{said}");
    }
}

/// llama.cpp takes the one epsilon for the other.
#[test]
fn either_key_may_have_the_epsilon_of_nemotron_h() {
    if !is_present(FOLDER) {
        return;
    }
    let file = bytes("nemotron-h");
    let expected = logits(&file).unwrap();
    for key in ["layer_norm_epsilon", "layer_norm_rms_epsilon"] {
        let changed = without_key(file.clone(), &format!("nemotron_h.attention.{key}"));
        assert_eq!(logits(&changed).unwrap(), expected, "{key}");
    }
}

/// Older converters wrote Qwen3-Next's projection as its checkpoints have it: for each key head its query, key, values and gates.
#[test]
fn queries_keys_values_and_gates_of_qwen3_next_may_be_one_tensor() {
    if !is_present(FOLDER) {
        return;
    }
    let file = bytes("qwen3next");
    // Two key heads of 8, and four value heads of 8.
    let changed = with_tensors(&file, |tensors| {
        let all = tensors.clone();
        tensors.retain(|of| !of.name.ends_with("attn_gate.weight"));
        for fused in tensors.iter_mut().filter(|of| of.name.contains("attn_qkv")) {
            let gate = fused.name.replace("attn_qkv", "attn_gate");
            let gate = all.iter().find(|of| of.name == gate).unwrap();
            let head = |i: usize| {
                let (keys, values) = (8 * i..8 * i + 8, 16 * i..16 * i + 16);
                let [key, value] = [16 + keys.start, 32 + values.start];
                let own = [keys, key..key + 8, value..value + 16];
                [own.map(|rows| fused.rows(rows)).concat(), gate.rows(values)].concat()
            };
            fused.bytes = [head(0), head(1)].concat();
            fused.shape[0] += gate.shape[0];
            fused.name = fused.name.replace("attn_qkv", "ssm_in");
        }
    });
    assert_ne!(changed, file);
    assert_eq!(logits(&changed).unwrap(), logits(&file).unwrap());
}

/// llama.cpp selects experts so (`weights/sweep/gguf_keys.py`).
#[test]
fn experts_of_kimi_linear_are_selected_in_the_groups_that_a_file_names() {
    if !is_present("gguf-architectures") {
        return;
    }
    let keys = [
        ("kimi-linear.expert_group_count", whole(2)),
        ("kimi-linear.expert_group_used_count", whole(1)),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, with_keys(bytes("kimi-linear"), &keys)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let experts = checkpoint.config().blocks.iter();
    let experts: Vec<_> = experts.filter_map(|of| of.feed_forward.experts).collect();
    assert!(!experts.is_empty());
    for experts in experts {
        let groups = experts.routing.groups.unwrap();
        assert_eq!([groups.n_groups, groups.top_groups], [2, 1]);
    }
}
