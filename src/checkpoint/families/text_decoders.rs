//! Decoders of models that also read or write images: Chameleon's text, TrOCR, PP-FormulaNet and ImageGPT.
//!
//! transformers' `ChameleonDecoderLayer`, `TrOCRDecoderLayer`, `PPFormulaNetDecoderLayer` and `ImageGPTBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/chameleon/modeling_chameleon.py>

use super::bart;
use super::bart_like::sines_except_padding;
use super::encoder_decoder::learned_after_two;
use super::gpt2;
use super::llama::{biased_block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    // The class for language models drops image tokens.
    let chameleon = decoder("chameleon", chameleon)
        .without_heads()
        .block_rules([
            Rule::norm("attention.query_norm.{e}", &["self_attn.q_norm"]).stacked(),
            Rule::norm("attention.key_norm.{e}", &["self_attn.k_norm"]).stacked(),
        ])
        .outside(&["vqmodel.*"]);
    let alone = |name: &str, config| Family {
        part: None,
        ..bart::stack(name, StackPart::Decoder, config).alone()
    };
    let mut trocr = Family {
        part: None,
        ..bart::stack("trocr", StackPart::Decoder, trocr_blocks)
    }
    .head(HeadTask::CausalLm, causal_lm)
    .ignored(&["*.encoder_attn.*", "*.encoder_attn_layer_norm.*"])
    .end_rules([Rule::linear("causal_lm.output", &["output_projection"])])
    .embeddings(trocr_words)
    .outside(&["output_projection.*"]);
    // Beside an encoder, its class attends to that one's output whatever the key says.
    trocr.keys.fixed = json!({"add_cross_attention": true});
    let mut formulas = alone("pp_formulanet_text", |json| {
        let stack = bart::config(json, "decoder", AttentionBias::ALL, NormPlacement::Pre)?;
        Ok(stack.into_decoder())
    });
    formulas.prefixes.push(String::new());
    let formulas = formulas.without_heads().embeddings(learned_after_two);
    let pixels = gpt2::family()
        .named("imagegpt")
        .without_heads()
        .read_by(|json| {
            json.only("add_cross_attention", &[json!(false)])?;
            json.only("is_causal", &[json!(true)])?; // it has a mask of its own
            json.only("tie_word_embeddings", &[json!(false)])?; // which differ in size
            let eps = json.number(&["layer_norm_epsilon"], 1e-5)?;
            let stack = gpt2::config(json)?;
            let norm = NormConfig::rms_norm(stack.blocks[0].d_model(), eps);
            let stack = stack.with_each(|_, block| block.norm = norm);
            Ok(StackConfig {
                final_norm: Some(norm),
                ..stack
            })
        })
        .head(HeadTask::CausalLm, |json, _| {
            // All tokens but the one before an image.
            let n_tokens = json.size(&["vocab_size"])?.saturating_sub(1);
            next_token(OutputConfig::new(n_tokens))
        });
    vec![chameleon, trocr, formulas, pixels]
}

fn chameleon(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(&json.without("head_dim"))?;
    let norm = NormConfig::layer_norm(block.d_model(), 1e-5);
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(norm, QueryKeyNormSpan::EachHead));
    if json.flag(&["swin_norm"], false)? {
        // After their layers, before the residual addition.
        block.attention_placement = NormPlacement::Output;
        block.feed_forward_placement = NormPlacement::Output;
    }
    uniform(json, block)
}

/// Returns TrOCR's blocks, with cross-attention if the file says that there is an encoder.
fn trocr_blocks(json: &ConfigJson) -> Result<StackConfig> {
    let stack = bart::config(json, "decoder", AttentionBias::ALL, NormPlacement::Post)?;
    let has_encoder = json.flag(&["add_cross_attention"], false)?;
    let d_encoder = json.optional_size(&["cross_attention_hidden_size"])?;
    Ok(stack.into_decoder().with_each(|_, block| {
        let cross = block.cross_attention.take().filter(|_| has_encoder);
        block.cross_attention = cross.map(|mut cross| {
            cross.d_encoder = d_encoder.unwrap_or(cross.d_model);
            cross
        });
    }))
}

fn trocr_words(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let is_normed = json.flag(&["layernorm_embedding"], true)?;
    let is_learned = json.flag(&["use_learned_position_embeddings"], true)?;
    let read = match is_learned {
        true => learned_after_two(json, stack)?,
        false => sines_except_padding(json, stack)?,
    };
    let EmbeddingsConfig::Tokens(read) = read else {
        return Ok(read);
    };
    let norm = NormConfig::layer_norm(read.d_model, 1e-5);
    let norm = is_normed.then_some(norm);
    Ok(TokenEmbeddingsConfig { norm, ..read }.into())
}
