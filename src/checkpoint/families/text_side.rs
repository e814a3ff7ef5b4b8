//! The text stack of models that also read images: the blocks of another family, described under `text_config`. The vision
//! part is not loaded.
//!
//! transformers' `LlavaModel` and `Mistral3Model`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llava/modeling_llava.py>

use super::llama::{decoder, llama, mistral};
use super::ministral3::ministral3;
use super::prelude::*;
use super::qwen::qwen2;

pub(super) fn families() -> Vec<Family> {
    vec![
        of_text(decoder("llava", llava)),
        of_text(decoder("mistral3", mistral3))
            .default_of("tie_word_embeddings", true)
            .handed_on("is_causal"),
    ]
}

/// The table for a decoder in a larger model with LLaVA's names.
pub(super) fn of_text(family: Family) -> Family {
    beside_images(family)
        .prefixes(&["language_model.model.", "model.language_model.", ""])
        .end_rules([Rule::linear(
            "causal_lm.output",
            &["language_model.lm_head"],
        )])
        .new_names(|_| Ok(&["language_model.lm_head.*"]))
}

/// Like [`of_text`], for a model whose text-only class saves the larger model's `config.json`. That class's names begin with
/// `model.`.
pub(super) fn of_text_or_alone(family: Family) -> Family {
    of_text(family).prefixes(&[
        "language_model.model.",
        "model.language_model.",
        "model.",
        "",
    ])
}

/// The table for a decoder beside a vision encoder. Some older files describe the decoder directly, without a section.
pub(super) fn beside_images(family: Family) -> Family {
    family
        .section_or_whole("text_config")
        .outside(&["*vision_tower.*", "*multi_modal_projector.*", "*visual.*"])
        .outside(&["*lm_head.*"])
}

fn llava(json: &ConfigJson) -> Result<StackConfig> {
    json.only(
        "model_type",
        &["llama", "mistral", "qwen2"].map(Value::from),
    )?;
    match json.text(&["model_type"])?.as_deref() {
        Some("mistral") => mistral(json),
        Some("qwen2") => qwen2(json),
        // Published files only contain the keys that differ from the class's defaults.
        _ => llama(
            &json
                .with_default("hidden_size", 4096)
                .with_default("intermediate_size", 11008)
                .with_default("num_hidden_layers", 32)
                .with_default("num_attention_heads", 32),
        ),
    }
}

fn mistral3(json: &ConfigJson) -> Result<StackConfig> {
    json.only("model_type", &["mistral", "ministral3"].map(Value::from))?;
    match json.text(&["model_type"])?.as_deref() {
        Some("ministral3") => ministral3(json),
        _ => mistral(json),
    }
}
