//! Whole models whose files hold a tied parameter several times, or a buffer: trained as transformers trains them, and saved so
//! that they are read again as they were trained.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::checkpoint::Loader;
use candle_blocks::model::{Model, ModelInput, Seq2Seq};
use candle_blocks::train::{AdamW, AdamWConfig, Gradients, ParameterGroup};
use candle_blocks::{Checkpoint, CheckpointOptions, Weights, ops};

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::double::has_f64;
use crate::reference::Reference;
use crate::weights::{is_present, weights};

const N_STEPS: usize = 6;
const SEQ: i64 = 5;

/// Returns a copy of a committed checkpoint with additional names for its tensors, and with another value for
/// `tie_word_embeddings`.
fn copy(name: &str, copies: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let from = weights(name);
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    for (copy, of) in copies {
        tensors.insert(copy.to_string(), tensors[*of].clone());
    }
    safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = true.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let path = folder.path().to_path_buf();
    (folder, path)
}

/// Returns ids by the exporter's rule.
fn ids(start: i64, rows: i64) -> Vec<Vec<i64>> {
    let row = |row| (0..SEQ).map(move |i| (start + 3 * row + 5 * i) % 7 + 2);
    (0..rows).map(|i| row(i).collect()).collect()
}

fn tensor(rows: &[Vec<i64>]) -> Tensor {
    Tensor::new(rows.to_vec(), &device()).unwrap()
}

fn targets(rows: i64) -> Vec<Vec<i64>> {
    let mut wanted = ids(4, rows);
    for row in &mut wanted {
        row.iter_mut().step_by(3).for_each(|target| *target = -100);
    }
    wanted
}

enum Whole {
    One(Box<Model>),
    Two(Box<Seq2Seq>),
}

impl Whole {
    fn load(loader: &Loader, checkpoint: &Checkpoint) -> Self {
        match checkpoint.second_stack().unwrap() {
            None => Self::One(Box::new(loader.model().unwrap())),
            Some(_) => Self::Two(Box::new(loader.seq2seq().unwrap())),
        }
    }

    fn logits(&self, case: &str, rows: std::ops::Range<usize>) -> Tensor {
        let all = |start| tensor(&ids(start, 2)[rows.clone()]);
        match self {
            Self::One(model) => {
                let output = model.forward(&ModelInput::tokens(&all(0))).unwrap();
                output.logits.unwrap()
            }
            Self::Two(model) => {
                let (encoder, decoder) = (all(0), all(1));
                let features: Vec<f64> = (0..2 * 5 * 14)
                    .map(|i| (f64::from(i) * 0.37).sin())
                    .collect();
                let features = Tensor::from_vec(features, (2, 5, 14), &device()).unwrap();
                let input = match case {
                    "whisper" => ModelInput::spectrum(&features),
                    _ => ModelInput::tokens(&encoder),
                };
                let output = model.forward(&input.with_decoder(&decoder)).unwrap();
                output.decoder.logits.unwrap()
            }
        }
    }
}

/// Returns the losses for some steps, the saved directory, and the number of parameters with gradients.
fn trained(case: &str, path: &Path, saved: &Path) -> (Vec<f64>, usize) {
    let checkpoint = CheckpointOptions::default().whole().open(path).unwrap();
    let loader = checkpoint.trainable(DType::F64, &device()).unwrap();
    let model = Whole::load(&loader, &checkpoint);
    let parameters = loader.parameters();
    let config = AdamWConfig {
        learning_rate: 1e-2,
        ..Default::default()
    };
    let mut optimizer = AdamW::new([ParameterGroup::new(parameters.clone(), 0.0)], config).unwrap();
    let (mut losses, mut n_trained) = (vec![], 0);
    for _ in 0..N_STEPS {
        let loss = ops::cross_entropy(&model.logits(case, 0..2), &tensor(&targets(2))).unwrap();
        losses.push(loss.to_scalar::<f64>().unwrap());
        let gradients = optimizer.backward(&loss).unwrap();
        n_trained = gradients.roles().count();
        optimizer.update(&gradients, 1.0).unwrap();
    }
    let end = ops::cross_entropy(&model.logits(case, 0..2), &tensor(&targets(2))).unwrap();
    let parameters = parameters
        .iter()
        .map(|(role, v)| (role, v.as_detached_tensor()));
    checkpoint.save(saved, parameters).unwrap();
    losses.push(end.to_scalar::<f64>().unwrap());
    (losses, n_trained)
}

type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const CASES: [Case; 6] = [
    (
        "llama",
        "heads/llama-tied",
        &[("lm_head.weight", "model.embed_tokens.weight")],
    ),
    (
        "bert",
        "heads/bert-masked_lm",
        &[
            (
                "cls.predictions.decoder.weight",
                "bert.embeddings.word_embeddings.weight",
            ),
            ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ],
    ),
    ("apart", "heads/gpt2-untied", &[]),
    (
        "t5",
        "families/t5",
        &[
            ("encoder.embed_tokens.weight", "shared.weight"),
            ("decoder.embed_tokens.weight", "shared.weight"),
            ("lm_head.weight", "shared.weight"),
        ],
    ),
    (
        "bart",
        "families/bart",
        &[
            ("model.encoder.embed_tokens.weight", "model.shared.weight"),
            ("model.decoder.embed_tokens.weight", "model.shared.weight"),
            ("lm_head.weight", "model.shared.weight"),
        ],
    ),
    (
        "whisper",
        "families/whisper",
        &[("proj_out.weight", "model.decoder.embed_tokens.weight")],
    ),
];

#[test]
fn copies_and_buffers_are_trained_as_by_transformers_and_saved_alike() {
    if !has_f64("training in f64") || !is_present("families") || !is_present("heads") {
        return;
    }
    let reference = Reference::open("tied_training");
    for (case, name, copies) in CASES {
        let (_folder, path) = copy(name, copies);
        let saved = tempfile::tempdir().unwrap();
        let saved = saved.path().join("saved");
        let (losses, n_trained) = trained(case, &path, &saved);
        let expected = reference.on_cpu(&format!("{case}.losses"));
        let expected = expected.to_vec1::<f64>().unwrap();
        for (ours, theirs) in losses.iter().zip(&expected) {
            assert!(
                (ours - theirs).abs() < 1e-9,
                "{case}: {losses:?}, expected {expected:?}"
            );
        }
        // A fused tensor of GPT-2 is several of ours.
        if case != "apart" {
            let expected = reference.on_cpu(&format!("{case}.n_parameters"));
            let expected = expected.to_vec1::<i64>().unwrap();
            assert_eq!([n_trained as i64], expected[..], "{case}");
        }

        let tensors = safetensors::load(saved.join("model.safetensors"), &Device::Cpu).unwrap();
        let before = safetensors::load(path.join("model.safetensors"), &Device::Cpu).unwrap();
        let values = |tensors: &std::collections::HashMap<String, Tensor>, name: &str| {
            tensors[name]
                .flatten_all()
                .unwrap()
                .to_vec1::<f32>()
                .unwrap()
        };
        for (copy, of) in copies {
            assert_eq!(
                values(&tensors, copy),
                values(&tensors, of),
                "{case}: {copy}"
            );
            assert_ne!(values(&tensors, of), values(&before, of), "{case}: {of}");
        }
        let bias = "final_logits_bias";
        if before.contains_key(bias) {
            assert_eq!(values(&tensors, bias), values(&before, bias), "{case}");
        }
        let config = std::fs::read_to_string(saved.join("config.json")).unwrap();
        let config: BTreeMap<String, serde_json::Value> = serde_json::from_str(&config).unwrap();
        assert_eq!(config["tie_word_embeddings"], case != "apart", "{case}");

        // Read again, it computes what was trained, but for the rounding of the file.
        let checkpoint = CheckpointOptions::default().whole().open(&saved).unwrap();
        let loader = checkpoint.load(Weights::Dense(DType::F64, &device()));
        let model = Whole::load(&loader, &checkpoint);
        let loss = ops::cross_entropy(&model.logits(case, 0..2), &tensor(&targets(2))).unwrap();
        let (loss, end) = (loss.to_scalar::<f64>().unwrap(), losses[N_STEPS]);
        assert!(
            (loss - end).abs() < 1e-5,
            "{case}: {loss}, trained to {end}"
        );
    }
}

#[test]
fn an_embedding_table_that_differs_from_the_one_it_is_tied_to_is_refused() {
    cpu_only("tensors in files are compared");
    if !is_present("families") {
        return;
    }
    let (_folder, path) = copy(
        "families/bart",
        &[("model.encoder.embed_tokens.weight", "model.shared.weight")],
    );
    let file = path.join("model.safetensors");
    let mut tensors = safetensors::load(&file, &Device::Cpu).unwrap();
    let name = "model.encoder.embed_tokens.weight";
    tensors.insert(name.to_string(), (&tensors[name] * 2.0).unwrap());
    safetensors::save(&tensors, &file).unwrap();
    let checkpoint = CheckpointOptions::default().whole().open(&path).unwrap();
    let reason = checkpoint.model_config().unwrap_err().to_string();
    for part in [name, "model.shared.weight", "differs"] {
        assert!(reason.contains(part), "{reason}");
    }
}

/// Two micro-batches with one row each; the second has fewer targets.
#[test]
fn micro_batches_with_different_target_counts_are_one_batch() {
    if !has_f64("training in f64") || !is_present("families") || !is_present("heads") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("heads/llama-tied")).unwrap();
    let loader = checkpoint.trainable(DType::F64, &device()).unwrap();
    let model = Whole::load(&loader, &checkpoint);
    let parameters = loader.parameters();
    let config = AdamWConfig {
        learning_rate: 1e-2,
        ..Default::default()
    };
    let mut optimizer = AdamW::new([ParameterGroup::new(parameters.clone(), 0.0)], config).unwrap();
    let mut wanted = targets(2);
    wanted[1][2..].fill(-100);
    let expected = Reference::open("tied_training").on_cpu("accumulated.losses");
    let expected = expected.to_vec1::<f64>().unwrap();
    assert!(expected.len() > 2);
    for expected in expected {
        let (mut mean, mut sum, mut n) = (Gradients::default(), 0.0, 0);
        for (row, wanted) in wanted.iter().enumerate() {
            let wanted = tensor(std::slice::from_ref(wanted));
            let loss =
                ops::cross_entropy(&model.logits("accumulated", row..row + 1), &wanted).unwrap();
            let count = ops::n_targets(&wanted).unwrap();
            let gradients = Gradients::backward(&parameters, &loss).unwrap();
            mean.accumulate_mean(gradients, count).unwrap();
            sum += loss.to_scalar::<f64>().unwrap() * count as f64;
            n += count;
        }
        // A micro-batch of no target changes nothing.
        mean.accumulate_mean(Gradients::default(), 0).unwrap();
        assert_eq!(n, 4);
        let loss = sum / n as f64;
        assert!(
            (loss - expected).abs() < 1e-9,
            "{loss}, expected {expected}"
        );
        optimizer.update(&mean, 1.0).unwrap();
    }
}
