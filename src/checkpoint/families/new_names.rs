//! Names in encoder-decoders that depend on the class, the kind of feed-forward, and tied embeddings.

use super::prelude::*;
use super::t5_feed_forward::is_gated;

/// Returns patterns for the token embeddings: shared by both stacks, with or without a head, or separate for each stack.
pub(super) fn of_bart(json: &ConfigJson) -> Result<&'static [&'static str]> {
    let is_tied = json.flag(&["tie_word_embeddings"], true)?;
    // Marian's class with a head is MarianMTModel.
    let is_base = is_of_class(json, "Model")? && !is_of_class(json, "MTModel")?;
    Ok(match (is_tied, is_base) {
        (true, true) => &["shared.*"],
        (true, false) => &["model.shared.*"],
        (false, _) => &["*embed_tokens.*"],
    })
}

/// Returns patterns for the gate and for the base model, which has another name below classification heads.
pub(super) fn of_t5(json: &ConfigJson) -> Result<&'static [&'static str]> {
    Ok(
        match (is_gated(json)?, is_of_class(json, "Classification")?) {
            (false, false) => &["*.wi.*", "shared.*", "lm_head.*"],
            (false, true) => &[
                "*.wi.*",
                "transformer.shared.*",
                "transformer.encoder.block.*",
                "transformer.decoder.block.*",
            ],
            (true, false) => &["*.wi_1.*", "shared.*", "lm_head.*"],
            (true, true) => &[
                "*.wi_1.*",
                "transformer.shared.*",
                "transformer.encoder.block.*",
                "transformer.decoder.block.*",
            ],
        },
    )
}

/// Returns whether a class name in `architectures` ends with `end`.
fn is_of_class(json: &ConfigJson, end: &str) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    Ok(classes.iter().any(|class| class.ends_with(end)))
}
