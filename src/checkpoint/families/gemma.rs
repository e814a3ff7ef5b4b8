//! Gemma 1, 2 and 3 (text): Llama's names and norms with `1 + w`; Gemma 2 and 3 also have norms after each sublayer.
//! VaultGemma is Gemma 2 without these.
//!
//! transformers' `GemmaDecoderLayer`, `Gemma2DecoderLayer` and `Gemma3DecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3/modeling_gemma3.py>

use super::beside::of_text_or_alone;
use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        gemma_decoder("gemma", gemma),
        sandwich_table("gemma2", gemma2),
        sandwich_table("gemma3_text", gemma3),
        sandwich_table("vaultgemma", vaultgemma),
        of_text_or_alone(sandwich_table("gemma3", with_images)).head(HeadTask::CausalLm, causal_lm),
    ]
}

fn gemma_decoder(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config).embeddings(|json, stack| Ok(scaled_token_embeddings(json, stack)?.into()))
}

/// The table for models with norms before and after each sublayer.
pub(super) fn sandwich_table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    let table = gemma_decoder(name, config).replace_block_rules([
        Rule::norm("attention_output_norm", &["post_attention_layernorm"]),
        Rule::norm("feed_forward_norm", &["pre_feedforward_layernorm"]),
        Rule::norm("feed_forward_output_norm", &["post_feedforward_layernorm"]),
    ]);
    table.head(HeadTask::CausalLm, |json, _| {
        let keys = ["final_logit_softcapping"];
        let cap = json.optional_number(&keys)?;
        let cap = cap.map(|cap| json.positive(cap, &keys)).transpose()?;
        next_token(language_model(json)?.with_soft_cap(cap))
    })
}

/// Returns token embeddings times the square root of the width.
pub(super) fn scaled_token_embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<TokenEmbeddingsConfig> {
    let scale = (stack.blocks[0].d_model() as f64).sqrt();
    Ok(padded_token_embeddings(json, stack)?.with_scale(scale))
}

fn gemma(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = gemma_block(json)?;
    json.only("hidden_activation", &[json!("gelu_pytorch_tanh")])?; // transformers uses hidden_act
    block.feed_forward.activation = match json.text(&["hidden_act"])?.as_deref() {
        Some("gelu") => Activation::GeluTanh, // the first files say this and mean the tanh variant
        _ => json.activation(&["hidden_act"], Activation::GeluTanh)?,
    };
    uniform(json, block)
}

pub(super) fn gemma2(json: &ConfigJson) -> Result<StackConfig> {
    let cap = json.switchable_number("attn_logit_softcapping", 50.0)?;
    sandwich(json, cap)
}

fn vaultgemma(json: &ConfigJson) -> Result<StackConfig> {
    let stack = gemma2(json)?;
    Ok(stack.with_each(|_, block| {
        block.attention_placement = NormPlacement::Pre;
        block.feed_forward_placement = NormPlacement::Pre;
    }))
}

fn sandwich(json: &ConfigJson, soft_cap: Option<f64>) -> Result<StackConfig> {
    let mut block = sandwich_block(gemma_block(json)?);
    block.attention_mut()?.scale = json.number(&["query_pre_attn_scalar"], 256.0)?.powf(-0.5);
    block.attention_mut()?.soft_cap = soft_cap;
    let window = json.switchable_size("sliding_window", 4096)?;
    let stack = uniform(json, block)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| i.is_multiple_of(2))?;
    Ok(stack
        .with_each_attention(|i, attention| attention.window = window.filter(|_| is_sliding[i])))
}

fn gemma3(json: &ConfigJson) -> Result<StackConfig> {
    // transformers' class has a key for a soft cap, but does not apply it.
    let stack = sandwich(json, None)?;
    let head_dim = stack.blocks[0].attention()?.head_dim;
    let local = json.rotary_of_type(
        "sliding_attention",
        "rope_local_base_freq",
        head_dim,
        10000.0,
    )?;
    let global = global_rotary(json, head_dim, 1e6)?;
    let is_bidirectional = json.flag(&["use_bidirectional_attention"], false)?; // EmbeddingGemma
    let window = json.switchable_size("sliding_window", 4096)?;
    let (visibility, window) = match is_bidirectional {
        true => (Visibility::Bidirectional, window.map(|window| window / 2)), // on each side
        false => (Visibility::Causal, window),
    };
    let period = json.size_or(&["sliding_window_pattern"], 6)?;
    let is_sliding =
        json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(period))?;
    let norm = QueryKeyNorm::new(stack.blocks[0].norm, QueryKeyNormSpan::Head);
    Ok(stack.with_each_attention(|i, attention| {
        attention.query_key_norm = Some(norm);
        attention.visibility = visibility;
        attention.window = window.filter(|_| is_sliding[i]);
        let rotary = if is_sliding[i] { &local } else { &global };
        attention.position = Position::Rotary(rotary.clone());
    }))
}

/// Reads Gemma as a larger model's text stack, whose class interprets this key differently and does not cap logits.
fn with_images(json: &ConfigJson) -> Result<StackConfig> {
    json.only("use_bidirectional_attention", &[json!(false)])?;
    gemma3(json)
}

/// Returns the rotation for layers without a window; newer files have separate parameters for it.
pub(super) fn global_rotary(
    json: &ConfigJson,
    head_dim: usize,
    default_theta: f64,
) -> Result<RotaryConfig> {
    let key = ["rope_scaling"];
    let scaling = json.section(&key)?;
    match json.section(&["rope_parameters"])? {
        Some(_) if scaling.is_some_and(|scaling| scaling.keys().next().is_some()) => {
            // transformers merges one into the other.
            Err(json.error(&key, "is beside rope_parameters; leave one of them out"))
        }
        Some(_) => json.rotary_of_type("full_attention", "rope_theta", head_dim, default_theta),
        None => json.rotary(head_dim, default_theta),
    }
}

fn gemma_block(json: &ConfigJson) -> Result<BlockConfig> {
    let mut block = block(json, bias(json)?)?;
    block.norm.weight = NormWeight::OnePlus;
    block.feed_forward.activation =
        json.activation(&["hidden_activation"], Activation::GeluTanh)?;
    Ok(block)
}
