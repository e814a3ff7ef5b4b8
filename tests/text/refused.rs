//! Files and texts that do not fit: each a message that says what to do.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::text::{Aggregation, TextClassifier, TextEmbedder, TokenClassifier, Tokenizer};
use serde_json::{Value, json};

use crate::folder::{change_json, changed};
use crate::{message::message, weights::weights};

/// Returns a copy of `weights/text/joined` after a change.
fn joined(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    changed("joined", change)
}

#[track_caller]
fn assert_refused(folder: &tempfile::TempDir, words: &[&str]) {
    let refusal = message(TextEmbedder::open(folder.path()));
    for word in words {
        assert!(refusal.contains(word), "no {word:?} in {refusal:?}");
    }
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
}

#[test]
fn a_directory_without_a_tokenizer_is_refused() {
    let folder = joined(|folder| fs::remove_file(folder.join("tokenizer.json")).unwrap());
    assert_refused(
        &folder,
        &["tokenizer.json", "missing", "BertTokenizer", "vocab.txt"],
    );
    let folder = joined(|folder| fs::write(folder.join("tokenizer.json"), "{}").unwrap());
    assert_refused(&folder, &["tokenizer.json", "not a tokenizer"]);
}

#[test]
fn a_tokenizer_of_another_vocabulary_is_refused() {
    let folder = joined(|folder| {
        change_json(&folder.join("tokenizer.json"), |json| {
            let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
            for i in vocabulary.len()..99 {
                vocabulary.insert(format!("other{i}"), i.into());
            }
        });
    });
    assert_refused(&folder, &["99 tokens", "another model"]);
}

#[test]
fn a_token_that_the_model_does_not_have_is_refused_where_a_text_has_it() {
    let folder = joined(|folder| {
        change_json(&folder.join("tokenizer.json"), |json| {
            let mut added = json["added_tokens"][0].clone();
            added["content"] = "<image>".into();
            added["id"] = 1000.into();
            json["added_tokens"].as_array_mut().unwrap().push(added);
        });
    });
    let embedder = TextEmbedder::open(folder.path()).unwrap();
    embedder.embed(&["boats"]).unwrap();
    let refusal = message(embedder.embed(&["boats", "an <image>"]));
    for word in ["text 1", "<image>", "token embeddings"] {
        assert!(refusal.contains(word), "{refusal}");
    }
}

#[test]
fn an_unknown_pooling_module_or_activation_is_refused() {
    let pooling = |change: fn(&mut Value)| {
        joined(|folder| change_json(&folder.join("1_Pooling/config.json"), change))
    };
    let folder = pooling(|json| json["pooling_mode"] = json!(["mean", "median"]));
    assert_refused(&folder, &["1_Pooling", "median", "weightedmean"]);
    let folder = pooling(|json| {
        *json = json!({"word_embedding_dimension": 24, "pooling_mode_median_tokens": true});
    });
    assert_refused(
        &folder,
        &[
            "1_Pooling",
            "pooling_mode_median_tokens",
            "pooling_mode_lasttoken",
        ],
    );
    let folder = joined(|folder| {
        change_json(&folder.join("modules.json"), |json| {
            json[3]["type"] = "a.b.LSTM".into()
        });
    });
    assert_refused(
        &folder,
        &["modules.json", "a.b.LSTM", "the model's own code"],
    );
    let folder = joined(|folder| {
        let path = folder.join("2_Dense/config.json");
        change_json(&path, |json| {
            json["activation_function"] = "torch.nn.Softsign".into()
        });
    });
    assert_refused(&folder, &["2_Dense", "Softsign", "Tanh"]);
}

/// sentence-transformers loads a module's file strictly.
#[test]
fn a_tensor_that_a_module_does_not_have_is_refused() {
    for (module, stray, known) in [
        (
            "2_Dense",
            "norm.weight",
            "only linear.weight and linear.bias",
        ),
        (
            "3_LayerNorm",
            "residual.weight",
            "only norm.weight and norm.bias",
        ),
    ] {
        let folder = joined(|folder| {
            let path = folder.join(module).join("model.safetensors");
            let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
            let vector = Tensor::ones(3, DType::F32, &Device::Cpu).unwrap();
            tensors.insert(stray.to_string(), vector);
            safetensors::save(&tensors, &path).unwrap();
        });
        assert_refused(&folder, &[module, stray, known]);
    }
}

/// `pooling_mode_*` as older versions wrote them, in their own order.
#[test]
fn the_keys_of_older_files_mean_the_same() {
    let new = joined(|folder| {
        let path = folder.join("1_Pooling/config.json");
        change_json(&path, |json| {
            json["pooling_mode"] = json!([
                "cls",
                "max",
                "mean",
                "mean_sqrt_len_tokens",
                "weightedmean",
                "lasttoken"
            ])
        });
    });
    let old = joined(|folder| {
        let keys = json!({
            "word_embedding_dimension": 24, "include_prompt": false, "pooling_mode_lasttoken": true,
            "pooling_mode_weightedmean_tokens": true, "pooling_mode_mean_sqrt_len_tokens": true,
            "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true, "pooling_mode_cls_token": true,
        });
        change_json(&folder.join("1_Pooling/config.json"), |json| *json = keys);
    });
    let pooling = |folder: &tempfile::TempDir| {
        TextEmbedder::open(folder.path())
            .unwrap()
            .pooling()
            .to_vec()
    };
    assert_eq!(pooling(&old), pooling(&new));
}

#[test]
fn a_head_that_the_checkpoint_lacks_is_named() {
    let refusal = message(TextClassifier::open(weights("text/joined")));
    assert!(
        refusal.contains("no labels") && refusal.contains("ForSequenceClassification"),
        "{refusal}"
    );
}

#[test]
fn a_model_with_labels_of_tokens_is_opened_as_the_refusal_says() {
    let folder = changed("labels", |folder| {
        change_json(&folder.join("config.json"), |config| {
            config["architectures"] = json!(["BertForTokenClassification"]);
        });
    });
    let refusal = message(TextClassifier::open(folder.path()));
    assert!(
        refusal.contains("token_classification; `TokenClassifier` gives tokens its labels"),
        "{refusal}"
    );
    let classifier = TokenClassifier::open(folder.path()).unwrap();
    let entities = classifier.entities(&["the boats"], Aggregation::None);
    assert_eq!(entities.unwrap()[0].len(), 2);
}

#[test]
fn a_class_whose_head_the_files_lack_is_not_advised_again() {
    let folder = joined(|folder| {
        change_json(&folder.join("config.json"), |config| {
            config["architectures"] = json!(["BertForSequenceClassification"]);
        });
    });
    let refusal = message(TextClassifier::open(folder.path()));
    assert!(
        refusal.contains("the files lack the head's weights")
            && !refusal.contains("use a checkpoint whose"),
        "{refusal}"
    );
}

#[test]
fn a_prompt_that_the_model_lacks_is_refused_with_those_it_has() {
    let embedder = TextEmbedder::open(weights("text/joined")).unwrap();
    let refusal = message(embedder.prompt("passage").map(str::to_string));
    assert!(
        refusal.contains("passage") && refusal.contains("query"),
        "{refusal}"
    );
}

#[test]
fn a_limit_below_the_special_tokens_is_refused() {
    let mut tokenizer = Tokenizer::open(weights("text/joined")).unwrap();
    let refusal = message(tokenizer.truncate(1));
    assert!(refusal.contains("2 special tokens"), "{refusal}");
}

/// In sentence-transformers an empty text is special tokens alone; without special tokens, it is nothing.
#[test]
fn an_empty_text_without_special_tokens_is_refused() {
    let folder = joined(|folder| {
        change_json(&folder.join("tokenizer.json"), |json| {
            json["post_processor"] = Value::Null
        });
        // BERT's class would put its own in the place.
        change_json(&folder.join("tokenizer_config.json"), |json| {
            json["tokenizer_class"] = "TokenizersBackend".into()
        });
    });
    let embedder = TextEmbedder::open(folder.path()).unwrap();
    let refusal = message(embedder.embed(&["boats", ""]));
    assert!(
        refusal.contains("text 1") && refusal.contains("no token"),
        "{refusal}"
    );
}
