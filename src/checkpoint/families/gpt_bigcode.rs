//! GPT-BigCode (StarCoder, SantaCoder): GPT-2 with `nn.Linear` weights and one key/value head.
//!
//! transformers' `GPTBigCodeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt_bigcode/modeling_gpt_bigcode.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gpt_bigcode", &["gpt_bigcode"], config)
        .prefixes(&["transformer.", ""])
        .blocks(
            "h.{i}.",
            [
                Rule::norm("attention_norm", &["ln_1"]),
                Rule::linear("attention.output", &["attn.c_proj"]),
                Rule::norm("feed_forward_norm", &["ln_2"]),
                Rule::linear("feed_forward.up", &["mlp.c_fc"]),
                Rule::linear("feed_forward.down", &["mlp.c_proj"]),
            ],
        )
        // One group of all queries, or one group per head.
        .block_rules(Rule::fused_attention(
            &["attn.c_attn"],
            FusedLayout::PerGroup,
        ))
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .ignored(&["*.attn.bias", "*.attn.masked_bias"])
        .outside(&["*wte.*", "*wpe.*", "lm_head.*", "score.*", "classifier.*"])
        .initialization(initialization)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_cross_attention", &[json!(false)])?;
    let d_model = json.size(&["n_embd", "hidden_size"])?;
    let n_heads = json.size(&["n_head", "num_attention_heads"])?;
    let n_kv_heads = match json.flag(&["multi_query"], true)? {
        true => 1,
        false => n_heads,
    };
    let mut attention = AttentionConfig::new(d_model, n_heads)?
        .with_kv_heads(n_kv_heads)
        .causal()
        .with_dropout(json.number(&["attn_pdrop"], 0.1)?);
    if !json.flag(&["scale_attn_weights"], true)? {
        attention.scale = 1.0;
    }
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.optional_size(&["n_inner"])?.unwrap_or(4 * d_model))
        .with_activation(json.activation(&["activation_function"], Activation::GeluTanh)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.1)?);
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    Ok(Initialization::gpt2(
        initializer_range::deviation(json, 0.02)?,
        n_blocks,
    ))
}
