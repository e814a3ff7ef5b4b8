//! A small Llama whose heads and hidden columns are divided evenly among two ranks, as those of real models are.

use std::path::Path;

use candle_blocks::{
    Architecture, Checkpoint,
    candle_core::{DType, Device},
    model::Model,
    train::Fresh,
};
use serde_json::json;

/// The width of the hidden states.
pub const WIDTH: usize = 24;

/// Writes a model with fresh parameters and this many key heads, each with two query heads, and opens it.
pub fn even_llama(folder: &Path, n_kv_heads: usize) -> Checkpoint {
    let config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2 * n_kv_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": 0.3,
        "vocab_size": 11,
        "tie_word_embeddings": false,
    });
    let file = folder.join("config.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let architecture = Architecture::open(&file).unwrap();
    let initialization = architecture.initialization.clone();
    let fresh = Fresh::new(initialization, 7, DType::F32, &Device::Cpu);
    Model::new(architecture.model_config().unwrap(), fresh.var_builder()).unwrap();
    let saved = folder.join("model");
    architecture.save(&saved, fresh.parameters(), &[]).unwrap();
    Checkpoint::open(saved).unwrap()
}
