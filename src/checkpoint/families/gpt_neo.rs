//! GPT-Neo: GPT-2's names with `nn.Linear` weights, unscaled scores, and alternating local attention.
//!
//! transformers' `GPTNeoBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gpt_neo/modeling_gpt_neo.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("gpt_neo", &["gpt_neo"], config)
        .prefixes(&["transformer.", ""])
        .block("h.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["ln_1"]),
            Rule::linear("attention.query", &["attn.attention.q_proj"]),
            Rule::linear("attention.key", &["attn.attention.k_proj"]),
            Rule::linear("attention.value", &["attn.attention.v_proj"]),
            Rule::linear("attention.output", &["attn.attention.out_proj"]),
            Rule::norm("feed_forward_norm", &["ln_2"]),
            Rule::linear("feed_forward.up", &["mlp.c_fc"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["ln_f"])])
        .decoder_embeddings_and_heads("wte", "classifier")
        .end_rules([Rule::linear("embeddings.position", &["wpe"])])
        .embeddings(embeddings)
        .ignored(&["*.attn.attention.bias"])
        .outside(&["*wte.*", "*wpe.*"])
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let n_positions = json.size(&["max_position_embeddings"])?;
    let embeddings = token_embeddings(json, stack)?.with_positions(n_positions);
    let dropout = json.number(&["embed_dropout"], 0.0)?;
    Ok(embeddings.with_dropout(dropout).into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("is_causal", &[json!(true)])?; // the class always has a causal mask
    let d_model = json.size(&["hidden_size"])?;
    let attention =
        AttentionConfig::new(d_model, json.size(&["num_heads", "num_attention_heads"])?)?
            .causal()
            .with_scale(1.0)
            .with_bias(AttentionBias::new(false, true))
            .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let d_ff = json.size_or(&["intermediate_size"], 4 * d_model)?;
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(d_ff)
        .with_activation(json.activation(&["activation_function"], Activation::GeluTanh)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["resid_dropout"], 0.0)?);
    let n_blocks = json.n_blocks(&["num_layers", "num_hidden_layers"])?;
    let window = json.size_or(&["window_size"], 256)?;
    let kinds = kinds(json, n_blocks)?;
    Ok(
        StackConfig::uniform(block, n_blocks, Some(norm)).with_each_attention(|i, attention| {
            attention.window = (kinds[i] == "local").then_some(window);
        }),
    )
}

/// Returns each layer's kind of attention, `global` or `local`. transformers expands `attention_types`, and then takes
/// `attention_layers` in its place if the file has it.
fn kinds(json: &ConfigJson, n_blocks: usize) -> Result<Vec<String>> {
    let (key, listed) = match json.texts(&["attention_layers"])? {
        Some(listed) => ("attention_layers", Some(listed)),
        None => ("attention_types", json.repeated_texts("attention_types")?), // [[["global", "local"], 12]]
    };
    let usual = || ["global", "local"].iter().cycle().take(24);
    let kinds = listed.unwrap_or_else(|| usual().map(|kind| kind.to_string()).collect());
    if kinds.len() != n_blocks {
        let reason = format!("lists {} layers, expected {n_blocks}", kinds.len());
        return Err(json.error(&[key], reason));
    }
    match kinds
        .iter()
        .find(|kind| !["global", "local"].contains(&kind.as_str()))
    {
        None => Ok(kinds),
        Some(other) => {
            let reason = format!("lists {other:?}, expected \"global\" or \"local\"");
            Err(json.error(&[key], reason))
        }
    }
}
