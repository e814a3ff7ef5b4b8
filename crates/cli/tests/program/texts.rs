//! `candle-blocks embed` and `candle-blocks classify`: the files they write, and what they refuse.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::text::{Pooling, TextClassifier, TextEmbedder, TextOptions, VectorPrecision};
use serde_json::Value;

use crate::{
    said::assert_says,
    scratch::{Answer, answer, answer_to, load, program},
    weights::weights,
};

const TEXTS: &str = "Who repaired the clock?\n\nboats\r\nThe tide left three small boats.";

/// A folder with `texts.txt`, in which the program runs.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn with(texts: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("texts.txt"), texts).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command on `texts.txt`, with the output `to` if that is not empty.
    pub fn says(&self, command: &str, model: &Path, to: &str, flags: &[&str]) -> Answer {
        let mut program = program();
        program
            .arg(command)
            .arg("--model")
            .arg(model)
            .arg(self.path("texts.txt"))
            .args(flags);
        if !to.is_empty() {
            program.arg("--output").arg(self.path(to));
        }
        answer(&mut program)
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_f64().unwrap() as f32)
        .collect()
}

#[test]
fn both_forms_of_output_hold_the_vectors_in_the_order_of_the_lines() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/joined");
    let texts: Vec<&str> = TEXTS.lines().collect();
    assert_eq!(texts.len(), 4);
    let expected = TextEmbedder::open(&model)
        .unwrap()
        .embed(&texts)
        .unwrap()
        .to_vec2::<f32>()
        .unwrap();

    let said = folder.says("embed", &model, "vectors.safetensors", &[]);
    said.assert_status(0);
    assert_says(&said.stderr, &["4 texts", "texts/s"]);
    assert_eq!(
        load(&folder.path("vectors.safetensors"))["embeddings"]
            .to_vec2::<f32>()
            .unwrap(),
        expected
    );

    folder
        .says("embed", &model, "vectors.jsonl", &[])
        .assert_status(0);
    let lines = folder.lines("vectors.jsonl");
    for ((line, text), vector) in lines.iter().zip(&texts).zip(&expected) {
        assert_eq!(line["text"], *text);
        assert_eq!(&numbers(&line["embedding"]), vector);
    }
    assert_eq!(lines.len(), 4);
    assert_eq!(
        folder.names(),
        ["texts.txt", "vectors.jsonl", "vectors.safetensors"]
    );
}

#[test]
fn a_vector_over_the_vocabulary_is_written_as_weights_of_tokens_the_largest_first() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/masked");
    let texts: Vec<&str> = TEXTS.lines().collect();
    let embedder = TextEmbedder::open(&model).unwrap();
    let expected = embedder.embed(&texts).unwrap().to_vec2::<f32>().unwrap();
    folder
        .says("embed", &model, "vectors.jsonl", &[])
        .assert_status(0);
    let written = fs::read_to_string(folder.path("vectors.jsonl")).unwrap();
    for (line, vector) in written.lines().zip(&expected) {
        let mut begin = 0;
        for (token, weight) in embedder.weighted_tokens(vector).unwrap() {
            let entry = format!("{}:{weight}", serde_json::to_string(&token).unwrap());
            let found = line[begin..].find(&entry);
            begin += found.unwrap_or_else(|| panic!("no {entry} after {begin} in {line}"));
        }
        assert!(line.contains(r#","weights":{"#) && !line.contains("embedding"));
    }
    folder
        .says("embed", &model, "vectors.safetensors", &[])
        .assert_status(0);
    let dense = &load(&folder.path("vectors.safetensors"))["embeddings"];
    assert_eq!(dense.to_vec2::<f32>().unwrap(), expected);
}

#[test]
fn vectors_of_tokens_are_written_with_the_number_of_each_line_s() {
    let folder = Folder::with(TEXTS);
    let (model, texts) = (folder.path("model"), TEXTS.lines().collect::<Vec<_>>());
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(weights("text/joined").join(name), model.join(name)).unwrap();
    }
    let head = "colbert_linear.pt";
    fs::copy(weights("text/heads").join(head), model.join(head)).unwrap();
    let options = TextOptions::default().pooling([Pooling::EachToken]);
    let expected = options.embedder(&model).unwrap().token_vectors(&texts);
    let expected: Vec<Vec<Vec<f32>>> = expected
        .unwrap()
        .iter()
        .map(|one| one.to_vec2().unwrap())
        .collect();
    let flags = ["--pooling", "each_token"];
    folder
        .says("embed", &model, "v.safetensors", &flags)
        .assert_status(0);
    let written = load(&folder.path("v.safetensors"));
    let rows = written["embeddings"].to_vec2::<f32>().unwrap();
    assert_eq!(rows, expected.concat());
    let lengths = written["lengths"].to_vec1::<i64>().unwrap();
    let n_tokens: Vec<i64> = expected.iter().map(|one| one.len() as i64).collect();
    assert_eq!(lengths, n_tokens);
    folder
        .says("embed", &model, "v.jsonl", &flags)
        .assert_status(0);
    for (line, expected) in folder.lines("v.jsonl").iter().zip(&expected) {
        let rows: Vec<Vec<f32>> = line["embeddings"]
            .as_array()
            .unwrap()
            .iter()
            .map(numbers)
            .collect();
        assert_eq!(&rows, expected);
    }
    let said = folder.says(
        "embed",
        &model,
        "w.jsonl",
        &["--pooling", "each_token", "--prompt", "a"],
    );
    said.assert_status(2);
    assert_says(&said.stderr, &["each token", "no prompt"]);
}

#[test]
fn standard_input_and_a_prompt_by_name_are_taken() {
    let folder = Folder::with("");
    let model = weights("text/joined");
    let embedder = TextEmbedder::open(&model).unwrap();
    let prompt = embedder.prompt("query").unwrap();
    let expected = embedder
        .embed_prompted(&["boats"], prompt)
        .unwrap()
        .to_vec2::<f32>()
        .unwrap();
    let mut command = program();
    command.arg("embed").arg("--model").arg(&model).args([
        "-",
        "--prompt-name",
        "query",
        "--output",
    ]);
    let said = answer_to("boats\n", command.arg(folder.path("v.safetensors")));
    said.assert_status(0);
    assert_eq!(
        load(&folder.path("v.safetensors"))["embeddings"]
            .to_vec2::<f32>()
            .unwrap(),
        expected
    );
}

#[test]
fn scores_are_printed_or_written() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/labels");
    let texts: Vec<&str> = TEXTS.lines().collect();
    let classifier = TextClassifier::open(&model).unwrap();
    let expected = classifier.classify(&texts).unwrap();

    let said = folder.says("classify", &model, "", &[]);
    said.assert_status(0);
    let best = expected.iter().map(|scores| {
        let best = scores.best();
        format!("{}\t{}", classifier.labels()[best], scores.scores[best])
    });
    assert_eq!(
        said.stdout.lines().collect::<Vec<_>>(),
        best.collect::<Vec<_>>()
    );

    folder
        .says("classify", &model, "scores.safetensors", &[])
        .assert_status(0);
    let written = load(&folder.path("scores.safetensors"));
    let logits: Vec<_> = expected
        .iter()
        .map(|scores| scores.logits.clone())
        .collect();
    assert_eq!(written["logits"].to_vec2::<f32>().unwrap(), logits);
    folder
        .says("classify", &model, "scores.jsonl", &[])
        .assert_status(0);
    for (line, scores) in folder.lines("scores.jsonl").iter().zip(&expected) {
        assert_eq!(line["label"], classifier.labels()[scores.best()]);
        assert_eq!(numbers(&line["logits"]), scores.logits);
        assert_eq!(
            line["scores"]["rough"].as_f64().unwrap() as f32,
            scores.scores[1]
        );
    }
}

#[test]
fn pairs_are_lines_with_one_tab() {
    let folder = Folder::with("who left the boats?\tthe tide left three boats.\nclock\tsand\n");
    let model = weights("text/ranker");
    let classifier = TextClassifier::open(&model).unwrap();
    let pairs = [
        ("who left the boats?", "the tide left three boats."),
        ("clock", "sand"),
    ];
    let expected = classifier.classify_pairs(&pairs).unwrap();
    folder
        .says("classify", &model, "scores.safetensors", &["--pairs"])
        .assert_status(0);
    let scores: Vec<_> = expected
        .iter()
        .map(|scores| scores.scores.clone())
        .collect();
    let written = load(&folder.path("scores.safetensors"));
    assert_eq!(written["scores"].to_vec2::<f32>().unwrap(), scores);
    let folder = Folder::with("no tab");
    folder
        .says("classify", &model, "", &["--pairs"])
        .assert_refused(&["texts.txt: line 1", "tab"]);
}

#[test]
fn bad_texts_outputs_and_models_are_refused_in_one_line() {
    let model = weights("text/joined");
    let refused = |texts: &[u8], to: &str, flags: &[&str], words: &[&str]| {
        let folder = Folder::with(texts);
        folder
            .says("embed", &model, to, flags)
            .assert_refused(words);
        assert_eq!(folder.names(), ["texts.txt"], "{words:?}");
    };
    refused(
        b"boats\ncaf\xe9\n",
        "v.jsonl",
        &[],
        &["texts.txt", "line 2", "0xe9", "iconv"],
    );
    refused(b"", "v.jsonl", &[], &["texts.txt", "is empty"]);
    refused(
        b"boats",
        "v.npz",
        &[],
        &["v.npz", ".safetensors", ".npy", ".jsonl"],
    );
    refused(b"boats", "no/v.jsonl", &[], &["folder that does not exist"]);
    refused(
        b"boats",
        "v.jsonl",
        &["--prompt-name", "passage"],
        &["passage", "query"],
    );
    refused(
        b"boats",
        "v.jsonl",
        &["--max-length", "1"],
        &["special tokens"],
    );
    refused(
        b"boats",
        "v.jsonl",
        &["--hub", "a/b"],
        &["--model PATH or --hub"],
    );

    let folder = Folder::with("boats");
    folder
        .says(
            "embed",
            &weights("tiny-bert"),
            "v.jsonl",
            &["--pooling", "mean"],
        )
        .assert_refused(&["tokenizer.json", "missing"]);
    folder
        .says("embed", &weights("text/labels"), "v.jsonl", &[])
        .assert_refused(&["modules.json", "--pooling"]);
    folder
        .says("classify", &model, "", &[])
        .assert_refused(&["no labels", "architectures"]);
    let inside = model.join("results.safetensors");
    let mut command = program();
    command
        .arg("embed")
        .arg("--model")
        .arg(&model)
        .arg(folder.path("texts.txt"));
    answer(command.arg("--output").arg(inside)).assert_refused(&["a file that the run reads"]);
}

/// Returns a copy of a text checkpoint in which a test changes one file.
fn changed(name: &str, file: &str, change: impl FnOnce(&mut Value)) -> Folder {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let to = to.join(path.file_name().unwrap());
            match path.is_dir() {
                true => copy(&path, &to),
                false => drop(fs::copy(&path, &to).unwrap()),
            }
        }
    }
    let folder = Folder::with("boats\nclock\n");
    copy(&weights(name), &folder.path("model"));
    let file = folder.path("model").join(file);
    let mut json = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut json);
    fs::write(file, json.to_string()).unwrap();
    folder
}

#[test]
fn modules_outside_the_models_directory_are_refused() {
    for (module, path) in [(0, "../model"), (1, "../1_Pooling"), (2, "/2_Dense")] {
        let folder = changed("text/joined", "modules.json", |modules| {
            modules[module]["path"] = path.into();
        });
        folder
            .says("embed", &folder.path("model"), "v.jsonl", &[])
            .assert_refused(&["modules.json", path, "outside the model's directory"]);
        assert_eq!(folder.names(), ["model", "texts.txt"]);
    }
}

#[test]
fn labels_that_do_not_name_each_score_are_refused() {
    let with = |labels: Value| {
        changed("text/labels", "config.json", |config| {
            config["id2label"] = labels;
        })
    };
    let gap = with(serde_json::json!({"0": "a", "5": "b", "7": "c"}));
    gap.says("classify", &gap.path("model"), "", &[])
        .assert_refused(&["config.json", "id2label", "no label \"1\"", "has 3"]);
    let twice = with(serde_json::json!({"0": "a", "1": "b", "2": "a"}));
    let model = twice.path("model");
    twice
        .says("classify", &model, "scores.jsonl", &[])
        .assert_refused(&["id2label", "\"a\" twice", ".safetensors"]);
    twice
        .says("classify", &model, "scores.safetensors", &[])
        .assert_status(0);
}

#[test]
fn a_file_in_utf_16_is_told_so_and_a_mark_in_front_is_no_text() {
    let model = weights("text/joined");
    let utf_16 = Folder::with(b"\xff\xfeh\0i\0");
    utf_16
        .says("embed", &model, "v.jsonl", &[])
        .assert_refused(&["texts.txt", "iconv -f UTF-16"]);
    let marked = Folder::with(b"\xef\xbb\xbfboats\n");
    marked
        .says("embed", &model, "v.jsonl", &[])
        .assert_status(0);
    assert_eq!(marked.lines("v.jsonl")[0]["text"], "boats");
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let folder = Folder::with("boats");
    folder
        .says("embed", &folder.path("none"), "v.jsonl", &[])
        .assert_refused(&["none: cannot read"]);
}

/// Ctrl-C, SIGTERM and a closed terminal leave nothing under the final name, and what was made under another.
#[cfg(unix)]
#[test]
fn an_interrupted_run_keeps_what_was_made() {
    keeps_what_was_made("INT", 130);
    keeps_what_was_made("TERM", 143);
    #[cfg(target_os = "linux")]
    keeps_what_was_made("HUP", 129);
}

#[cfg(unix)]
fn keeps_what_was_made(signal: &str, status: i32) {
    let folder = Folder::with("the tide left three small boats on the sand.\n".repeat(200_000));
    let mut command = program();
    command
        .arg("embed")
        .arg("--model")
        .arg(weights("text/joined"))
        .arg(folder.path("texts.txt"));
    command.arg("--output").arg(folder.path("v.jsonl"));
    let partial = folder.path("v.jsonl.partial");
    let kept = format!("the results so far are in {}", partial.display());
    crate::interrupted::ended_by(signal, status, &mut command, &kept);
    let lines = folder.lines("v.jsonl.partial");
    assert!((1..200_000).contains(&lines.len()), "{}", lines.len());
    assert_eq!(folder.names(), ["texts.txt", "v.jsonl.partial"]);
}

/// A folder's `model` as a cross-encoder with a default prompt.
fn with_prompt() -> Folder {
    let folder = changed("text/ranker", "config.json", |_| {});
    let prompts = serde_json::json!({
        "model_type": "CrossEncoder", "prompts": {"query": "query: "}, "default_prompt_name": "query",
    });
    let modules =
        serde_json::json!([{"path": "", "type": "sentence_transformers.models.Transformer"}]);
    let reading = serde_json::json!({
        "transformer_task": "sequence-classification",
    });
    for (name, json) in [
        ("config_sentence_transformers.json", prompts),
        ("modules.json", modules),
        ("sentence_bert_config.json", reading),
    ] {
        fs::write(folder.path("model").join(name), json.to_string()).unwrap();
    }
    folder
}

#[test]
fn a_cross_encoders_prompt_is_its_default_or_the_one_that_is_given() {
    let folder = with_prompt();
    let model = folder.path("model");
    let scores = |flags: &[&str]| {
        folder
            .says("classify", &model, "s.safetensors", flags)
            .assert_status(0);
        load(&folder.path("s.safetensors"))["scores"]
            .to_vec2::<f32>()
            .unwrap()
    };
    let default = scores(&[]);
    assert_eq!(scores(&["--prompt-name", "query"]), default);
    assert_eq!(scores(&["--prompt", "query: "]), default);
    let classifier = TextClassifier::open(weights("text/ranker")).unwrap();
    let bare = classifier.classify(&["boats", "clock"]).unwrap();
    let bare: Vec<_> = bare.into_iter().map(|scores| scores.scores).collect();
    assert_eq!(scores(&["--prompt", ""]), bare);
    assert_ne!(default, bare);
    folder
        .says("classify", &model, "", &["--prompt-name", "passage"])
        .assert_refused(&["passage", "query"]);
    folder
        .says("embed", &model, "v.jsonl", &[])
        .assert_refused(&["CrossEncoder", "classify --pairs"]);
}

#[test]
fn notes_name_files_that_are_not_used() {
    let folder = changed("text/labels", "config.json", |_| {});
    fs::write(
        folder.path("model/sentence_bert_config.json"),
        "{\"max_seq_length\": 4}",
    )
    .unwrap();
    let said = folder.says("classify", &folder.path("model"), "", &[]);
    said.assert_status(0);
    assert_says(
        &said.stderr,
        &["note: ", "sentence_bert_config.json", "not used"],
    );
}

#[test]
fn keys_of_a_tokenizer_that_nothing_reads_are_noted_by_every_command() {
    for (command, source) in [("embed", "text/joined"), ("classify", "text/labels")] {
        let folder = changed(source, "tokenizer_config.json", |json| {
            json["own_key"] = true.into()
        });
        let to = if command == "embed" { "v.jsonl" } else { "" };
        let said = folder.says(command, &folder.path("model"), to, &[]);
        said.assert_status(0);
        let words = ["note: tokenizer_config.json has keys that nothing reads here: own_key"];
        assert_says(&said.stderr, &words);
    }
}

#[test]
fn a_repositorys_folder_of_the_hubs_cache_is_told_its_snapshots() {
    let folder = Folder::with("boats\n");
    let model = folder.path("models--owner--name");
    fs::create_dir_all(model.join("snapshots/0123abcd")).unwrap();
    for command in ["embed", "classify"] {
        let to = if command == "embed" { "v.jsonl" } else { "" };
        folder.says(command, &model, to, &[]).assert_refused(&[
            "cache of the Hugging Face Hub",
            "snapshots",
            "0123abcd",
        ]);
    }
}

#[test]
fn vectors_are_written_quantized_with_ranges_that_calibrate_others() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/joined");
    let embed = |to: &str, flags: &[&str]| {
        let said = folder.says("embed", &model, to, &[flags, &["--replace"]].concat());
        said.assert_status(0);
    };
    let texts: Vec<&str> = TEXTS.lines().collect();
    let options = TextOptions::default().truncate_dim(3);
    let vectors = { options.embedder(&model).unwrap() }.embed(&texts).unwrap();
    let ranges = VectorPrecision::ranges(&vectors).unwrap();
    for name in ["int8", "uint8", "binary", "ubinary"] {
        let precision: VectorPrecision = name.parse().unwrap();
        let expected = precision.quantize(&vectors, None).unwrap();
        let flags = ["--truncate-dim", "3", "--vectors", name];
        embed("v.jsonl", &flags);
        let rows = folder.lines("v.jsonl").into_iter();
        let rows = rows.map(|line| serde_json::from_value(line["embedding"].clone()).unwrap());
        let rows: Vec<Vec<i16>> = rows.collect();
        assert_eq!(rows, expected.rows().collect::<Vec<_>>());
        embed("v.safetensors", &flags);
        let bytes = fs::read(folder.path("v.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let written = file.tensor("embeddings").unwrap();
        assert_eq!(written.data(), expected.bytes());
        assert_eq!(written.shape(), [4, expected.width()]);
        let dtype = match precision.is_signed() {
            true => safetensors::Dtype::I8,
            false => safetensors::Dtype::U8,
        };
        assert_eq!(written.dtype(), dtype);
        assert_eq!(file.tensor("ranges").is_ok(), precision.reads_ranges());
    }
    // A single text has no ranges of its own, but those of a file.
    embed(
        "many.safetensors",
        &["--truncate-dim", "3", "--vectors", "int8"],
    );
    let one = Folder::with("boats\n");
    fs::copy(
        folder.path("many.safetensors"),
        one.path("many.safetensors"),
    )
    .unwrap();
    let many = one.path("many.safetensors");
    let many = many.to_str().unwrap();
    let flags = ["--truncate-dim", "3", "--vectors", "int8"];
    let calibrated = [&flags[..], &["--calibration", many]].concat();
    one.says("embed", &model, "v.jsonl", &calibrated)
        .assert_status(0);
    let expected = (VectorPrecision::Int8)
        .quantize(&vectors.narrow(0, 2, 1).unwrap(), Some(&ranges))
        .unwrap();
    let found = one.lines("v.jsonl")[0]["embedding"].clone();
    let found: Vec<i16> = serde_json::from_value(found).unwrap();
    assert_eq!(vec![found], expected.rows().collect::<Vec<_>>());
    for (flags, words) in [
        (&flags[..], "without --calibration"),
        (&["--vectors", "int8", "--calibration", many], "expected [2"),
        (&["--vectors", "int4"], "ubinary"),
        (&["--calibration", many], "no effect"),
        (&["--truncate-dim", "0"], "truncate_dim"),
    ] {
        let said = one.says("embed", &model, "o.jsonl", flags);
        said.assert_status(2);
        assert_says(&said.stderr, &[words]);
    }
    let said = one.says(
        "embed",
        &weights("text/masked"),
        "o.jsonl",
        &["--vectors", "binary"],
    );
    said.assert_status(2);
    assert_says(&said.stderr, &["vocabulary"]);
    let said = one.says(
        "embed",
        &weights("text/tokens"),
        "t.jsonl",
        &["--vectors", "ubinary"],
    );
    said.assert_status(0);
    let tokens = one.lines("t.jsonl")[0]["embeddings"].clone();
    let tokens: Vec<Vec<i16>> = serde_json::from_value(tokens).unwrap();
    assert!(tokens.len() > 1 && tokens.iter().all(|token| token.len() == 1));
}
