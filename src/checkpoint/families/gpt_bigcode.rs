//! GPT-BigCode (StarCoder, SantaCoder): GPT-2 with `nn.Linear` weights and one key/value head.
//!
//! transformers' `GPTBigCodeBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt_bigcode/modeling_gpt_bigcode.py>

use super::gpt2::{block, embeddings, initialization, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gpt_bigcode", &["gpt_bigcode"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::linear("attention.output", &["attn.c_proj"]),
            Rule::norm("feed_forward_norm", &["ln_2"]),
            Rule::linear("feed_forward.up", &["mlp.c_fc"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj"]),
        ])
        // One group with all queries, or one group for each head.
        .block_rules(Rule::fused_attention(
            &["attn.c_attn"],
            FusedLayout::PerGroup,
        ))
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .decoder_embeddings_and_heads("wte", "classifier")
        .end_rules([Rule::linear("embeddings.position", &["wpe"])])
        .embeddings(embeddings)
        .ignored(&["*.attn.bias"])
        .outside(&["*wte.*", "*wpe.*"])
        .initialization(initialization)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_cross_attention", &[json!(false)])?;
    let mut block = block(json)?;
    if json.flag(&["multi_query"], true)? {
        block.attention_mut()?.n_kv_heads = 1;
    }
    if !json.flag(&["scale_attn_weights"], true)? {
        block.attention_mut()?.scale = 1.0;
    }
    uniform(json, block)
}
