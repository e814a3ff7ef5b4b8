//! The table for a decoder in a larger model, whose other parts are not loaded.

use super::prelude::*;

/// Parts of these models beside the decoder.
const OTHER_PARTS: [&str; 43] = [
    "*vision_tower.*",
    "*vision_model.*",
    "*vision_encoder.*",
    "*vision_backbone.*",
    "*vision_projection.*",
    "*vision_embed_tokens.*",
    "*visual.*",
    "*image_tower.*",
    "*video_tower.*",
    "*audio_tower.*",
    "sound_encoder.*",
    "sound_projection.*",
    "*projector.*",
    "*connector.*",
    "*density_router.*",
    "*aligner.*",
    "*image_newline",
    "*vqmodel.*",
    "*generation_*",
    "*_tokenizer*",
    "*high_res_vision*",
    "*visual_embeddings_table.*",
    "*layerwise_projectors.*",
    "*spatial_projectors.*",
    "*merger.*",
    "*perceive.*",
    "*view_seperator",
    "*sam_model.*",
    "*qwen2_model.*",
    "*mlp_AR.*",
    "*qformer.*",
    "*query_tokens",
    "*language_projection.*",
    "encoder.*",
    "model.encoder.*",
    "*adapter.*",
    "mlp1.*",
    "vit.*",
    "visual_projection.*",
    "text_projection.*",
    "image_to_text_projection.*",
    "logit_scale",
    "temperature",
];

/// The table for Gemma 3, whose text-only class saves the larger model's `config.json`. That class's names begin with `model.`.
pub(super) fn of_text_or_alone(family: Family) -> Family {
    let prefixes = [
        "language_model.model.",
        "model.language_model.",
        "model.",
        "",
    ];
    with_output(
        beside(family, true).prefixes(&prefixes),
        "language_model.lm_head",
    )
}

/// Adds a name for the output layer before the usual one.
pub(super) fn with_output(mut family: Family, name: &str) -> Family {
    if name != "lm_head" {
        let output = Rule::linear("causal_lm.output", &[name]);
        family.end_rules.insert(0, output);
    }
    family
}

/// The table for a decoder beside a vision or audio encoder. Some older files describe the decoder directly, without a section.
pub(super) fn beside(family: Family, or_whole: bool) -> Family {
    let family = match or_whole {
        true => family.section_or_whole("text_config"),
        false => family.section("text_config"),
    };
    family.outside(&OTHER_PARTS).outside(&["*lm_head.*"])
}

/// Returns the table with a section's name in front of all names.
pub(super) fn inside(mut family: Family, section: &str) -> Family {
    let in_section = |name: &String| format!("{section}.{name}");
    family.prefixes = family.prefixes.iter().map(in_section).collect();
    for rule in &mut family.end_rules {
        for names in [&mut rule.weight, &mut rule.bias] {
            let further: Vec<String> = names.iter().map(in_section).collect();
            names.extend(further);
        }
    }
    let mut family = family.section(section);
    family.keys.ties = Ties::Inside;
    family.outside(&["enc_to_dec_proj.*", "*output_projection.*", "*cls.*"])
}
