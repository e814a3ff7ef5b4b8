//! The vision towers of BridgeTower and TIPSv2: CLIP's under OpenCLIP's names, and DINOv2's.
//!
//! transformers' `BridgeTowerVisionModel` and `Tipsv2VisionModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/tipsv2/modeling_tipsv2.py>

use super::clip::{self, VISION, end_of_text, towers};
use super::prelude::*;
use super::tower::open_clip_rules;
use super::{dinov2, patches};

pub(super) fn families() -> Vec<Family> {
    vec![bridge_tower(), tipsv2()]
}

/// The table for BridgeTower's images. Its heads are 64 wide, and the norm after the blocks applies to all positions.
fn bridge_tower() -> Family {
    let [_, vision] = towers("bridgetower", end_of_text);
    let mut table = vision.named("bridgetower_vision_model").without_heads();
    table.block_rules.clear();
    table.stack_rules.clear();
    table.pooler = None;
    table
        .prefixes(&["vision_model.visual.", "visual.", ""])
        .block("transformer.resblocks.{i}.")
        .block_rules(open_clip_rules())
        .stack_rules([Rule::norm("final_norm", &["ln_post"])])
        .replace_end_rules([Rule::norm("embeddings.norm", &["ln_pre"])])
        .read_by(|json| {
            json.only("share_layernorm", &[json!(true)])?;
            json.only("remove_last_layer", &[json!(false)])?;
            let d_model = json.size_or(&["hidden_size"], 768)?;
            let json = &json.with("num_attention_heads", (d_model / 64).max(1));
            let json = &json.with("intermediate_size", d_model.saturating_mul(4));
            VISION.config(&json.without("hidden_act").without("attention_dropout"))
        })
        .embeddings(|json, stack| clip::images(json, stack, [288, 16]))
        .initialization(initializer_range::normal)
        .outside(&["ln_pre.*", "ln_post.*"])
}

fn tipsv2() -> Family {
    let token = |role: &str, name: &str, n: usize| Rule::with_leading_ones(role, &[name], n);
    let mut table = dinov2::family()
        .named("tipsv2_vision_model")
        .without_embeddings_and_heads();
    table.block_rules.clear();
    table.stack_rules.clear();
    table
        .part(StackPart::Vision)
        .read_by(|json| masked(json, dinov2::config(json)?))
        .prefixes(&["vision_encoder.", ""])
        .block("blocks.{i}.")
        .block_rules(Rule::fused_attention(&["attn.qkv"], FusedLayout::Blocks))
        .block_rules(Rule::fused_gate(&["mlp.w12"], GateHalf::First))
        .block_rules([
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("attention.output", &["attn.proj"]),
            Rule::named("attention_layer_scale", &["ls1.gamma"], &[]),
            Rule::norm("feed_forward_norm", &["norm2"]),
            Rule::linear("feed_forward.up", &["mlp.c_fc"]),
            Rule::linear("feed_forward.down", &["mlp.c_proj", "mlp.w3"]),
            Rule::named("feed_forward_layer_scale", &["ls2.gamma"], &[]),
        ])
        .stack_rules([Rule::norm("final_norm", &["norm"])])
        .end_rules([
            Rule::linear("embeddings.patch", &["patch_embed.proj"]),
            token("embeddings.class_token", "cls_token", 2),
            token("embeddings.registers", "register_tokens", 1),
            token("embeddings.position", "pos_embed", 1),
        ])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
                n_registers: json.size_or(&["num_register_tokens"], 1)?,
                resizing: Resizing::SmoothLinear,
                dropout: json.number(&["hidden_dropout_prob"], 0.0)?,
                ..patches::config(json, stack.blocks[0].d_model(), [448, 14])?
            }))
        })
        .new_names(|json| {
            Ok(match json.flag(&["use_swiglu_ffn"], false)? {
                true => &["*.w12.*", "*.w3.*"],
                false => &["*.c_fc.*"],
            })
        })
        .outside(&["patch_embed.*", "*_token*", "pos_embed"])
}
