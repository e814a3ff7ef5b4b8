//! What the names of encoder-decoders depend on: the class, the form of the feed-forward, and whether tables are shared.

use super::prelude::*;
use super::t5_feed_forward::is_gated;

/// Those of the table of words that both stacks read, below a head and without one, or of each stack's own.
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

/// Those of the gate, and of the base model, which has a name of its own below the heads that classify.
pub(super) fn of_t5(json: &ConfigJson) -> Result<&'static [&'static str]> {
    Ok(
        match (is_gated(json)?, is_of_class(json, "Classification")?) {
            (false, false) => &["*.wi.*", "shared.*"],
            (false, true) => &[
                "*.wi.*",
                "transformer.shared.*",
                "transformer.encoder.block.*",
                "transformer.decoder.block.*",
            ],
            (true, false) => &["*.wi_1.*", "shared.*"],
            (true, true) => &[
                "*.wi_1.*",
                "transformer.shared.*",
                "transformer.encoder.block.*",
                "transformer.decoder.block.*",
            ],
        },
    )
}

/// Whether the name of a class in `architectures` ends so.
fn is_of_class(json: &ConfigJson, end: &str) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    Ok(classes.iter().any(|class| class.ends_with(end)))
}
