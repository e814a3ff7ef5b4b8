//! The examples `classifier` and `embedder` learn, and save what the library opens.

use std::{fs, path::Path};

use candle_blocks::text::{Pooling, TextClassifier, TextOptions};
use serde_json::Value;

use crate::{classifier, embedder, weights::weights};

const TEXTS: [(&str, &str); 6] = [
    ("tide", "the tide left the boats"),
    ("tide", "three boats on the sand"),
    ("clock", "who repaired the clock"),
    ("tide", "small boats"),
    ("clock", "the small clock"),
    ("clock", "the clock left"),
];

/// Copies a classifier without dropout, so that each run learns the same.
fn without_dropout(folder: &Path) -> String {
    let to = folder.join("pretrained");
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(weights("text/labels")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
    }
    let path = to.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["hidden_dropout_prob"] = 0.into();
    config["attention_probs_dropout_prob"] = 0.into();
    fs::write(path, config.to_string()).unwrap();
    to.to_str().unwrap().to_string()
}

fn lines(parts: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    parts
        .map(|(first, second)| format!("{first}\t{second}\n"))
        .collect()
}

#[test]
fn a_classifier_learns_labels_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("classifier");
    let data = lines(TEXTS.into_iter().cycle().take(40));
    let model = without_dropout(folder.path());
    let paths = [&model, out.to_str().unwrap()];
    let found = classifier::train(paths[0], &data, paths[1], (20, 5e-3)).unwrap();
    assert_eq!(found, [4, 4]);
    let opened = TextClassifier::open(&out).unwrap();
    assert_eq!(opened.labels(), ["clock", "tide"]);
    let wrong = classifier::train(paths[0], "no tab", paths[1], (1, 1e-3));
    assert_eq!(wrong.unwrap_err().to_string(), "a line has no tab");
}

#[test]
fn an_embedder_learns_which_texts_belong_together() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("embedder");
    let pairs = [(0, 1), (2, 4), (3, 5)]; // no text is in two
    let pairs = pairs.map(|(query, document)| (TEXTS[query].1, TEXTS[document].1));
    let model = without_dropout(folder.path());
    let paths = [&model, out.to_str().unwrap()];
    let losses = embedder::train(paths[0], &lines(pairs.into_iter()), paths[1], (60, 1e-3));
    let losses = losses.unwrap();
    assert!(losses[59] < losses[0] / 2.0, "{losses:?}");
    // How much nearer a query's document is than the nearest other one, summed over the queries.
    let margin = |path: &str| {
        let options = TextOptions::default().pooling([Pooling::Mean]);
        let embedder = options.embedder(path).unwrap();
        let [queries, documents] = [0, 1].map(|part| {
            let texts = pairs.map(|pair| [pair.0, pair.1][part]);
            embedder.embed(&texts).unwrap()
        });
        let rows = embedder.similarity(&queries, &documents).unwrap();
        let rows = rows.to_vec2::<f32>().unwrap().into_iter().enumerate();
        rows.map(|(i, row)| {
            let others = row.iter().enumerate().filter(|(j, _)| *j != i);
            row[i] - others.map(|(_, &score)| score).fold(f32::MIN, f32::max)
        })
        .sum::<f32>()
    };
    let (before, after) = (margin(paths[0]), margin(paths[1]));
    assert!(after > before + 0.1, "{before} to {after}");
}
