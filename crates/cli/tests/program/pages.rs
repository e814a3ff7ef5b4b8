//! The pages that `verify` and `inspect` write: every tensor is in them, and what fails can be seen.

use std::fs;
use std::path::Path;
use std::process::Command;

use candle_blocks::Checkpoint;
use candle_blocks::candle_core::{Device, safetensors};

use crate::said::assert_says;
use crate::scratch::{answer, program};
use crate::weights::weights;

/// The command that verifies a model and writes a page.
fn verify_to(page: &Path, fixture: &Path) -> Command {
    let mut command = program();
    let model = weights("tiny-bert");
    command.arg("verify").arg("--model").arg(model);
    command.arg("--fixture").arg(fixture);
    command.arg("--html").arg(page);
    command
}

/// Returns the tags in a page that are not closed in their order. `meta` has no end.
fn unclosed(page: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for tag in page.split('<').skip(1) {
        let tag = &tag[..tag.find('>').unwrap()];
        let name = tag
            .trim_start_matches('/')
            .split(' ')
            .next()
            .unwrap()
            .to_string();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "{tag}");
        } else if !["!DOCTYPE", "meta"].contains(&&*name) {
            open.push(name);
        }
    }
    open
}

#[test]
fn a_page_of_errors_has_a_cell_for_each_tensor_and_marks_those_that_fail() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let fixture = weights("tiny-bert/fixture.safetensors");
    let verify = |fixture: &Path, status: i32| -> String {
        let said = answer(verify_to(&page, fixture).arg("--json"));
        said.assert_status(status);
        let html = fs::read_to_string(&page).unwrap();
        assert_eq!(unclosed(&html), Vec::<String>::new());
        for comparison in said.json()["comparisons"].as_array().unwrap() {
            let title = format!("title=\"{}: ", comparison["name"].as_str().unwrap());
            assert_eq!(html.matches(&title).count(), 1, "{title}");
        }
        html
    };
    let html = verify(&fixture, 0);
    assert_says(
        &html,
        &[
            "All tensors agree",
            "<th>layers.2</th>",
            ">feed_forward.input<",
        ],
    );
    assert!(
        !html.contains("class=\"failed\"") && !html.contains("<script") && !html.contains("http")
    );

    let mut tensors = safetensors::load(&fixture, &Device::Cpu).unwrap();
    for (name, tensor) in &mut tensors {
        if name.starts_with("layers.1.output") {
            *tensor = (&*tensor + 1.0).unwrap();
        }
    }
    let wrong = folder.path().join("wrong.safetensors");
    safetensors::save(&tensors, &wrong).unwrap();
    let html = verify(&wrong, 1);
    assert_eq!(
        html.matches("class=\"failed\" title=\"layers.1.output: ")
            .count(),
        1
    );
    assert_eq!(html.matches("class=\"failed\"").count(), 1);
    assert_says(
        &html,
        &["The first tensor beyond its tolerance is layers.1.output"],
    );

    answer(&mut verify_to(&wrong, &wrong)).assert_refused(&["--html is a file that the run reads"]);
}

#[test]
fn a_page_of_tensors_has_each_once_and_no_markup_from_names() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let model = folder.path().join("<b>&model");
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(weights("tiny-bert").join(name), model.join(name)).unwrap();
    }
    let said = answer(
        program()
            .arg("inspect")
            .arg(&model)
            .arg("--html")
            .arg(&page),
    );
    said.assert_status(0);
    let html = fs::read_to_string(&page).unwrap();
    assert_eq!(unclosed(&html), Vec::<String>::new());
    assert_says(&html, &["&lt;b&gt;&amp;model", "family     bert"]);
    let checkpoint = Checkpoint::open(&model).unwrap();
    for name in checkpoint.files().names() {
        let cell = format!("<tr><td>{name}</td>");
        assert_eq!(html.matches(&cell).count(), 1, "{name}");
    }
}
