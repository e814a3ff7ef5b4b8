//! The forms in which `candle-blocks embed` writes vectors, and how it treats existing files; texts as JSON Lines.

use std::fs;

use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::text::TextEmbedder;

use crate::said::assert_says;
use crate::scratch::{answer, load, program};
use crate::texts::Folder;
use crate::weights::weights;

const TEXTS: &str = "Who repaired the clock?\nThe tide left three small boats.\n";

#[test]
fn a_numpy_file_holds_the_array_of_the_safetensors_file() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/joined");
    for (flags, name, signed) in [
        (&[][..], "v", false),
        (&["--vectors", "ubinary"], "u", false),
        (&["--vectors", "binary"], "b", true),
    ] {
        let [npy, reference] = ["npy", "safetensors"].map(|end| format!("{name}.{end}"));
        for to in [&npy, &reference] {
            let said = folder.says("embed", &model, to, flags);
            said.assert_status(0);
            assert!(!said.stderr.contains("the ranges are not in a .npy file"));
        }
        let bytes = fs::read(folder.path(&npy)).unwrap();
        let files = TensorFiles::open(folder.path(&npy)).unwrap();
        let (info, expected) = (
            files.info(name).unwrap(),
            TensorFiles::open(folder.path(&reference)).unwrap(),
        );
        let expected = expected.info("embeddings").unwrap().clone();
        assert_eq!((&info.shape, info.dtype), (&expected.shape, expected.dtype));
        let (bytes_of, n) = (
            fs::read(folder.path(&reference)).unwrap(),
            bytes.len() - 128,
        );
        assert_eq!(bytes[128..], bytes_of[bytes_of.len() - n..]);
        let text = String::from_utf8_lossy(&bytes[..128]).into_owned();
        assert_eq!(text.contains("'|i1'"), signed, "{text}");
    }
    let said = folder.says("embed", &model, "r.npy", &["--vectors", "int8"]);
    said.assert_status(0);
    assert_says(
        &said.stderr,
        &[
            "the ranges are not in a .npy file",
            "a .safetensors has both",
        ],
    );
    let scores = folder.says("classify", &weights("text/labels"), "s.npy", &[]);
    scores.assert_refused(&["one array", "logits"]);
    let tags = folder.says("fill", &weights("tasks/fill-bytes"), "t.npy", &[]);
    tags.assert_refused(&["t.npy", ".jsonl"]);
    let many = folder.says("embed", &weights("text/tokens"), "m.npy", &[]);
    many.assert_refused(&["one array", "lengths"]);
}

#[test]
fn vectors_go_to_a_pipe() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/joined");
    let to_pipe = |more: &[&str]| {
        let mut command = program();
        command.arg("embed").arg("-m").arg(&model);
        command.arg(folder.path("texts.txt"));
        command.args(["-o", "-"]).args(more).output().unwrap()
    };
    let lines = to_pipe(&[]);
    folder
        .says("embed", &model, "v.jsonl", &[])
        .assert_status(0);
    assert!(lines.stdout == fs::read(folder.path("v.jsonl")).unwrap());
    let array = to_pipe(&["--format", "npy"]);
    folder.says("embed", &model, "v.npy", &[]).assert_status(0);
    assert!(array.stdout == fs::read(folder.path("v.npy")).unwrap());
    let refused = to_pipe(&["--format", "safetensors"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_says(
        String::from_utf8(refused.stderr).unwrap(),
        &["--output -", "jsonl or npy"],
    );
    folder
        .says("embed", &model, "other", &["--format", "safetensors"])
        .assert_status(0);
    assert!(load(&folder.path("other")).contains_key("embeddings"));
}

#[test]
fn an_existing_file_is_replaced_if_that_is_requested() {
    let folder = Folder::with(TEXTS);
    let model = weights("text/joined");
    fs::write(folder.path("v.npy"), "others").unwrap();
    let kept = folder.says("embed", &model, "v.npy", &[]);
    kept.assert_refused(&["v.npy", "exists", "--replace"]);
    assert_eq!(fs::read(folder.path("v.npy")).unwrap(), b"others");
    let replaced = folder.says("embed", &model, "v.npy", &["--replace"]);
    replaced.assert_status(0);
    assert_ne!(fs::read(folder.path("v.npy")).unwrap(), b"others");
}

#[test]
fn texts_with_line_breaks_are_lines_of_json() {
    let folder = Folder::with("");
    let model = weights("text/joined");
    let texts = ["Who repaired\nthe clock?", "boats"];
    let expected = TextEmbedder::open(&model).unwrap().embed(&texts).unwrap();
    let expected = expected.to_vec2::<f32>().unwrap();
    let lines = "\"Who repaired\\nthe clock?\"\n{\"text\": \"boats\", \"id\": 7}\n";
    fs::write(folder.path("texts.jsonl"), lines).unwrap();
    fs::write(folder.path("texts.txt"), lines).unwrap();
    let with = |file: &str, to: &str, more: &[&str]| {
        let mut command = program();
        command.arg("embed").arg("-m").arg(&model);
        command.arg(folder.path(file)).args(more);
        answer(command.arg("-o").arg(folder.path(to)))
    };
    with("texts.jsonl", "a.safetensors", &[]).assert_status(0);
    with("texts.txt", "b.safetensors", &["--texts", "jsonl"]).assert_status(0);
    for to in ["a.safetensors", "b.safetensors"] {
        let found = &load(&folder.path(to))["embeddings"];
        assert_eq!(found.to_vec2::<f32>().unwrap(), expected);
    }
    with("texts.jsonl", "c.safetensors", &["--texts", "lines"]).assert_status(0);
    let found = &load(&folder.path("c.safetensors"))["embeddings"];
    assert_ne!(found.to_vec2::<f32>().unwrap(), expected);
    // Vectors in lines have their texts, so that they can be read again.
    with("texts.jsonl", "again.jsonl", &[]).assert_status(0);
    with("again.jsonl", "d.safetensors", &[]).assert_status(0);
    let found = &load(&folder.path("d.safetensors"))["embeddings"];
    assert_eq!(found.to_vec2::<f32>().unwrap(), expected);
    fs::write(folder.path("bad.jsonl"), "\"a\"\n7\n").unwrap();
    let bad = with("bad.jsonl", "e.jsonl", &[]);
    bad.assert_refused(&["bad.jsonl: line 2", "\"text\"", "--texts lines"]);

    let pairs = weights("text/ranker");
    fs::write(
        folder.path("pairs.jsonl"),
        "[\"a clock\", \"three\\nboats\"]\n",
    )
    .unwrap();
    let scores = |file: &str| {
        let mut command = program();
        command.arg("classify").arg("-m").arg(&pairs);
        answer(command.arg(folder.path(file)).arg("--pairs"))
    };
    scores("pairs.jsonl").assert_status(0);
    fs::write(folder.path("pairs.jsonl"), "[\"a clock\"]\n").unwrap();
    scores("pairs.jsonl").assert_refused(&["line 1", "two strings"]);
}
