//! BitNet: Llama's blocks with squared ReLU, and norms before both output projections.
//!
//! transformers' `BitNetDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bitnet/modeling_bitnet.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    decoder("bitnet", bitnet)
        .block_rules([
            Rule::norm("attention.sub_norm", &["self_attn.attn_sub_norm"]),
            Rule::norm("feed_forward.sub_norm", &["mlp.ffn_sub_norm"]),
        ])
        .without_heads()
        .head(HeadTask::CausalLm, causal_lm)
}

fn bitnet(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    let (width, d_model) = (block.attention()?.mixed_width(), block.d_model());
    if width != d_model {
        let reason = format!(
            "all heads together have the width {width}, but the norm after them has hidden_size, {d_model}; \
             expected equal widths"
        );
        return Err(json.error(&["head_dim"], reason));
    }
    block.attention_mut()?.sub_norm = Some(block.norm);
    block.feed_forward.sub_norm = Some(block.norm);
    uniform(json, block)
}
