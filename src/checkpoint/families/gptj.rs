//! GPT-J and CodeGen: parallel branches after one norm, with partial interleaved rotary embeddings.
//!
//! transformers' `GPTJBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gptj/modeling_gptj.py>, and `CodeGenBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/codegen/modeling_codegen.py>

use super::gpt2::{block, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gptj", &["gptj", "codegen"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::linear("attention.query", &["attn.q_proj"]),
            Rule::linear("attention.key", &["attn.k_proj"]),
            Rule::linear("attention.value", &["attn.v_proj"]),
            Rule::linear("attention.output", &["attn.out_proj"]),
            Rule::linear("feed_forward.up", &["mlp.fc_in"]),
            Rule::linear("feed_forward.down", &["mlp.fc_out"]),
        ])
        .block_rules(Rule::fused_attention(
            &["attn.qkv_proj"],
            FusedLayout::FourShards,
        ))
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .new_names(|json| match json.text(&["model_type"])?.as_deref() {
            Some("codegen") => Ok(&["*.qkv_proj.*"]),
            _ => Ok(&["*.q_proj.*", "*.k_proj.*", "*.v_proj.*"]),
        })
        .decoder_embeddings_and_heads("wte", "classifier")
        .embeddings(|json, stack| {
            let dropout = json.number(&["embd_pdrop"], 0.0)?;
            Ok(token_embeddings(json, stack)?.with_dropout(dropout).into())
        })
        .head(HeadTask::CausalLm, |json, _| {
            next_token(language_model(json)?.with_bias(true))
        })
        .ignored(&["*.attn.bias"])
        .ignored(&["*.attn.causal_mask", "*embed_positions"])
        .outside(&["*wte.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json)?;
    let rotary_dim = json
        .switchable_size("rotary_dim", 64)?
        .ok_or_else(|| json.error(&["rotary_dim"], "found null, expected an integer"))?;
    let rotary = RotaryConfig::new(rotary_dim, 10000.0).with_pairing(RotaryPairing::Interleaved);
    block.attention_mut()?.position = Position::Rotary(rotary);
    block.attention_mut()?.bias = AttentionBias::NONE;
    block.topology = Topology::Parallel(ParallelNorm::Shared);
    uniform(json, block)
}
