//! OPT: decoder with ReLU, pre-norm except in its 350M size.
//!
//! transformers' `OPTDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/opt/modeling_opt.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("opt", &["opt"], config)
        .prefixes(&["model.decoder.", "decoder.", ""])
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["self_attn_layer_norm"]),
            Rule::linear("attention.query", &["self_attn.q_proj"]),
            Rule::linear("attention.key", &["self_attn.k_proj"]),
            Rule::linear("attention.value", &["self_attn.v_proj"]),
            Rule::linear("attention.output", &["self_attn.out_proj"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
            Rule::linear("feed_forward.up", &["fc1"]),
            Rule::linear("feed_forward.down", &["fc2"]),
        ])
        .stack_rules([Rule::norm(
            "final_norm",
            &["final_layer_norm", "layer_norm"],
        )])
        .decoder_embeddings_and_heads("embed_tokens", "score")
        .end_rules([
            Rule::linear("embeddings.position", &["embed_positions"]),
            Rule::linear("embeddings.projection", &["project_in"]),
            Rule::linear("embeddings.projection_back", &["project_out"]),
        ])
        .embeddings(embeddings)
        .outside(&["embed_*", "project_in.*", "project_out.*"])
        .outside(&["*lm_head.*"])
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let n_positions = json.size(&["max_position_embeddings"])?;
    let table = PositionTableConfig {
        n_rows: n_positions + 2,
        first_row: 2,
        counted: CountedTokens::Kept,
        ..ALL_POSITIONS
    };
    let projection = EmbeddingProjection {
        of: Projected::Words,
        bias: false,
    };
    let width = width_of_words(json, stack)?;
    let embeddings = padded_token_embeddings(json, stack)?
        .with_width(width)
        .with_position_table(table);
    Ok(match width == embeddings.d_model {
        true => embeddings.into(),
        false => embeddings.with_projection(projection).into(),
    })
}

fn width_of_words(json: &ConfigJson, stack: &StackConfig) -> Result<usize> {
    json.width_or(&["word_embed_proj_dim"], stack.blocks[0].d_model())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let has_bias = json.flag(&["enable_bias"], true)?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .causal()
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["ffn_dim"])?)
        .with_activation(json.activation(&["activation_function"], Activation::Relu)?)
        .with_bias(has_bias);
    let norm = NormConfig::layer_norm(d_model, 1e-5);
    let norm = match json.flag(&["layer_norm_elementwise_affine"], true)? {
        true => norm,
        false => norm.with_bias(false).with_weight(NormWeight::Absent),
    };
    let is_pre = json.flag(&["do_layer_norm_before"], true)?;
    let placement = if is_pre {
        NormPlacement::Pre
    } else {
        NormPlacement::Post
    };
    let block = BlockConfig::new(attention, feed_forward, norm, placement)
        .with_residual_dropout(json.number(&["dropout"], 0.1)?);
    let has_final = is_pre && !json.flag(&["_remove_final_layer_norm"], false)?;
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let stack = StackConfig::uniform(block, n_blocks, has_final.then_some(norm));
    Ok(stack.with_layer_drop(json.number(&["layerdrop"], 0.0)?))
}
