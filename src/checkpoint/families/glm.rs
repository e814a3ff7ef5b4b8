//! GLM 4 and Helium: Llama's blocks with interleaved rotary embeddings. GLM's are partial, its gate is fused, and GLM 0414
//! has norms before and after each sublayer.
//!
//! transformers' `GlmDecoderLayer`, `Glm4DecoderLayer` and `HeliumDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glm4/modeling_glm4.py>

use super::llama::{block, decoder, decoder_of_hub, uniform, unrotated_block, with_mlp_bias};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let glm = |name: &str, config| decoder(name, config).new_names(|_| Ok(&["*.gate_up_proj.*"]));
    let glm4 = glm("glm4", glm4_config).replace_block_rules(glm4_rules());
    let helium = decoder("helium", helium_config);
    vec![glm("glm", glm_config), glm4, helium, chatglm()]
}

/// The table for ChatGLM 2 and 3 and GLM-4 in the form of their authors' code.
///
/// `SelfAttention` and `MLP`: <https://huggingface.co/zai-org/chatglm3-6b/blob/main/modeling_chatglm.py>
fn chatglm() -> Family {
    decoder_of_hub("chatglm", chatglm_config)
        .prefixes(&["transformer.", ""])
        .block("encoder.layers.{i}.")
        .replace_block_rules(Rule::fused_attention(
            &["self_attention.query_key_value"],
            FusedLayout::Blocks,
        ))
        .replace_block_rules([Rule::linear("attention.output", &["self_attention.dense"])])
        .replace_block_rules(Rule::fused_gate(&["mlp.dense_h_to_4h"], GateHalf::First))
        .replace_block_rules([Rule::linear("feed_forward.down", &["mlp.dense_4h_to_h"])])
        .replace_stack_rules([Rule::norm("final_norm", &["encoder.final_layernorm"])])
        .without_embeddings_and_heads()
        .end_rules([
            Rule::linear("embeddings.word", &["embedding.word_embeddings"]),
            Rule::linear("causal_lm.output", &["output_layer"]),
        ])
        .head(HeadTask::CausalLm, causal_lm)
        .renamed("num_hidden_layers", "num_layers")
        .renamed("num_key_value_heads", "multi_query_group_num")
        .renamed("intermediate_size", "ffn_hidden_size")
        .renamed("head_dim", "kv_channels")
        .renamed("rms_norm_eps", "layernorm_epsilon")
        .renamed("vocab_size", "padded_vocab_size")
        .default_of("rms_norm_eps", 1e-5)
        .new_names(|_| Ok(&["transformer.output_layer.*"])) // which the base model has
        .outside(&["*word_embeddings.*", "*output_layer.*"])
}

fn chatglm_config(json: &ConfigJson) -> Result<StackConfig> {
    for (key, usual) in [
        ("add_bias_linear", json!(false)),
        ("apply_residual_connection_post_layernorm", json!(false)),
        ("multi_query_attention", json!(true)),
        ("original_rope", json!(true)),
        ("post_layer_norm", json!(true)),
        ("pre_seq_len", Value::Null),
        ("rmsnorm", json!(true)),
    ] {
        json.only(key, &[usual])?;
    }
    let theta = 10000.0 * json.number(&["rope_ratio"], 1.0)?;
    let has_bias = json.flag(&["add_qkv_bias"], false)?;
    let json = &json
        .with("rope_theta", theta)
        .with("attention_bias", has_bias);
    let dropout = json.number(&["hidden_dropout"], 0.0)?;
    uniform(json, glm_block(json)?.with_residual_dropout(dropout))
}

/// Rules for GLM 0414's norms after each sublayer.
pub(super) fn glm4_rules() -> [Rule; 2] {
    [
        Rule::norm("attention_output_norm", &["post_self_attn_layernorm"]),
        Rule::norm("feed_forward_output_norm", &["post_mlp_layernorm"]),
    ]
}

fn glm_config(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, glm_block(json)?)
}

fn glm4_config(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, sandwich_block(glm_block(json)?))
}

fn glm_block(json: &ConfigJson) -> Result<BlockConfig> {
    let block = unrotated_block(json, bias_of_inputs(json)?)?;
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.5, 10000.0)?;
    interleaved(block, rotary)
}

fn helium_config(json: &ConfigJson) -> Result<StackConfig> {
    let block = with_mlp_bias(json, block(json, bias_of_inputs(json)?)?)?;
    let rotary = json.rotary(block.attention()?.head_dim, 1e5)?;
    uniform(json, interleaved(block, rotary)?)
}

/// Returns `attention_bias` for queries, keys and values.
pub(super) fn bias_of_inputs(json: &ConfigJson) -> Result<AttentionBias> {
    let has_bias = json.flag(&["attention_bias"], false)?;
    Ok(AttentionBias::new(has_bias, false))
}

/// Returns the block with interleaved rotary embeddings.
pub(super) fn interleaved(mut block: BlockConfig, rotary: RotaryConfig) -> Result<BlockConfig> {
    let rotary = rotary.with_pairing(RotaryPairing::Interleaved);
    block.attention_mut()?.position = Position::Rotary(rotary);
    Ok(block)
}
