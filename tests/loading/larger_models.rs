//! Text models and decoders inside a larger model, whose class in transformers decides about some of their keys.
//! `weights/sweep/config.py` found the keys.

use std::collections::HashMap;
use std::fs;

use candle_blocks::candle_core::safetensors::{load, save};
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::model::{Model, ModelInput};
use candle_blocks::{Architecture, Checkpoint, CheckpointOptions, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::weights::{is_present, weights};

/// Returns the `config.json` of a committed checkpoint.
fn config_of(name: &str) -> Value {
    let text = fs::read(weights(name).join("config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Writes a committed checkpoint's tensors with other names, and a `config.json`, then opens both. The files last as long as the folder.
fn renamed(
    name: &str,
    rename: impl Fn(&str) -> Vec<String>,
    config: &Value,
) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    let tensors = load(weights(name).join("model.safetensors"), &Device::Cpu).unwrap();
    let tensors = tensors.into_iter().flat_map(|(name, tensor)| {
        let names = rename(&name).into_iter();
        names.map(move |name| (name, tensor.clone()))
    });
    let tensors = tensors.collect::<HashMap<_, _>>();
    let file = path.join("model.safetensors");
    save(&tensors, file).unwrap();
    let checkpoint = CheckpointOptions::default().whole().open(path);
    let checkpoint = checkpoint.unwrap_or_else(|e| panic!("{config}: {e}"));
    (folder, checkpoint)
}

fn model(checkpoint: &Checkpoint) -> Model {
    let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    loader.model().unwrap()
}

/// Returns the logits for ids in any vocabulary.
fn logits(model: &Model) -> Option<Vec<f32>> {
    let ids = Tensor::new(&[[2u32, 3, 4, 5, 6]], &Device::Cpu).unwrap();
    let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
    let logits = output.logits.map(|logits| logits.flatten_all().unwrap());
    logits.map(|logits| logits.to_vec1().unwrap())
}

/// The class for the whole model ties nothing, and that of the text ties what its own configuration says: OPT's default is true.
#[test]
fn blips_output_layer_is_tied_by_its_text_alone() {
    if !is_present("families") {
        return;
    }
    let opt = Checkpoint::open(weights("families/opt")).unwrap();
    let expected = logits(&model(&opt));
    assert!(expected.is_some());
    for (model_type, class) in [
        ("blip-2", "Blip2ForConditionalGeneration"),
        ("instructblip", "InstructBlipForConditionalGeneration"),
        (
            "instructblipvideo",
            "InstructBlipVideoForConditionalGeneration",
        ),
    ] {
        for (outside, inside, is_tied) in [
            (None, None, true),
            (Some(false), None, true),
            (Some(false), Some(true), true),
            (None, Some(false), false),
            (Some(true), Some(false), false),
        ] {
            let mut text = config_of("families/opt");
            let set = |section: &mut Value, tie: Option<bool>| {
                let keys = section.as_object_mut().unwrap();
                keys.remove("tie_word_embeddings");
                keys.extend(tie.map(|tie| ("tie_word_embeddings".to_string(), json!(tie))));
            };
            set(&mut text, inside);
            let mut config =
                json!({"model_type": model_type, "architectures": [class], "text_config": text});
            set(&mut config, outside);
            let (_folder, checkpoint) = renamed(
                "families/opt",
                |name| vec![format!("language_model.{name}")],
                &config,
            );
            let found = logits(&model(&checkpoint));
            let expected = expected.clone().filter(|_| is_tied);
            assert_eq!(found, expected, "{model_type} {outside:?} {inside:?}");
        }
    }
}

/// Published files call the section `llm_config`, and have their own names for the parts that read sound and pictures.
#[test]
fn nemotrons_text_is_read_under_the_earlier_name_of_its_section() {
    if !is_present("families") {
        return;
    }
    let text = Checkpoint::open(weights("families/nemotron_h")).unwrap();
    let expected = logits(&model(&text));
    assert!(expected.is_some());
    for (section, names) in [
        (
            "text_config",
            [
                "language_model.backbone.",
                "multi_modal_projector.linear_1.weight",
            ],
        ),
        (
            "text_config",
            ["language_model.model.", "audio_tower.weight"],
        ),
        ("llm_config", ["language_model.backbone.", "mlp1.1.weight"]),
        (
            "llm_config",
            ["language_model.backbone.", "sound_encoder.encoder.weight"],
        ),
    ] {
        let config = json!({
            "model_type": "nemotron_h_omni", "architectures": ["NemotronH_Omni_Reasoning_V3"],
            section: config_of("families/nemotron_h"), "vision_config": {"model_type": "radio"},
            "sound_config": {"model_type": "parakeet"}, "img_context_token_id": 18, "video_pruning_rate": 0.5,
        });
        let [prefix, beside] = names;
        let rename = |name: &str| match name.strip_prefix("backbone.") {
            Some(name) => vec![format!("{prefix}{name}")],
            None => vec![format!("language_model.{name}"), beside.to_string()],
        };
        let (_folder, checkpoint) = renamed("families/nemotron_h", rename, &config);
        assert_eq!(checkpoint.report().unread_keys, Vec::<String>::new());
        assert_eq!(logits(&model(&checkpoint)), expected, "{section} {names:?}");
    }
    let wrong = json!({"model_type": "nemotron_h_omni", "llm_config": {"model_type": "nemotron_h", "hidden_size": "x"}});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, wrong.to_string()).unwrap();
    let error = Architecture::open(&path).unwrap_err().to_string();
    assert!(error.contains("\"hidden_size\""), "{error}");
}

/// TrOCR's class has cross-attention whatever `add_cross_attention` says. BERT's class has it by this key.
#[test]
fn trocr_beside_an_encoder_attends_to_its_output() {
    let attends = |model_type: &str, decoder: Value| {
        let config = json!({
            "model_type": model_type,
            "encoder": {"model_type": "vit", "hidden_size": 12},
            "decoder": decoder,
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        let architecture = Architecture::open(&path).unwrap_or_else(|e| panic!("{config}: {e}"));
        let blocks = architecture.config.blocks;
        let widths = blocks.iter().map(|block| {
            let cross = block.cross_attention.as_ref();
            cross.map(|cross| cross.d_encoder)
        });
        widths.collect::<Vec<_>>()
    };
    let with = |decoder: &Value, key: Option<bool>| {
        let mut decoder = decoder.clone();
        let keys = decoder.as_object_mut().unwrap();
        keys.extend(key.map(|key| ("add_cross_attention".to_string(), json!(key))));
        decoder
    };
    let trocr = json!({"model_type": "trocr", "vocab_size": 11, "d_model": 8, "decoder_layers": 2, "decoder_attention_heads": 2,
        "decoder_ffn_dim": 11, "max_position_embeddings": 16, "cross_attention_hidden_size": 12});
    let bert = json!({"model_type": "bert", "vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 11, "is_decoder": true});
    for model_type in [
        "vision-encoder-decoder",
        "speech-encoder-decoder",
        "encoder-decoder",
    ] {
        for key in [None, Some(false), Some(true)] {
            let widths = attends(model_type, with(&trocr, key));
            assert_eq!(widths, [Some(12); 2], "{model_type} {key:?}");
            let expected = (key == Some(true)).then_some(12);
            let widths = attends(model_type, with(&bert, key));
            assert_eq!(widths, [expected; 2], "{model_type} {key:?}");
        }
    }
}

/// The class for the whole model sets `cross_attention_hidden_size` of its decoder.
#[test]
fn t5gemmas_decoder_reads_the_width_of_its_encoder() {
    if !is_present("heads") {
        return;
    }
    let whole = config_of("heads/t5gemma");
    for given in [None, Some(json!(6)), Some(Value::Null)] {
        let mut config = whole.clone();
        let decoder = config["decoder"].as_object_mut().unwrap();
        decoder.remove("cross_attention_hidden_size");
        decoder.extend(given.map(|width| ("cross_attention_hidden_size".to_string(), width)));
        let (_folder, checkpoint) =
            renamed("heads/t5gemma", |name| vec![name.to_string()], &config);
        let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
        loader.seq2seq().unwrap();
        assert!(checkpoint.report().unread_keys.is_empty(), "{config}");
    }
}

/// The layer for text beside images; this crate reads the text alone.
#[test]
fn visual_berts_text_runs_without_the_layer_that_images_pass() {
    if !is_present("heads") {
        return;
    }
    let mut config = config_of("heads/bert-masked_lm");
    config["model_type"] = json!("visual_bert");
    config["architectures"] = json!(["VisualBertModel"]);
    let last = |config: &Value, has_further: bool| {
        let rename = |name: &str| {
            let Some(own) = name.strip_prefix("bert.") else {
                return Vec::new();
            };
            let further = own.strip_prefix("encoder.layer.0.").filter(|_| has_further);
            let further = further.map(|own| format!("additional_layer.{own}"));
            further.into_iter().chain([own.to_string()]).collect()
        };
        let (_folder, checkpoint) = renamed("heads/bert-masked_lm", rename, config);
        let ids = Tensor::new(&[[2u32, 3, 4, 5, 6]], &Device::Cpu).unwrap();
        let output = model(&checkpoint).forward(&ModelInput::tokens(&ids));
        let states = output.unwrap().last_hidden_state.flatten_all().unwrap();
        states.to_vec1::<f32>().unwrap()
    };
    let expected = last(&config, false);
    config["bypass_transformer"] = json!(true);
    assert_eq!(last(&config, true), expected);
}

/// transformers' `Phi4MultimodalVisionAttention` says `is_causal`, which its default attention follows where no patch is masked.
#[test]
fn phi4s_images_name_the_attention_that_they_follow() {
    if !is_present("families") {
        return;
    }
    let siglip = config_of("families/siglip");
    for (model_type, expected) in [
        (
            "phi4_multimodal_vision",
            &["model_type (as with \"eager\")"][..],
        ),
        ("idefics2_vision", &[]),
    ] {
        let mut config = siglip["vision_config"].clone();
        config["model_type"] = json!(model_type);
        let rename = |name: &str| {
            let own = name.strip_prefix("vision_model.");
            own.map(str::to_string).into_iter().collect()
        };
        let (_folder, checkpoint) = renamed("families/siglip", rename, &config);
        assert_eq!(checkpoint.report().disputed_keys, expected, "{model_type}");
    }
}
