//! Files of the text-only class (`Gemma3ForCausalLM`), whose config.json describes the multimodal model.
//! `weights/sweep/classes.py` compares their logits with transformers.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::model::ModelInput;
use candle_blocks::train::{Lora, LoraConfig};
use candle_blocks::{Checkpoint, Weights};
use serde_json::{Value, json};

use crate::weights::{is_present, weights};

#[test]
fn a_class_of_texts_alone_computes_what_the_texts_of_the_larger_class_do() {
    if !is_present("families") {
        return;
    }
    for (family, class) in [
        ("gemma3", "Gemma3ForCausalLM"),
        ("gemma4", "Gemma4ForCausalLM"),
        ("gemma4_unified", "Gemma4UnifiedForCausalLM"),
    ] {
        let whole = Checkpoint::open(weights("families").join(family)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let of_texts = |name: &str| {
            name.strip_prefix("model.language_model.")
                .map(String::from)
                .or_else(|| name.strip_prefix("language_model.model.").map(String::from))
        };
        let files = whole.files();
        let tensors: Vec<_> = (files.names())
            .filter_map(|name| {
                Some((
                    format!("model.{}", of_texts(name)?),
                    files.read(name).unwrap(),
                ))
            })
            .collect();
        assert!(tensors.len() > 10, "{family} {}", tensors.len());
        write_safetensors(path.join("model.safetensors"), &tensors, None).unwrap();
        let text = fs::read(weights("families").join(family).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        config["architectures"] = json!([class]);
        fs::write(path.join("config.json"), config.to_string()).unwrap();

        let alone = Checkpoint::open(path).unwrap();
        let logits = |of: &Checkpoint| {
            let model = of
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()
                .unwrap();
            let ids = candle_blocks::candle_core::Tensor::new(&[[2u32, 3, 4, 5, 6]], &Device::Cpu);
            let output = model.forward(&ModelInput::tokens(&ids.unwrap())).unwrap();
            let logits = output.logits.unwrap().flatten_all().unwrap();
            logits.to_vec1::<f32>().unwrap()
        };
        assert_eq!(logits(&alone), logits(&whole), "{family}");
        // PEFT finds the modules of the class.
        let mut stack = alone
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .stack()
            .unwrap();
        let lora = Lora::attach(
            &mut stack,
            LoraConfig::new(2, 4.0, &["blocks.0.attention.query"]),
            3,
        );
        let out = path.join("adapter");
        lora.unwrap().save_peft(&alone, &out).unwrap();
        let written = fs::read(out.join("adapter_config.json")).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(
            written["target_modules"],
            json!(["model.layers.0.self_attn.q_proj"])
        );
    }
}
