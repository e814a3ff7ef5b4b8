//! Blocks of image encoders with names of their own: MGP-STR's, which are ViT's under timm's names, and those of Pix2Struct and KOSMOS-2.5,
//! with RMSNorm and a gate.
//!
//! transformers' `MgpstrLayer`, `Pix2StructVisionLayer` and `Kosmos2_5VisionLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/pix2struct/modeling_pix2struct.py>

use super::blocks_alone::only;
use super::prelude::*;
use super::vit;

pub(super) fn families() -> Vec<Family> {
    let names = ["query", "key", "value", "output"];
    let flat = |name: &str, config| {
        Family::new(name, &[name], config)
            .prefixes(&["model.vision_model.", "vision_model.", "encoder.", ""])
            .block("encoder.layer.{i}.")
            .block_rules(projections("attention", "attention", names))
            .block_rules([
                Rule::norm("attention_norm", &["pre_attention_layer_norm"]),
                Rule::norm("feed_forward_norm", &["pre_mlp_layer_norm"]),
                Rule::linear("feed_forward.gate", &["mlp.wi_0"]),
                Rule::linear("feed_forward.up", &["mlp.wi_1"]),
                Rule::linear("feed_forward.down", &["mlp.wo"]),
            ])
            .stack_rules([Rule::norm("final_norm", &["layernorm"])])
            .outside(&["embeddings.*"])
    };
    vec![
        mgp_str(),
        flat("pix2struct_vision_model", |json| {
            let d_ff = json.size_or(&["d_ff"], 2048)?;
            let heads = json.size_or(&["d_kv"], 64)?;
            let stack = gated(json, heads, d_ff, json.number(&["dropout_rate"], 0.0)?)?;
            Ok(stack.with_each_attention(|_, attention| attention.scale = 1.0))
        }),
        flat("kosmos_2_5_vision_model", |json| {
            let d_ff = json.size_or(&["intermediate_size"], 3968)?;
            gated(json, json.size_or(&["head_dim"], 64)?, d_ff, 0.0)
        }),
    ]
}

/// Returns blocks with RMSNorm and a gated feed-forward, without biases.
fn gated(json: &ConfigJson, head_dim: usize, d_ff: usize, dropout: f64) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let attention = AttentionConfig::with_head_dim(d_model, n_heads, head_dim)
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(d_ff)
        .with_form(FeedForwardForm::Gated)
        .with_activation(json.activation(&["dense_act_fn"], Activation::GeluTanh)?)
        .with_bias(false)
        .with_dropout(dropout);
    let norm = NormConfig::rms_norm(d_model, json.number(&["layer_norm_eps"], 1e-6)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

fn mgp_str() -> Family {
    only(vit::blocks("mgp-str", &["mgp_str.", ""]))
        .block("encoder.blocks.{i}.")
        .block_rules(Rule::fused_attention(&["attn.qkv"], FusedLayout::Blocks))
        .replace_block_rules([
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("attention.output", &["attn.proj"]),
            Rule::norm("feed_forward_norm", &["norm2"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
        ])
        .read_by(|json| {
            let d_model = json.size(&["hidden_size"])?;
            let d_ff = (d_model as f64 * json.number(&["mlp_ratio"], 4.0)?) as usize;
            let json = &json.with("intermediate_size", d_ff).without("hidden_act");
            let stack = vit::config(&json.without("head_dim"))?;
            let rate = json.number(&["drop_path_rate"], 0.0)?;
            Ok(StackConfig {
                final_norm: None,
                ..stack.with_rising_drop_path(rate)
            })
        })
        .renamed("attention_probs_dropout_prob", "attn_drop_rate")
        .renamed("hidden_dropout_prob", "drop_rate")
        .outside(&["*a3_module.*", "*_head.*"])
}
