//! Multi-head latent attention, as DeepSeek and similar families describe it.

use super::llama::{block, decoder};
use super::prelude::*;

/// Llama's table with latent attention.
pub(super) fn latent_decoder(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config)
        .replace_block_rules([
            Rule::linear(
                "attention.query",
                &["self_attn.q_b_proj", "self_attn.q_proj"],
            ),
            Rule::linear("attention.query_latent", &["self_attn.q_a_proj"]),
            Rule::norm("attention.query_latent_norm", &["self_attn.q_a_layernorm"]),
            Rule::linear("attention.latent", &["self_attn.kv_a_proj_with_mqa"]),
            Rule::norm("attention.latent_norm", &["self_attn.kv_a_layernorm"]),
            Rule::linear("attention.key_value", &["self_attn.kv_b_proj"]),
        ])
        .new_names(|json| {
            Ok(match json.switchable_size("q_lora_rank", 1)? {
                Some(_) => &[],
                None => &["*.q_proj.*"],
            })
        })
}

/// Default sizes: the ranks for queries and for keys and values, and a head's dimensions without rotation, with rotation,
/// and for values.
pub(super) type LatentSizes = [usize; 5];

/// The default sizes in most classes.
pub(super) const USUAL: LatentSizes = [1536, 512, 128, 64, 128];

/// Returns Llama's block with latent attention. Its rotation pairs dimensions by `pairing`, or without it by
/// `rope_interleave`.
pub(super) fn latent_block(
    json: &ConfigJson,
    [query_rank, rank, plain, default_rotary_dim, value_dim]: LatentSizes,
    pairing: Option<RotaryPairing>,
) -> Result<BlockConfig> {
    let n_heads = json.size(&["num_attention_heads"])?;
    json.only("num_key_value_heads", &[n_heads.into()])?;
    let rotary_dim = json.size_or(&["qk_rope_head_dim"], default_rotary_dim)?;
    let mut block = block(
        &json.with_default("head_dim", rotary_dim),
        AttentionBias::NONE,
    )?;
    let d_model = block.d_model();
    let latent = LatentConfig {
        query_rank: json.switchable_size("q_lora_rank", query_rank)?,
        rank: json.size_or(&["kv_lora_rank"], rank)?,
        rotary_dim,
        value_dim: json.size_or(&["v_head_dim"], value_dim)?,
        norm: NormConfig::rms_norm(d_model, 1e-6), // independent of `rms_norm_eps`
    };
    let pairing = match (pairing, json.flag(&["rope_interleave"], true)?) {
        (Some(pairing), _) => pairing,
        (None, true) => RotaryPairing::Interleaved,
        (None, false) => RotaryPairing::Halves,
    };
    let has_bias = json.flag(&["attention_bias"], false)?;
    let bias = AttentionBias {
        query: has_bias && latent.query_rank.is_some(),
        ..AttentionBias::new(has_bias, has_bias)
    };
    let plain = json.size_or(&["qk_nope_head_dim"], plain)?;
    let head_dim = plain.saturating_add(rotary_dim);
    let attention = AttentionConfig::with_head_dim(d_model, n_heads, head_dim);
    let rotary = json.rotary(rotary_dim, 10000.0)?.with_pairing(pairing);
    let scale = attention.scale * json.score_stretch()?;
    *block.attention_mut()? = attention
        .with_latent(Some(latent))
        .with_position(Position::Rotary(rotary))
        .with_scale(scale)
        .with_bias(bias)
        .with_dropout(block.attention()?.dropout)
        .causal();
    Ok(block)
}
