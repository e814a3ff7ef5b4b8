//! A checkpoint's `generation_config.json` is followed as transformers' `generate` follows it: each key, and beam search.

use std::{collections::HashMap, fs, path::Path};

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::generate::{
    CausalDecoder, EarlyStopping, Generation, GenerationOptions, Generator, Sampler, Sampling,
    prompts,
};
use candle_blocks::model::{ModelInput, Seq2Seq};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Result, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::weights::{is_present, weights};

/// Returns transformers' results: the tensors, and the configuration for each `<model>/<case>`.
fn judged() -> (HashMap<String, Tensor>, Vec<(String, String)>) {
    let path = weights("reference/generation_configs.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"].as_object().unwrap();
    let cases = said
        .iter()
        .filter(|(name, _)| name.contains('/') || name.contains("tiny"));
    let cases = cases.map(|(name, config)| (name.clone(), config.as_str().unwrap().to_string()));
    (
        safetensors::load(path, &Device::Cpu).unwrap(),
        cases.collect(),
    )
}

/// Returns a copy of a checkpoint with another `generation_config.json`.
fn configured(model: &str, config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(weights(model).join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("generation_config.json"), config).unwrap();
    folder
}

/// Returns the tokens `[sequences, n]` and the scores from a checkpoint that continues some prompts, or decodes an encoder's
/// output.
fn generated(folder: &Path, input: &ModelInput, packed: bool) -> Result<(Vec<Vec<u32>>, Vec<f32>)> {
    let (checkpoint, options);
    let ids = input.input_ids.as_ref().unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    let finished = |mut generation: Generation<CausalDecoder, Sampler>| {
        generation.by_ref().try_for_each(|step| step.map(drop))?;
        let n = generation.n_sequences();
        let scores = (0..n).filter_map(|i| generation.score(i)).collect();
        Ok((generation.padded()?.to_vec2()?, scores))
    };
    if config.contains("\"is_encoder_decoder\": true") {
        checkpoint = CheckpointOptions::default().whole().open(folder)?;
        options = GenerationOptions::of(&checkpoint)?;
        let model: Seq2Seq = match packed {
            true => checkpoint.load(Weights::Packed(Precision::F32)).seq2seq()?,
            false => checkpoint
                .load(Weights::Dense(DType::F32, &device()))
                .seq2seq()?,
        };
        let start = vec![vec![options.decoder_start.unwrap()]; ids.dim(0)?];
        let generator = Generator::new(model.decoder(), options)?;
        return finished(generator.start_with_encoder(
            model.encode(input)?,
            &start,
            Sampler::greedy(),
        )?);
    }
    checkpoint = Checkpoint::open(folder)?;
    options = GenerationOptions {
        padding: Some(0),
        ..GenerationOptions::of(&checkpoint)?
    };
    let model = match packed {
        true => checkpoint.load(Weights::Packed(Precision::F32)).model()?,
        false => checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model()?,
    };
    let generator = Generator::new(&model, options)?;
    let prompts = prompts(ids, input.attention_mask.as_ref())?;
    finished(generator.start(&prompts, Sampler::greedy())?)
}

/// Returns the differences in the cases that `is_asked` selects, and the number of cases.
fn differences(is_asked: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let (tensors, cases) = judged();
    let (mut n, mut wrong) = (0, Vec::new());
    for (name, config) in &cases {
        let (model, case) = name.rsplit_once('/').unwrap();
        if !is_present(model) || !is_asked(case) {
            continue;
        }
        n += 1;
        let folder = configured(model, config);
        let input = ModelInput::tokens(&tensors[&format!("{model}.input_ids")])
            .with_mask(&tensors[&format!("{model}.attention_mask")]);
        let tokens = prompts(&tensors[&format!("{name}.tokens")], None).unwrap();
        let scores = tensors.get(&format!("{name}.scores"));
        let scores: Vec<f32> = scores.map_or(Vec::new(), |scores| scores.to_vec1().unwrap());
        for packed in [true, false] {
            match generated(folder.path(), &input, packed) {
                Ok((ours, by)) => {
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
                    let is_near = by.len() == scores.len() && by.iter().zip(&scores).all(near);
                    if ours != tokens || !is_near {
                        wrong.push(format!(
                            "{name} packed {packed}: {ours:?} {by:?}, expected {tokens:?} {scores:?}"
                        ));
                    }
                }
                Err(error) => wrong.push(format!("{name} packed {packed}: {error}")),
            }
        }
    }
    (n, wrong)
}

const BEAMS: [&str; 3] = ["beams", "early", "never"];

#[test]
fn beam_search_finds_the_sequences_and_scores_of_transformers() {
    let (n, wrong) = differences(|case| BEAMS.contains(&case));
    assert!(!is_present("families") || n == 48, "only {n} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_key_of_generation_config_json_changes_the_tokens_as_in_transformers() {
    let (n, wrong) = differences(|case| !BEAMS.contains(&case));
    assert!(!is_present("families") || n > 30, "only {n} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_text_ends_at_the_tokens_that_the_files_name_as_in_transformers() {
    cpu_only("keys of files are read");
    let judged = fs::read(weights("reference/stop_tokens.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&judged).unwrap();
    let mut n = 0;
    for case in cases {
        let model = case["model"].as_str().unwrap();
        if !is_present(model) {
            continue;
        }
        n += 1;
        let folder = configured(model, &case["generation_config"].to_string());
        if case["generation_config"].is_null() {
            fs::remove_file(folder.path().join("generation_config.json")).unwrap();
        }
        let path = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (key, value) in case["config"].as_object().unwrap() {
            match value {
                Value::Null => config.as_object_mut().unwrap().remove(key),
                value => config
                    .as_object_mut()
                    .unwrap()
                    .insert(key.clone(), value.clone()),
            };
        }
        fs::write(&path, config.to_string()).unwrap();
        let read = GenerationOptions::of(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        assert_eq!(json!(read.stop_tokens), case["stop"], "{case}");
    }
    assert!(!is_present("families") || n == 48, "only {n} cases");
}

fn options(config: Value) -> Result<GenerationOptions> {
    let folder = configured("tiny-gpt-text", &config.to_string());
    GenerationOptions::of(&Checkpoint::open(folder.path())?)
}

#[test]
fn ways_of_generation_that_are_not_there_are_refused_by_their_key() {
    cpu_only("generation_config.json is read");
    if !is_present("tiny-gpt-text") {
        return;
    }
    let refused = [
        ("constraints", json!({"constraints": [[1]]})),
        ("force_words_ids", json!({"force_words_ids": [[1]]})),
        ("dola_layers", json!({"dola_layers": "low"})),
        ("penalty_alpha", json!({"penalty_alpha": 0.6})),
        ("guidance_scale", json!({"guidance_scale": 1.5})),
        ("token_healing", json!({"token_healing": true})),
        (
            "watermarking_config",
            json!({"watermarking_config": {"bias": 2.0}}),
        ),
        (
            "num_beam_groups",
            json!({"num_beams": 4, "num_beam_groups": 2}),
        ),
        (
            "cache_implementation",
            json!({"cache_implementation": "quantized"}),
        ),
        ("num_return_sequences", json!({"num_return_sequences": 2})),
        ("early_stopping", json!({"early_stopping": "soon"})),
        ("repetition_penalty", json!({"repetition_penalty": 0.0})),
        ("sequence_bias", json!({"sequence_bias": {"(1,)": 1.0}})),
        ("eos_token_id", json!({"eos_token_id": [1, "end"]})),
    ];
    for (key, config) in refused {
        let message = options(config).expect_err(key).to_string();
        assert!(
            message.contains("generation_config.json") && message.contains(key),
            "{message}"
        );
    }
    // With values that change nothing, they are accepted.
    for config in [
        json!({"penalty_alpha": 0.6, "top_k": 1}),
        json!({"num_beam_groups": 2, "guidance_scale": 1.0, "token_healing": false}),
        json!({"constraints": null, "cache_implementation": "static", "eos_token_id": -1}),
    ] {
        assert_eq!(options(config).unwrap().notes, [] as [String; 0]);
    }
    let noted = options(json!({"forced_decoder_ids": [[1, 2]]})).unwrap();
    assert!(noted.notes[0].contains("forced_decoder_ids"), "{noted:?}");
}

#[test]
fn beam_search_is_read_and_refuses_what_draws_tokens() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let read = options(json!({"num_beams": 4, "early_stopping": "never", "length_penalty": 0.5}));
    let read = read.unwrap();
    assert_eq!(read.beams.early_stopping, EarlyStopping::Never);
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let generator = Generator::new(&model, read).unwrap();
    let drawing = Sampler::new(Sampling::at(1.0)).unwrap();
    let refused = generator
        .start(&[vec![65]], drawing)
        .err()
        .unwrap()
        .to_string();
    for said in [
        "num_beams is 4",
        "do_sample",
        "with_beams",
        "Sampler::greedy",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
}

/// In transformers, the order in which `torch.topk` lists equal values then decides.
#[test]
fn scores_beside_which_all_beams_are_equal_are_refused_by_the_keys_that_raise_them() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let generate = |changed: Value| {
        let mut config = json!({
            "num_beams": 3, "min_new_tokens": 5, "max_new_tokens": 8, "eos_token_id": [32, 101], "remove_invalid_values": true,
            "exponential_decay_length_penalty": [1, 1.5]
        });
        let changed = changed.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(changed);
        let generator = Generator::new(&model, options(config).unwrap()).unwrap();
        generator.generate(&[vec![65, 66]], Sampler::greedy())
    };
    let refused = generate(json!({})).unwrap_err().to_string();
    for said in [
        "exponential_decay_length_penalty",
        "remove_invalid_values",
        "num_beams",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
    for mended in [
        json!({"num_beams": 1}),
        json!({"remove_invalid_values": false}),
        json!({"exponential_decay_length_penalty": null}),
    ] {
        assert!(!generate(mended).unwrap()[0].is_empty());
    }
}

#[test]
fn prompts_as_long_as_max_length_are_refused_and_max_new_tokens_comes_first() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let read = options(json!({"max_length": 4})).unwrap();
    let new = |options: &GenerationOptions, n: usize| {
        let generator = Generator::new(&model, options.clone()).unwrap();
        generator.generate(&[vec![65; n]], Sampler::greedy())
    };
    assert_eq!(new(&read, 3).unwrap()[0].len(), 1);
    let refused = new(&read, 4).unwrap_err().to_string();
    assert!(
        refused.contains("max_length") && refused.contains("4 tokens"),
        "{refused}"
    );
    assert_eq!(new(&read.with_max_new_tokens(3), 4).unwrap()[0].len(), 3);
    // transformers' default, and that of its pipeline for texts.
    let default = GenerationOptions::default();
    assert_eq!(new(&default, 4).unwrap()[0].len(), 20);
    assert_eq!(default.of_text().max_new_tokens, Some(256));
}
