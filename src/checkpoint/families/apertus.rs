//! Apertus: Llama's blocks with query and key norms, and a feed-forward without a gate whose xIELU activation has two
//! learned parameters.
//!
//! transformers' `ApertusDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/apertus/modeling_apertus.py>

use super::llama::{bias, block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    // Apertus 1.5, whose output layer may lack the tokens of pictures and sound.
    let text = table("apertus1p5_text").head(HeadTask::CausalLm, |json, stack| {
        match json.optional_size(&["output_vocab_size"])? {
            Some(n) => causal_lm(&json.with("vocab_size", n), stack),
            None => causal_lm(json, stack),
        }
    });
    vec![table("apertus"), text]
}

fn table(name: &str) -> Family {
    let number = |role: &str, name: &str| {
        let role = format!("feed_forward.xielu.{role}");
        Rule::named(&role, &[&format!("mlp.act_fn.{name}")], &[])
    };
    decoder(name, config).replace_block_rules([
        Rule::norm("attention_norm", &["attention_layernorm"]),
        Rule::norm("feed_forward_norm", &["feedforward_layernorm"]),
        number("positive", "alpha_p"),
        number("negative", "alpha_n"),
        number("slope", "beta"),
        number("knee", "eps"),
    ])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let stretched = json!({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let json = match json.rotary_section()? {
        Some(_) => json,
        None => &json.with_default("rope_parameters", stretched),
    };
    json.only("hidden_act", &[json!("xielu")])?;
    let mut block = block(&json.without("hidden_act"), bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head));
    block.feed_forward.form = FeedForwardForm::Plain;
    block.feed_forward.xielu = Some(XieluConfig::default());
    block.feed_forward = block.feed_forward.with_bias(false);
    uniform(json, block)
}
