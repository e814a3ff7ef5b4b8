//! Models of which the blocks alone are loaded, because their embeddings are their own. LayoutLM, MarkupLM, TAPAS and RoCBert have BERT's
//! blocks, and ViLT, ViViT, VideoMAE, AST, DPT and FLAVA's multimodal encoder ViT's. Decision Transformer has GPT-2's, the
//! vision encoders of Idefics 2 and 3, SmolVLM, Granite Docling and Phi-4 multimodal SigLIP's, and CSM and AIMv2's vision tower Llama's.
//!
//! transformers' `ViltLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/vilt/modeling_vilt.py>;
//! the others are in folders beside it.

use super::prelude::*;
use super::tower::tower;
use super::{bert, bert_like, gpt2, llama, siglip, towers_alone, vit};

pub(super) fn families() -> Vec<Family> {
    let bert = |name: &str| {
        let prefix = format!("{name}.");
        let table = bert_like::encoder(bert::encoder(name, &prefix));
        only(table.outside(&["output_*", "column_output_*", "aggregation_classifier.*"]))
    };
    let vit = |name: &str, prefix: &str| {
        let table = vit::blocks(name, &[prefix, ""]);
        only(table.read_by(|json| vit::config(&json.without("head_dim")))).outside(&[
            "cls_token",
            "neck.*",
            "head.*",
        ])
    };
    let siglip = |name: &str| {
        let table = Family::new(name, &[name], |json| siglip::VISION.config(json));
        let table = tower(table, StackPart::Vision);
        only(table.prefixes(&["model.vision_model.", "vision_model.", ""]))
    };
    let mut steps = only(gpt2::family().named("decision_transformer"));
    steps.ignored.clear();
    vec![
        bert("layoutlm"),
        bert("markuplm"),
        bert("tapas"),
        bert("roc_bert").read_by(bert::config),
        vit("vilt", "vilt.").outside(&["mlm_score.*", "rank_output.*"]),
        vit("vivit", "vivit.").read_by(vit::config),
        vit(
            "audio-spectrogram-transformer",
            "audio_spectrogram_transformer.",
        )
        .read_by(vit::config),
        vit("dpt", "dpt.")
            .read_by(|json| {
                json.only("is_hybrid", &[json!(false)])?;
                json.only("backbone_config", &[Value::Null])?;
                vit::config(&json.without("head_dim"))
            })
            .outside(&["auxiliary_head.*"]),
        vit("flava_multimodal_model", "flava.multimodal_model."),
        videomae(),
        steps
            .prefixes(&["encoder."])
            .outside(&["embed_*", "predict_*"]),
        only(llama::decoder("csm", llama::llama))
            .prefixes(&["backbone_model.", "model.", ""])
            .outside(&["depth_decoder.*", "codec_model.*", "embed_*"]),
        only(llama::decoder("csm_depth_decoder_model", llama::llama))
            .prefixes(&["depth_decoder.model.", "model.", ""])
            .outside(&["inputs_embeds_projector.*", "codebooks_head.*"]),
        siglip("idefics2_vision"),
        siglip("idefics3_vision"),
        siglip("smolvlm_vision"),
        siglip("granite_docling_vision").outside(&["connector.*"]),
        siglip("phi4_multimodal_vision"),
        only(towers_alone::aimv2("aimv2_vision_model"))
            .prefixes(&["vision_model.", ""])
            .read_by(towers_alone::aimv2_images)
            .outside(&["head.*"]),
    ]
}

/// Returns the table without embeddings and heads.
pub(super) fn only(table: Family) -> Family {
    Family {
        part: None,
        embeddings: None,
        pooler: None,
        joined: None,
        ..table.without_embeddings_and_heads()
    }
}

/// The table for VideoMAE, whose keys have no bias.
fn videomae() -> Family {
    let biased = |part: &str, name: &str, bias: &str| {
        let stem = format!("attention.attention.{name}");
        let names = [
            format!("{stem}.weight"),
            format!("attention.attention.{bias}"),
        ];
        Rule::named(
            &format!("attention.{part}"),
            &[&names[0]],
            &[&names[1], &format!("{stem}.bias")],
        )
    };
    only(vit::blocks("videomae", &["videomae.", ""]))
        .replace_block_rules([
            biased("query", "query", "q_bias"),
            biased("value", "value", "v_bias"),
        ])
        .read_by(|json| {
            let has_bias = json.flag(&["qv_bias"], true)?;
            let is_normed = !json.flag(&["use_mean_pooling"], true)?;
            let stack = vit::config(&json.without("qkv_bias").without("head_dim"))?;
            let norm = stack.final_norm.filter(|_| is_normed);
            let stack = stack.with_each_attention(|_, attention| {
                attention.bias = AttentionBias {
                    key: false,
                    ..AttentionBias::new(has_bias, true)
                };
            });
            Ok(StackConfig {
                final_norm: norm,
                ..stack
            })
        })
        .outside(&["mask_token", "encoder_to_decoder.*", "fc_norm.*"])
}
