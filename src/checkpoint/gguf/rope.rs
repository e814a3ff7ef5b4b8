//! Scaling for rotary embeddings, from keys and tensors in a GGUF file.

use serde_json::{Value, json};

use super::config::Keys;
use crate::error::Result;

impl Keys<'_> {
    /// Returns `rope_scaling`: a kind and a factor, or a factor for each frequency in a tensor. Whatever the kind, cosine and sine are
    /// multiplied by `attn_factor`.
    pub(super) fn rope_scaling(&self) -> Result<Value> {
        let of = self.file.numbers;
        let size = |key: &str| self.optional(key).map(|_| self.size(key)).transpose();
        let number = |key: &str| self.optional(key).map(|_| self.number(key)).transpose();
        let original = size("rope.scaling.original_context_length")?;
        let attention = number("rope.scaling.attn_factor")?;
        let kind = self.optional("rope.scaling.type");
        // An old name.
        let factor = match number("rope.scaling.factor")? {
            None => number("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
        let kind = match kind.as_ref().map(|kind| (kind, kind.as_str())) {
            None | Some((_, Some("linear"))) => "linear",
            Some((_, Some(kind @ ("none" | "yarn" | "longrope")))) => kind,
            Some((other, _)) => {
                let reason = format!(
                    "is {other}; supported are \"none\", \"linear\", \"yarn\" and \"longrope\""
                );
                return Err(self.error("rope.scaling.type", reason));
            }
        };
        let by_tables = |short: &[f32], long: &[f32], attention: Option<f64>| {
            let mut scaling =
                json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
            if let Some(factor) = attention {
                scaling["attention_factor"] = json!(factor);
            }
            if let Some(original) = original {
                scaling["original_max_position_embeddings"] = original.into();
            }
            scaling
        };
        // One table for all lengths.
        let by_table = |factors: &[f32]| -> Result<Value> {
            let mut scaling = by_tables(factors, factors, Some(attention.unwrap_or(1.0)));
            let length = size("context_length")?.unwrap_or(1);
            scaling["original_max_position_embeddings"] = length.into();
            Ok(scaling)
        };
        if let Some(factors) = of("rope_freqs.weight")? {
            return match (kind, factor) {
                ("none", _) | (_, 1.0) => by_table(&factors),
                ("yarn", _) => {
                    let reason =
                        "is \"yarn\", but the file also has factors for each frequency".to_string();
                    Err(self.error("rope.scaling.type", reason))
                }
                _ => by_table(
                    &factors
                        .iter()
                        .map(|one| one * factor as f32)
                        .collect::<Vec<f32>>(),
                ),
            };
        }
        if let (Some(long), Some(short)) = (
            of("rope_factors_long.weight")?,
            of("rope_factors_short.weight")?,
        ) {
            return Ok(by_tables(&short, &long, attention));
        }
        // Without tables its factor is for all frequencies.
        let kind = if kind == "longrope" { "linear" } else { kind };
        let is_scaled = attention.is_some_and(|factor| factor != 1.0);
        if self.architecture == "gemma3" && is_scaled {
            let reason = "also applies to layers with a window, where it is not supported";
            return Err(self.error("rope.scaling.attn_factor", reason.to_string()));
        }
        if self.architecture == "phi3" && (kind == "yarn" || kind == "linear" && factor != 1.0) {
            let keys = [
                "rope.scaling.type",
                "rope.scaling.factor",
                "rope.scale_linear",
            ];
            let key = keys.into_iter().find(|key| self.optional(key).is_some());
            let reason = format!(
                "makes it {kind:?}, but for this architecture only tables of factors are supported"
            );
            return Err(self.error(key.unwrap_or("rope.scaling.type"), reason));
        }
        match kind {
            "yarn" => {
                let mut scaling = json!({"rope_type": kind, "factor": factor});
                if let Some(original) = original {
                    scaling["original_max_position_embeddings"] = original.into();
                }
                for (key, name) in [
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                    ("rope.scaling.yarn_attn_factor", "attention_factor"),
                ] {
                    if let Some(found) = number(key)? {
                        scaling[name] = json!(found);
                    }
                }
                if let Some(attention) = attention.filter(|&factor| factor != 1.0) {
                    // As transformers infers it.
                    let inferred = if factor > 1.0 {
                        0.1 * factor.ln() + 1.0
                    } else {
                        1.0
                    };
                    let own = scaling["attention_factor"].as_f64().unwrap_or(inferred);
                    scaling["attention_factor"] = json!(own * attention);
                }
                Ok(scaling)
            }
            _ if is_scaled => {
                let factor = if kind == "linear" { factor } else { 1.0 };
                let n = self.turning()? / 2;
                by_table(&vec![factor as f32; n])
            }
            "linear" if factor != 1.0 => Ok(json!({"rope_type": kind, "factor": factor})),
            _ => Ok(Value::Null),
        }
    }
}
