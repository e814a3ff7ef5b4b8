//! `candle-blocks tag`, `fill`, `answer`, `classify --labels` and `rank`: lines of JSON as transformers' pipelines and sentence-transformers
//! have them, and refusals.

use std::fs;
use std::path::PathBuf;

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};

use crate::said::assert_says;
use crate::scratch::{Answer, answer, answer_to, program};
use crate::texts::Folder;
use crate::weights::{is_present, weights};

fn model(name: &str) -> PathBuf {
    weights(&format!("tasks/{name}"))
}

fn results(name: &str) -> Value {
    let text = fs::read_to_string(model(name).join("results.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn texts(list: &Value) -> String {
    let texts = list.as_array().unwrap().iter();
    texts
        .map(|text| format!("{}\n", text.as_str().unwrap()))
        .collect()
}

fn printed(answer: &Answer) -> Vec<Value> {
    objects(&answer.stdout)
}

fn objects(lines: &str) -> Vec<Value> {
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns a value with its floats rounded, so that probabilities of two programs are equal.
fn rounded(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!((number.as_f64().unwrap() * 1e4).round())
        }
        Value::Array(all) => all.iter().map(rounded).collect(),
        Value::Object(all) => { all.iter() }
            .map(|(key, value)| (key.clone(), rounded(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

#[test]
fn entities_are_printed_or_written_with_the_fields_of_transformers() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("tag-bytes");
    let folder = Folder::with(texts(&expected["texts"]));
    for strategy in ["none", "simple", "first", "average", "max"] {
        let entities = expected["entities"][strategy].as_array().unwrap().iter();
        let lines: Vec<Value> = entities
            .map(|one| rounded(&json!({"entities": one})))
            .collect();
        let flags = ["--aggregation", strategy];
        let said = folder.says("tag", &model("tag-bytes"), "", &flags);
        said.assert_status(0);
        let found: Vec<Value> = printed(&said).iter().map(rounded).collect();
        assert_eq!(found, lines, "{strategy}");
        let begin = match strategy {
            "none" => r#"{"entities":[{"entity":"#,
            _ => r#"{"entities":[{"entity_group":"#,
        };
        assert!(said.stdout.starts_with(begin), "{}", said.stdout);
        folder
            .says("tag", &model("tag-bytes"), "e.jsonl", &flags)
            .assert_status(0);
        assert_eq!(
            fs::read_to_string(folder.path("e.jsonl")).unwrap(),
            said.stdout
        );
    }
    // The pipeline's default.
    let said = folder.says("tag", &model("tag-bytes"), "", &[]);
    let without = folder.says("tag", &model("tag-bytes"), "", &["--aggregation", "none"]);
    assert_eq!(said.stdout, without.stdout);
    assert_eq!(folder.names(), ["e.jsonl", "texts.txt"]);
}

#[test]
fn entities_without_places_have_null_in_them() {
    if !is_present("tasks") {
        return;
    }
    let folder = Folder::with("Berlin\n");
    let said = folder.says(
        "tag",
        &model("tag-python"),
        "",
        &["--aggregation", "simple"],
    );
    said.assert_status(0);
    assert_says(&said.stdout, &[r#""start":null,"end":null"#]);
    let said = folder.says("tag", &model("tag-python"), "", &["--aggregation", "first"]);
    said.assert_status(2);
    assert_says(
        &said.stderr,
        &["aggregation", "first", "use simple or none"],
    );
}

#[test]
fn masks_are_filled_from_a_pipe() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("fill-uncased");
    let expected = expected.as_array().unwrap();
    let lines: String = expected
        .iter()
        .map(|one| format!("{}\n", one["text"].as_str().unwrap()))
        .collect();
    let mut command = program();
    command
        .arg("fill")
        .arg("--model")
        .arg(model("fill-uncased"));
    let said = answer_to(&lines, command.args(["--top-k", "3"]));
    said.assert_status(0);
    let found = said
        .stdout
        .lines()
        .map(|line| rounded(&serde_json::from_str(line).unwrap()));
    let expected = expected
        .iter()
        .map(|one| rounded(&json!({"blanks": one["blanks"]})));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let folder = Folder::with("a [MASK] b\n");
    let said = folder.says("fill", &model("fill-uncased"), "", &[]);
    assert_eq!(printed(&said)[0]["blanks"][0].as_array().unwrap().len(), 5);
}

#[test]
fn questions_are_answered_from_lines_of_json() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("answer-bytes");
    let pairs = expected["examples"].as_array().unwrap().iter();
    let lines = pairs.map(|pair| {
        let line = json!({"question": pair[0], "context": pair[1], "id": 7});
        format!("{line}\n")
    });
    let folder = Folder::with(lines.collect::<String>());
    let case = |flags: &[&str], case: usize| {
        let said = folder.says("answer", &model("answer-bytes"), "", flags);
        said.assert_status(0);
        let found: Vec<Value> = printed(&said).iter().map(rounded).collect();
        let answers = expected["cases"][case]["answers"]
            .as_array()
            .unwrap()
            .iter();
        // transformers adds spans of the probability 0 in the order of an unstable sort.
        let possible = |answer: &&Value| answer["score"].as_f64().unwrap() > 0.0;
        let lines = answers.map(|answers| {
            let answers: Vec<&Value> = { answers.as_array().unwrap().iter() }
                .filter(possible)
                .collect();
            rounded(&json!({"answers": answers}))
        });
        assert_eq!(found, lines.collect::<Vec<_>>(), "{flags:?}");
        folder
            .says("answer", &model("answer-bytes"), "a.jsonl", flags)
            .assert_status(0);
        let written = fs::read_to_string(folder.path("a.jsonl")).unwrap();
        assert_eq!(written, said.stdout);
    };
    case(&[], 0);
    let long = [
        "--max-length",
        "24",
        "--doc-stride",
        "4",
        "--max-answer-length",
        "40",
    ];
    case(&[&long[..], &["--top-k", "2"]].concat(), 5);
    let [question, context] = [0, 1].map(|i| expected["examples"][0][i].as_str().unwrap());
    let asked = ["--question", question, "--context", context];
    let said = answer(
        program()
            .arg("answer")
            .arg("--model")
            .arg(model("answer-bytes"))
            .args(asked),
    );
    said.assert_status(0);
    let first = rounded(&json!({"answers": expected["cases"][0]["answers"][0]}));
    assert_eq!([rounded(&printed(&said)[0])], [first]);
    assert_says(&said.stderr, &["1 text in"]);
    let folder = Folder::with("{\"question\": \"a\", \"context\": \"b\"}\n{\"question\": \"a\"}\n");
    let said = folder.says("answer", &model("answer-bytes"), "", &[]);
    said.assert_status(2);
    assert_says(
        &said.stderr,
        &["texts.txt", "line 2", "`context`", "\"question\""],
    );
    let folder = Folder::with("{\"question\": \"a\", \"context\": \"b\"}\n");
    let said = folder.says("answer", &model("fill-bytes"), "", &[]);
    said.assert_status(2);
    assert_says(
        &said.stderr,
        &["answers no questions", "`candle-blocks fill`"],
    );
}

#[test]
fn labels_of_the_caller_are_ranked() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("entailment-last");
    let folder = Folder::with(texts(&expected["texts"]));
    let mut n_cases = 0;
    for case in expected["rankings"].as_array().unwrap() {
        // A comma separates labels here.
        if case["candidate_labels"].as_array().unwrap().len() != 1 {
            continue;
        }
        let template = case["hypothesis_template"].as_str().unwrap();
        let mut flags = vec!["--labels", " sports ,", "--hypothesis-template", template];
        flags.extend((case["multi_label"] == true).then_some("--multi-label"));
        let said = folder.says("classify", &model("entailment-last"), "", &flags);
        said.assert_status(0);
        let found: Vec<Value> = printed(&said).iter().map(rounded).collect();
        let lines: Vec<Value> = case["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(rounded)
            .collect();
        assert_eq!(found, lines, "{flags:?}");
        folder
            .says("classify", &model("entailment-last"), "l.jsonl", &flags)
            .assert_status(0);
        assert_eq!(
            fs::read_to_string(folder.path("l.jsonl")).unwrap(),
            said.stdout
        );
        n_cases += 1;
    }
    assert_eq!(n_cases, 4);
    let flags = ["--labels", "sports,café,東京"];
    let said = folder.says("classify", &model("entailment-last"), "", &flags);
    let first = &printed(&said)[0];
    let scores: Vec<f64> = serde_json::from_value(first["scores"].clone()).unwrap();
    assert!(
        scores.is_sorted_by(|a, b| a >= b) && scores.len() == 3,
        "{first}"
    );
    assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{first}");
}

#[test]
fn the_best_labels_of_the_model_are_printed_by_a_function() {
    if !is_present("tasks") {
        return;
    }
    let expected: Value =
        serde_json::from_slice(&fs::read(weights("tasks/scores.json")).unwrap()).unwrap();
    let folder = Folder::with(texts(&expected["texts"]));
    for case in expected["scores"].as_array().unwrap() {
        let top_k = case["top_k"].as_u64().unwrap_or(9).to_string();
        let mut flags = vec!["--top-k", &top_k];
        if let Some(name) = case["function_to_apply"].as_str() {
            flags.extend(["--function-to-apply", name]);
        }
        let said = folder.says("classify", &model("entailment-last"), "", &flags);
        said.assert_status(0);
        let lines = case["results"].as_array().unwrap().iter().map(|line| {
            let of = |key: &str| {
                let line = line.as_array().unwrap().iter();
                line.map(|one| one[key].clone()).collect::<Value>()
            };
            rounded(&json!({"labels": of("label"), "scores": of("score")}))
        });
        let found: Vec<Value> = printed(&said).iter().map(rounded).collect();
        assert_eq!(found, lines.collect::<Vec<_>>(), "{flags:?}");
        folder
            .says("classify", &model("entailment-last"), "s.jsonl", &flags)
            .assert_status(0);
        assert_eq!(
            fs::read_to_string(folder.path("s.jsonl")).unwrap(),
            said.stdout
        );
    }
}

/// Each refusal is one line, ends with status 2 and leaves no file; its cure is carried out after it.
#[test]
fn wrong_input_for_a_task_is_refused_and_the_cure_helps() {
    if !is_present("tasks") {
        return;
    }
    let folder = Folder::with("a [MASK] b\n\nno mask\n");
    let refused = |command: &str, name: &str, to: &str, flags: &[&str], words: &[&str]| {
        let said = folder.says(command, &model(name), to, flags);
        said.assert_status(2);
        assert_says(&said.stderr, words);
        assert_eq!(said.stdout, "", "{flags:?}");
        assert_eq!(folder.names(), ["texts.txt"], "{flags:?}");
    };
    refused(
        "fill",
        "fill-uncased",
        "o.jsonl",
        &[],
        &["texts.txt", "line 2", "no mask", "[MASK]"],
    );
    refused(
        "fill",
        "fill-uncased",
        "o.jsonl",
        &["--top-k", "0"],
        &["top_k", "found 0"],
    );
    refused(
        "fill",
        "tag-cased",
        "",
        &[],
        &["fills no masks", "`candle-blocks tag`", "ForMaskedLM"],
    );
    refused(
        "tag",
        "fill-bytes",
        "",
        &[],
        &["no labels", "`candle-blocks fill` fills masks"],
    );
    refused(
        "classify",
        "tag-cased",
        "",
        &[],
        &["no labels", "`candle-blocks tag` gives"],
    );
    refused(
        "tag",
        "entailment-last",
        "",
        &[],
        &["`candle-blocks classify` gives texts"],
    );
    let labels = ["--labels", "a,b"];
    refused(
        "classify",
        "fill-bytes",
        "",
        &labels,
        &["no labels", "ForSequenceClassification"],
    );
    refused(
        "tag",
        "tag-cased",
        "",
        &["--aggregation", "last"],
        &["'last'", "average, max"],
    );
    refused(
        "tag",
        "tag-cased",
        "o.safetensors",
        &[],
        &["o.safetensors", ".jsonl"],
    );
    refused("tag", "tag-cased", "o.txt", &[], &["o.txt", ".jsonl"]);
    let empty = ["--labels", " , "];
    refused(
        "classify",
        "entailment-last",
        "o.jsonl",
        &empty,
        &["names no label", "commas"],
    );
    refused(
        "classify",
        "entailment-last",
        "o.jsonl",
        &labels,
        &["line 2", "is empty"],
    );
    refused(
        "classify",
        "entailment-last",
        "",
        &["--multi-label"],
        &["--labels"],
    );
    let template = [&labels[..], &["--hypothesis-template", "about"]].concat();
    refused(
        "classify",
        "entailment-last",
        "",
        &template,
        &["no place for the label", "{}"],
    );
    let pairs = [&labels[..], &["--pairs"]].concat();
    refused(
        "classify",
        "entailment-last",
        "",
        &pairs,
        &["--labels", "--pairs"],
    );

    let mut missing = program();
    missing.arg("tag").arg("--model").arg(model("tag-cased"));
    let missing = crate::scratch::answer(missing.arg(folder.path("other.txt")));
    missing.assert_status(2);
    assert_says(&missing.stderr, &["other.txt", "cannot read"]);

    let cured = Folder::with("a [MASK] b\n");
    cured
        .says("fill", &model("fill-uncased"), "o.jsonl", &["--top-k", "1"])
        .assert_status(0);
    cured
        .says(
            "tag",
            &model("tag-cased"),
            "p.jsonl",
            &["--aggregation", "max"],
        )
        .assert_status(0);
    let template = ["--labels", "a,b", "--hypothesis-template", "about {}"];
    cured
        .says("classify", &model("entailment-last"), "q.jsonl", &template)
        .assert_status(0);
    assert_eq!(
        cured.names(),
        ["o.jsonl", "p.jsonl", "q.jsonl", "texts.txt"]
    );
}

#[test]
fn a_text_beyond_the_model_s_positions_is_refused_and_a_limit_shortens_it() {
    if !is_present("tasks") {
        return;
    }
    let folder = Folder::with(format!("a [MASK]\n[MASK] {}\n", "boats ".repeat(200)));
    let said = folder.says("fill", &model("fill-uncased"), "", &[]);
    said.assert_status(2);
    assert_says(
        &said.stderr,
        &["line 2", "403 tokens", "150 positions", "max_length"],
    );
    let said = folder.says("fill", &model("fill-uncased"), "", &["--max-length", "150"]);
    said.assert_status(0);
    assert_eq!(printed(&said).len(), 2);
}

#[test]
fn control_characters_in_words_are_escaped() {
    if !is_present("tasks") {
        return;
    }
    let folder = Folder::with("odd\u{202e}word\n");
    let said = folder.says("tag", &model("tag-unigram"), "", &[]);
    said.assert_status(0);
    let is_plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
    assert!(said.stdout.chars().all(is_plain), "{:?}", said.stdout);
    assert_eq!(printed(&said)[0]["entities"][1]["word"], "\u{202e}");
}

#[test]
fn lines_are_ranked_with_the_fields_of_sentence_transformers() {
    if !is_present("tasks") {
        return;
    }
    let all = fs::read_to_string(weights("tasks/rankings.json")).unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    let folder = Folder::with(texts(&all["documents"]));
    let cases = all["cases"].as_array().unwrap().iter();
    let unchanged = cases.filter(|case| case["changes"] == json!({}));
    let mut n_cases = 0;
    for case in unchanged {
        n_cases += 1;
        let model = weights(&format!("text/{}", case["model"].as_str().unwrap()));
        let query = all["queries"][0].as_str().unwrap();
        let best = case["rankings"][0].as_array().unwrap();
        let expected = best.iter().map(|ranked| {
            let mut ranked = ranked.clone();
            let document = ranked["corpus_id"].as_u64().unwrap() as usize;
            ranked["text"] = all["documents"][document].clone();
            rounded(&ranked)
        });
        let expected: Vec<_> = expected.collect();
        let said = folder.says("rank", &model, "", &["--query", query]);
        said.assert_status(0);
        let found: Vec<_> = printed(&said).iter().map(rounded).collect();
        assert_eq!(found, expected);
        let flags = ["--query", query, "--top-k", "2"];
        let said = folder.says("rank", &model, "best.jsonl", &flags);
        said.assert_status(0);
        assert_eq!(said.stdout, "");
        let written = fs::read_to_string(folder.path("best.jsonl")).unwrap();
        let first: Vec<_> = objects(&written).iter().map(rounded).collect();
        assert_eq!(first, expected[..2]);
    }
    assert_eq!(n_cases, 3);
}

#[test]
fn rankings_of_wrong_input_are_refused() {
    let folder = Folder::with("boats\n");
    let (labels, joined) = (weights("text/labels"), weights("text/joined"));
    for (model, to, flags, words) in [
        (&labels, "", &["--query", "a"][..], &["3 labels"][..]),
        (&joined, "", &[], &["--query"]),
        (
            &joined,
            "o.safetensors",
            &["--query", "a"],
            &["must end in .jsonl"],
        ),
        (
            &joined,
            "",
            &["--query", "a", "--truncation", "only_first"],
            &["truncation", "no effect on similarities"],
        ),
        (
            &joined,
            "",
            &["--query", "a", "--truncate-dim", "0"],
            &["truncate_dim", "above 0"],
        ),
        (
            &joined,
            "",
            &["--query", "a", "--prompt-name", "none"],
            &["\"none\" is unknown", "query"],
        ),
        (
            &weights("text/tokens"),
            "",
            &["--query", "a", "--prompt", "b"],
            &["prompt", "leave it out"],
        ),
    ] {
        let said = folder.says("rank", model, to, flags);
        said.assert_status(2);
        assert_says(&said.stderr, words);
    }
    let flags = ["--query", "sand", "--prompt", "the "];
    let [prompted, other] = [&flags[..], &["--query", "the sand", "--prompt", ""]].map(|flags| {
        folder
            .says("rank", &weights("text/masked"), "", flags)
            .stdout
    });
    assert_eq!(prompted, other);
}

#[test]
fn entities_of_labels_of_the_caller_are_those_of_gliner() {
    if !is_present("tasks") {
        return;
    }
    let name = "gliner-deberta";
    let expected = results(name);
    // Texts that are a line each.
    let all: Vec<&str> = { expected["texts"].as_array().unwrap().iter() }
        .map(|text| text.as_str().unwrap())
        .collect();
    let is_line = |text: &str| text.lines().collect::<Vec<_>>() == [text] && !text.contains('\r');
    let folder = Folder::with({
        let lines = all.iter().filter(|text| is_line(text));
        lines.map(|text| format!("{text}\n")).collect::<String>()
    });
    let mut n_cases = 0;
    for case in expected["cases"].as_array().unwrap() {
        let labels: Vec<String> = serde_json::from_value(case["labels"].clone()).unwrap();
        // A comma separates labels here.
        if case["changes"] != json!({}) || labels.iter().any(|label| label.contains(',')) {
            continue;
        }
        let (labels, threshold) = (labels.join(" ,"), case["threshold"].to_string());
        let mut flags = vec!["--labels", &labels, "--threshold", &threshold];
        flags.extend((case["flat_ner"] == false).then_some("--nested"));
        flags.extend((case["multi_label"] == true).then_some("--multi-label"));
        let said = folder.says("tag", &model(name), "", &flags);
        said.assert_status(0);
        assert!(!said.stderr.contains("note:"), "{}", said.stderr);
        let entities = case["entities"].as_array().unwrap().iter().zip(&all);
        let expected = entities.filter(|(_, text)| is_line(text));
        let expected: Vec<&Value> = expected.map(|(of_text, _)| of_text).collect();
        let found = printed(&said);
        assert_eq!(found.len(), expected.len());
        for (line, expected) in found.iter().zip(expected) {
            let entities = line["entities"].as_array().unwrap();
            let fields = entities.iter().map(|one| {
                let keys = ["start", "end", "word", "entity_group"];
                keys.iter().map(|key| one[*key].clone()).collect::<Value>()
            });
            let expected = expected.as_array().unwrap();
            let of_gliner = expected
                .iter()
                .map(|one| one.as_array().unwrap()[..4].into());
            let of_gliner: Vec<Value> = of_gliner.collect();
            assert_eq!(fields.collect::<Vec<_>>(), of_gliner, "{flags:?}");
            for (ours, theirs) in entities.iter().zip(expected) {
                let (ours, theirs) = (&ours["score"], &theirs[4]);
                let difference = ours.as_f64().unwrap() - theirs.as_f64().unwrap();
                assert!(difference.abs() < 1e-5, "{ours}, not {theirs}");
            }
        }
        n_cases += 1;
    }
    assert_eq!(n_cases, 6);
    let flags = ["--labels", "person,city"];
    let said = folder.says("tag", &model(name), "", &flags);
    let with = folder.says(
        "tag",
        &model(name),
        "e.jsonl",
        &[&flags[..], &["--threshold", "0.5"]].concat(),
    );
    with.assert_status(0);
    assert_eq!(
        fs::read_to_string(folder.path("e.jsonl")).unwrap(),
        said.stdout
    );
    let begin = r#"{"entities":[{"entity_group":"#;
    assert!(said.stdout.starts_with(begin), "{}", said.stdout);
}

#[test]
fn labels_are_refused_with_a_tagger_and_needed_with_gliner() {
    if !is_present("tasks") {
        return;
    }
    let folder = Folder::with("Anna lives in Berlin.\n");
    for (name, flags, words) in [
        (
            "gliner-bert",
            &[][..],
            &[
                "gliner_config.json",
                "`candle-blocks tag --labels A,B` finds",
            ][..],
        ),
        (
            "tag-cased",
            &["--labels", "person"],
            &[
                "no gliner_config.json",
                "`candle-blocks tag` without --labels finds",
            ],
        ),
        (
            "gliner-bert",
            &["--labels", " , "],
            &["--labels", "names no label"],
        ),
        (
            "gliner-bert",
            &["--labels", "a", "--aggregation", "simple"],
            &["--labels", "--aggregation"],
        ),
        (
            "gliner-bert",
            &["--labels", "a", "--stride", "2"],
            &["--labels", "--stride"],
        ),
        (
            "gliner-bert",
            &["--labels", "a", "--max-length", "9"],
            &["max_length", "no effect", "leave it out"],
        ),
        ("tag-cased", &["--threshold", "0.4"], &["--labels"]),
        ("tag-cased", &["--nested"], &["--labels"]),
    ] {
        let said = folder.says("tag", &model(name), "", flags);
        said.assert_status(2);
        assert_says(&said.stderr, words);
        assert_eq!(said.stdout, "", "{flags:?}");
    }
    // A tensor that is not known, and the cure.
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model("gliner-bert")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let weights = copy.path().join("model.safetensors");
    let mut tensors = safetensors::load(&weights, &Device::Cpu).unwrap();
    let other = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    tensors.insert("other.weight".to_string(), other);
    safetensors::save(&tensors, &weights).unwrap();
    let labels = ["--labels", "person"];
    let said = folder.says("tag", copy.path(), "", &labels);
    said.assert_status(2);
    assert_says(&said.stderr, &["other.weight", "`--allow-unused`"]);
    let said = folder.says(
        "tag",
        copy.path(),
        "",
        &[&labels[..], &["--allow-unused"]].concat(),
    );
    said.assert_status(0);
    let note = "note: tensors that gliner does not know are left out: other.weight";
    assert_says(&said.stderr, &[note]);
    let said = folder.says("classify", &model("gliner-bert"), "", &[]);
    said.assert_refused(&[
        "gliner_config.json",
        "`candle-blocks tag --labels A,B` opens",
    ]);
    // The cures.
    folder
        .says("tag", &model("gliner-bert"), "", &["--labels", "person"])
        .assert_status(0);
    folder
        .says("tag", &model("tag-cased"), "", &[])
        .assert_status(0);
    // Files without a configuration of gliner's own.
    let said = folder.says("tag", &model("gliner-older"), "", &["--labels", "person"]);
    said.assert_status(0);
    assert!(!said.stderr.contains("note:"), "{}", said.stderr);
}
