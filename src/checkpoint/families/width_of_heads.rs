//! The width of attention heads, if files can set it.

use super::prelude::*;

/// Returns an attention whose head width is `head_dim`, or by default the model's width divided by the heads.
pub(super) fn attention_of(
    json: &ConfigJson,
    d_model: usize,
    n_heads: usize,
) -> Result<AttentionConfig> {
    match json.optional_size(&["head_dim"])? {
        Some(head_dim) => Ok(AttentionConfig::with_head_dim(d_model, n_heads, head_dim)),
        None => AttentionConfig::new(d_model, n_heads),
    }
}
