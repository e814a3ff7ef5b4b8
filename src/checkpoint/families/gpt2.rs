//! GPT-2: pre-norm decoder with `Conv1D` weights, and query, key and value fused. With `add_cross_attention` each block also
//! attends to an encoder's output.
//!
//! transformers' `GPT2Block`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt2/modeling_gpt2.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gpt2", &["gpt2"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::conv1d("attention.output", &["attn.c_proj"]),
            Rule::norm("feed_forward_norm", &["ln_2"]),
            Rule::conv1d("feed_forward.up", &["mlp.c_fc"]),
            Rule::conv1d("feed_forward.down", &["mlp.c_proj"]),
        ])
        .block_rules(Rule::fused_attention(&["attn.c_attn"], FusedLayout::Blocks).map(Rule::in_out))
        .block_rules([
            Rule::norm("cross_attention_norm", &["ln_cross_attn"]),
            Rule::conv1d("cross_attention.query", &["crossattention.q_attn"]),
            cross_attention_half("key", GateHalf::First),
            cross_attention_half("value", GateHalf::Second),
            Rule::conv1d("cross_attention.output", &["crossattention.c_proj"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .decoder_embeddings_and_heads("wte", "classifier")
        .end_rules([Rule::linear("embeddings.position", &["wpe"])])
        .embeddings(embeddings)
        .ignored(&["*.attn.bias"]) // causal masks, not biases
        .ignored(&["*.crossattention.bias"])
        .outside(&["*wte.*", "*wpe.*", "multiple_choice_head.*"])
        .initialization(initialization)
}

/// Returns the rule for keys and values of an encoder's output, which share a tensor.
fn cross_attention_half(role: &str, half: GateHalf) -> Rule {
    Rule::conv1d(
        &format!("cross_attention.{role}"),
        &["crossattention.c_attn"],
    )
    .part(Part::Half(half))
}

/// Returns token embeddings and positions for GPT-2 and models with its keys.
pub(super) fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let n_positions = json.size(&["n_positions", "max_position_embeddings"])?;
    let dropout = json.number(&["embd_pdrop"], 0.1)?;
    let embeddings = token_embeddings(json, stack)?.with_positions(n_positions);
    Ok(embeddings.with_dropout(dropout).into())
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    let is_scaled = json.flag(&["scale_attn_weights"], true)?;
    let by_depth = json.flag(&["scale_attn_by_inverse_layer_idx"], false)?;
    let stack = uniform(json, block(json)?)?.with_each_attention(|i, attention| {
        let width = match is_scaled {
            true => attention.scale,
            false => 1.0,
        };
        let depth = if by_depth { (i + 1) as f64 } else { 1.0 };
        attention.scale = width / depth;
    });
    Ok(match json.flag(&["add_cross_attention"], false)? {
        true => stack.into_decoder(),
        false => stack,
    })
}

/// Returns the block for GPT-2 and models with its keys.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    let d_model = json.size(&["n_embd", "hidden_size"])?;
    let n_heads = json.size(&["n_head", "num_attention_heads"])?;
    let attention = AttentionConfig::new(d_model, n_heads)?
        .causal()
        .with_dropout(json.number(&["attn_pdrop"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size_or(&["n_inner"], 4 * d_model)?)
        .with_activation(json.activation(&["activation_function"], Activation::GeluTanh)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    Ok(block.with_residual_dropout(json.number(&["resid_pdrop"], 0.1)?))
}

/// Returns a stack of identical blocks, as deep as the file says, with a final norm of the same kind.
pub(super) fn uniform(json: &ConfigJson, block: BlockConfig) -> Result<StackConfig> {
    let (n_blocks, norm) = (
        json.n_blocks(&["n_layer", "num_hidden_layers"])?,
        block.norm,
    );
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

pub(super) fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    let deviation = initializer_range::deviation(json, 0.02)?;
    Ok(Initialization::gpt2(deviation, n_blocks))
}
