//! DeBERTa v2 and v3: bucketed distances, and content projections that may also serve positions.
//!
//! transformers' `DebertaV2Layer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deberta_v2/modeling_deberta_v2.py>

use super::deberta;
use super::disentangled::{disentangled, distances};
use super::prelude::*;

pub(super) fn family() -> Family {
    let linear = |role, name: &str| Rule::linear(role, &[&format!("attention.self.{name}")]);
    deberta::encoder("deberta-v2", config)
        .replace_block_rules([
            linear("attention.query", "query_proj"),
            linear("attention.key", "key_proj"),
            linear("attention.value", "value_proj"),
        ])
        .block_rules([
            linear("attention.position_key", "pos_key_proj"),
            linear("attention.position_query", "pos_query_proj"),
        ])
        .stack_rules([Rule::norm(
            "relative_embeddings_norm",
            &["encoder.LayerNorm"],
        )])
        .end_rules([Rule::linear("multiple_choice.transform", &["pooler.dense"])])
        .head(HeadTask::MultipleChoice, |json, stack| {
            deberta::first(json, stack, OutputConfig::number())
        })
        .outside(&["encoder.LayerNorm.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("conv_kernel_size", &[json!(0)])?; // else a convolution after the first block
    let buckets = json.optional_number(&["position_buckets"])?;
    let read = match buckets.filter(|&buckets| buckets > 0.0) {
        Some(buckets) => DisentangledConfig {
            max_distance: Some(distances(json)?),
            ..DisentangledConfig::new(buckets as usize)
        },
        None => DisentangledConfig::new(distances(json)?),
    };
    let projections = match json.flag(&["share_att_key"], false)? {
        true => PositionProjections::Shared,
        false => PositionProjections::Own {
            key_bias: true,
            query_bias: true,
        },
    };
    let mut stack = disentangled(json, read, projections)?;
    let d_model = stack.blocks[0].d_model();
    let head_dim = stack.blocks[0].attention()?.head_dim;
    json.only("attention_head_size", &[json!(head_dim)])?;
    if let Some(table) = &mut stack.relative_embeddings {
        let norms = json.text(&["norm_rel_ebd"])?.unwrap_or_default();
        let mut norms = norms.split('|').map(str::trim);
        if norms.any(|norm| norm.eq_ignore_ascii_case("layer_norm")) {
            table.norm = Some(NormConfig::layer_norm(d_model, stack.blocks[0].norm.eps));
        }
    }
    Ok(stack)
}
