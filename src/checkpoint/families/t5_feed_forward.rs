//! T5's feed-forward, which files describe by several redundant keys.

use super::prelude::*;

pub(super) fn feed_forward(json: &ConfigJson, d_model: usize) -> Result<FeedForwardConfig> {
    let projection = json.text(&["feed_forward_proj"])?;
    let projection = projection.as_deref().unwrap_or("relu");
    let named = |name: &str| json.activation_named(name, &["feed_forward_proj"]);
    let usual = match projection.strip_prefix("gated-") {
        Some("gelu") => Activation::GeluTanh, // as in transformers
        Some(name) => named(name)?,
        None => named(projection)?,
    };
    // Newer files' additional keys take precedence.
    let activation = json.activation(&["dense_act_fn"], usual)?;
    let is_gated = is_gated(json)?;
    let form = match is_gated {
        true => FeedForwardForm::Gated,
        false => FeedForwardForm::Plain,
    };
    Ok(FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["d_ff"])?)
        .with_form(form)
        .with_activation(activation)
        .with_bias(false))
}

/// Returns whether the feed-forward has a gate.
pub(super) fn is_gated(json: &ConfigJson) -> Result<bool> {
    let projection = json.text(&["feed_forward_proj"])?;
    let usual = projection.is_some_and(|name| name.starts_with("gated-"));
    json.flag(&["is_gated_act"], usual)
}
