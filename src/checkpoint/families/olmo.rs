//! OLMo and OLMo 2: Llama's names; the first with norms that have no weight, the second with norms on the
//! sublayers' outputs.
//!
//! transformers' `OlmoDecoderLayer` and `Olmo2DecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/olmo2/modeling_olmo2.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let mut olmo2 = decoder("olmo2", olmo2_config);
    olmo2
        .block_rules
        .retain(|rule| !rule.role.ends_with("feed_forward_norm"));
    let olmo2 = olmo2.block_rules([
        Rule::norm("attention_output_norm", &["post_attention_layernorm"]),
        Rule::norm("feed_forward_output_norm", &["post_feedforward_layernorm"]),
    ]);
    let tables = [decoder("olmo", olmo_config), olmo2];
    tables.map(|t| t.default_of("pad_token_id", 1)).into()
}

fn olmo_config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.norm = NormConfig::layer_norm(block.d_model(), 1e-5)
        .with_bias(false)
        .with_weight(NormWeight::Absent);
    block.attention.clip = json.optional_number(&["clip_qkv"])?;
    uniform(json, block)
}

fn olmo2_config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.norm.eps = json.number(&["rms_norm_eps"], 1e-5)?;
    block.attention_placement = NormPlacement::Output;
    block.feed_forward_placement = NormPlacement::Output;
    block.attention.query_key_norm = Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Whole));
    uniform(json, block)
}
