//! BioGPT: pre-norm decoder under OPT's names, with GELU and learned positions behind two rows that are not used.
//!
//! transformers' `BioGptDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/biogpt/modeling_biogpt.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("biogpt", &["biogpt"], config)
        .prefixes(&["biogpt.", ""])
        .block("layers.{i}.")
        .block_rules(projections("attention", "self_attn", OUT_PROJ))
        .block_rules([
            Rule::norm("attention_norm", &["self_attn_layer_norm"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
            Rule::linear("feed_forward.up", &["fc1"]),
            Rule::linear("feed_forward.down", &["fc2"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layer_norm"])])
        .decoder_ends("embed_tokens", "classifier")
        .end_rules([
            Rule::linear("embeddings.position", &["embed_positions"]),
            Rule::linear("causal_lm.output", &["output_projection"]),
        ])
        .new_names(|_| Ok(&["output_projection.*"]))
        .embeddings(embeddings)
        .head(Task::TokenClassification, |json, _| {
            let hidden = json.number(&["hidden_dropout_prob"], 0.1)?;
            token(json, json.number(&["classifier_dropout"], hidden)?)
        })
        .default_of("pad_token_id", 1)
        .outside(&["embed_tokens.*", "embed_positions.*", "output_projection.*"])
}

const OUT_PROJ: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let scale = match json.flag(&["scale_embedding"], true)? {
        true => (stack.blocks[0].d_model() as f64).sqrt(),
        false => 1.0,
    };
    let table = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])? + 2,
        first_row: 2,
        ..ALL_POSITIONS
    };
    let words = padded_words(json, stack)?
        .with_scale(scale)
        .with_position_table(table)
        .with_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    Ok(words.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .causal()
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?)
        .with_dropout(json.number(&["activation_dropout"], 0.0)?);
    let norm = NormConfig::layer_norm(d_model, 1e-5); // whatever `layer_norm_eps` says
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let stack = StackConfig::uniform(block, n_blocks, Some(norm));
    Ok(stack.with_layer_drop(json.number(&["layerdrop"], 0.0)?))
}
