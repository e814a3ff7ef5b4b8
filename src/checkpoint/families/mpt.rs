//! MPT: decoder without biases, with its own arrangement of ALiBi slopes.
//!
//! transformers' `MptBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mpt/modeling_mpt.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("mpt", &["mpt"], config)
        .prefixes(&["transformer.", ""])
        .block("blocks.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["norm_1"]),
            Rule::linear("attention.output", &["attn.out_proj"]),
            Rule::norm("feed_forward_norm", &["norm_2"]),
            Rule::linear("feed_forward.up", &["ffn.up_proj"]),
            Rule::linear("feed_forward.down", &["ffn.down_proj"]),
        ])
        .block_rules(Rule::fused_attention(&["attn.Wqkv"], FusedLayout::Blocks))
        .stack_rules([Rule::norm("final_norm", &["norm_f"])])
        .decoder_embeddings_and_heads("wte", "classifier")
        .outside(&["wte.*", "wpe.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("no_bias", &[json!(true)])?;
    let d_model = json.size(&["d_model", "hidden_size"])?;
    let section = json.section(&["attn_config"])?;
    let attn = section.as_ref().unwrap_or(json);
    attn.only("alibi", &[json!(true)])?; // transformers' class has no other form
    attn.only("qk_ln", &[json!(false)])?;
    attn.only("prefix_lm", &[json!(false)])?;
    attn.only("attn_type", &[json!("multihead_attention")])?;
    json.only(
        "norm_type",
        &["low_precision_layernorm", "layernorm"].map(Value::from),
    )?;
    // In transformers, independent of `alibi_bias_max`.
    let alibi = AlibiConfig::new(
        AlibiSlopes::Interleaved { max: 8.0 },
        1.0,
        AlibiRounding::None,
    );
    let attention = AttentionConfig::new(d_model, json.size(&["n_heads", "num_attention_heads"])?)?;
    let scale = attn
        .optional_number(&["softmax_scale"])?
        .unwrap_or(attention.scale);
    let clip = attn.optional_number(&["clip_qkv"])?;
    let clip = clip.filter(|&clip| clip != 0.0); // 0 counts as null here
    let attention = attention
        .causal()
        .with_scale(scale)
        .with_position(Position::Alibi(alibi))
        .with_clip(clip)
        .with_bias(AttentionBias::NONE)
        .with_dropout(attn.number(&["attn_pdrop"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_activation(Activation::Gelu)
        .with_bias(false);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?)
        .with_bias(false);
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    block.residual.attention_dropout = attn.number(&["attn_pdrop"], 0.0)?;
    block.residual.feed_forward_dropout = attn.number(&["attn_pdrop"], 0.0)?;
    let n_blocks = json.n_blocks(&["n_layers", "num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
