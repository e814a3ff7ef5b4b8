//! Tensors under the names of published files, judged by transformers' results for the same tensors under its own names.
//! `weights/sweep/published_tensors.py` compares far more of them.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Weights};
use serde_json::{Value, json};

use crate::weights::{is_present, weights};

/// Returns a copy of a committed checkpoint with some keys, renamed tensors and further tensors.
pub fn copied(
    source: &Path,
    keys: &Value,
    renamed: &[(&str, &str)],
    further: &[(&str, Tensor)],
) -> tempfile::TempDir {
    let files = TensorFiles::open(source).unwrap();
    let name = |own: &str| {
        let new = renamed.iter().find(|(from, _)| *from == own);
        new.map_or(own, |(_, to)| to).to_string()
    };
    let mut tensors: Vec<_> = files
        .names()
        .map(|own| (name(own), files.read(own).unwrap()))
        .collect();
    let further = further.iter().cloned();
    tensors.extend(further.map(|(name, tensor)| (name.to_string(), tensor)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_safetensors(path, &tensors, None).unwrap();
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let keys = keys.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(keys);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn open(folder: &Path) -> Checkpoint {
    CheckpointOptions::default().whole().open(folder).unwrap()
}

/// Returns the logits for the inputs in a fixture.
fn logits(checkpoint: &Checkpoint, fixture: &TensorFiles) -> Tensor {
    let read = |name: &str| fixture.contains(name).then(|| fixture.read(name).unwrap());
    let input = ModelInput {
        input_ids: read("input_ids"),
        attention_mask: read("attention_mask"),
        token_type_ids: read("token_type_ids"),
        decoder_input_ids: read("decoder_input_ids"),
        ..ModelInput::default()
    };
    let (dtype, cpu) = (DType::F32, Device::Cpu);
    let logits = match input.decoder_input_ids {
        Some(_) => {
            let model = checkpoint
                .load(Weights::Dense(dtype, &cpu))
                .seq2seq()
                .unwrap();
            model.forward(&input).unwrap().decoder.logits
        }
        None => {
            let model = checkpoint
                .load(Weights::Dense(dtype, &cpu))
                .model()
                .unwrap();
            model.forward(&input).unwrap().logits
        }
    };
    logits.unwrap()
}

/// Asserts that logits are equal at real tokens, up to rounding.
fn assert_close(found: &Tensor, expected: &Tensor, mask: Option<&Tensor>, name: &str) {
    assert_eq!(found.dims(), expected.dims(), "{name}");
    let mut difference = (found - expected).unwrap().abs().unwrap();
    if let Some(mask) = mask {
        let mask = mask.to_dtype(DType::F32).unwrap().unsqueeze(2).unwrap();
        difference = difference.broadcast_mul(&mask).unwrap();
    }
    let most = |tensor: &Tensor| {
        let tensor = tensor.abs().unwrap().max_all().unwrap();
        tensor.to_scalar::<f32>().unwrap()
    };
    let (difference, scale) = (most(&difference), most(expected));
    assert!(difference < 1e-4 * scale, "{name}: {difference} of {scale}");
}

/// A file with one copy of tied embeddings has it under any of their names: `safetensors.torch.save_model` keeps the name that
/// comes first in the alphabet, as in MADLAD-400 (`decoder.embed_tokens.weight`).
#[test]
fn tied_embeddings_are_found_under_each_of_their_names() {
    if !is_present("families") {
        return;
    }
    for (family, own, others) in [
        (
            "t5",
            "shared",
            &["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"][..],
        ),
        (
            "bart",
            "model.shared",
            &[
                "model.encoder.embed_tokens",
                "model.decoder.embed_tokens",
                "lm_head",
            ],
        ),
        ("opt", "model.decoder.embed_tokens", &["lm_head"]),
        (
            "roberta",
            "roberta.embeddings.word_embeddings",
            &["lm_head.decoder"],
        ),
    ] {
        let source = weights("families").join(family);
        let fixture = TensorFiles::open(source.join("whole.safetensors")).unwrap();
        let expected = fixture.read("logits").unwrap();
        let is_one = fixture.read("attention_mask");
        let mask = is_one
            .ok()
            .filter(|_| !fixture.contains("decoder_input_ids"));
        assert!(!others.is_empty());
        for other in others {
            let [from, to] = [own, other].map(|stem| format!("{stem}.weight"));
            let folder = copied(&source, &json!({}), &[(&from, &to)], &[]);
            let found = logits(&open(folder.path()), &fixture);
            assert_close(
                &found,
                &expected,
                mask.as_ref(),
                &format!("{family}: {other}"),
            );
        }
    }
}

/// Embeddings that `config.json` does not tie are two tensors, and neither stands for the other.
#[test]
fn embeddings_that_are_not_tied_are_not_those_of_the_head() {
    if !is_present("families") {
        return;
    }
    let source = weights("families/opt");
    let keys = json!({"tie_word_embeddings": false});
    let names = [("model.decoder.embed_tokens.weight", "lm_head.weight")];
    let folder = copied(&source, &keys, &names, &[]);
    let model = open(folder.path())
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model();
    let said = model.err().unwrap().to_string();
    let expected = "no tensor for embeddings.word.weight";
    assert!(said.contains(expected), "{said}");
}

/// T5 1.1, Flan-T5 and mT5 have an `lm_head` that differs from `shared`; transformers' last hidden state and that matrix give
/// the logits.
#[test]
fn the_output_layer_of_later_versions_of_t5_is_their_own() {
    if !is_present("families") {
        return;
    }
    for (family, scale) in [("t5", 12f64.powf(-0.5)), ("t5-gated", 1.0)] {
        let source = weights("families").join(family);
        let fixture = TensorFiles::open(source.join("whole.safetensors")).unwrap();
        let hidden = fixture.read("last_hidden_state").unwrap();
        let width = hidden.dims()[2];
        assert_eq!(width, 12);
        let head = Tensor::arange(0f32, 132.0, &Device::Cpu).unwrap();
        let head = head.sin().unwrap().reshape((11, width)).unwrap();
        let logits_of = |head: &Tensor| hidden.broadcast_matmul(&head.t().unwrap()).unwrap();
        let expected = (logits_of(&head) * scale).unwrap();
        // The first version ties the two in its configuration; transformers unties what differs.
        let keys = match family {
            "t5" => json!({}),
            _ => json!({"tie_word_embeddings": false, "scale_decoder_outputs": null}),
        };
        let folder = copied(&source, &keys, &[], &[("lm_head.weight", head)]);
        let found = logits(&open(folder.path()), &fixture);
        assert_close(&found, &expected, None, family);
    }
}

/// The keys of the files on the Hub for what transformers 5.24 writes with its own. UMT5's say `tie_word_embeddings` false and
/// tie them all the same; transformers reads the key for the scale of the output layer's input.
#[test]
fn published_keys_give_the_same_as_those_that_transformers_writes() {
    if !is_present("families") {
        return;
    }
    let yarn = json!({"type": "deepseek_yarn", "beta_fast": 2.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9,
        "original_max_position_embeddings": 8});
    let cases = [
        (
            "umt5-unscaled",
            json!({"tie_word_embeddings": false, "scale_decoder_outputs": null}),
        ),
        (
            "sarvam_mla",
            json!({"rope_scaling": yarn, "head_dim": 12, "q_head_dim": 7, "qk_head_dim": null,
            "n_routed_experts": null, "num_experts": 6, "n_shared_experts": null, "num_shared_experts": 2}),
        ),
        (
            "sarvam_moe",
            json!({"n_routed_experts": null, "num_experts": 6, "n_shared_experts": null,
            "num_shared_experts": 2, "attention_bias": null, "use_qkv_bias": false}),
        ),
        (
            "exaone",
            json!({"num_hidden_layers": null, "num_layers": 2, "rms_norm_eps": null, "layer_norm_epsilon": 2e-3,
            "hidden_act": null, "activation_function": "silu"}),
        ),
    ];
    for (name, keys) in cases {
        let source = weights("families").join(name);
        let fixture = TensorFiles::open(source.join("whole.safetensors")).unwrap();
        let folder = copied(&source, &keys, &[], &[]);
        let found = logits(&open(folder.path()), &fixture);
        let is_decoder = !fixture.contains("decoder_input_ids");
        let mask = is_decoder.then(|| fixture.read("attention_mask").unwrap());
        let expected = fixture.read("logits").unwrap();
        assert_close(&found, &expected, mask.as_ref(), name);
    }
}

/// transformers would use both.
#[test]
fn embeddings_of_a_stack_of_t5_that_differ_from_the_shared_ones_are_refused() {
    if !is_present("families") {
        return;
    }
    for is_tied in [true, false] {
        let zeros = Tensor::zeros((11, 12), DType::F32, &Device::Cpu).unwrap();
        let name = "decoder.embed_tokens.weight";
        let keys = json!({"tie_word_embeddings": is_tied});
        let folder = copied(&weights("families/t5-gated"), &keys, &[], &[(name, zeros)]);
        let model = open(folder.path())
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .seq2seq();
        let said = model.err().unwrap().to_string();
        assert!(said.contains(name), "{said}");
        assert!(said.contains("differs from shared.weight"), "{said}");
    }
}

/// fairseq's converted files hold the version of each stack.
#[test]
fn versions_in_files_of_bart_are_ignored() {
    if !is_present("families") {
        return;
    }
    let version = |name| (name, Tensor::new(&[3f32], &Device::Cpu).unwrap());
    let further = ["model.encoder.version", "model.decoder.version"].map(version);
    let folder = copied(&weights("families/bart"), &json!({}), &[], &further);
    let report = open(folder.path()).report();
    assert!(report.unused.is_empty(), "{report}");
    assert_eq!(
        report.ignored,
        ["model.decoder.version", "model.encoder.version"]
    );
}

/// `BailingHybridModel`, which has no output layer, has another name for its embeddings than the published files.
#[test]
fn a_bailing_hybrid_without_an_output_layer_is_found_under_transformers_names() {
    if !is_present("families") {
        return;
    }
    let source = weights("families/bailing_hybrid");
    let files = TensorFiles::open(&source).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tensors: Vec<_> = files
        .names()
        .filter_map(|name| Some((name.strip_prefix("model.")?, files.read(name).unwrap())))
        .map(|(name, tensor)| (name.replace("word_embeddings", "embed_tokens"), tensor))
        .collect();
    let path = folder.path().join("model.safetensors");
    write_safetensors(path, &tensors, None).unwrap();
    let config = fs::read_to_string(source.join("config.json")).unwrap();
    let config = config.replace("BailingHybridForCausalLM", "BailingHybridModel");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let ids = Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu).unwrap();
    let states = |checkpoint: Checkpoint| {
        let model = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
        let output = model.model().unwrap().forward(&ModelInput::tokens(&ids));
        output.unwrap().last_hidden_state
    };
    let (bare, whole) = (states(open(folder.path())), states(open(&source)));
    assert_close(&bare, &whole, None, "bailing_hybrid");
}
