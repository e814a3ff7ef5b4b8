//! The comparison with the results of transformers.

use std::fs;

use candle_blocks::generate::SpeechTask;
use candle_blocks::speech::{Audio, PromptCondition, SpeechOptions, TimestampKind, Transcript};
use serde_json::Value;

use crate::sounds::samples;
use crate::weights::weights;

/// Returns the options for a case of `results.json`.
fn options(case: &Value) -> SpeechOptions {
    let mut options = SpeechOptions::default();
    if let Some(beams) = case.get("num_beams") {
        options = options.beams(beams.as_u64().unwrap() as usize);
    }
    if let Some(language) = case.get("language") {
        options = options.language(language.as_str().unwrap());
    }
    if let Some(task) = case.get("task") {
        options = options.task(task.as_str().unwrap().parse::<SpeechTask>().unwrap());
    }
    let number = |key: &str| case.get(key).map(|value| value.as_f64().unwrap());
    if let Some(temperatures) = case.get("temperature") {
        let numbers = temperatures.as_array().unwrap().iter();
        let numbers: Vec<f64> = numbers.map(|number| number.as_f64().unwrap()).collect();
        options = options.temperatures(numbers);
    }
    if let Some(ratio) = number("compression_ratio_threshold") {
        options = options.compression_ratio_threshold(ratio);
    }
    if let Some(mean) = number("logprob_threshold") {
        options = options.logprob_threshold(mean);
    }
    if let Some(probability) = number("no_speech_threshold") {
        options = options.no_speech_threshold(probability);
    }
    if let Some(seconds) = number("chunk_length_s") {
        options = options.chunk_length_s(seconds);
    }
    if let Some(context) = case.get("stride_length_s") {
        options = options.stride_length_s([0, 1].map(|side| context[side].as_f64().unwrap()));
    }
    if let Some(reads) = case.get("condition_on_prev_tokens") {
        options = options.condition_on_prev_tokens(reads.as_bool().unwrap());
    }
    if let Some(prompt) = case.get("prompt") {
        options = options.prompt(prompt.as_str().unwrap());
    }
    if let Some(condition) = case.get("prompt_condition_type") {
        let condition = condition.as_str().unwrap();
        options = options.prompt_condition(condition.parse::<PromptCondition>().unwrap());
    }
    options.timestamps(match case.get("return_timestamps") {
        None => TimestampKind::None,
        Some(Value::Bool(true)) => TimestampKind::Segment,
        Some(_) => TimestampKind::Word,
    })
}

/// Returns a result of transformers.
fn expected(result: &Value) -> Transcript {
    let chunks = result.get("chunks").and_then(Value::as_array);
    let chunk = |chunk: &Value| candle_blocks::speech::Chunk {
        text: chunk["text"].as_str().unwrap().to_string(),
        timestamp: (
            chunk["timestamp"][0].as_f64(),
            chunk["timestamp"][1].as_f64(),
        ),
    };
    Transcript {
        text: result["text"].as_str().unwrap().to_string(),
        chunks: chunks.into_iter().flatten().map(chunk).collect(),
    }
}

/// Demands the transcripts in a model's `results.json`, at least `least`.
#[track_caller]
pub fn assert_as_judged(model: &str, least: usize) {
    let folder = weights(model);
    let bytes = fs::read(folder.join("results.json")).unwrap();
    let judged: Value = serde_json::from_slice(&bytes).unwrap();
    let (mut n_compared, mut wrong) = (0, Vec::new());
    for case in judged["cases"].as_array().unwrap() {
        let transcriber = options(case).transcriber(&folder).unwrap();
        assert_eq!(transcriber.notes(), [""; 0]);
        let results = case["results"].as_array().unwrap();
        for (sound, result) in judged["sounds"].as_array().unwrap().iter().zip(results) {
            let number = |i: usize| sound[i].as_u64().unwrap() as usize;
            let sound = Audio {
                samples: samples(number(0), number(1)),
                rate: 16000,
            };
            let found = transcriber.transcribe(&sound).unwrap();
            let expected = expected(result);
            n_compared += 1;
            if found != expected {
                let keys: Vec<_> = case.as_object().unwrap().iter().take(4).collect();
                let keys: Vec<_> = keys.iter().filter(|(key, _)| *key != "results").collect();
                wrong.push(format!(
                    "{keys:?}, {} samples:\nfound    {found:?}\nexpected {expected:?}",
                    number(1)
                ));
            }
        }
    }
    assert!(n_compared >= least, "{n_compared}");
    assert!(
        wrong.is_empty(),
        "{model}: {} of {n_compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
