//! Pairs with all lengths, truncated by each strategy and on each side, compared with transformers.

use std::fs;

use candle_blocks::candle_core::{Device, safetensors};
use candle_blocks::text::{TextEmbedder, TextOptions, Tokenizer, TruncationStrategy};
use candle_blocks::{Checkpoint, Error};
use serde_json::json;

use crate::folder::changed;
use crate::tokenizers::kinds;
use crate::weights::{is_present, weights};

const WORDS: [&str; 11] = [
    "hello", "world", "it", "is", "a", "test", "do", "lead", "x", "y", "t",
];
const LIMIT: usize = 8;
/// Padding after a row's ids.
const NONE: u8 = 255;

fn words(n: usize, from_the_end: bool) -> String {
    let mut words = WORDS;
    if from_the_end {
        words.reverse();
    }
    words[..n].join(" ")
}

#[test]
fn pairs_of_all_lengths_lose_the_tokens_that_transformers_takes() {
    let judged = safetensors::load(weights("reference/truncation.safetensors"), &Device::Cpu);
    let (mut n, mut n_refused, mut wrong) = (0, 0, Vec::new());
    for (name, rows) in judged.unwrap() {
        let [kind, strategy, side] = name.split('.').collect::<Vec<_>>()[..] else {
            panic!("{name}");
        };
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("tokenizer.json", kinds()[kind].to_string());
        write(
            "tokenizer_config.json",
            json!({"truncation_side": side}).to_string(),
        );
        let mut tokenizer = Tokenizer::open(folder.path()).unwrap();
        let strategy: TruncationStrategy = strategy.parse().unwrap();
        tokenizer.truncate_by(LIMIT, strategy).unwrap();
        for (at, row) in rows.to_vec2::<u8>().unwrap().into_iter().enumerate() {
            let pair = (words(at / 9, false), words(at % 9, true));
            let theirs: Vec<u32> = row
                .into_iter()
                .filter(|&id| id != NONE)
                .map(u32::from)
                .collect();
            n += 1;
            // After another text, so that the error has an index to name.
            match tokenizer.encode_all([("x".to_string(), "y".to_string()), pair]) {
                Ok(ours) if ours[1].ids == theirs => {}
                Err(Error::Text { index: 1, reason }) if theirs.is_empty() => {
                    n_refused += 1;
                    let says = |part: &str| reason.contains(part);
                    assert!(
                        says(&strategy.to_string()) && says("max_length"),
                        "{reason}"
                    );
                }
                other => wrong.push(format!("{name} {at}: {other:?}, expected {theirs:?}")),
            }
        }
    }
    assert!(
        n == 972 && n_refused > 200,
        "{n} pairs, {n_refused} refused"
    );
    assert!(
        wrong.is_empty(),
        "{} of {n}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_text_without_a_second_one_is_the_first() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("tokenizer.json"),
        kinds()["wordpiece"].to_string(),
    )
    .unwrap();
    let mut tokenizer = Tokenizer::open(folder.path()).unwrap();
    let ids = |tokenizer: &Tokenizer| tokenizer.encode(&words(9, false)).map(|text| text.ids);
    tokenizer
        .truncate_by(LIMIT, TruncationStrategy::OnlyFirst)
        .unwrap();
    let first = ids(&tokenizer).unwrap();
    tokenizer.truncate(LIMIT).unwrap();
    assert_eq!(ids(&tokenizer).unwrap(), first);
    assert_eq!(first.len(), LIMIT);
    tokenizer
        .truncate_by(LIMIT, TruncationStrategy::OnlySecond)
        .unwrap();
    let error = ids(&tokenizer).unwrap_err().to_string();
    assert!(
        error.contains("only_second") && error.contains("no second text"),
        "{error}"
    );
    tokenizer
        .truncate_by(20, TruncationStrategy::OnlySecond)
        .unwrap();
    assert_eq!(ids(&tokenizer).unwrap().len(), 11);
}

#[test]
fn a_classifier_shortens_the_text_of_a_pair_that_is_chosen() {
    if !is_present("text/ranker") {
        return;
    }
    let question = "where did the boats lie";
    let passage = "the tide left three small boats on the sand . ".repeat(20);
    let scores = |strategy, first: &str, second: &str| {
        let options = TextOptions::default().max_length(24);
        let options = match strategy {
            None => options,
            Some(strategy) => options.truncation(strategy),
        };
        let classifier = options.classifier(weights("text/ranker"))?;
        Ok::<_, Error>(classifier.classify_pairs(&[(first, second)])?[0].logits[0])
    };
    // The question is the shorter text, so that it is the passage that loses its tokens by default.
    let default = scores(None, question, &passage).unwrap();
    assert_eq!(
        scores(Some(TruncationStrategy::OnlySecond), question, &passage).unwrap(),
        default
    );
    let error = scores(Some(TruncationStrategy::OnlyFirst), question, &passage).unwrap_err();
    assert!(error.to_string().contains("only_first"), "{error}");
    // For two long texts, another one is truncated.
    let both = scores(None, &passage[..90], &passage[10..100]).unwrap();
    let first = scores(
        Some(TruncationStrategy::OnlyFirst),
        &passage[..90],
        &passage[10..60],
    )
    .unwrap();
    assert!(both.is_finite() && first.is_finite() && both != first);
}

/// A text has fewer special tokens than a pair. transformers leaves the special tokens alone then.
#[test]
fn a_limit_of_the_special_tokens_alone_is_that_of_the_text_or_of_the_pair() {
    let folder = tempfile::tempdir().unwrap();
    let file = kinds()["wordpiece"].to_string();
    fs::write(folder.path().join("tokenizer.json"), file).unwrap();
    let limited = |limit: usize| {
        let mut tokenizer = Tokenizer::open(folder.path()).unwrap();
        tokenizer.truncate(limit).map(|()| tokenizer)
    };
    let said = limited(1).unwrap_err().to_string();
    assert!(
        said.contains("2 special tokens") && said.contains("only 1"),
        "{said}"
    );
    let tokenizer = limited(2).unwrap();
    assert_eq!(tokenizer.encode("hello world").unwrap().ids, [2, 3]);
    let pair = ("hello world", "it is");
    let said = tokenizer.encode_all([pair]).unwrap_err().to_string();
    assert!(
        said.contains("3 special tokens") && said.contains("max_length"),
        "{said}"
    );
    let ids = limited(3)
        .unwrap()
        .encode_all([pair])
        .unwrap()
        .remove(0)
        .ids;
    assert_eq!(ids, [2, 3, 3]);
}

/// A rotary model reads longer texts than those for which it was made, as in sentence-transformers.
#[test]
fn texts_beyond_the_context_length_have_a_note_where_nothing_shortens_them() {
    let opened = |limit: usize| {
        let options = TextOptions::default().max_length(limit);
        options.embedder(weights("text/last")).unwrap()
    };
    let length = Checkpoint::open(weights("text/last")).unwrap();
    let length = length.context_length().unwrap().unwrap();
    let notes = |limit: usize| opened(limit).notes().join("\n");
    assert!(
        !notes(length).contains("context length"),
        "{}",
        notes(length)
    );
    let said = notes(length + 1);
    assert!(
        said.contains(&format!("context length, {length}")) && said.contains("max_length"),
        "{said}"
    );
}

#[test]
fn the_classifier_of_setfit_beside_a_body_is_not_passed_over() {
    let folder = changed("joined", |_| {});
    let notes = || {
        TextEmbedder::open(folder.path())
            .unwrap()
            .notes()
            .join("\n")
    };
    assert!(!notes().contains("SetFit"));
    fs::write(folder.path().join("model_head.pkl"), "").unwrap();
    assert!(
        notes().contains("model_head.pkl") && notes().contains("SetFit"),
        "{}",
        notes()
    );
}
