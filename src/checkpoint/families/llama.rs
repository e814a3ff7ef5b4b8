//! Llama and similar families: pre-norm decoder, RMSNorm, gated feed-forward, rotary embeddings.
//!
//! transformers' `LlamaDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llama/modeling_llama.py>; Mistral
//! and Ministral differ in the configuration that they read.

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        decoder("llama", llama).new_names(prefix_by_head),
        decoder("mistral", mistral),
        decoder("ministral", mistral).new_names(prefix_by_head),
    ]
}

/// Rules for a gated feed-forward, whose parts have the usual names under `stem`.
pub(super) fn gated(role: &str, stem: &str) -> [Rule; 3] {
    ["gate", "up", "down"].map(|part| {
        let name = format!("{stem}.{part}_proj");
        Rule::linear(&format!("{role}.{part}"), &[&name])
    })
}

/// The table that most decoders since Llama share.
pub(super) fn decoder(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    Family::new(name, &[name], config)
        .prefixes(&["model.", "transformer.", ""]) // the second for a question-answering head
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["input_layernorm"]),
            Rule::linear("attention.query", &["self_attn.q_proj"]),
            Rule::linear("attention.key", &["self_attn.k_proj"]),
            Rule::linear("attention.value", &["self_attn.v_proj"]),
            Rule::linear("attention.output", &["self_attn.o_proj"]),
            Rule::norm("attention.query_norm", &["self_attn.q_norm"]),
            Rule::norm("attention.key_norm", &["self_attn.k_norm"]),
            Rule::norm("feed_forward_norm", &["post_attention_layernorm"]),
        ])
        .block_rules(gated("feed_forward", "mlp"))
        .block_rules(Rule::fused_attention(
            &["self_attn.qkv_proj"],
            FusedLayout::Blocks,
        ))
        .block_rules(Rule::fused_gate(&["mlp.gate_up_proj"], GateHalf::First))
        .stack_rules([Rule::norm("final_norm", &["norm"])])
        .decoder_embeddings_and_heads("embed_tokens", "score")
        .embeddings(|json, stack| Ok(padded_token_embeddings(json, stack)?.into()))
        .outside(&["*embed_tokens.*"])
}

/// The same table for code on the Hub, of which transformers has no class.
pub(super) fn decoder_of_hub(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config).default_of("tie_word_embeddings", false)
}

/// Returns the name for the base model: some question-answering classes call it `transformer`.
pub(super) fn prefix_by_head(json: &ConfigJson) -> Result<&'static [&'static str]> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    let answers = |class: &String| class.ends_with("ForQuestionAnswering");
    Ok(match classes.iter().any(answers) {
        true => &["transformer.layers.*"],
        false => &[],
    })
}

pub(super) fn llama(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, biased_block(json)?)
}

pub(super) fn mistral(json: &ConfigJson) -> Result<StackConfig> {
    let stack = uniform(json, block(json, AttentionBias::NONE)?)?;
    let window = json.switchable_size("sliding_window", 4096)?;
    // transformers reads a file with `layer_types` as Ministral, which has windows in some layers only.
    let is_sliding = json.sliding_layers(stack.blocks.len(), |_| true)?;
    Ok(stack
        .with_each_attention(|i, attention| attention.window = window.filter(|_| is_sliding[i])))
}

/// Returns `attention_bias` for all four projections.
pub(super) fn bias(json: &ConfigJson) -> Result<AttentionBias> {
    let has_bias = json.flag(&["attention_bias"], false)?;
    Ok(AttentionBias::new(has_bias, has_bias))
}

/// Returns the block for classes that read `attention_bias` and `mlp_bias`.
pub(super) fn biased_block(json: &ConfigJson) -> Result<BlockConfig> {
    with_mlp_bias(json, block(json, bias(json)?)?)
}

/// Applies `mlp_bias` to all projections of the feed-forward.
pub(super) fn with_mlp_bias(json: &ConfigJson, mut block: BlockConfig) -> Result<BlockConfig> {
    block.feed_forward = block
        .feed_forward
        .with_bias(json.flag(&["mlp_bias"], false)?);
    Ok(block)
}

/// Returns a stack of identical blocks, as deep as the file says, with a final norm of the same kind.
pub(super) fn uniform(json: &ConfigJson, block: BlockConfig) -> Result<StackConfig> {
    let norm = block.norm;
    Ok(StackConfig::uniform(
        block,
        json.n_blocks(&["num_hidden_layers"])?,
        Some(norm),
    ))
}

/// Returns the block that most decoders since Llama share, with the given biases.
pub(super) fn block(json: &ConfigJson, bias: AttentionBias) -> Result<BlockConfig> {
    let mut block = unrotated_block(json, bias)?;
    let rotary = json.rotary(block.attention()?.head_dim, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    Ok(block)
}

/// Returns the same block without positions, for families that rotate a part of each head.
pub(super) fn unrotated_block(json: &ConfigJson, bias: AttentionBias) -> Result<BlockConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let attention = attention_of(json, d_model, n_heads)?;
    let attention = attention
        .with_kv_heads(json.size_or(&["num_key_value_heads"], n_heads)?)
        .causal()
        .with_bias(bias)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_form(FeedForwardForm::Gated)
        .with_activation(json.activation(&["hidden_act", "hidden_activation"], Activation::Silu)?)
        .with_bias(false);
    let norm = NormConfig::rms_norm(d_model, json.number(&["rms_norm_eps"], 1e-6)?);
    Ok(BlockConfig::new(
        attention,
        feed_forward,
        norm,
        NormPlacement::Pre,
    ))
}
