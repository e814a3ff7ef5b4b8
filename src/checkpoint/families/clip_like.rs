//! Towers with CLIP's blocks: one of GroupViT, X-CLIP, GIT, KOSMOS-2, AltCLIP and Chinese CLIP, and both of CLIPSeg, OWL-ViT and
//! OWLv2, whose heads for masks and objects are not loaded.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>

use super::clip::{self, TEXT, VISION, end_of_text, towers};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let text = |name: &str, end: ReadReadout| {
        let [text, _] = towers(name, end);
        Family {
            joined: None,
            ..text.named(name)
        }
    };
    let image_embeddings: [ReadEmbeddings; 4] = [
        |json, stack| clip::images(json, stack, [224, 32]),
        |json, stack| clip::images(json, stack, [224, 16]),
        |json, stack| clip::images(json, stack, [768, 32]),
        |json, stack| clip::images(json, stack, [768, 16]),
    ];
    let text_embeddings: [ReadEmbeddings; 2] = [
        |json, stack| TEXT.token_embeddings(json, stack, [49408, 77]),
        |json, stack| TEXT.token_embeddings(json, stack, [49408, 16]),
    ];
    // These pool a text at its highest token id, whatever the id of the end.
    let highest = |_: &ConfigJson, _: &StackConfig| Ok(ReadoutConfig::new(TokenSelection::Highest));
    let single = |name: &str, images: ReadEmbeddings| image(name, images).named(name);
    let mut families = vec![
        text("xclip_text_model", highest),
        text("groupvit_text_model", end_of_text),
        // All its positions are normalized.
        Family {
            pooler: None,
            ..single("git_vision_model", image_embeddings[1]).read_by(|json| VISION.config(json))
        },
        single("kosmos_2_vision_model", |json, stack| {
            clip::images(json, stack, [224, 14])
        })
        .prefixes(&["vision_model.model.", "model.", ""]),
    ];
    families.extend(whole(
        "clipseg",
        "clip",
        end_of_text,
        [text_embeddings[0], image_embeddings[0]],
    ));
    families.extend(whole(
        "owlvit",
        "owlvit",
        highest,
        [text_embeddings[1], image_embeddings[2]],
    ));
    families.extend(whole(
        "owlv2",
        "owlv2",
        highest,
        [text_embeddings[1], image_embeddings[3]],
    ));
    for name in ["chinese_clip", "altclip"] {
        let vision = image(name, image_embeddings[0]);
        families.push(vision.clone().named(&format!("{name}_vision_model")));
        families.push(match name {
            // transformers 5 saves both towers alike.
            "altclip" => in_either_list(vision.named(name), ["encoder.layers", "encoder.layer"]),
            _ => vision.named(name),
        });
    }
    families
}

/// Returns both towers of a model whose class with a head calls them `inside`, and each alone.
fn whole(
    name: &str,
    inside: &str,
    end: ReadReadout,
    [text_embeddings, image_embeddings]: [ReadEmbeddings; 2],
) -> [Family; 2] {
    let [text, _] = towers(name, end);
    let prefixes = |tower: &str| {
        [
            format!("{inside}.{tower}."),
            format!("{tower}."),
            String::new(),
        ]
    };
    let [text_prefixes, image_prefixes] = [prefixes("text_model"), prefixes("vision_model")];
    let outer = ["decoder.*", "film_mul.*", "*_head.*", "layer_norm.*"];
    [
        (text.embeddings(text_embeddings), text_prefixes),
        (image(name, image_embeddings), image_prefixes),
    ]
    .map(|(table, prefixes)| {
        let inside =
            ["text_projection", "visual_projection"].map(|name| format!("{inside}.{name}"));
        table
            .prefixes(&prefixes.each_ref().map(String::as_str))
            .outside(&outer)
            .outside(&inside.each_ref().map(String::as_str))
    })
}

/// Returns the vision tower, for the model's type and its own.
fn image(name: &str, images: ReadEmbeddings) -> Family {
    let [_, vision] = towers(name, end_of_text);
    let norm = Rule::norm("embeddings.norm", &["pre_layernorm"]);
    vision.embeddings(images).end_rules([norm])
}

/// Returns the table with two names for the list of blocks.
pub(super) fn in_either_list(mut table: Family, lists: [&str; 2]) -> Family {
    let in_lists = |name: &String| lists.map(|list| format!("{list}.{{i}}.{name}"));
    for rule in &mut table.block_rules {
        for names in [&mut rule.weight, &mut rule.bias] {
            *names = names.iter().flat_map(in_lists).collect();
        }
    }
    table.block("")
}
