//! Llama and the families built like it: pre-norm decoder, RMSNorm, gated feed-forward, rotary positions.
//!
//! transformers' `LlamaDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llama/modeling_llama.py>

use crate::{
    Result,
    checkpoint::{
        config_json::ConfigJson,
        scheme::{Family, Rule, StackSource, strings},
    },
    config::{
        Activation, AttentionBias, AttentionConfig, BlockConfig, FeedForwardConfig,
        FeedForwardForm, NormConfig, NormPlacement, Position, StackConfig,
    },
};

pub(super) fn family() -> Family {
    Family {
        config: StackSource::Json(config),
        ..decoder("llama", &["llama"])
    }
}

/// The table that most decoders since Llama share.
pub(super) fn decoder(name: &str, model_types: &[&str]) -> Family {
    Family {
        name: name.to_string(),
        model_types: strings(model_types),
        part: None,
        prefixes: strings(&["model.", ""]),
        block: "layers.{i}.".to_string(),
        block_rules: vec![
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::linear("attention.query", &["self_attn.q_proj"]),
            Rule::linear("attention.key", &["self_attn.k_proj"]),
            Rule::linear("attention.value", &["self_attn.v_proj"]),
            Rule::linear("attention.output", &["self_attn.o_proj"]),
            Rule::norm("attention.query_norm", &["self_attn.q_norm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_norm"]),
            Rule::norm("feed_forward_norm", &["post_attention_layernorm"]),
            Rule::linear("feed_forward.gate", &["mlp.gate_proj"]),
            Rule::linear("feed_forward.up", &["mlp.up_proj"]),
            Rule::linear("feed_forward.down", &["mlp.down_proj"]),
        ],
        stack_rules: vec![Rule::norm("final_norm", &["norm"])],
        ignored: strings(&["*.rotary_emb.inv_freq"]),
        outside: strings(&["*embed_tokens.*", "lm_head.*", "score.*"]),
        config: StackSource::Json(config),
    }
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let bias = json.flag(&["attention_bias"], false)?;
    let block = block(json, AttentionBias::new(bias, bias))?;
    let norm = block.norm;
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

/// The block that most decoders since Llama share, with the given biases.
pub(super) fn block(json: &ConfigJson, bias: AttentionBias) -> Result<BlockConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let attention = match json.optional_size(&["head_dim"])? {
        Some(head_dim) => AttentionConfig::with_head_dim(d_model, n_heads, head_dim),
        None => AttentionConfig::new(d_model, n_heads)?,
    };
    let rotary = json.rotary(attention.head_dim, 10000.0)?;
    let attention = attention
        .with_kv_heads(
            json.optional_size(&["num_key_value_heads"])?
                .unwrap_or(n_heads),
        )
        .causal()
        .with_position(Position::Rotary(rotary))
        .with_bias(bias)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_form(FeedForwardForm::Gated)
        .with_activation(json.activation(&["hidden_act", "hidden_activation"], Activation::Silu)?)
        .with_bias(json.flag(&["mlp_bias"], false)?);
    let norm = NormConfig::rms_norm(d_model, json.number(&["rms_norm_eps"], 1e-6)?);
    Ok(BlockConfig::new(
        attention,
        feed_forward,
        norm,
        NormPlacement::Pre,
    ))
}
