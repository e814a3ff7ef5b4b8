//! Answers to questions: the pipeline of transformers 4.57 is the judge.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::text::{Answer, AnswerOptions, QuestionAnswerer, TextOptions};
use serde_json::Value;

use crate::folder::{copied, merge};
use crate::message::message;
use crate::weights::{is_present, weights};

/// The largest difference between a score here and PyTorch's; both round probabilities to f32.
const CLOSE: f64 = 2e-6;

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn pairs(results: &Value) -> Vec<(&str, &str)> {
    let all = list(&results["examples"]).iter();
    all.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect()
}

fn results(name: &str) -> Value {
    let path = weights(&format!("tasks/answer-{name}/results.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns options of this crate for transformers' arguments.
fn options(case: &Value) -> AnswerOptions {
    let mut options = AnswerOptions::default();
    for (name, value) in case.as_object().unwrap() {
        let number = value.as_u64().unwrap_or_default() as usize;
        options = match name.as_str() {
            "top_k" => options.top_k(number),
            "max_answer_len" => options.max_answer_length(number),
            "doc_stride" => options.doc_stride(number),
            "align_to_words" => options.align_to_words(value.as_bool().unwrap()),
            "handle_impossible_answer" => {
                options.handle_impossible_answer(value.as_bool().unwrap())
            }
            "max_seq_len" => options,
            other => panic!("{other}"),
        };
    }
    options
}

fn assert_same(found: &[Answer], expected: &Value, about: &str) {
    // transformers adds spans of the probability 0 in the order of an unstable sort.
    let expected = list(expected).iter();
    let expected: Vec<&Value> = expected
        .filter(|answer| answer["score"].as_f64().unwrap() > 0.0)
        .collect();
    let about = format!("{about}\n{found:#?}\n{expected:#?}");
    assert_eq!(found.len(), expected.len(), "{about}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(expected["answer"], found.answer.as_str(), "{about}");
        assert_eq!(expected["start"], found.span.start, "{about}");
        assert_eq!(expected["end"], found.span.end, "{about}");
        let difference = (found.score - expected["score"].as_f64().unwrap()).abs();
        assert!(difference <= CLOSE, "{difference}: {about}");
    }
}

#[test]
fn answers_are_those_of_transformers_by_every_tokenizer_and_side() {
    if !is_present("tasks") {
        return;
    }
    let mut n_compared = 0;
    for name in ["uncased", "bytes", "unigram", "untyped"] {
        let expected = results(name);
        let pairs = pairs(&expected);
        for one in list(&expected["cases"]) {
            let folder = copied(&format!("tasks/answer-{name}"));
            merge(&folder.path().join("tokenizer_config.json"), &one["sides"]);
            let mut text_options = TextOptions::default();
            if let Some(max_length) = one["case"]["max_seq_len"].as_u64() {
                text_options = text_options.max_length(max_length as usize);
            }
            let answerer = text_options.question_answerer(folder.path()).unwrap();
            assert_eq!(answerer.notes(), Vec::<String>::new());
            let options = options(&one["case"]);
            let found = answerer.answer(&pairs, &options).unwrap();
            for ((pair, found), expected) in pairs.iter().zip(&found).zip(list(&one["answers"])) {
                let about = format!("{name}, {}, {}, {pair:?}", one["sides"], one["case"]);
                assert_same(found, expected, &about);
                n_compared += found.len();
            }
            // Alone, as in the batch.
            let alone = answerer.answer(&pairs[3..4], &options).unwrap();
            assert_eq!(alone[0], found[3]);
        }
    }
    assert!(n_compared > 1000, "{n_compared}");
}

#[test]
fn unpacked_weights_give_the_same_answers() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("bytes");
    let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
    let answerer = plain
        .question_answerer(weights("tasks/answer-bytes"))
        .unwrap();
    let pairs = pairs(&expected);
    let found = answerer.answer(&pairs, &AnswerOptions::default()).unwrap();
    assert_eq!(found.len(), 20);
    for (found, expected) in found.iter().zip(list(&expected["cases"][0]["answers"])) {
        assert_same(found, expected, "unpacked");
    }
}

#[test]
fn wrong_questions_are_refused_with_their_text_and_the_cure() {
    if !is_present("tasks") {
        return;
    }
    let answerer = QuestionAnswerer::open(weights("tasks/answer-uncased")).unwrap();
    let options = AnswerOptions::default;
    let boats = "boats ".repeat(80);
    let berlin = ("Berlin?", "Berlin");
    let long = [berlin, (boats.as_str(), "Berlin lives")];
    let tight = TextOptions::default().max_length(16);
    let tight = tight
        .question_answerer(weights("tasks/answer-uncased"))
        .unwrap();
    for (result, words) in [
        (
            answerer.answer(&[berlin], &options().top_k(0)),
            &["top_k", "above 0"][..],
        ),
        (
            answerer.answer(&[berlin], &options().max_answer_length(0)),
            &["max_answer_length", "above 0"],
        ),
        (
            answerer.answer(&[berlin], &options().doc_stride(61)),
            &["doc_stride", "at most 60"],
        ),
        (
            answerer.answer(&[berlin, ("", "Berlin")], &options()),
            &["text 1", "empty question"],
        ),
        (
            answerer.answer(&[("Berlin", "")], &options()),
            &["text 0", "empty context"],
        ),
        (
            answerer.answer(&long, &options()),
            &["text 1", "larger max_length"],
        ),
        (
            tight.answer(&[("Berlin", boats.as_str())], &options().doc_stride(14)),
            &["text 0", "smaller stride"],
        ),
    ] {
        let refusal = message(result);
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal}");
        }
    }
    let refusal = message(QuestionAnswerer::open(weights("tasks/tag-cased")));
    for word in [
        "answers no questions",
        "ForQuestionAnswering",
        "`TokenClassifier`",
    ] {
        assert!(refusal.contains(word), "{refusal}");
    }
}
