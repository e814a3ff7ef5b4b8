//! Transformers that several layers share, which Zamba and Zamba 2 have.

use super::layer_types::LINEAR;
use super::llama::decoder;
use super::prelude::*;

/// A layer that runs a shared transformer before its mixer.
const HYBRID: &str = "hybrid";

/// Makes a decoder's table. Some layers run a shared transformer, which each names `stem`.
pub(super) fn table(
    name: &str,
    config: fn(&ConfigJson) -> Result<StackConfig>,
    stem: &str,
) -> Family {
    let of = |role: &str, name: &str| rule(stem, role, name);
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    decoder(name, config)
        .block_rules(projections(
            "transformer.attention",
            &format!("{stem}.self_attn"),
            names,
        ))
        .block_rules([
            of("attention_norm", "input_layernorm"),
            of("feed_forward_norm", "pre_ff_layernorm"),
            of("down", "feed_forward.down_proj"),
            Rule::linear("transformer_output", &["linear"]),
        ])
        .within_block(|block, role| {
            let transforms = |of: &ZambaConfig| of.transformer.is_some();
            let is_hybrid = block.own.zamba().is_some_and(transforms);
            match is_hybrid && !role.starts_with("transformer") {
                true => "mamba_decoder.",
                false => "",
            }
        })
        .replace_stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .renamed("layer_types", "layers_block_type")
}

/// Returns the rule for a linear layer or a norm in the transformer.
pub(super) fn rule(stem: &str, role: &str, name: &str) -> Rule {
    Rule::linear(&format!("transformer.{role}"), &[&format!("{stem}.{name}")])
}

/// Returns a stack in which some mixers follow a shared transformer, each of `n_shared` in turn. If the file does not list the
/// layers' types, `is_hybrid` selects them.
pub(super) fn stack(
    json: &ConfigJson,
    mixer: impl Into<MixerConfig>,
    norm: NormConfig,
    transformer: &SharedTransformerConfig,
    n_shared: usize,
    is_hybrid: impl Fn(usize) -> bool,
) -> Result<StackConfig> {
    let n_layers = json.n_blocks(&["num_hidden_layers"])?;
    let known = [LINEAR, HYBRID, "mamba"]; // the last is an older name
    let kinds = json.layer_types(n_layers, &known, |i| match is_hybrid(i) {
        true => HYBRID,
        false => LINEAR,
    })?;
    let hybrids: Vec<usize> = (0..n_layers).filter(|&i| kinds[i] == HYBRID).collect();
    // transformers ties neither words nor transformers without this key.
    let n_shared = match json.flag(&["tie_word_embeddings"], true)? {
        true => n_shared,
        false => hybrids.len().max(1),
    };
    let own = OwnConfig::Zamba(ZambaConfig::default());
    let block = BlockConfig::of_mixer(mixer, norm).with_own(own);
    let stack = StackConfig::uniform(block, n_layers, Some(norm));
    Ok(stack.with_each(|i, block| {
        let Some(number) = hybrids.iter().position(|&of| of == i) else {
            return;
        };
        let first = number % n_shared;
        let uses = (first..hybrids.len()).step_by(n_shared);
        let used = SharedTransformerConfig {
            block: hybrids[first],
            number,
            uses: uses.filter(|_| number == first).collect(),
            ..transformer.clone()
        };
        block.own = OwnConfig::Zamba(ZambaConfig {
            transformer: Some(Box::new(used)),
        });
    }))
}

/// Returns the transformer without adapters, with rotary positions of this base or none.
pub(super) fn transformer(
    json: &ConfigJson,
    d_model: usize,
    rotary_base: Option<f64>,
) -> Result<SharedTransformerConfig> {
    json.only("is_causal", &[json!(true)])?;
    let (wide, n_heads) = (2 * d_model, json.size(&["num_attention_heads"])?);
    let head_dim = wide.checked_div(n_heads).unwrap_or(0);
    json.only("attention_hidden_size", &[json!(wide)])?;
    json.only("attention_head_dim", &[json!(head_dim)])?;
    let position = match rotary_base {
        Some(base) => Position::Rotary(json.rotary(head_dim, base)?),
        None => Position::None,
    };
    let n_kv_heads = json.optional_size(&["num_key_value_heads"])?;
    let attention = AttentionConfig::with_head_dim(wide, n_heads, head_dim)
        .with_kv_heads(n_kv_heads.unwrap_or(n_heads))
        .with_scale((head_dim as f64 / 2.0).powf(-0.5))
        .with_position(position)
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?)
        .causal();
    let d_ff = json.optional_size(&["intermediate_size"])?;
    Ok(SharedTransformerConfig {
        attention,
        d_ff: d_ff.unwrap_or(4 * d_model),
        activation: json.activation(&["hidden_act"], Activation::Gelu)?,
        adapter_rank: None,
        adapts_attention: false,
        block: 0,
        number: 0,
        uses: vec![],
    })
}
