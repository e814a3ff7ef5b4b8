//! Zamba 2: Mamba-2 in every layer, and before some of them a transformer that these layers share.
//!
//! transformers' `Zamba2HybridLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/zamba2/modeling_zamba2.py>

use super::mamba_mixer::{before_softplus, mixer, rules, with_steps};
use super::prelude::*;
use super::shared_transformers::{rule, stack, table, transformer};

const STEM: &str = "shared_transformer";

pub(super) fn family() -> Family {
    let adapters = [
        ("query", "self_attn.linear_q_adapter_list"),
        ("key", "self_attn.linear_k_adapter_list"),
        ("value", "self_attn.linear_v_adapter_list"),
        ("gate_up", "feed_forward.gate_up_proj_adapter_list"),
    ];
    let factors = |(part, name): (&str, &str)| {
        let (role, name) = (format!("adapters.{{e}}.{part}"), format!("{name}.{{e}}"));
        [(format!("{role}.low"), "0"), (role, "1")]
            .map(|(role, i)| rule(STEM, &role, &format!("{name}.{i}")))
    };
    let halves = [("gate", GateHalf::First), ("up", GateHalf::Second)];
    table("zamba2", zamba2, STEM)
        .block_rules(adapters.into_iter().flat_map(factors))
        .ignored(&["*_adapter_list.*"]) // of uses of another layer, where none is shared
        .block_rules(halves.map(|(role, half)| {
            rule(STEM, role, "feed_forward.gate_up_proj").part(Part::Half(half))
        }))
        .block_rules(rules("mamba"))
        .initialization(initialization)
        .renamed("mamba_n_groups", "mamba_ngroups")
        .renamed("mamba_n_heads", "n_mamba_heads")
        .renamed("mamba_d_head", "mamba_headdim")
}

fn zamba2(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_bias_linear", &[json!(false)])?;
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["rms_norm_eps"], 1e-5)?);
    let length = match json.flag(&["use_long_context"], false)? {
        true => &json.with("max_position_embeddings", 16384),
        false => json,
    };
    let rotates = json.flag(&["use_mem_rope"], false)?;
    let transformer = SharedTransformerConfig {
        adapter_rank: Some(json.size_or(&["adapter_rank"], 128)?),
        adapts_attention: json.flag(&["use_shared_attention_adapter"], false)?,
        ..transformer(length, d_model, rotates.then_some(1e4))?
    };
    // The class reads the smallest step alone.
    let of_mamba = json.without("time_step_limit");
    let of_mamba = of_mamba.with_default("mamba_n_heads", 8);
    let mamba = mixer(&of_mamba.with_default("mamba_d_state", 64), norm)?
        .with_min_step(json.number(&["time_step_min"], 1e-3)?)
        .with_norm_eps(1e-5); // whatever the other norms have
    let n_shared = json.width_or(&["num_mem_blocks"], 1)?;
    stack(json, mamba, norm, &transformer, n_shared, |i| {
        matches!(i, 47 | 51) || (6..=42).contains(&i) && i.is_multiple_of(6)
    })
}

/// transformers' `Zamba2PreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(with_steps(all, before_softplus(json)?))
}
