//! GLiNER: the package gliner is the judge.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::text::{Entity, Gliner, TextOptions, TokenClassifier};
use candle_blocks::{CheckpointOptions, Precision, Strictness};
use serde_json::{Value, json};

use crate::folder::{change_json, copied, merge};
use crate::message::message;
use crate::torch_from_safetensors;
use crate::weights::{is_present, weights};

/// The largest difference between a score here and PyTorch's; both round sums in f32. Logits are up to 8 here, several times those of
/// other tasks.
const CLOSE: f64 = 4e-6;

const MODELS: [&str; 4] = [
    "gliner-deberta",
    "gliner-bert",
    "gliner-tokens",
    "gliner-older",
];
const LABELS: [&str; 2] = ["person", "city"];

fn model(name: &str) -> PathBuf {
    weights(&format!("tasks/{name}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    list(value)
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect()
}

fn results(name: &str) -> Value {
    serde_json::from_slice(&fs::read(model(name).join("results.json")).unwrap()).unwrap()
}

/// Returns a model after the changes of its configuration and the settings in a case.
fn of_case(name: &str, case: &Value, options: &TextOptions) -> Gliner {
    let changes = &case["changes"];
    let folder = copied(&format!("tasks/{name}"));
    merge(&folder.path().join("gliner_config.json"), changes);
    { options.clone().gliner(folder.path()).unwrap() }
        .with_threshold(case["threshold"].as_f64().unwrap())
        .with_nested(!case["flat_ner"].as_bool().unwrap())
        .with_multi_label(case["multi_label"].as_bool().unwrap())
}

/// Compares entities with those of gliner; returns the largest difference between two scores.
#[track_caller]
fn largest_difference(ours: &[Entity], theirs: &Value, about: &str) -> f64 {
    let fields = |entity: &Entity| {
        let span = entity.span.clone().unwrap();
        assert_eq!(entity.index, None);
        json!([span.start, span.end, entity.word, entity.label])
    };
    let found: Vec<Value> = ours.iter().map(fields).collect();
    let expected = list(theirs)
        .iter()
        .map(|one| one.as_array().unwrap()[..4].into());
    assert_eq!(found, expected.collect::<Vec<Value>>(), "{about}");
    let pairs = ours.iter().zip(list(theirs));
    let differences =
        pairs.map(|(ours, theirs)| (f64::from(ours.score) - theirs[4].as_f64().unwrap()).abs());
    differences.fold(0.0, f64::max)
}

#[test]
fn entities_of_gliner_are_those_of_its_package() {
    if !is_present("tasks") {
        return;
    }
    let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
    let (mut n_entities, mut largest) = (0, 0.0_f64);
    for name in MODELS {
        let expected = results(name);
        let texts = strings(&expected["texts"]);
        assert_eq!((texts.len(), list(&expected["cases"]).len()), (17, 11));
        for options in [TextOptions::default(), plain.clone()] {
            for case in list(&expected["cases"]) {
                let gliner = of_case(name, case, &options);
                assert_eq!(gliner.notes(), Vec::<String>::new());
                let found = gliner.entities(&texts, &strings(&case["labels"])).unwrap();
                for ((text, found), expected) in
                    texts.iter().zip(&found).zip(list(&case["entities"]))
                {
                    let about =
                        format!("{name}, {text:?}, {}, {}", case["labels"], case["changes"]);
                    largest = largest.max(largest_difference(found, expected, &about));
                    n_entities += found.len();
                }
            }
        }
    }
    println!("{n_entities} entities, whose scores differ by at most {largest:e}");
    assert!(n_entities > 10_000, "{n_entities}");
    assert!(largest <= CLOSE, "{largest:e}");
}

#[test]
fn a_text_has_the_same_entities_alone_and_in_a_batch() {
    if !is_present("tasks") {
        return;
    }
    for name in MODELS {
        let expected = results(name);
        let texts = strings(&expected["texts"]);
        assert_eq!(texts.len(), 17);
        let gliner = Gliner::open(model(name)).unwrap().with_threshold(0.3);
        let together = gliner.entities(&texts, &LABELS).unwrap();
        for (text, found) in texts.iter().zip(&together) {
            let alone = gliner.entities(&[text], &LABELS).unwrap();
            assert_eq!(alone[0], *found, "{name}, {text:?}");
        }
    }
}

#[test]
fn weights_of_gliner_may_be_in_a_file_of_pytorch_and_packed_or_rounded() {
    if !is_present("tasks") {
        return;
    }
    let texts = ["Angela Merkel lives in Berlin, near the café."];
    let name = "gliner-deberta";
    let expected = Gliner::open(model(name))
        .unwrap()
        .entities(&texts, &LABELS)
        .unwrap();
    assert!(!expected[0].is_empty());
    let folder = copied(&format!("tasks/{name}"));
    let (from, to) = ("model.safetensors", "pytorch_model.bin");
    torch_from_safetensors::convert(&folder.path().join(from), &folder.path().join(to));
    let found = Gliner::open(folder.path())
        .unwrap()
        .entities(&texts, &LABELS)
        .unwrap();
    assert_eq!(found, expected);

    let of = |options: TextOptions| {
        let gliner = options
            .gliner(model(name))
            .unwrap()
            .with_threshold(0.0)
            .with_nested(true);
        let found = gliner.entities(&["Anna"], &LABELS[..1]).unwrap();
        f64::from(found[0][0].score)
    };
    let exact = of(TextOptions::default());
    for (options, close) in [
        (TextOptions::default().precision(Precision::F16), 0.005),
        (TextOptions::default().precision(Precision::Bf16), 0.05),
        (TextOptions::default().precision(Precision::Int8), 0.1),
        (
            TextOptions::default().device(DType::BF16, &Device::Cpu),
            0.05,
        ),
        (
            TextOptions::default().device(DType::F64, &Device::Cpu),
            1e-5,
        ),
    ] {
        let found = of(options.clone());
        assert!(
            (found - exact).abs() < close,
            "{options:?}: {found}, not {exact}"
        );
    }
}

/// Changes a model's files.
type Change = fn(&Path);

fn set(path: &Path, keys: &Value) {
    merge(&path.join("gliner_config.json"), keys);
}

/// Replaces one tensor in a model's file, or adds it.
fn with_tensor(folder: &Path, name: &str, shape: &[usize]) {
    let path = folder.join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    tensors.insert(
        name.to_string(),
        Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap(),
    );
    safetensors::save(&tensors, &path).unwrap();
}

fn without_tensor(folder: &Path, name: &str) {
    let path = folder.join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    tensors.remove(name).unwrap();
    safetensors::save(&tensors, &path).unwrap();
}

#[test]
fn files_that_are_no_supported_gliner_are_refused_with_the_key_and_the_cure() {
    if !is_present("tasks") {
        return;
    }
    let another = ["gliner_config.json", "use another GLiNER model"];
    for (name, key, value, expected) in [
        (
            "gliner-bert",
            "labels_encoder",
            json!("bge-small"),
            "expected null",
        ),
        (
            "gliner-bert",
            "labels_decoder",
            json!("gpt2"),
            "expected null",
        ),
        (
            "gliner-bert",
            "relations_layer",
            json!("dot"),
            "expected null",
        ),
        (
            "gliner-bert",
            "span_encoder_config",
            json!({"model_type": "rnn"}),
            "expected null",
        ),
        ("gliner-bert", "fuse_layers", json!(true), "expected false"),
        (
            "gliner-bert",
            "post_fusion_schema",
            json!("l2l-l2t"),
            "expected \"\"",
        ),
        (
            "gliner-bert",
            "precomputed_prompts_mode",
            json!(true),
            "expected false",
        ),
        (
            "gliner-tokens",
            "represent_spans",
            json!(true),
            "expected false",
        ),
        (
            "gliner-bert",
            "words_splitter_type",
            json!("jieba"),
            "expected \"whitespace\"",
        ),
        (
            "gliner-bert",
            "decoder_config",
            json!({"model_type": "gpt2"}),
            "expected null",
        ),
        (
            "gliner-bert",
            "span_mode",
            json!("markerV1"),
            "\"token_level\"",
        ),
        (
            "gliner-bert",
            "subtoken_pooling",
            json!("mean"),
            "expected \"first\"",
        ),
    ] {
        let folder = copied(&format!("tasks/{name}"));
        set(folder.path(), &json!({key: value}));
        let refusal = message(Gliner::open(folder.path()));
        for word in { another.into_iter() }.chain([key, expected, &value.to_string()]) {
            assert!(refusal.contains(word), "no {word:?} in {refusal}");
        }
    }
    let cases: [(&str, Change, &[&str]); 12] = [
        (
            "gliner-bert",
            |folder| set(folder, &json!({"max_width": 0})),
            &["max_width", "found 0"],
        ),
        (
            "gliner-bert",
            |folder| set(folder, &json!({"encoder_config": null})),
            &[
                "encoder_config",
                "no config.json",
                "the encoder, \"a-small-bert\"",
            ],
        ),
        (
            "gliner-bert",
            |folder| {
                change_json(&folder.join("gliner_config.json"), |json| {
                    json["encoder_config"]["model_type"] = "berd".into()
                })
            },
            &["gliner_config.json", "\"model_type\"", "berd", "bert"],
        ),
        (
            "gliner-bert",
            |folder| {
                for name in ["tokenizer.json", "tokenizer_config.json"] {
                    fs::remove_file(folder.join(name)).unwrap();
                }
            },
            &[
                "tokenizer.json",
                "there is no tokenizer.json",
                "put the config.json and the tokenizer files of the encoder, \"a-small-bert\"",
            ],
        ),
        (
            "gliner-bert",
            |folder| set(folder, &json!({"class_token_index": 3})),
            &["expected class_token_index, 3", "<<ENT>>", "tokenizer.json"],
        ),
        (
            "gliner-bert",
            |folder| set(folder, &json!({"ent_token": "<<E>>"})),
            &["lacks the token", "<<E>>", "tokenizer.json"],
        ),
        (
            "gliner-bert",
            |folder| set(folder, &json!({"sep_token": "<<S>>"})),
            &["lacks the token", "<<S>>", "tokenizer.json"],
        ),
        (
            "gliner-bert",
            |folder| with_tensor(folder, "prompt_rep_layer.0.weight", &[32, 9]),
            &["prompt_rep_layer.0.weight", "[32, 8]", "[32, 9]"],
        ),
        (
            "gliner-bert",
            |folder| without_tensor(folder, "prompt_rep_layer.3.bias"),
            &["prompt_rep_layer.3.bias"],
        ),
        (
            "gliner-bert",
            |folder| with_tensor(folder, "cross_fuser.weight", &[1]),
            &["cross_fuser.weight"],
        ),
        (
            "gliner-deberta",
            |folder| set(folder, &json!({"num_rnn_layers": 0})),
            &["rnn.lstm.bias_hh_l0"],
        ),
        (
            "gliner-older",
            |folder| {
                change_json(&folder.join("tokenizer.json"), |json| {
                    let words = json["model"]["vocab"].as_array_mut().unwrap();
                    words.push(json!(["further", -3.0]));
                })
            },
            &["word_embeddings.weight", "[125, 12]", "[124, 12]"],
        ),
    ];
    for (name, change, words) in cases {
        let folder = copied(&format!("tasks/{name}"));
        change(folder.path());
        let refusal = message(Gliner::open(folder.path()));
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal}");
        }
        assert_eq!(refusal.lines().count(), 1, "{refusal}");
    }
}

#[test]
fn keys_of_gliner_that_nothing_reads_have_a_note() {
    if !is_present("tasks") {
        return;
    }
    let folder = copied("tasks/gliner-bert");
    set(folder.path(), &json!({"lr_encoder": "1e-5", "own_key": 1}));
    change_json(&folder.path().join("gliner_config.json"), |json| {
        json["encoder_config"]["other_key"] = 2.into()
    });
    let gliner = Gliner::open(folder.path()).unwrap();
    assert_eq!(
        gliner.notes(),
        [
            "gliner_config.json or config.json has keys that are not read: own_key, encoder_config.other_key"
        ]
    );
}

#[test]
fn wrong_labels_texts_and_options_are_refused() {
    if !is_present("tasks") {
        return;
    }
    let gliner = Gliner::open(model("gliner-bert")).unwrap();
    let many: Vec<String> = (0..40).map(|i| format!("label {i}")).collect();
    for (labels, words) in [
        (vec![], &["labels", "at least one"][..]),
        (
            vec!["person".to_string(), String::new()],
            &["labels", "none that is empty"],
        ),
        (many, &["40 labels", "limit of 64", "name fewer"]),
    ] {
        let refusal = message(gliner.entities(&["Anna"], &labels));
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal}");
        }
    }
    assert_eq!(gliner.max_words(), 20);
    let set = TextOptions::default;
    let family = CheckpointOptions::default().config("config.json");
    for (options, word) in [
        (set().max_length(9), "max_length"),
        (set().normalize(true), "normalize"),
        (
            set().function_to_apply("none".parse().unwrap()),
            "function_to_apply",
        ),
        (set().checkpoint(family), "config"),
    ] {
        let refusal = message(options.gliner(model("gliner-bert")));
        assert!(
            refusal.contains(word) && refusal.contains("leave it out"),
            "{refusal}"
        );
    }
    let folder = copied("tasks/gliner-bert");
    with_tensor(folder.path(), "other.weight", &[1]);
    let options = CheckpointOptions::default().strictness(Strictness::AllowUnused);
    let gliner = set().checkpoint(options).gliner(folder.path());
    let note = "tensors that gliner does not know are left out: other.weight";
    assert_eq!(gliner.unwrap().notes(), [note]);

    let refusal = message(Gliner::open(model("tag-cased")));
    for word in ["tag-cased", "gliner_config.json", "`TokenClassifier`"] {
        assert!(refusal.contains(word), "no {word:?} in {refusal}");
    }
    let refusal = message(TokenClassifier::open(model("gliner-bert")));
    for word in ["gliner-bert", "gliner_config.json", "`Gliner`"] {
        assert!(refusal.contains(word), "no {word:?} in {refusal}");
    }
}
