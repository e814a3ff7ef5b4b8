//! Bamba: Mamba-2 in most layers, and attention in the others.
//!
//! transformers' `BambaDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bamba/modeling_bamba.py>

use super::llama::{biased_block, decoder, uniform};
use super::mamba_mixer::{initialization, mixer, rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    table("bamba", bamba)
}

/// Llama's table with the names of Bamba's blocks.
pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config)
        .replace_block_rules([Rule::norm("feed_forward_norm", &["pre_ff_layernorm"])])
        .replace_block_rules(gated("feed_forward", "feed_forward"))
        .block_rules(rules("mamba"))
        .replace_stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .initialization(initialization)
}

fn bamba(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(json)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    // transformers' class has half of each head, whatever the file says; a GGUF file has its own share.
    let share = json.number(&["rotary_pct"], 0.5)?;
    let rotary = json.without("partial_rotary_factor");
    let rotary = rotary.partial_rotary(block.attention()?.head_dim, share, 1e4)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    let attended = json.numbers(&["attn_layer_indices"])?.unwrap_or_default();
    let mamba = mixer(json, block.norm)?;
    let stack = uniform(json, block)?;
    let is_mamba = |i: usize| !attended.contains(&(i as f64));
    if (0..stack.blocks.len()).any(is_mamba) {
        json.only("hidden_act", &["silu".into(), "swish".into()])?; // of the convolutions too
    }
    Ok(stack.with_each(|i, block| {
        if is_mamba(i) {
            block.mixer = mamba.into();
        }
    }))
}
