//! GTE: BERT's blocks with rotary embeddings and a gated feed-forward. Its authors' files name the model type of their code
//! on the Hub, `new`, which has more keys.
//!
//! transformers' `GteLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gte/modeling_gte.py>

use super::bert;
use super::encoder::*;
use super::prelude::*;
use super::rotary_bert::{block_with, uniform};

pub(super) fn families() -> Vec<Family> {
    vec![gte("gte"), new()]
}

/// The table for the authors' files, with their code's defaults.
///
/// <https://huggingface.co/Alibaba-NLP/new-impl/blob/main/configuration.py>
fn new() -> Family {
    gte("new")
        .default_of("pad_token_id", 0)
        .default_of("attention_probs_dropout_prob", 0.0)
        .default_of("type_vocab_size", 1)
        .head(HeadTask::MaskedLm, |json, stack| {
            let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
            word(json, stack, stack.blocks[0].d_model(), activation)
        })
}

fn gte(name: &str) -> Family {
    bert::encoder(name, &format!("{name}."))
        .prefixes(&["gte.", "new.", ""])
        .read_by(|json| {
            only_gte(json)?;
            let mut block = block_with(json, rotary)?;
            let dropout = hidden_dropout(json)?;
            block.feed_forward = block
                .feed_forward
                .with_form(FeedForwardForm::Gated)
                .with_dropout(dropout);
            block.feed_forward.up_bias = false;
            uniform(json, block)
        })
        .replace_block_rules(Rule::fused_attention(
            &["attention.qkv_proj"],
            FusedLayout::Blocks,
        ))
        .replace_block_rules(Rule::fused_gate(&["mlp.up_gate_proj"], GateHalf::Second))
        .replace_block_rules([
            Rule::linear("attention.output", &["attention.o_proj"]),
            Rule::norm("attention_norm", &["attn_ln"]),
            Rule::linear("feed_forward.down", &["mlp.down_proj"]),
            Rule::norm("feed_forward_norm", &["mlp_ln"]),
        ])
        .end_rules(word_rules(["lm_head.dense", "lm_head.norm", "lm_head"]))
        .end_rules([Rule::linear(
            "sequence_classification.output",
            &["classifier"],
        )])
        .embeddings(|json, stack| {
            let mut embeddings =
                bert::typed_token_embeddings(json, stack, stack.blocks[0].d_model())?;
            embeddings.n_types = embeddings.n_types.filter(|&n_types| n_types > 0);
            Ok(embeddings.into())
        })
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_gelu)
        .head(HeadTask::SequenceClassification, pooled_of_encoder)
        .new_names(|_| Ok(&[]))
}

/// Returns rotary embeddings with the scaling that GTE's own code calls `ntk`: a larger base, and frequencies divided by a
/// root of the factor.
///
/// `NTKScalingRotaryEmbedding`: <https://huggingface.co/Alibaba-NLP/new-impl/blob/main/modeling.py>
fn rotary(json: &ConfigJson, head_dim: usize) -> Result<RotaryConfig> {
    let kind = |parameters: &ConfigJson| parameters.text(&["rope_type", "type"]);
    let parameters = match json.rotary_section()? {
        Some(parameters) if kind(&parameters)?.as_deref() == Some("ntk") => parameters,
        _ => return json.rotary(head_dim, 10000.0),
    };
    if let Some(mixed) = parameters.optional_number(&["mixed_b"])? {
        let reason = format!("{mixed} is not supported, only frequencies with the same divisor");
        return Err(parameters.error(&["mixed_b"], reason));
    }
    let factor = parameters.number(&["factor"], 1.0)?;
    if factor < 1.0 {
        let reason = format!("found {factor}, expected at least 1");
        return Err(parameters.error(&["factor"], reason));
    }
    let key = ["rope_theta"];
    let theta = parameters.number(&key, json.number(&key, 10000.0)?)?;
    let divisor = factor.powf(2.0 / head_dim as f64);
    Ok(RotaryConfig::new(head_dim, theta * factor)
        .with_scaling(RotaryScaling::Linear { factor: divisor }))
}

/// Refuses options that only GTE's own code supports.
fn only_gte(json: &ConfigJson) -> Result<()> {
    for (key, usual) in [
        ("position_embedding_type", json!("rope")),
        ("layer_norm_type", json!("layer_norm")),
        ("logn_attention_scale", json!(false)),
        ("logn_attention_clip1", json!(false)),
        ("pack_qkv", json!(true)),
    ] {
        json.only(key, &[usual])?;
    }
    Ok(())
}
