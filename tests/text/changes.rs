//! Settings in sentence-transformers' files are followed: models with changed files, compared with sentence-transformers and
//! transformers.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::text::{TextClassifier, TextEmbedder};
use serde_json::{Value, json};

use crate::folder::{changed, merge};
use crate::reference::{Reference, assert_passed};
use crate::{message::message, texts, weights::weights};

fn changes() -> Vec<Value> {
    let text = fs::read_to_string(weights("text/changes.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the results for a changed model: vectors, those of the tokens of the first texts, or scores for texts or pairs.
fn results(judge: &str, folder: &Path, texts: &[String]) -> candle_blocks::Result<Tensor> {
    if ["encode", "sparse"].contains(&judge) {
        return TextEmbedder::open(folder)?.embed(texts);
    }
    if ["queries", "documents", "max_sim"].contains(&judge) {
        let (embedder, texts) = (TextEmbedder::open(folder)?, &texts[..4]);
        let queries = embedder.query_token_vectors(texts)?;
        let documents = embedder.token_vectors(texts)?;
        return match judge {
            "queries" => Ok(Tensor::cat(&queries, 0)?),
            "documents" => Ok(Tensor::cat(&documents, 0)?),
            _ => {
                let score = |query| -> candle_blocks::Result<Vec<f32>> {
                    let scores = documents.iter();
                    scores
                        .map(|document| embedder.max_sim(query, document))
                        .collect()
                };
                let scores: candle_blocks::Result<Vec<_>> = queries.iter().map(score).collect();
                Ok(Tensor::new(scores?, &Device::Cpu)?)
            }
        };
    }
    let classifier = TextClassifier::open(folder)?;
    let scores = match judge {
        "predict" => {
            let pairs: Vec<_> = texts.iter().zip(texts.iter().rev()).collect();
            classifier.classify_pairs(&pairs)?
        }
        _ => classifier.classify(texts)?,
    };
    let rows: Vec<_> = scores.into_iter().map(|scores| scores.scores).collect();
    Ok(Tensor::new(rows, &Device::Cpu)?)
}

#[test]
fn keys_of_the_files_do_what_they_do_in_sentence_transformers() {
    let expected = Reference::open("../text/changes");
    let texts: Vec<String> = texts("joined")
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let mut comparisons = Vec::new();
    for change in changes() {
        let text = |key: &str| change[key].as_str().unwrap().to_string();
        let folder = changed(&text("model"), |folder| {
            for (file, keys) in change["files"].as_object().unwrap() {
                merge(&folder.join(file), keys);
            }
        });
        match results(&text("judge"), folder.path(), &texts) {
            Ok(found) => comparisons.push(expected.compare(&text("name"), &found)),
            Err(error) => panic!("{}: {error}", text("name")),
        }
    }
    assert_eq!(comparisons.len(), expected.names().len() / 2);
    assert_passed(&comparisons);
}

/// File, key, value, and words in the error beside the key.
#[test]
fn values_that_change_results_and_are_not_supported_are_refused_by_name() {
    let transformer = "sentence_bert_config.json";
    for (file, key, value, words) in [
        (
            transformer,
            "processing_kwargs",
            json!({"text": {"stride": 2}}),
            "processing_kwargs.text.stride",
        ),
        (
            transformer,
            "processing_kwargs",
            json!({"text": {"truncation": "shortest_first"}}),
            "shortest_first",
        ),
        (
            transformer,
            "processing_kwargs",
            json!({"common": {"return_attention_mask": false}}),
            "return_attention_mask",
        ),
        (
            transformer,
            "processing_kwargs",
            json!({"text": {"padding": "max_length"}}),
            "padding",
        ),
        (
            transformer,
            "config_args",
            json!({"is_causal": false}),
            "config_args.is_causal",
        ),
        (
            transformer,
            "model_kwargs",
            json!({"quantization_config": {"a": 1}}),
            "model_kwargs.quantization_config",
        ),
        (
            transformer,
            "tokenizer_args",
            json!({"truncation_side": "left"}),
            "tokenizer_args.truncation_side",
        ),
        (
            transformer,
            "tokenizer_name_or_path",
            json!("elsewhere"),
            "tokenizer_name_or_path",
        ),
        (
            transformer,
            "transformer_task",
            json!("fill-mask"),
            "fill-mask",
        ),
        (
            transformer,
            "module_output_name",
            json!("other"),
            "module_output_name",
        ),
        (transformer, "max_seq_length", json!(7.5), "max_seq_length"),
        (transformer, "unheard_of", json!(true), "unheard_of"),
        (
            transformer,
            "modality_config",
            json!({"image": {}}),
            "does not read texts",
        ),
        (
            transformer,
            "modality_config",
            json!({"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}),
            "hidden_states",
        ),
        (
            transformer,
            "modality_config",
            json!({"text": {"method": "get_text_features", "method_output_name": "last_hidden_state"}}),
            "get_text_features",
        ),
        (
            "config_sentence_transformers.json",
            "model_type",
            json!("MultiVectorEncoder"),
            "meanmaxsim", // the folder's similarity is the cosine
        ),
        (
            "config_sentence_transformers.json",
            "model_type",
            json!("CrossEncoder"),
            "no module returns scores",
        ),
        (
            "config_sentence_transformers.json",
            "truncate_dim",
            json!(0),
            "truncate_dim",
        ),
        (
            "config_sentence_transformers.json",
            "unheard_of",
            json!(1),
            "unheard_of",
        ),
        (
            "1_Pooling/config.json",
            "unheard_of",
            json!(1),
            "unheard_of",
        ),
        (
            "1_Pooling/config.json",
            "pooling_mode",
            json!([]),
            "pooling_mode",
        ),
        (
            "2_Dense/config.json",
            "activation_function",
            json!("my.own.GELU"),
            "my.own.GELU",
        ),
        ("2_Dense/config.json", "bias", json!(false), "linear.bias"),
        (
            "2_Dense/config.json",
            "module_input_name",
            json!("scores"),
            "reads scores",
        ),
        ("2_Dense/config.json", "unheard_of", json!(1), "unheard_of"),
        ("3_LayerNorm/config.json", "eps", json!(1e-3), "eps"),
        (
            "5_Normalize/config.json",
            "module_output_name",
            json!("other"),
            "other",
        ),
    ] {
        let folder = changed("joined", |folder| {
            merge(&folder.join(file), &json!({key: value.clone()}))
        });
        let refusal = match value == "CrossEncoder" {
            true => message(TextClassifier::open(folder.path())),
            false => message(TextEmbedder::open(folder.path())),
        };
        assert!(refusal.contains(words), "no {words:?} in {refusal:?}");
        assert!(!refusal.contains("malformed"), "{refusal}");
    }
}

#[test]
fn modules_that_are_not_supported_are_refused_by_their_classes() {
    for class in [
        "WeightedLayerPooling",
        "LSTM",
        "CNN",
        "BoW",
        "WordWeights",
        "SpladePooling",
        "LogitScore",
        "SparseStaticEmbedding",
    ] {
        for place in [0, 2] {
            let folder = changed("joined", |folder| {
                let path = folder.join("modules.json");
                let mut modules: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                modules[place]["type"] = format!("sentence_transformers.models.{class}").into();
                fs::write(path, modules.to_string()).unwrap();
            });
            let refusal = message(TextEmbedder::open(folder.path()));
            for word in [
                "modules.json",
                class,
                "not supported",
                &format!("{place}.type"),
            ] {
                assert!(refusal.contains(word), "no {word:?} in {refusal:?}");
            }
            assert!(!refusal.contains("malformed"), "{refusal}");
        }
    }
}

#[test]
fn keys_that_change_nothing_are_accepted() {
    let expected = bits(&weights("text/joined"));
    let folder = changed("joined", |folder| {
        let keys = json!({
            "unpad_inputs": false, "query_length": 5, "query_expansion": null, "model_args": {"torch_dtype": "float16"},
            "config_kwargs": {"use_cache": true}, "processor_kwargs": {"padding_side": "left"},
            "processing_kwargs": {"image": {"size": 3}, "text": {"padding": true, "truncation": "longest_first"}},
        });
        merge(&folder.join("sentence_bert_config.json"), &keys);
        let keys = json!({"similarity_fn_name": "dot", "activation_fn": "my.own.Function", "requirements": {"a": ">1"}});
        merge(&folder.join("config_sentence_transformers.json"), &keys);
    });
    assert_eq!(bits(folder.path()), expected);
}

fn bits(folder: &Path) -> Vec<Vec<u32>> {
    crate::bits(
        &TextEmbedder::open(folder)
            .unwrap()
            .embed(&texts("joined"))
            .unwrap(),
    )
}

#[test]
fn files_that_sentence_transformers_does_not_read_are_noted() {
    let folder = changed("ranker", |folder| {
        merge(
            &folder.join("sentence_bert_config.json"),
            &json!({"max_seq_length": 4}),
        );
    });
    let classifier = TextClassifier::open(folder.path()).unwrap();
    assert_eq!(classifier.max_length(), Some(14));
    let [note] = classifier.notes() else {
        panic!("{:?}", classifier.notes());
    };
    for word in ["sentence_bert_config.json", "not used", "modules.json"] {
        assert!(note.contains(word), "{note}");
    }
}

#[test]
fn a_chat_template_that_leaves_out_a_text_of_a_pair_is_refused() {
    let change = changes()
        .into_iter()
        .find(|change| change["name"] == "two_answers")
        .unwrap();
    let folder = changed("last", |folder| {
        for (file, keys) in change["files"].as_object().unwrap() {
            merge(&folder.join(file), keys);
        }
        let logits = json!({"method": "forward", "method_output_name": "logits", "format": "flat"});
        let reading = json!({"modality_config": {"text": logits, "message": logits}});
        merge(&folder.join("sentence_bert_config.json"), &reading);
        let template = json!({"chat_template": "{{ messages[0].content }}"});
        merge(&folder.join("tokenizer_config.json"), &template);
    });
    let classifier = TextClassifier::open(folder.path()).unwrap();
    let refusal = message(classifier.classify_pairs(&[("boats", "sand")]));
    assert!(
        refusal.contains("document") && refusal.contains("omits"),
        "{refusal}"
    );
}
