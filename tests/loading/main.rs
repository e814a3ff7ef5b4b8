//! From a checkpoint to layers: what configurations, files, heads and the Hub say is what is loaded.

#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/gguf_file.rs"]
mod gguf_file;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/torch_file.rs"]
mod torch_file;
#[path = "../shared/torch_from_safetensors.rs"]
mod torch_from_safetensors;
#[path = "../shared/trained.rs"]
mod trained;
#[path = "../shared/weights.rs"]
mod weights;

mod adapters;
mod as_stored;
mod bitnet;
mod companions;
mod config_beside_others;
mod config_defaults;
mod config_keys;
mod config_text;
mod deberta_keys;
mod extra_tensors;
mod families;
mod forms;
mod gemma3n_keys;
mod gemma4_keys;
mod gguf_architectures;
mod gguf_hybrids;
mod gguf_keys;
mod gguf_tensors;
mod gguf_types;
mod heads;
#[cfg(feature = "hub")]
mod hub;
mod hybrid_keys;
mod larger_models;
mod loader_errors;
mod mamba2_keys;
mod mamba_keys;
mod names_of_hub;
mod native_files;
mod nemotron_keys;
mod odd_rotary;
mod opened;
mod plain_files;
mod plain_norms;
mod published_names;
mod quantization_config;
mod quantized;
mod report;
mod roles;
mod stacked_experts;
mod texts_alone;
mod unread_keys;
mod unread_tensors;
mod zamba_keys;
