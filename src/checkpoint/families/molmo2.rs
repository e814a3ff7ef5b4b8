//! The text of Molmo 2: Qwen 3's blocks with norms before or after each sublayer, and layers whose rotary embedding is not scaled. The
//! blocks alone are loaded, because files have the token embeddings in two tensors.
//!
//! transformers' `Molmo2DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/molmo2/modeling_molmo2.py>

use super::blocks_alone::only;
use super::clip_like::in_either_list;
use super::llama::{block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    let norms = [
        ("attention", ["attn_norm", "input_layernorm"]),
        ("feed_forward", ["ff_norm", "post_attention_layernorm"]),
    ];
    let norms = norms.iter().flat_map(|(role, names)| {
        ["norm", "output_norm"].map(|norm| Rule::norm(&format!("{role}_{norm}"), names))
    });
    let mut table = only(decoder("molmo2_text", config))
        .replace_block_rules(norms)
        .replace_block_rules([
            Rule::linear(
                "attention.output",
                &["self_attn.attn_out", "self_attn.o_proj"],
            ),
            Rule::linear("feed_forward.down", &["mlp.ff_out", "mlp.down_proj"]),
        ])
        .replace_stack_rules([Rule::norm("final_norm", &["norm", "ln_f"])])
        .outside(&["*wte.*", "*lm_head.*"]);
    // Files have the fused tensors.
    let fused = Rule::fused_attention(&["self_attn.att_proj"], FusedLayout::Blocks);
    let gate = Rule::fused_gate(&["mlp.ff_proj"], GateHalf::Second);
    table
        .block_rules
        .splice(0..0, fused.into_iter().chain(gate));
    in_either_list(table, ["layers", "blocks"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let bias = AttentionBias::new(json.flag(&["attention_bias"], false)?, false);
    let mut block = block(json, bias)?;
    json.only("qk_norm_type", &["qwen3", "olmo"].map(Value::from))?;
    let span = match json.text(&["qk_norm_type"])?.as_deref() {
        Some("olmo") => QueryKeyNormSpan::Whole,
        _ => QueryKeyNormSpan::Head,
    };
    block.attention_mut()?.query_key_norm = Some(QueryKeyNorm::new(block.norm, span));
    if json.flag(&["norm_after"], false)? {
        block.attention_placement = NormPlacement::Output;
        block.feed_forward_placement = NormPlacement::Output;
    }
    let stack = uniform(json, block)?;
    let Some(scaled) = json.numbers(&["rope_scaling_layers"])? else {
        return Ok(stack);
    };
    Ok(stack.with_each_attention(|i, attention| {
        if let Position::Rotary(rotary) = &mut attention.position
            && !scaled.contains(&(i as f64))
        {
            *rotary = RotaryConfig::new(rotary.dim, rotary.theta);
        }
    }))
}
