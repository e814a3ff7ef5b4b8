//! What the names of new encoder-decoders depend on: the class, and the form of the feed-forward.

use super::prelude::*;

/// Those of the table of words that both stacks read, below a head and without one.
pub(super) fn of_bart(json: &ConfigJson) -> Result<&'static [&'static str]> {
    Ok(match is_of_class(json, "Model")? {
        true => &["shared.*"],
        false => &["model.shared.*"],
    })
}

/// Those of the gate, and of the base model, which has a name of its own below the heads that classify.
pub(super) fn of_t5(json: &ConfigJson) -> Result<&'static [&'static str]> {
    let projection = json.text(&["feed_forward_proj"])?;
    let is_gated = projection.is_some_and(|name| name.starts_with("gated-"));
    Ok(match (is_gated, is_of_class(json, "Classification")?) {
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
    })
}

/// Whether the name of a class in `architectures` ends so.
fn is_of_class(json: &ConfigJson, end: &str) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    Ok(classes.iter().any(|class| class.ends_with(end)))
}
