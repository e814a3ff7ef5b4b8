//! Texts to vectors and scores: sentence-transformers and transformers are the judges.

#[allow(dead_code, reason = "its `main`")]
#[path = "../../examples/classifier.rs"]
mod classifier;
#[path = "../shared/device.rs"]
mod device;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../examples/embedder.rs"]
mod embedder;
#[path = "../shared/gguf_file.rs"]
mod gguf_file;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/reference.rs"]
mod reference;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../examples/semantic_search.rs"]
mod semantic_search;
#[path = "../shared/torch_file.rs"]
mod torch_file;
#[path = "../shared/torch_from_safetensors.rs"]
mod torch_from_safetensors;
#[path = "../shared/weights.rs"]
mod weights;

mod answers;
mod bits;
mod changes;
mod chat;
mod each_token;
mod expansions;
mod fine_tuning;
mod folder;
mod generation;
mod gguf_cuts;
mod gguf_literal_end;
mod gguf_pooling;
mod gguf_word_keys;
mod gguf_words;
mod gliner;
mod heads;
mod inline_calls;
mod minilm;
mod python_tokenizers;
mod rankings;
mod refused;
mod results;
mod searching;
mod sparse;
mod static_embeddings;
mod tasks;
mod tokenizers;
mod truncation;
mod vector_precision;

use candle_blocks::candle_core::Tensor;

/// Returns the texts for a committed model's results.
fn texts(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(weights::weights(&format!("text/{name}/texts.json")));
    serde_json::from_str(&text.unwrap()).unwrap()
}

/// Returns a table's rows, as bits.
fn bits(table: &Tensor) -> Vec<Vec<u32>> {
    let rows = table.to_vec2::<f32>().unwrap();
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    rows.into_iter().map(bits).collect()
}
