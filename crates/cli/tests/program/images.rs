//! `candle-blocks classify --images` and `embed --images`: lines as transformers' pipelines have them, files, and refusals.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::said::assert_says;
use crate::scratch::{Answer, answer, answer_to, load, program};
use crate::weights::{is_present, weights};

fn pictures(local: &str) -> PathBuf {
    weights("pictures").join(local)
}

fn says(command: &str, model: &str, files: &[&str], flags: &[&str]) -> Answer {
    let mut program = program();
    program.arg(command).arg("--model").arg(pictures(model));
    program.arg("--images");
    for name in files {
        program.arg(pictures("files").join(name));
    }
    answer(program.args(flags))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Asserts that lines have the labels and scores of a pipeline.
fn assert_lines(answer: &Answer, expected: &Value) {
    let lines = lines(&answer.stdout);
    assert_eq!(lines.len(), 4, "{}", answer.stderr);
    for (line, expected) in lines.iter().zip(expected.as_array().unwrap()) {
        let expected = expected.as_array().unwrap();
        assert_eq!(line["labels"].as_array().unwrap().len(), expected.len());
        for (i, one) in expected.iter().enumerate() {
            assert_eq!(line["labels"][i], one["label"]);
            let score = |value: &Value| value.as_f64().unwrap();
            let difference = score(&line["scores"][i]) - score(&one["score"]);
            assert!(difference.abs() < 1e-5, "{line} {one}");
        }
    }
}

fn results(model: &str) -> (Value, Vec<String>) {
    let text = fs::read_to_string(pictures(model).join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let files = serde_json::from_value(results["files"].clone()).unwrap();
    (results, files)
}

#[test]
fn labels_of_images_are_printed_as_by_the_pipelines() {
    if !is_present("pictures") {
        return;
    }
    let (expected, files) = results("vit");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_lines(&says("classify", "vit", &files, &[]), &expected["labels"]);
    let two = ["--top-k", "2", "--function-to-apply", "softmax"];
    assert_lines(&says("classify", "vit", &files, &two), &expected["softmax"]);
    for model in ["clip", "siglip"] {
        let (expected, _) = results(model);
        let template = expected["ranked"][1][0].as_str().unwrap();
        let flags = ["--labels", "cat,a red boat,Berlin,cat"];
        assert_lines(
            &says("classify", model, &files, &flags),
            &expected["ranked"][0][1],
        );
        let flags = [&flags[..], &["--hypothesis-template", template]].concat();
        assert_lines(
            &says("classify", model, &files, &flags),
            &expected["ranked"][1][1],
        );
    }
}

#[test]
fn vectors_of_images_are_written_in_both_formats() {
    if !is_present("pictures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let files = ["color.png", "palette.gif"];
    let flags = ["--output", &path("v.safetensors"), "--normalize", "true"];
    says("embed", "dinov2-bare", &files, &flags).assert_status(0);
    let unit = load(path("v.safetensors").as_ref())["embeddings"]
        .to_vec2::<f32>()
        .unwrap();
    let flags = ["--output", &path("v.jsonl")];
    says("embed", "dinov2-bare", &files, &flags).assert_status(0);
    let written = lines(&fs::read_to_string(path("v.jsonl")).unwrap());
    assert_eq!(written.len(), 2);
    for ((line, unit), name) in written.iter().zip(&unit).zip(files) {
        assert!(line["image"].as_str().unwrap().ends_with(name));
        let vector: Vec<f32> = serde_json::from_value(line["embedding"].clone()).unwrap();
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        for (x, unit) in vector.iter().zip(unit) {
            assert!((x / length - unit).abs() < 1e-6);
        }
    }
}

#[test]
fn images_are_refused_by_the_files_name() {
    if !is_present("pictures") {
        return;
    }
    for (file, said) in [
        ("cut.jpg", "cut off"),
        ("text.jpg", "is no image"),
        ("empty.png", "is empty"),
        ("missing.png", "No such file"),
    ] {
        says("classify", "vit", &["color.png", file], &[]).assert_refused(&[file, said]);
    }
    let refused = |model, flags: &[&str]| says("classify", model, &["color.png"], flags);
    refused("clip", &[]).assert_refused(&["its text tower reads (`--labels A,B`)"]);
    refused("vit", &["--labels", "a"]).assert_refused(&["two towers", "(without --labels"]);
    let mut texts = program();
    texts
        .args(["embed", "--output", "-", "--model"])
        .arg(pictures("vit"));
    let cure = [
        "vit: the model reads no texts but images",
        "`candle-blocks embed --images`",
    ];
    answer_to("a text\n", &mut texts).assert_refused(&cure);
    let pillow = refused("vit", &["--resize", "pillow"]);
    pillow.assert_status(2);
    assert_says(&pillow.stderr, &["torchvision", "pil"]);
    let pairs = refused("vit", &["--pairs"]);
    pairs.assert_status(2);
    assert_says(&pairs.stderr, &["--pairs", "--images"]);
    let by_pil = says("classify", "vit", &["color.png"], &["--resize", "pil"]);
    let by_torchvision = says(
        "classify",
        "vit",
        &["color.png"],
        &["--resize", "torchvision"],
    );
    assert_ne!(by_pil.stdout, by_torchvision.stdout);
}
