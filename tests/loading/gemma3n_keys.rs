//! Gemma 3n's keys for single layers, refused values, and its text stack in a multimodal model.

use std::{collections::HashMap, fs};

use candle_blocks::model::ModelInput;
use candle_blocks::{
    Architecture, Checkpoint, Position, Result, Weights,
    candle_core::{DType, Device, Tensor, safetensors},
};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::weights::{is_present, weights};

/// The keys of a small text model, as the first files on the hub spell them, with these in their place.
fn text(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "gemma3n_text", "hidden_size": 32, "intermediate_size": vec![48; 12], "num_hidden_layers": 12, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99, "vocab_size_per_layer_input": 90,
        "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 5, "sliding_window": 7, "rope_theta": 5e5,
        "rope_local_base_freq": 2e4, "rope_scaling": null, "altup_num_inputs": 4, "altup_active_idx": 0, "altup_coef_clip": 120.0,
        "altup_correct_scale": true, "laurel_rank": 8,
    });
    opened_with(config, changes)
}

#[test]
fn each_fifth_layer_is_global_the_first_ten_are_cut_and_the_last_share_keys() {
    for width in [json!(48), json!(vec![48; 12])] {
        let stack = text(json!({"intermediate_size": width})).unwrap().config;
        for (i, block) in stack.blocks.iter().enumerate() {
            let (attention, is_global) = (block.attention().unwrap(), i == 4 || i == 9);
            assert_eq!(attention.window, (!is_global).then_some(7), "{i}");
            let keys_of = if is_global { 4 } else { 6 };
            assert_eq!(attention.shared_keys, (i >= 7).then_some(keys_of), "{i}");
            let cut = (i < 10).then_some(0.95);
            assert_eq!(block.feed_forward.sparsity, cut, "{i}");
            assert_eq!(block.feed_forward.d_ff, 48, "{i}");
            let Position::Rotary(rotary) = &attention.position else {
                panic!("{:?}", attention.position)
            };
            assert_eq!(rotary.theta, if is_global { 5e5 } else { 2e4 }, "{i}");
        }
    }
    let few = json!({"num_hidden_layers": 5, "num_kv_shared_layers": 0, "intermediate_size": [1, 2, 3, 4, 5]});
    let stack = text(few).unwrap().config;
    let widths = stack.blocks.iter().map(|block| block.feed_forward.d_ff);
    assert_eq!(widths.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let is_cut = |block: &candle_blocks::BlockConfig| block.feed_forward.sparsity.is_some();
    assert!(!stack.blocks.iter().any(is_cut));
}

#[test]
fn contradictions_are_refused_by_key() {
    for (changes, key) in [
        (json!({"altup_correct_scale": false}), "altup_correct_scale"),
        (json!({"intermediate_size": [48, 48]}), "intermediate_size"),
        (
            json!({"intermediate_size": vec![48.5; 12]}),
            "intermediate_size",
        ),
        (
            json!({"activation_sparsity_pattern": [0.5]}),
            "activation_sparsity_pattern",
        ),
        (
            json!({"activation_sparsity_pattern": vec![1.0; 12]}),
            "sparsity",
        ),
        (
            json!({"activation_sparsity_pattern": vec![-0.5; 12]}),
            "sparsity",
        ),
        (json!({"altup_active_idx": 4}), "stream 4"),
        (json!({"altup_num_inputs": 0}), "the number of streams is 0"),
        (json!({"laurel_rank": 0}), "laurel_rank is 0"),
        (json!({"hidden_size_per_layer_input": 0}), "layer_input"),
        (
            json!({"layer_types": vec!["chunked_attention"; 12]}),
            "layer_types",
        ),
    ] {
        let message = text(changes).unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}

/// Like the published `google/gemma-3n-E2B`: the text stack under `text_config`, beside stacks for images and audio.
#[test]
fn the_text_side_of_a_model_of_several_has_the_bits_of_the_text_alone() {
    let name = "families/gemma3n_text";
    if !is_present(name) {
        return;
    }
    let (alone, whole) = (weights(name), tempfile::tempdir().unwrap());
    let own = fs::read_to_string(alone.join("config.json")).unwrap();
    let own: Value = serde_json::from_str(&own).unwrap();
    let config = json!({
        "model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "text_config": own,
        "vision_config": {"model_type": "gemma3n_vision"}, "audio_config": {"model_type": "gemma3n_audio"},
    });
    fs::write(whole.path().join("config.json"), config.to_string()).unwrap();
    let read = safetensors::load(alone.join("model.safetensors"), &Device::Cpu).unwrap();
    let renamed = |(name, tensor): (String, Tensor)| {
        let rest = name.strip_prefix("model.").map(str::to_string);
        let name = rest.map_or(name, |rest| format!("model.language_model.{rest}"));
        (name, tensor)
    };
    let mut tensors: HashMap<String, Tensor> = read.into_iter().map(renamed).collect();
    let others = [
        "model.vision_tower.timm_model.conv_stem.conv.weight",
        "model.audio_tower.conformer.0.norm.weight",
        "model.embed_vision.embedding.weight",
    ];
    for name in others {
        let other = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
        tensors.insert(name.to_string(), other);
    }
    safetensors::save(&tensors, whole.path().join("model.safetensors")).unwrap();
    let output = |path: &std::path::Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert!(checkpoint.report().unused.is_empty());
        let model = checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .model()
            .unwrap();
        // Token 10 is outside the per-layer embeddings, which have nine rows.
        let tokens = Tensor::new(&[[3u32, 10, 9, 5]], &Device::Cpu).unwrap();
        let output = model.forward(&ModelInput::tokens(&tokens)).unwrap();
        output
            .logits
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
    };
    assert_eq!(output(&alone), output(whole.path()));
}
