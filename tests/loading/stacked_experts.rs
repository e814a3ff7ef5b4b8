//! Experts stacked as mlx-lm stacks them. `quantized.rs` has a file with MLX's own quantized values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, Result, Weights};
use tempfile::TempDir;

use crate::message::message;
use crate::numbers::bits;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

type Tensors = BTreeMap<String, Tensor>;

/// Writes a committed family's checkpoint with changed tensors.
fn changed(family: &str, change: impl FnOnce(&mut Tensors)) -> TempDir {
    let source = weights("families").join(family);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let files = checkpoint.files();
    let read = |name: &str| (name.to_string(), files.read(name).unwrap());
    let mut tensors: Tensors = files.names().map(read).collect();
    change(&mut tensors);
    let folder = tempfile::tempdir().unwrap();
    let tensors: Vec<_> = tensors.into_iter().collect();
    write_safetensors(folder.path().join("model.safetensors"), &tensors, None).unwrap();
    let config = folder.path().join("config.json");
    fs::copy(source.join("config.json"), config).unwrap();
    folder
}

fn logits(folder: &Path) -> Result<Vec<u64>> {
    let model = Checkpoint::open(folder)?
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()?;
    let ids = Tensor::new(&[[1u32, 5, 3, 2]], &Device::Cpu)?;
    let output = model.forward(&ModelInput::tokens(&ids))?;
    Ok(bits(&output.logits.unwrap()))
}

/// mlx-lm's names for the projections, each with those of transformers.
const PROJECTIONS: [(&str, [&str; 2]); 3] = [
    ("gate_proj", ["gate_proj", "w1"]),
    ("up_proj", ["up_proj", "w3"]),
    ("down_proj", ["down_proj", "w2"]),
];

/// Stacks a feed-forward's experts under mlx-lm's module `switch`, as its `sanitize` does.
fn stack(tensors: &mut Tensors, feed_forward: &str, switch: &str) {
    for (name, others) in PROJECTIONS {
        let taken = |tensors: &mut Tensors, e: usize| {
            let mut names = others.iter();
            names.find_map(|other| {
                tensors.remove(&format!("{feed_forward}.experts.{e}.{other}.weight"))
            })
        };
        let each: Vec<Tensor> = (0..).map_while(|e| taken(tensors, e)).collect();
        assert!(each.len() > 1, "{feed_forward}.{name}");
        let stacked = Tensor::stack(&each, 0).unwrap();
        tensors.insert(format!("{feed_forward}.{switch}.{name}.weight"), stacked);
    }
}

/// transformers judges the committed checkpoints; the same values have the same bits.
#[test]
fn experts_that_mlx_lm_stacked_are_those_of_transformers_files() {
    if !is_present("families") {
        return;
    }
    for (family, feed_forward, switch) in [
        ("olmoe", "mlp", "switch_mlp"),
        ("mixtral", "block_sparse_moe", "switch_mlp"),
        ("dots1", "mlp", "experts"),
    ] {
        let is_expert = |name: &str| name.contains(".experts.0.");
        let folder = changed(family, |tensors| {
            let layers: Vec<String> = (0..9)
                .map(|layer| format!("model.layers.{layer}.{feed_forward}"))
                .filter(|module| {
                    let start = format!("{module}.experts.0.");
                    tensors.keys().any(|name| name.starts_with(&start))
                })
                .collect();
            assert!(!layers.is_empty(), "{family}");
            for module in layers {
                stack(tensors, &module, switch);
            }
            assert!(!tensors.keys().any(|name| is_expert(name)), "{family}");
        });
        let expected = logits(&weights("families").join(family)).unwrap();
        assert_eq!(logits(folder.path()).unwrap(), expected, "{family}");
        let report = Checkpoint::open(folder.path()).unwrap().report();
        assert!(report.unused.is_empty(), "{family}: {:?}", report.unused);
        // transformers reads the names in a saved file.
        let saved = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
        loader.model().unwrap();
        let path = saved.path().join("saved");
        checkpoint.save(&path, loader.parameters()).unwrap();
        let names = Checkpoint::open(&path).unwrap();
        assert!(names.files().names().any(is_expert), "{family}");
    }
}

/// Granite MoE's own files have gate and up in one tensor, which mlx-lm splits.
#[test]
fn experts_that_mlx_lm_split_from_a_fused_tensor_are_read() {
    if !is_present("families") {
        return;
    }
    let folder = changed("granitemoe", |tensors| {
        let layers: Vec<String> = (0..2)
            .map(|layer| format!("model.layers.{layer}.block_sparse_moe"))
            .collect();
        for module in layers {
            let both = tensors.remove(&format!("{module}.input_linear.weight"));
            let down = tensors.remove(&format!("{module}.output_linear.weight"));
            let both = both.unwrap().chunk(2, 1).unwrap();
            let parts = [&both[0], &both[1], &down.unwrap()].map(|part| part.contiguous().unwrap());
            for (part, (name, _)) in parts.into_iter().zip(PROJECTIONS) {
                tensors.insert(format!("{module}.switch_mlp.{name}.weight"), part);
            }
        }
    });
    let expected = logits(&weights("families/granitemoe")).unwrap();
    assert_eq!(logits(folder.path()).unwrap(), expected);
}

#[test]
fn a_stack_of_another_size_or_of_an_unknown_family_is_named() {
    if !is_present("families") {
        return;
    }
    let name = "model.layers.0.mlp.switch_mlp.up_proj.weight";
    let folder = changed("olmoe", |tensors| {
        stack(tensors, "model.layers.0.mlp", "switch_mlp");
        let cut = tensors[name].narrow(0, 0, 2).unwrap();
        tensors.insert(name.to_string(), cut);
    });
    let said = message(Checkpoint::open(folder.path()));
    assert_says(said, &[name, "experts in its first dimension"]);
    let folder = changed("llama", |tensors| {
        let stacked = Tensor::ones((2, 3, 4), DType::F32, &Device::Cpu).unwrap();
        tensors.insert(name.to_string(), stacked);
    });
    let said = message(Checkpoint::open(folder.path()));
    assert_says(said, &[name, "stacks experts as mlx-lm does", "llama"]);
}
