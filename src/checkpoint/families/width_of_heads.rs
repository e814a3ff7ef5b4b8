//! How wide the heads of an attention are, where files may say it.

use super::prelude::*;

/// An attention whose heads have the width that `head_dim` says, or else share that of the model.
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
