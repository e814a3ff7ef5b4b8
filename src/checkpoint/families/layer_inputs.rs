//! Per-layer inputs, as in Gemma 3n and 4.
//!
//! transformers' `Gemma3nTextModel.project_per_layer_inputs`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>

use super::gemma::scaled_token_embeddings;
use super::llama::{bias, block};
use super::prelude::*;

/// Adds per-layer inputs and layers that attend to other layers' keys to a table.
pub(super) fn with_layer_inputs(table: Family) -> Family {
    table
        .block_rules([
            Rule::linear("layer_input.gate", &["per_layer_input_gate"]),
            Rule::linear("layer_input.output", &["per_layer_projection"]),
            Rule::norm("layer_input_output_norm", &["post_per_layer_input_norm"]),
        ])
        .stack_rules([
            Rule::linear("layer_inputs.projection", &["per_layer_model_projection"]),
            Rule::norm("layer_inputs.norm", &["per_layer_projection_norm"]),
        ])
        .end_rules([Rule::linear(
            "embeddings.layer_inputs",
            &["embed_tokens_per_layer"],
        )])
        .embeddings(|json, stack| {
            let embeddings = scaled_token_embeddings(json, stack)?;
            let Some(norm) = stack.layer_inputs else {
                return Ok(embeddings.into());
            };
            let n_tokens = json.size_or(&["vocab_size_per_layer_input"], 262_144)?;
            let n_layers = stack.layers.len();
            let table = LayerInputTable::new(n_tokens, n_layers, norm.d_model);
            Ok(embeddings.with_layer_inputs(table).into())
        })
        // Unused projections in layers that attend to other layers' keys.
        .ignored(&["*.k_proj.weight", "*.v_proj.weight", "*.k_norm.weight"])
        .outside(&["*embed_tokens_per_layer.*"])
}

/// Returns a block with norms around each sublayer, and with normalized queries, keys and values, whose scores have no scale.
pub(super) fn normalized_block(json: &ConfigJson) -> Result<BlockConfig> {
    let mut usual = sandwich_block(block(&json.without("rope_parameters"), bias(json)?)?);
    usual.feed_forward.activation =
        json.activation(&["hidden_activation"], Activation::GeluTanh)?;
    let span = QueryKeyNorm::new(usual.norm, QueryKeyNormSpan::Head);
    let eps = usual.norm.eps;
    let attention = usual.attention_mut()?;
    attention.scale = 1.0;
    attention.value_norm = Some(eps);
    attention.query_key_norm = Some(span);
    Ok(usual)
}

/// Gives a block these parts with the per-layer input, if the model has one, and returns the norm for the stack's inputs.
pub(super) fn layer_inputs(
    json: &ConfigJson,
    block: &mut BlockConfig,
    gemma: GemmaConfig,
) -> Result<Option<NormConfig>> {
    let width = json.size_or(&["hidden_size_per_layer_input"], 256)?;
    let input = LayerInputConfig::new(width, block.feed_forward.activation);
    block.own = OwnConfig::Gemma(GemmaConfig {
        layer_input: (width > 0).then_some(input),
        ..gemma
    });
    Ok((width > 0).then_some(NormConfig {
        d_model: width,
        ..block.norm
    }))
}
