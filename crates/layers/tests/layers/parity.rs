//! Blocks in committed checkpoints against PyTorch, forward and backward, by the ratio rule.
//!
//! Variants (prefixes, names, shards, types) are made here out of the committed files, so that one
//! PyTorch fixture judges them all.

use std::{collections::HashMap, fs, path::Path};

use candle_blocks::{
    Checkpoint, Weights,
    candle_core::{DType, Device, Tensor, safetensors},
    checkpoint::write::write_safetensors,
    trace::{self, TraceInput},
    verify::{Comparison, Fixture, Report, verify},
};

use crate::{
    committed::present, composed::of_any, device::device, numbers::bits, said::assert_says,
    types::computable, weights::weights,
};

const CHECKPOINTS: [(&str, DType); 5] = [
    ("tiny-bert", DType::F32),
    ("tiny-gpt2", DType::F32),
    ("tiny-bert-bf16", DType::BF16),
    ("tiny-gpt2-f16", DType::F16),
    ("minilm-block0", DType::F32),
];

fn report(model: &Path, fixture: &Path, dtype: DType) -> Report {
    let checkpoint = Checkpoint::open(model).unwrap();
    let fixture = Fixture::open(fixture).unwrap();
    let input = TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap();
    let stages = trace::run_backward(&checkpoint, &input, dtype, &device()).unwrap();
    verify(&fixture, &stages.into_iter().collect())
}

#[track_caller]
fn check(model: &Path, name: &str, dtype: DType) {
    let fixture = weights(name).join("fixture.safetensors");
    let report = report(model, &fixture, dtype);
    // The gradient of BERT's key bias is 0 but for rounding: in f64 the twin is as much noise as ours.
    let is_noise = |name: &str| dtype == DType::F64 && name.ends_with("attention.self.key.bias");
    let is_allowed = |c: &Comparison| c.name.starts_with("grads.") && c.share_used <= of_any();
    let mut failed = report.comparisons.iter().filter(|c| !c.passed());
    let passed = failed.all(|c| is_noise(&c.name) || is_allowed(c));
    assert!(passed, "{name} in {dtype:?}\n{report}");
}

#[test]
fn every_committed_checkpoint_gives_pytorchs_outputs_and_gradients() {
    for (name, dtype) in present(CHECKPOINTS, |c| c.0) {
        check(&weights(name), name, dtype);
    }
}

#[test]
fn every_f32_checkpoint_passes_in_f64_and_in_half_precision() {
    let dtypes = computable([DType::F64, DType::BF16, DType::F16], "checkpoints in f64");
    let mut n = 0;
    for (name, native) in present(CHECKPOINTS, |c| c.0) {
        if native == DType::F32 {
            n += 1;
            for &dtype in &dtypes {
                check(&weights(name), name, dtype);
            }
        }
    }
    assert!(n >= 2, "only {n} checkpoints in f32");
}

/// The committed tensors under other names, in a folder with the same config.json.
fn variant(
    name: &str,
    rename: impl Fn(&str) -> String,
    dtype: DType,
) -> (tempfile::TempDir, HashMap<String, Tensor>) {
    let folder = crate::folder::folder();
    let source = weights(name);
    fs::copy(
        source.join("config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let tensors = safetensors::load(source.join("model.safetensors"), &Device::Cpu).unwrap();
    let rename = |(name, tensor): (String, Tensor)| {
        let is_float = tensor.dtype().is_float();
        let tensor = if is_float {
            tensor.to_dtype(dtype).unwrap()
        } else {
            tensor
        };
        (rename(&name), tensor)
    };
    (folder, tensors.into_iter().map(rename).collect())
}

fn write(folder: &Path, file: &str, tensors: impl IntoIterator<Item = (String, Tensor)>) {
    let tensors: Vec<_> = tensors.into_iter().collect();
    write_safetensors(folder.join(file), &tensors, None).unwrap();
}

/// Forward stages only: gradients carry the names on disk, which the variant changed.
#[track_caller]
fn check_forward(model: &Path, name: &str) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let fixture = Fixture::open(weights(name).join("fixture.safetensors")).unwrap();
    let input = TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap();
    let stages = trace::run(&checkpoint, &input, DType::F32, &device()).unwrap();
    let report = verify(&fixture, &stages.into_iter().collect());
    assert!(report.passed, "{name}\n{report}");
}

#[test]
fn prefixes_and_old_norm_names_are_found() {
    for (name, prefix) in [("tiny-bert", "bert."), ("tiny-gpt2", "transformer.")] {
        let rename = |name: &str| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            format!(
                "{prefix}{}",
                name.replace("LayerNorm.bias", "LayerNorm.beta")
            )
        };
        let (folder, tensors) = variant(name, rename, DType::F32);
        write(folder.path(), "model.safetensors", tensors);
        check_forward(folder.path(), name);
    }
}

#[test]
fn weights_stored_in_f64_are_loaded_in_f32() {
    for name in ["tiny-bert", "tiny-gpt2"] {
        let (folder, tensors) = variant(name, str::to_string, DType::F64);
        write(folder.path(), "model.safetensors", tensors);
        check_forward(folder.path(), name);
    }
}

#[test]
fn masks_of_gpt2_are_not_taken_for_biases() {
    let (folder, mut tensors) = variant("tiny-gpt2", str::to_string, DType::F32);
    for i in 0..2 {
        let mask = Tensor::tril2(16, DType::F32, &Device::Cpu).unwrap();
        tensors.insert(
            format!("h.{i}.attn.bias"),
            mask.reshape((1, 1, 16, 16)).unwrap(),
        );
        let low = Tensor::new(-1e4f32, &Device::Cpu).unwrap();
        tensors.insert(format!("h.{i}.attn.masked_bias"), low);
    }
    write(folder.path(), "model.safetensors", tensors);
    check_forward(folder.path(), "tiny-gpt2");
    let report = Checkpoint::open(folder.path()).unwrap().report();
    assert_eq!(report.ignored.len(), 4, "{report}");
}

#[test]
fn shards_give_what_one_file_gives() {
    for name in ["tiny-bert", "tiny-gpt2"] {
        let (folder, tensors) = variant(name, str::to_string, DType::F32);
        let mut shards: [Vec<(String, Tensor)>; 3] = Default::default();
        let mut weight_map = serde_json::Map::new();
        for (i, (name, tensor)) in tensors.into_iter().enumerate() {
            let file = format!("model-{:05}-of-00003.safetensors", i % 3 + 1);
            weight_map.insert(name.clone(), file.into());
            shards[i % 3].push((name, tensor));
        }
        for (i, shard) in shards.into_iter().enumerate() {
            write(
                folder.path(),
                &format!("model-{:05}-of-00003.safetensors", i + 1),
                shard,
            );
        }
        let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
        let path = folder.path().join("model.safetensors.index.json");
        fs::write(&path, index.to_string()).unwrap();
        check_forward(folder.path(), name);
        check_forward(&path, name);
    }
}

#[test]
fn gpt2_square_projection_is_transposed() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let stored = checkpoint.files().read("h.0.attn.c_proj.weight").unwrap();
    let block = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .block(0)
        .unwrap();
    let loaded = block
        .mixer()
        .inner()
        .attention()
        .unwrap()
        .output()
        .weight()
        .unwrap();
    let rows = |t: &Tensor| t.to_vec2::<f32>().unwrap();
    assert_eq!(rows(&loaded), rows(&stored.t().unwrap()));
    assert_ne!(rows(&loaded), rows(&stored));
}

#[test]
fn gradients_go_back_to_the_layout_on_disk() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    loader.stack().unwrap();
    let by_role: HashMap<String, Tensor> = loader
        .parameters()
        .into_iter()
        .map(|(role, variable)| (role, variable.as_tensor().clone()))
        .collect();
    let disk = checkpoint.to_disk(&by_role).unwrap();
    assert_eq!(disk.len(), checkpoint.report().used.len());
    for (name, tensor) in disk {
        let stored = checkpoint.files().read(&name).unwrap();
        assert_eq!(tensor.dims(), stored.dims(), "{name}");
        assert_eq!(bits(&tensor), bits(&stored), "{name}");
    }
    // Query, key and value lie in one tensor, the value last.
    for absent in ["query", "key", "value"] {
        let mut partial = by_role.clone();
        partial.remove(&format!("blocks.0.attention.{absent}.weight"));
        let error = checkpoint.to_disk(&partial).unwrap_err().to_string();
        let words = ["h.0.attn.c_attn.weight", "the roles given cover"];
        assert_says(error, &words);
    }
}
