//! HunYuan, dense and with experts: Llama's blocks with query and key norms after the rotation.
//!
//! transformers' `HunYuanDenseV1Attention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py>

use super::llama::{bias, block, decoder, uniform};
use super::mixtral::expert_rules;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let experts = table("hunyuan_v1_moe", experts)
        .block_rules(expert_rules())
        .replace_block_rules([Rule::linear("feed_forward.router", &["mlp.gate.wg"])])
        .block_rules(gated("feed_forward.shared", "mlp.shared_mlp"));
    vec![table("hunyuan_v1_dense", config), experts]
}

pub(super) fn table(name: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    decoder(name, config).replace_block_rules([
        Rule::norm("attention.query_norm", &["self_attn.query_layernorm"]),
        Rule::norm("attention.key_norm", &["self_attn.key_layernorm"]),
    ])
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json, bias(json)?)?;
    block.attention_mut()?.query_key_norm =
        Some(QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Head).after_rotation());
    if let Some(alpha) = alpha(json)?
        && let Position::Rotary(rotary) = &mut block.attention_mut()?.position
    {
        let dim = rotary.dim as f64;
        rotary.theta *= alpha.powf(dim / (dim - 2.0));
        rotary.scaling = RotaryScaling::None;
    }
    uniform(json, block)
}

fn experts(json: &ConfigJson) -> Result<StackConfig> {
    let top_k = json.size_or(&["moe_topk", "num_experts_per_tok"], 1)?;
    let n_experts = json.size_or(&["num_experts", "num_local_experts"], 1)?;
    let stack = config(json)?;
    Ok(stack.with_each(|_, block| {
        let d_ff = block.feed_forward.d_ff;
        let shared = SharedExpertConfig { d_ff, gate: false };
        let experts = ExpertsConfig::new(n_experts, RoutingConfig::renormalized(top_k));
        block.feed_forward.experts = Some(experts.with_shared(Some(shared)));
    }))
}

/// Returns `alpha`. With it, "dynamic" in published files means a larger base for every length.
fn alpha(json: &ConfigJson) -> Result<Option<f64>> {
    let Some(parameters) = json.rotary_section()? else {
        return Ok(None);
    };
    let kind = parameters.text(&["rope_type", "type"])?;
    let alpha = parameters.optional_number(&["alpha"])?;
    Ok(alpha.filter(|&alpha| kind.as_deref() == Some("dynamic") && alpha != 0.0))
}
