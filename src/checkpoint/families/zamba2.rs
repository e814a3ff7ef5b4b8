//! Zamba 2: Mamba-2 in every layer, and before some of them a transformer that these layers share.
//!
//! transformers' `Zamba2HybridLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/zamba2/modeling_zamba2.py>

use super::layer_types::LINEAR;
use super::llama::decoder;
use super::mamba_mixer::{before_softplus, mixer, rules, with_steps};
use super::prelude::*;

/// A layer that runs a shared transformer before its Mamba-2.
const HYBRID: &str = "hybrid";

pub(super) fn family() -> Family {
    let linear = |role: &str, name: &str| {
        Rule::linear(
            &format!("transformer.{role}"),
            &[&format!("shared_transformer.{name}")],
        )
    };
    let adapters = [
        ("query", "self_attn.linear_q_adapter_list"),
        ("key", "self_attn.linear_k_adapter_list"),
        ("value", "self_attn.linear_v_adapter_list"),
        ("gate_up", "feed_forward.gate_up_proj_adapter_list"),
    ];
    let factors = |(part, name): (&str, &str)| {
        let (role, name) = (format!("adapters.{{e}}.{part}"), format!("{name}.{{e}}"));
        [(format!("{role}.low"), "0"), (role, "1")]
            .map(|(role, i)| linear(&role, &format!("{name}.{i}")))
    };
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    decoder("zamba2", zamba2)
        .block_rules(projections(
            "transformer.attention",
            "shared_transformer.self_attn",
            names,
        ))
        .block_rules(adapters.into_iter().flat_map(factors))
        .block_rules([
            linear("attention_norm", "input_layernorm"),
            linear("feed_forward_norm", "pre_ff_layernorm"),
            linear("gate_up", "feed_forward.gate_up_proj"),
            linear("down", "feed_forward.down_proj"),
            Rule::linear("transformer_output", &["linear"]),
        ])
        .block_rules(rules("mamba"))
        .within_block(|block, role| {
            let transforms = |of: &ZambaConfig| of.transformer.is_some();
            let is_hybrid = block.own.zamba().is_some_and(transforms);
            match is_hybrid && !role.starts_with("transformer") {
                true => "mamba_decoder.",
                false => "",
            }
        })
        .ignored(&["*.shared_transformer.*"]) // of later uses, which transformers ties to the first
        .replace_stack_rules([Rule::norm("final_norm", &["final_layernorm"])])
        .initialization(initialization)
        .renamed("layer_types", "layers_block_type")
        .renamed("mamba_n_groups", "mamba_ngroups")
        .renamed("mamba_n_heads", "n_mamba_heads")
        .renamed("mamba_d_head", "mamba_headdim")
}

fn zamba2(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_bias_linear", &[json!(false)])?;
    json.only("is_causal", &[json!(true)])?;
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["rms_norm_eps"], 1e-5)?);
    let transformer = transformer(json, d_model)?;
    // The class reads the smallest step alone.
    let of_mamba = json.without("time_step_limit");
    let of_mamba = of_mamba.with_default("mamba_n_heads", 8);
    let mamba = mixer(&of_mamba.with_default("mamba_d_state", 64), norm)?
        .with_min_step(json.number(&["time_step_min"], 1e-3)?)
        .with_norm_eps(1e-5); // whatever the other norms have
    let n_layers = json.n_blocks(&["num_hidden_layers"])?;
    let kind = |i: usize| match i {
        47 | 51 => HYBRID,
        6..=42 if i.is_multiple_of(6) => HYBRID,
        _ => LINEAR,
    };
    let known = [LINEAR, HYBRID, "mamba"]; // the last is an older name
    let kinds = json.layer_types(n_layers, &known, kind)?;
    let hybrids: Vec<usize> = (0..n_layers).filter(|&i| kinds[i] == HYBRID).collect();
    let n_shared = json.width_or(&["num_mem_blocks"], 1)?;
    let own = OwnConfig::Zamba(ZambaConfig::default());
    let block = BlockConfig::of_mixer(mamba, norm).with_own(own);
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

/// Returns the shared transformer, as the first use has it.
fn transformer(json: &ConfigJson, d_model: usize) -> Result<SharedTransformerConfig> {
    let json = &match json.flag(&["use_long_context"], false)? {
        true => json.with("max_position_embeddings", 16384),
        false => json.clone(),
    };
    let (wide, n_heads) = (2 * d_model, json.size(&["num_attention_heads"])?);
    let head_dim = wide.checked_div(n_heads).unwrap_or(0);
    json.only("attention_hidden_size", &[json!(wide)])?;
    json.only("attention_head_dim", &[json!(head_dim)])?;
    let position = match json.flag(&["use_mem_rope"], false)? {
        true => Position::Rotary(json.rotary(head_dim, 1e4)?),
        false => Position::None,
    };
    let attention = AttentionConfig::with_head_dim(wide, n_heads, head_dim)
        .with_kv_heads(
            json.optional_size(&["num_key_value_heads"])?
                .unwrap_or(n_heads),
        )
        .with_scale((head_dim as f64 / 2.0).powf(-0.5))
        .with_position(position)
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?)
        .causal();
    Ok(SharedTransformerConfig {
        attention,
        d_ff: json
            .optional_size(&["intermediate_size"])?
            .unwrap_or(4 * d_model),
        activation: json.activation(&["hidden_act"], Activation::Gelu)?,
        adapter_rank: json.size_or(&["adapter_rank"], 128)?,
        adapts_attention: json.flag(&["use_shared_attention_adapter"], false)?,
        block: 0,
        number: 0,
        uses: vec![],
    })
}

/// transformers' `Zamba2PreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(with_steps(all, before_softplus(json)?))
}
