//! InternLM 3 and IQuest-Coder: Llama's blocks with other names and defaults.
//!
//! transformers' `InternLM3Config`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/internlm3/configuration_internlm3.py>, and
//! `IQuestCoderConfig`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/iquestcoder/configuration_iquestcoder.py>

use super::llama::{decoder, llama, prefix_by_head};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let table = |name: &str, config, n_kv_heads: usize| {
        decoder(name, config)
            .default_of("num_key_value_heads", n_kv_heads)
            .default_of("head_dim", 128)
            .default_of("rms_norm_eps", 1e-5)
            .new_names(prefix_by_head)
    };
    vec![
        table("internlm3", internlm3, 2).default_of("pad_token_id", 2),
        table("iquestcoder", iquestcoder, 8),
    ]
}

fn internlm3(json: &ConfigJson) -> Result<StackConfig> {
    let of_attention = json.flag(&["attention_bias", "qkv_bias"], false)?;
    if json.flag(&["mlp_bias", "bias"], false)? != of_attention {
        let reason = "attention and feed-forward must both have biases or both have none, as in transformers";
        return Err(json.error(&["qkv_bias", "bias"], reason));
    }
    let json = json.with_default("attention_bias", of_attention);
    llama(&json.with_default("mlp_bias", of_attention))
}

fn iquestcoder(json: &ConfigJson) -> Result<StackConfig> {
    json.only("clip_qkv", &[Value::Null])?;
    json.only("use_sliding_window", &[json!(false)])?;
    llama(json)
}
