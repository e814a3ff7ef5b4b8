//! The files of Meta's and Mistral's own code: `params.json`, and weights in `consolidated.safetensors` or
//! `consolidated.00.pth`. Their tensors have other names than transformers', and their queries and keys another order of rows.

use std::path::Path;

use candle_blocks_base::{Error, Result};

/// The way to a checkpoint that can be read.
pub(crate) const CURE: &str = "take the repository's files for transformers (config.json with model.safetensors or its index), or convert \
                               those of Llama, or of Mistral 7B v0.3, with the scripts that transformers 4.46.3 has: `python -m \
                               transformers.models.llama.convert_llama_weights_to_hf`, or `python -m \
                               transformers.models.mistral.convert_mistral_weights_to_hf --is_v3`; their `--help` names the options";

/// Returns whether a file has the name of such weights: `consolidated.safetensors`, `consolidated.00.pth`,
/// `consolidated-00001-of-00003.safetensors`.
pub(crate) fn is_named_so(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.starts_with("consolidated") && (name.ends_with(".safetensors") || name.ends_with(".pth"))
}

/// Returns the reason to refuse files with these names.
pub(crate) fn reason(names: &str) -> String {
    format!(
        "{names}: tensors as in Meta's and Mistral's own code, beside params.json, are not supported; {CURE}"
    )
}

/// # Errors
/// If the tensors in the files at a path have names of such tensors.
pub fn refuse<'n>(path: &Path, names: impl Iterator<Item = &'n str>) -> Result<()> {
    let (mut has_words, mut has_block) = (false, false);
    for name in names {
        has_words |= name == "tok_embeddings.weight";
        has_block |= name.starts_with("layers.0.attention.");
    }
    match has_words && has_block {
        true => Err(Error::NoWeights {
            path: path.to_path_buf(),
            reason: reason("tok_embeddings.weight, layers.0.attention and so on"),
        }),
        false => Ok(()),
    }
}
