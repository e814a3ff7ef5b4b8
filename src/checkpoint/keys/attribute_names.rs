//! Aliases that transformers' configuration classes accept for their keys (`attribute_map`).
//!
//! If a file has both a key and its alias, transformers uses the alias.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::checkpoint::config_json::ConfigJson;

/// The model types of some classes, and pairs of an alias and the class's own key.
type Aliases = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
);

const ALL: &[Aliases] = &[
    (
        &["lfm2"],
        &[
            ("tie_embedding", "tie_word_embeddings"),
            ("block_ff_dim", "intermediate_size"),
        ],
    ),
    (
        &["lfm2_moe", "lfm2_vl"],
        &[("tie_embedding", "tie_word_embeddings")],
    ),
    (&["nemotron_h_omni"], &[("llm_config", "text_config")]),
    (&["lfm3"], &[("rms_norm_eps", "norm_eps")]),
    (&["idefics_vision"], &[("hidden_size", "embed_dim")]),
    (
        &["fsmt"],
        &[
            ("num_attention_heads", "encoder_attention_heads"),
            ("hidden_size", "d_model"),
            ("vocab_size", "tgt_vocab_size"),
            ("num_hidden_layers", "encoder_layers"),
        ],
    ),
    (
        &["molmo2_text"],
        &[
            ("qkv_bias", "attention_bias"),
            ("layer_norm_eps", "rms_norm_eps"),
        ],
    ),
    (
        &["pix2struct_text_model"],
        &[
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
            ("decoder_attention_heads", "num_heads"),
            ("encoder_attention_heads", "num_heads"),
            ("encoder_layers", "num_layers"),
            ("decoder_layers", "num_layers"),
        ],
    ),
    (
        &["xlm", "flaubert"],
        &[
            ("hidden_size", "emb_dim"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
            ("n_words", "vocab_size"),
            ("pad_index", "pad_token_id"),
        ],
    ),
    (
        &["trocr"],
        &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "decoder_attention_heads"),
            ("num_hidden_layers", "decoder_layers"),
        ],
    ),
    (&["pp_formulanet_text"], &[("hidden_size", "d_model")]),
    (
        &[
            "voxtral_encoder",
            "moss_transcribe_diarize_audio",
            "audioflamingo3_encoder",
        ],
        &[
            ("d_model", "hidden_size"),
            ("encoder_layers", "num_hidden_layers"),
            ("encoder_attention_heads", "num_attention_heads"),
            ("encoder_ffn_dim", "intermediate_size"),
        ],
    ),
    (
        &["qwen2_audio_encoder"],
        &[
            ("hidden_size", "d_model"),
            ("num_hidden_layers", "encoder_layers"),
            ("num_attention_heads", "encoder_attention_heads"),
            ("intermediate_size", "encoder_ffn_dim"),
        ],
    ),
    (
        &["pop2piano"],
        &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
        ],
    ),
    (
        &["decision_transformer"],
        &[
            ("max_position_embeddings", "n_positions"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
    ),
    (
        &["openai_privacy_filter"],
        &[("num_experts", "num_local_experts")],
    ),
    (
        &["distilbert"],
        &[
            ("hidden_size", "dim"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
        ],
    ),
    (
        &["qwen2_vl_vision"],
        &[
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "depth"),
        ],
    ),
    (
        &[
            "gpt2",
            "imagegpt",
            "openai-gpt",
            "ctrl",
            "gptj",
            "codegen",
            "gpt_bigcode",
        ],
        &[
            ("hidden_size", "n_embd"),
            ("max_position_embeddings", "n_positions"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
    ),
    (
        &["gpt_neo"],
        &[
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
        ],
    ),
    (
        &["kosmos_2_text_model", "kosmos_2_5_text_model"],
        &[
            ("hidden_size", "embed_dim"),
            ("num_attention_heads", "attention_heads"),
            ("num_hidden_layers", "layers"),
        ],
    ),
    (
        &["xglm"],
        &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "attention_heads"),
            ("num_hidden_layers", "num_layers"),
        ],
    ),
    (
        &["bloom"],
        &[
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
    ),
    (
        &["mpt"],
        &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
        ],
    ),
    (
        &["internlm3"],
        &[("bias", "mlp_bias"), ("qkv_bias", "attention_bias")],
    ),
    (
        &["mixtral", "minimax", "minimax_m2", "gpt_oss"],
        &[("num_experts", "num_local_experts")],
    ),
    (
        // For the last pair the directions are exchanged, and transformers sets this alias later.
        &[
            "olmoe",
            "flex_olmo",
            "qwen3_moe",
            "qwen3_vl_moe_text",
            "hy_v3",
        ],
        &[("num_local_experts", "num_experts")],
    ),
    (
        &[
            "solar_open",
            "dots1",
            "glm4_moe",
            "deepseek_v3",
            "glm4_moe_lite",
            "glm4v_moe_text",
            "axk1",
            "mistral4",
        ],
        &[("num_local_experts", "n_routed_experts")],
    ),
    (
        &["recurrent_gemma"],
        &[("sliding_window", "attention_window_size")],
    ),
    (
        &["whisper"],
        &[("num_key_value_heads", "encoder_attention_heads")],
    ),
    (&["glm4_moe_lite"], &[("head_dim", "qk_rope_head_dim")]),
    (
        &["hunyuan_v1_moe"],
        &[
            ("num_experts_per_tok", "moe_topk"),
            ("num_local_experts", "num_experts"),
        ],
    ),
    (&["deepseek_v2"], &[("num_experts", "n_routed_experts")]),
    (
        &["exaone"],
        &[
            ("num_layers", "num_hidden_layers"),
            ("layer_norm_epsilon", "rms_norm_eps"),
            ("activation_function", "hidden_act"),
        ],
    ),
    (
        &["sarvam_mla", "sarvam_moe"],
        &[
            ("num_local_experts", "n_routed_experts"),
            ("num_experts", "n_routed_experts"),
            ("num_shared_experts", "n_shared_experts"),
        ],
    ),
    (&["sarvam_moe"], &[("use_qkv_bias", "attention_bias")]),
    (
        &["ernie4_5_moe"],
        &[
            ("num_experts", "moe_num_experts"),
            ("num_experts_per_tok", "moe_k"),
        ],
    ),
    (
        &["t5", "mt5", "umt5"],
        &[
            ("head_dim", "d_kv"),
            ("hidden_size", "d_model"),
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
        ],
    ),
    (
        &[
            "bart",
            "mbart",
            "plbart",
            "mvp",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "pegasus",
            "m2m_100",
            "whisper",
        ],
        &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "encoder_attention_heads"),
            ("num_hidden_layers", "encoder_layers"),
        ],
    ),
];

/// Returns a file with the values of aliases under the class's own keys.
pub(crate) fn spelled_as_own(json: &ConfigJson) -> ConfigJson {
    let mut value = json.value().clone();
    let renamed = value.as_object_mut().map(move_from_aliases);
    json.with_value(value, renamed.unwrap_or_default())
}

/// Moves values from aliases to the classes' own keys, and returns each own key's spelling in the file.
fn move_from_aliases(object: &mut Map<String, Value>) -> BTreeMap<String, String> {
    let mut renamed = BTreeMap::new();
    let model_type = object.get("model_type").and_then(Value::as_str);
    let is_named = |(types, _): &&Aliases| model_type.is_some_and(|name| types.contains(&name));
    let names: Vec<_> = ALL.iter().filter(is_named).flat_map(|of| of.1).collect();
    for (further, own) in names {
        if let Some(value) = object.remove(*further).filter(|value| !value.is_null()) {
            object.insert(own.to_string(), value);
            renamed.insert(own.to_string(), further.to_string());
        }
    }
    renamed
}
