//! `candle-blocks generate` writes what the library generates, and refuses what cannot be continued.

use std::{fs, path::PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::generate::{BeamOptions, GenerationOptions, Generator, Sampler};
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Weights};
use tempfile::TempDir;

use crate::scratch::{Answer, answer, load, program};
use crate::weights::{is_present, weights};

/// A folder beside the byte-level text model.
struct Folder(TempDir);

impl Folder {
    fn new() -> Option<Self> {
        is_present("tiny-gpt-text").then(|| Self(tempfile::tempdir().unwrap()))
    }

    fn path(&self, local: &str) -> PathBuf {
        self.0.path().join(local)
    }

    fn ids(&self, rows: &[&[u32]], mask: Option<&[&[u32]]>) -> String {
        let tensor = |rows: &[&[u32]]| {
            let all: Vec<u32> = rows.concat();
            Tensor::from_vec(all, (rows.len(), rows[0].len()), &Device::Cpu).unwrap()
        };
        let mut tensors = vec![("input_ids".to_string(), tensor(rows))];
        tensors.extend(mask.map(|mask| ("attention_mask".to_string(), tensor(mask))));
        let path = self.path("ids.safetensors");
        write_safetensors(&path, &tensors, None).unwrap();
        path.to_str().unwrap().to_string()
    }
}

fn generate(arguments: &[&str]) -> Answer {
    let model = weights("tiny-gpt-text");
    answer(
        program()
            .arg("generate")
            .arg("--model")
            .arg(model)
            .args(arguments),
    )
}

#[test]
fn a_prompt_is_continued_as_by_the_library_and_timed() {
    let Some(folder) = Folder::new() else { return };
    let output = folder.path("tokens.safetensors");
    let said = generate(&[
        "--prompt",
        "Sir Walter ",
        "--max-new-tokens",
        "40",
        "--output",
        output.to_str().unwrap(),
    ]);
    said.assert_status(0);
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let options = GenerationOptions::of(&checkpoint)
        .unwrap()
        .with_max_new_tokens(40);
    let prompt = b"Sir Walter ".iter().map(|&byte| byte.into()).collect();
    let generator = Generator::new(&model, options).unwrap();
    let tokens = generator
        .generate(&[prompt], Sampler::greedy())
        .unwrap()
        .remove(0);
    let text: String = tokens
        .iter()
        .map(|&token| char::from(token as u8))
        .collect();
    assert_eq!(said.stdout, text + "\n");
    let written = load(&output)["tokens"].to_vec2::<u32>().unwrap();
    assert_eq!(written, std::slice::from_ref(&tokens));
    let n = format!("{} tokens in ", tokens.len());
    assert!(
        said.stderr.starts_with(&n) && said.stderr.contains("tokens/s"),
        "{said:#?}"
    );
}

#[test]
fn ids_are_continued_without_what_the_mask_drops() {
    let Some(folder) = Folder::new() else { return };
    let rows: [&[u32]; 2] = [&[83, 105, 114, 32], &[0, 0, 65, 110]];
    let mask: [&[u32]; 2] = [&[1, 1, 1, 1], &[0, 0, 1, 1]];
    let both = folder.ids(&rows, Some(&mask));
    let both = generate(&["--input-ids", &both, "--max-new-tokens", "9"]);
    both.assert_status(0);
    let alone = folder.ids(&[&[65, 110]], None);
    let alone = generate(&["--input-ids", &alone, "--max-new-tokens", "9"]);
    assert_eq!(both.stdout.lines().count(), 2);
    assert_eq!(both.stdout.lines().nth(1), alone.stdout.lines().next());
    assert_eq!(alone.stdout.trim().split(' ').count(), 9);
}

/// BART's decoder begins with the token that its configuration names, and says what the library has it say.
#[test]
fn a_decoder_says_something_of_the_ids_that_its_encoder_reads() {
    let Some(folder) = Folder::new() else { return };
    let path = folder.ids(
        &[&[4, 5, 7, 2], &[6, 8, 2, 1]],
        Some(&[&[1, 1, 1, 1], &[1, 1, 1, 0]]),
    );
    let bart = weights("families/bart");
    let mut command = program();
    command.arg("generate").arg("--model").arg(&bart);
    let said = answer(command.args(["--input-ids", &path, "--max-new-tokens", "5"]));
    said.assert_status(0);

    let checkpoint = CheckpointOptions::default().whole().open(&bart).unwrap();
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .seq2seq()
        .unwrap();
    let tensors = load(path.as_ref());
    let input = ModelInput::tokens(&tensors["input_ids"]).with_mask(&tensors["attention_mask"]);
    let options = GenerationOptions::of(&checkpoint)
        .unwrap()
        .with_max_new_tokens(5);
    let start = vec![vec![options.decoder_start.unwrap()]; 2];
    let generator = Generator::new(model.decoder(), options).unwrap();
    let encoded = model.encode(&input).unwrap();
    let mut generation = generator
        .start_with_encoder(encoded, &start, Sampler::greedy())
        .unwrap();
    generation.by_ref().for_each(|step| drop(step.unwrap()));
    let rows = generation.padded().unwrap().to_vec2::<u32>().unwrap();
    let rows = rows
        .iter()
        .map(|row| row.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    assert_eq!(
        said.stdout.lines().collect::<Vec<_>>(),
        rows.collect::<Vec<_>>()
    );

    let mut command = program();
    command
        .arg("generate")
        .arg("--model")
        .arg(bart)
        .args(["--prompt", "a"]);
    answer(&mut command).assert_refused(&["--prompt", "--input-ids"]);
}

/// Whisper's fixture contains audio features, the decoder's initial tokens, and transformers' continuation.
#[test]
fn a_decoder_transcribes_audio_like_transformers() {
    if !is_present("families/whisper") {
        return;
    }
    let whisper = weights("families/whisper");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sound.safetensors");
    let said = |tensors: &[(&str, Tensor)], flags: &[&str]| {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(n, t)| (n.to_string(), t.clone()))
            .collect();
        write_safetensors(&path, &tensors, None).unwrap();
        let mut command = program();
        command.arg("generate").arg("--model").arg(&whisper);
        answer(command.arg("--input").arg(&path).args(flags))
    };
    let judged = load(&whisper.join("whole.safetensors"));
    let (sound, begun) = (&judged["input_features"], &judged["decoder_input_ids"]);
    let both = [
        ("input_features", sound.clone()),
        ("decoder_input_ids", begun.clone()),
    ];
    let tokens = judged["tokens"]
        .to_dtype(DType::U32)
        .unwrap()
        .to_vec2::<u32>()
        .unwrap();
    let lines: Vec<String> = tokens
        .iter()
        .map(|row| row.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        .collect();
    let n = tokens[0].len().to_string();
    for precision in [&["--precision", "f32"][..], &["--dtype", "f64"]] {
        let said = said(&both, &[&["--max-new-tokens", &n], precision].concat());
        said.assert_status(0);
        assert_eq!(said.stdout.lines().collect::<Vec<_>>(), lines);
    }
    // Without initial tokens, the decoder starts with its start token.
    let fresh = said(&both[..1], &["--max-new-tokens", "3"]);
    fresh.assert_status(0);
    assert_eq!(fresh.stdout.lines().count(), sound.dim(0).unwrap());

    let place = [
        "sound.safetensors",
        "holds no input_features [batch, bands, steps]",
    ];
    said(&both[1..], &[]).assert_refused(&place);
    let short = sound.narrow(2, 0, 6).unwrap();
    let shape = [
        "sound.safetensors",
        "input_features",
        "pad or cut the audio",
    ];
    said(&[("input_features", short)], &[]).assert_refused(&shape);
    let integers = sound.to_dtype(DType::I64).unwrap();
    said(&[("input_features", integers)], &[]).assert_refused(&["input_features", "I64"]);
    let fewer = ("decoder_input_ids", begun.narrow(0, 0, 1).unwrap());
    let numbers = ["sound.safetensors", "there are 1", "batch has 4 sequences"];
    said(&[both[0].clone(), fewer], &[]).assert_refused(&numbers);
    let beyond = ("decoder_input_ids", (begun * 9.0).unwrap());
    said(&[both[0].clone(), beyond], &[]).assert_refused(&["sound.safetensors", "0 to 10"]);
}

#[test]
fn a_seed_repeats_and_a_stop_string_ends_the_text() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let prompt = ["--prompt", "She ", "--max-new-tokens", "50"];
    let text = |flags: &[&str]| {
        let said = generate(&[&prompt[..], flags].concat());
        said.assert_status(0);
        said.stdout
    };
    let drawn = text(&["--temperature", "0.9", "--top-k", "40", "--seed", "3"]);
    assert_eq!(
        drawn,
        text(&["--temperature", "0.9", "--top-k", "40", "--seed", "3"])
    );
    assert_ne!(
        drawn,
        text(&["--temperature", "0.9", "--top-k", "40", "--seed", "4"])
    );
    let greedy = text(&[]);
    assert_eq!(greedy, text(&["--temperature", "0"]));
    let stop = &greedy[10..13];
    let expected = &greedy[..greedy.find(stop).unwrap() + stop.len()];
    assert_eq!(text(&["--stop", stop]), format!("{expected}\n"));
}

#[test]
fn a_drawn_seed_is_in_the_last_line_and_repeats_the_text() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let prompt = [
        "--prompt",
        "She ",
        "--max-new-tokens",
        "40",
        "--temperature",
        "0.9",
    ];
    let drawn = [generate(&prompt), generate(&prompt)];
    let seeds = drawn.each_ref().map(|said| {
        said.assert_status(0);
        let last = said.stderr.lines().last().unwrap();
        let seed = last.split_once("--seed ").unwrap().1;
        seed.split(' ').next().unwrap().to_string()
    });
    assert_ne!(seeds[0], seeds[1]);
    assert_ne!(drawn[0].stdout, drawn[1].stdout);
    let again = generate(&[&prompt[..], &["--seed", &seeds[0]]].concat());
    assert_eq!(again.stdout, drawn[0].stdout);
    assert!(!again.stderr.contains("--seed"), "{again:#?}");
    let greedy = generate(&["--prompt", "She ", "--max-new-tokens", "4"]);
    assert!(!greedy.stderr.contains("--seed"), "{greedy:#?}");
}

#[test]
fn tokens_beyond_the_context_length_have_a_note_from_safetensors_and_gguf() {
    let Some(folder) = Folder::new() else { return };
    let ids = folder.ids(&[&[1, 2, 3, 4, 5, 6]], None);
    let model = folder.path("model");
    fs::create_dir(&model).unwrap();
    let from = weights("families/llama");
    fs::copy(
        from.join("model.safetensors"),
        model.join("model.safetensors"),
    )
    .unwrap();
    let config = fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = 8.into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let output = folder.path("out.safetensors");
    let file = weights("gguf-architectures/nemotron/model.gguf");
    for (model, limit) in [(model.clone(), 8), (file, 64)] {
        for (n, is_beyond) in [(limit - 6, false), (limit - 5, true)] {
            let n = n.to_string();
            let said = generate_with(&model, &["--input-ids", &ids, "--max-new-tokens", &n]);
            said.assert_status(0);
            let note = format!(
                "have {} tokens, but the model's context length is {limit}",
                limit + 1
            );
            assert_eq!(said.stderr.contains(&note), is_beyond, "{said:#?}");
            assert_eq!(said.stderr.contains("context"), is_beyond, "{said:#?}");
        }
    }
    let run = |rows: &[u32]| {
        let ids = folder.ids(&[rows], None);
        let run = [
            "run",
            "--input",
            &ids,
            "--output",
            output.to_str().unwrap(),
            "--model",
        ];
        answer(program().args(run).arg(&model))
    };
    assert!(!run(&[1; 8]).stderr.contains("context"));
    assert!(run(&[1; 9]).stderr.contains("context length is 8"));
}

#[test]
fn positions_that_run_out_end_the_text_with_a_note() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let prompt = "a".repeat(126);
    let said = generate(&["--prompt", &prompt]);
    said.assert_status(0);
    assert!(said.stderr.contains("128 positions"), "{said:#?}");
}

/// Like `embed`: no file under the final name, and the results so far under another.
#[cfg(unix)]
#[test]
fn an_interrupted_generation_keeps_its_tokens_and_says_so() {
    let Some(folder) = Folder::new() else { return };
    let rows = vec![&[83u32, 105, 114, 32][..]; 20_000];
    let ids = folder.ids(&rows, None);
    let output = folder.path("tokens.safetensors");
    let mut command = program();
    command
        .arg("generate")
        .arg("--model")
        .arg(weights("tiny-gpt-text"));
    command.args(["--input-ids", &ids, "--output", output.to_str().unwrap()]);
    let kept = "tokens.safetensors.partial";
    crate::interrupted::interrupted(&mut command, kept);
    assert!(!output.exists());
    let kept = &load(&folder.path(kept))["tokens"];
    assert_eq!(kept.dim(0).unwrap(), rows.len());
}

#[test]
fn a_mask_of_any_type_is_read_as_by_run() {
    let Some(folder) = Folder::new() else { return };
    let ids = folder.ids(&[&[1, 83, 105]], Some(&[&[0, 1, 1]]));
    let whole = generate(&["--input-ids", &ids, "--max-new-tokens", "4"]);
    whole.assert_status(0);
    let mut tensors = load(ids.as_ref());
    let mask = tensors["attention_mask"].to_dtype(DType::F32).unwrap();
    tensors.insert("attention_mask".to_string(), mask);
    write_safetensors(&ids, &tensors.into_iter().collect::<Vec<_>>(), None).unwrap();
    let floating = generate(&["--input-ids", &ids, "--max-new-tokens", "4"]);
    assert_eq!(floating.stdout, whole.stdout);
}

#[test]
fn prompts_that_cannot_be_continued_are_refused_in_one_line() {
    let Some(folder) = Folder::new() else { return };
    let output = folder.path("out.safetensors");
    let out = ["--output", output.to_str().unwrap()];
    let refused = |flags: &[&str], words: &[&str]| {
        generate(&[flags, &out[..]].concat()).assert_refused(words);
    };
    refused(&["--prompt", ""], &["--prompt", "empty"]);
    let long = "a".repeat(129);
    refused(
        &["--prompt", &long],
        &["129 tokens", "128 positions", "shorten"],
    );
    let ids = folder.ids(&[&[1, 2], &[3, 256]], None);
    let place = ["ids.safetensors", "number 1", "256 at 1", "0 to 255"];
    refused(&["--input-ids", &ids], &place);
    let gap = folder.ids(&[&[1, 2, 3]], Some(&[&[1, 0, 1]]));
    refused(&["--input-ids", &gap], &["attention_mask", "middle"]);
    refused(&["--prompt", "a", "--stop", ""], &["--stop"]);
    refused(&["--prompt", "a", "-n", "0"], &["--max-new-tokens is 0"]);
    refused(&["--prompt", "a", "--chat"], &["chat_template"]);
    refused(&["--prompt", "a", "--top-p", "2"], &["top_p", "0 to 1"]);
    assert!(!output.exists());
    let base = |model: &str, flags: &[&str]| {
        let model = weights(model);
        answer(
            program()
                .arg("generate")
                .arg("--model")
                .arg(model)
                .args(flags),
        )
    };
    let ids = folder.ids(&[&[1, 2]], None);
    base("tiny-gpt2", &["--input-ids", &ids]).assert_refused(&["head", "ForCausalLM"]);
    base("families/llama", &["--prompt", "a"]).assert_refused(&["tokenizer.json", "missing"]);
    assert!(fs::read_dir(folder.0.path()).unwrap().count() == 1);
}

/// Returns a copy of the text model with a `generation_config.json`.
fn configured(folder: &Folder, config: &str) -> PathBuf {
    let model = folder.path("model");
    fs::create_dir_all(&model).unwrap();
    for file in fs::read_dir(weights("tiny-gpt-text")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    fs::write(model.join("generation_config.json"), config).unwrap();
    model
}

fn generate_with(model: &std::path::Path, arguments: &[&str]) -> Answer {
    let mut command = program();
    command.arg("generate").arg("--model").arg(model);
    answer(command.args(arguments))
}

#[test]
fn the_best_beams_are_written_with_their_scores() {
    let Some(folder) = Folder::new() else { return };
    let ids = folder.ids(&[&[65, 110, 110], &[83, 104, 101]], None);
    let output = folder.path("beams.safetensors");
    let beams = [
        "--num-beams",
        "3",
        "--num-return-sequences",
        "2",
        "--length-penalty",
        "0.5",
    ];
    let into = [
        "--input-ids",
        &ids,
        "--max-new-tokens",
        "9",
        "--output",
        output.to_str().unwrap(),
    ];
    generate(&[&into[..], &beams].concat()).assert_status(0);
    let written = load(&output);
    let options = BeamOptions {
        beams: 3,
        returned: 2,
        length_penalty: 0.5,
        ..BeamOptions::default()
    };
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let options = GenerationOptions::of(&checkpoint)
        .unwrap()
        .with_beams(options);
    let generator = Generator::new(&model, options.with_max_new_tokens(9)).unwrap();
    let prompts = [vec![65, 110, 110], vec![83, 104, 101]];
    let mut generation = generator.start(&prompts, Sampler::greedy()).unwrap();
    generation.by_ref().for_each(|step| drop(step.unwrap()));
    let scores: Vec<f32> = (0..4).filter_map(|i| generation.score(i)).collect();
    assert!(scores[0] > scores[1] && scores[2] > scores[3]);
    let tokens = |of: &Tensor| of.to_vec2::<u32>().unwrap();
    assert_eq!(
        tokens(&written["tokens"]),
        tokens(&generation.padded().unwrap())
    );
    assert_eq!(
        written["sequences_scores"].to_vec1::<f32>().unwrap(),
        scores
    );

    // Text is printed at the end, with each beam on its own line.
    let said = generate(&[&["--prompt", "She ", "--max-new-tokens", "9"][..], &beams].concat());
    said.assert_status(0);
    assert!(said.stdout.trim_end().lines().count() >= 2, "{said:#?}");
    generate(&["--prompt", "She ", "--num-beams", "2", "--temperature", "1"]).assert_refused(&[
        "num_beams is 2",
        "--num-beams 1",
        "--sample",
    ]);
    generate(&["--prompt", "She ", "--num-return-sequences", "2"])
        .assert_refused(&["num_return_sequences is 2", "num_beams"]);
}

#[test]
fn recommended_sampling_is_noted_and_followed_on_request() {
    let Some(folder) = Folder::new() else { return };
    let model = configured(
        &folder,
        r#"{"do_sample": true, "top_p": 0.9, "max_new_tokens": 12}"#,
    );
    let said = generate_with(&model, &["--prompt", "She "]);
    said.assert_status(0);
    assert_eq!(
        said.stdout,
        generate(&["--prompt", "She ", "--max-new-tokens", "12"]).stdout
    );
    for word in ["note:", "do_sample", "top_p 0.9", "--sample"] {
        assert!(said.stderr.contains(word), "{said:#?}");
    }
    let drawn = ["--prompt", "She ", "--sample", "--seed", "4"];
    let drawn = generate_with(&model, &drawn);
    assert!(
        !drawn.stderr.contains("note:") && drawn.stdout != said.stdout,
        "{drawn:#?}"
    );
    // 0 draws from all tokens.
    generate_with(&model, &["--prompt", "She ", "--top-k", "0"]).assert_status(0);
}

#[test]
fn a_text_ends_with_the_stop_string_of_the_checkpoint() {
    let Some(folder) = Folder::new() else { return };
    let whole = generate(&["--prompt", "Sir Walter ", "--max-new-tokens", "40"]);
    let stop = &whole.stdout[10..13];
    let expected = &whole.stdout[..whole.stdout.find(stop).unwrap() + stop.len()];
    let config = format!(r#"{{"stop_strings": ["{stop}"], "max_new_tokens": 40}}"#);
    let model = configured(&folder, &config);
    let said = generate_with(&model, &["--prompt", "Sir Walter "]);
    said.assert_status(0);
    assert_eq!(said.stdout, format!("{expected}\n"));
    // Token output ends where the text does.
    let prompt: Vec<u32> = b"Sir Walter ".iter().map(|&byte| byte.into()).collect();
    let ids = folder.ids(&[&prompt], None);
    let said = generate_with(&model, &["--input-ids", &ids]);
    said.assert_status(0);
    assert_eq!(said.stdout.trim().split(' ').count(), expected.len());
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    generate_with(&model, &["--input-ids", &ids]).assert_refused(&["tokenizer.json"]);
}

#[test]
fn tokens_for_padding_are_padding_where_there_is_no_mask() {
    let Some(folder) = Folder::new() else { return };
    let model = configured(&folder, r#"{"pad_token_id": 0, "eos_token_id": 10}"#);
    let both = folder.ids(&[&[83, 105, 114, 32], &[0, 0, 65, 110]], None);
    let both = generate_with(&model, &["--input-ids", &both]);
    both.assert_status(0);
    let alone = folder.ids(&[&[65, 110]], None);
    let alone = generate_with(&model, &["--input-ids", &alone]);
    assert_eq!(both.stdout.lines().nth(1), alone.stdout.lines().next());
    let middle = folder.ids(&[&[65, 0, 110]], None);
    generate_with(&model, &["--input-ids", &middle]).assert_refused(&["token 0", "pad_token_id"]);
}
