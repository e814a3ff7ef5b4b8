//! The text encoder of Dia, and the decoders of Canary and Pix2Struct as models of their own.
//!
//! transformers' `DiaEncoder`, `CanaryDecoder` and `Pix2StructTextModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/canary/modeling_canary.py>

use super::llama::{self, block, uniform};
use super::prelude::*;
use super::t5;

pub(super) fn families() -> Vec<Family> {
    vec![dia(), canary(), pix2struct()]
}

/// The table for Dia's texts: Llama's blocks with scores that are not scaled, in which every byte attends to all.
fn dia() -> Family {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    llama::decoder("dia_encoder", |json| {
        let mut block = block(&json.without("attention_dropout"), AttentionBias::NONE)?;
        block.attention_mut()?.scale = 1.0;
        block.attention_mut()?.visibility = Visibility::Bidirectional;
        uniform(json, block)
    })
    .without_embeddings_and_heads()
    .prefixes(&["model.encoder.", "encoder.", ""])
    .replace_block_rules(projections("attention", "self_attention", names))
    .replace_block_rules([
        Rule::norm("attention_norm", &["pre_sa_norm"]),
        Rule::norm("feed_forward_norm", &["post_sa_norm"]),
    ])
    .end_rules([Rule::linear("embeddings.word", &["embedding"])])
    .embeddings(|json, stack| Ok(token_embeddings(json, stack)?.into()))
    .renamed("rms_norm_eps", "norm_eps")
    .new_names(|_| Ok(&["*.gate_up_proj.*"]))
    .outside(&["embedding.*"])
}

/// The table for Canary's decoder without its cross-attention, which transformers too computes only if there is an encoder's output.
fn canary() -> Family {
    llama::decoder("canary_decoder", |json| {
        let mut block = block(json, llama::bias(json)?)?;
        block.attention_mut()?.position = Position::None;
        block.norm = NormConfig::layer_norm(block.d_model(), 1e-5);
        block.feed_forward = block
            .feed_forward
            .with_form(FeedForwardForm::Plain)
            .with_bias(true);
        uniform(json, block)
    })
    .without_heads()
    .prefixes(&["model.decoder.", "decoder.", ""])
    .replace_block_rules([
        Rule::norm("feed_forward_norm", &["final_layernorm"]),
        Rule::linear("feed_forward.up", &["mlp.fc1"]),
        Rule::linear("feed_forward.down", &["mlp.fc2"]),
    ])
    .end_rules([Rule::norm("embeddings.norm", &["embedding_layernorm"])])
    .embeddings(|json, stack| {
        let embeddings = padded_token_embeddings(json, stack)?;
        let positions = PositionTableConfig {
            n_rows: json.size_or(&["max_position_embeddings"], 1024)?,
            vectors: PositionVectors::Sines(LastFrequency::Before),
            ..ALL_POSITIONS
        };
        // transformers divides the positions by the square root of the width. The norm takes that factor from the whole sum, if its
        // eps grows with the sum's square.
        let width = embeddings.d_model as f64;
        let norm = NormConfig::layer_norm(embeddings.d_model, 1e-5 * width);
        Ok(embeddings
            .with_scale(width.sqrt())
            .with_norm(norm)
            .with_position_table(positions)
            .into())
    })
    .ignored(&["*.encoder_attn.*", "*.post_attention_layernorm.*"])
    .outside(&["embedding_layernorm.*"])
}

/// The table for Pix2Struct's decoder without its cross-attention: T5's with a gate.
fn pix2struct() -> Family {
    let of = |role: &str, name: &str| {
        let name = format!("mlp.DenseReluDense.{name}");
        Rule::linear(&format!("feed_forward.{role}"), &[&name])
    };
    let bias = "layer.0.self_attention.attention.relative_attention_bias";
    Family::new(
        "pix2struct_text_model",
        &["pix2struct_text_model"],
        |json| {
            json.only("is_decoder", &[json!(true)])?;
            let json = &json.with("is_gated_act", true).without("head_dim");
            let stack = t5::decoder(&json.without("feed_forward_proj"))?;
            let attention = stack.blocks[0].attention()?;
            if attention.n_heads * attention.head_dim != attention.d_model {
                return Err(json.error(&["d_kv"], "times num_heads must be hidden_size"));
            }
            Ok(stack.with_each(|_, block| block.cross_attention = None))
        },
    )
    .prefixes(&[""])
    .block("layer.{i}.")
    .block_rules(projections(
        "attention",
        "self_attention.attention",
        ["query", "key", "value", "output"],
    ))
    .block_rules([
        Rule::norm("attention_norm", &["self_attention.layer_norm"]),
        Rule::norm("feed_forward_norm", &["mlp.layer_norm"]),
        of("gate", "wi_0"),
        of("up", "wi_1"),
        of("down", "wo"),
    ])
    .stack_rules([
        Rule::linear("relative_bias", &[bias]),
        Rule::norm("final_norm", &["final_layer_norm"]),
    ])
    .decoder_embeddings_and_heads("embed_tokens", "score")
    .without_heads()
    .embeddings(t5::embeddings)
    .head(HeadTask::CausalLm, causal_lm)
    .ignored(&["*encoder_decoder_attention.*"])
    .outside(&["embed_tokens.*", "encoder.*"])
}
