//! CTRL: pre-norm decoder with ReLU and sinusoidal positions.
//!
//! transformers' `CTRLModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ctrl/modeling_ctrl.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("ctrl", &["ctrl"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules(projections(
            "attention",
            "multi_head_attention",
            ["Wq", "Wk", "Wv", "dense"],
        ))
        .block_rules([
            Rule::norm("attention_norm", &["layernorm1"]),
            Rule::norm("feed_forward_norm", &["layernorm2"]),
            Rule::linear("feed_forward.up", &["ffn.0"]),
            Rule::linear("feed_forward.down", &["ffn.2"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layernorm"])])
        .decoder_embeddings_and_heads("w", "classifier")
        .embeddings(embeddings)
        .head(HeadTask::CausalLm, |json, _| {
            next_token(language_model(json)?.with_bias(true))
        })
        .head(HeadTask::SequenceClassification, |json, stack| {
            last_token(json, stack)
        })
        .outside(&["*w.weight"])
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let positions = PositionTableConfig {
        n_rows: json.size(&["n_positions", "max_position_embeddings"])?,
        vectors: PositionVectors::Sines(LastFrequency::Before),
        ..ALL_POSITIONS
    };
    let embeddings = token_embeddings(json, stack)?
        .with_scale((stack.blocks[0].d_model() as f64).sqrt())
        .with_position_table(positions)
        .with_dropout(json.number(&["embd_pdrop"], 0.1)?);
    Ok(embeddings.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["n_embd", "hidden_size"])?;
    let attention =
        AttentionConfig::new(d_model, json.size(&["n_head", "num_attention_heads"])?)?.causal();
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["dff"])?)
        .with_activation(Activation::Relu);
    let norm = NormConfig::layer_norm(d_model, 1e-6); // independent of the file
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.1)?);
    let eps = json.number(&["layer_norm_epsilon"], 1e-6)?;
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    let last = NormConfig::layer_norm(d_model, eps);
    Ok(StackConfig::uniform(block, n_blocks, Some(last)))
}
