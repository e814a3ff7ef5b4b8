//! The example `semantic_search` ranks as the library does, and keeps the vectors of files that did not change.

use std::collections::BTreeSet;
use std::fs;

use candle_blocks::candle_core::{Device, safetensors};
use candle_blocks::text::TextRanker;

use crate::semantic_search::search;
use crate::weights::weights;

#[test]
fn a_search_ranks_files_and_computes_only_changed_ones_again() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["the boats left", "sand", "who repaired the small clock?"];
    for (i, text) in texts.iter().enumerate() {
        fs::write(folder.path().join(format!("{i}.txt")), text).unwrap();
    }
    fs::write(folder.path().join("other.md"), "the tide").unwrap();
    let model = weights("text/joined");
    let model = model.to_str().unwrap();
    let found = search(model, folder.path(), "boats").unwrap();
    let ranked = TextRanker::open(model)
        .unwrap()
        .rank("boats", &texts)
        .unwrap();
    let file = |i: usize| folder.path().join(format!("{i}.txt"));
    let expected: Vec<_> = { ranked.iter() }
        .map(|one| (one.score, file(one.corpus_id)))
        .collect();
    assert_eq!(found, expected);
    let index = folder.path().join("index.safetensors");
    let names = || -> BTreeSet<String> {
        let tensors = safetensors::load(&index, &Device::Cpu).unwrap();
        tensors.into_keys().collect()
    };
    let before = names();
    fs::write(file(1), "the small boats").unwrap();
    // A kept vector is not computed again: another in its place changes the score.
    let mut tensors = safetensors::load(&index, &Device::Cpu).unwrap();
    let name = { before.iter() }
        .find(|name| name.contains("0.txt"))
        .unwrap();
    tensors.insert(name.clone(), tensors[name].neg().unwrap());
    safetensors::save(&tensors, &index).unwrap();
    let again = search(model, folder.path(), "boats").unwrap();
    assert_eq!(before.intersection(&names()).count(), 2);
    let score = |found: &[(f32, std::path::PathBuf)], i: usize| {
        found.iter().find(|(_, path)| *path == file(i)).unwrap().0
    };
    assert_eq!(score(&again, 0), -score(&found, 0));
    assert_eq!(score(&again, 2), score(&found, 2));
    assert_ne!(score(&again, 1), score(&found, 1));
}
