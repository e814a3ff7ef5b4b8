//! GPT-J and CodeGen: parallel branches behind one norm, interleaved rotation of a part of each head.
//!
//! transformers' `GPTJBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gptj/modeling_gptj.py>, and `CodeGenBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/codegen/modeling_codegen.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gptj", &["gptj", "codegen"], config)
        .prefixes(&["transformer.", ""])
        .blocks(
            "h.{i}.",
            [
                Rule::norm("attention_norm", &["ln_1"]),
                Rule::linear("attention.query", &["attn.q_proj"]),
                Rule::linear("attention.key", &["attn.k_proj"]),
                Rule::linear("attention.value", &["attn.v_proj"]),
                Rule::linear("attention.output", &["attn.out_proj"]),
                Rule::linear("feed_forward.up", &["mlp.fc_in"]),
                Rule::linear("feed_forward.down", &["mlp.fc_out"]),
            ],
        )
        .block_rules(Rule::fused_attention(
            &["attn.qkv_proj"],
            FusedLayout::FourShards,
        ))
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .new_names(|json| match json.text(&["model_type"])?.as_deref() {
            Some("codegen") => Ok(&["*.qkv_proj.*"]),
            _ => Ok(&["*.q_proj.*", "*.k_proj.*", "*.v_proj.*"]),
        })
        .ignored(&[
            "*.attn.bias",
            "*.attn.masked_bias",
            "*.attn.causal_mask",
            "*embed_positions",
        ])
        .outside(&["*wte.*", "lm_head.*", "score.*", "qa_outputs.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["n_embd", "hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["n_head", "num_attention_heads"])?)?;
    let turning = json
        .switchable_size("rotary_dim", 64)?
        .ok_or_else(|| json.error(&["rotary_dim"], "found null, expected a whole number"))?;
    let rotary = RotaryConfig::new(turning, 10000.0).with_pairing(RotaryPairing::Interleaved);
    let attention = attention
        .causal()
        .with_position(Position::Rotary(rotary))
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attn_pdrop"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.optional_size(&["n_inner"])?.unwrap_or(4 * d_model))
        .with_activation(json.activation(&["activation_function"], Activation::GeluTanh)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_topology(Topology::Parallel(ParallelNorm::Shared))
        .with_residual_dropout(json.number(&["resid_pdrop"], 0.0)?);
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}
