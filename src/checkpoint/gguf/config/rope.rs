//! Scaling for rotary embeddings, from keys and tensors in a GGUF file.

use serde_json::{Value, json};

use crate::checkpoint::gguf::architecture::Architecture;
use crate::checkpoint::gguf::config::Keys;
use crate::error::Result;

impl Keys<'_> {
    /// Returns `rope_scaling`: a kind and a factor, or a factor for each frequency in a tensor. Whatever the kind, cosine and sine are
    /// multiplied by `attn_factor`.
    pub(crate) fn rope_scaling(&self) -> Result<Value> {
        let of = self.file.numbers;
        let size = |key: &str| self.optional(key).map(|_| self.size(key)).transpose();
        let number = |key: &str| self.optional(key).map(|_| self.number(key)).transpose();
        // 0 is for the model's own length.
        let original = size("rope.scaling.original_context_length")?.filter(|&length| length > 0);
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
            let length = size("context_length")?.unwrap_or(1).max(1);
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
        let names = ["rope_factors_long.weight", "rope_factors_short.weight"];
        match (of(names[0])?, of(names[1])?) {
            (Some(long), Some(short)) => return Ok(by_tables(&short, &long, attention)),
            (None, None) => {}
            (long, _) => {
                let [found, lacking] = match long {
                    Some(_) => names,
                    None => [names[1], names[0]],
                };
                let reason = format!("cannot be read: the file has {found}, and no {lacking}");
                return Err(self.error("rope.scaling.type", reason));
            }
        }
        // Without tables its factor is for all frequencies.
        let kind = if kind == "longrope" { "linear" } else { kind };
        let is_scaled = attention.is_some_and(|factor| factor != 1.0);
        if ["gemma3", "gemma3n", "gemma-embedding"].contains(&self.architecture) && is_scaled {
            let reason = "also applies to layers with a window, where it is not supported";
            return Err(self.error("rope.scaling.attn_factor", reason.to_string()));
        }
        if kind == "none" && factor != 1.0 && self.has_windows() {
            let keys = ["rope.scaling.factor", "rope.scale_linear"];
            let key = keys.into_iter().find(|key| self.peek(key).is_some());
            let reason = format!(
                "is \"none\" beside \"{}.{}\", which llama.cpp applies to layers with a window; it is not supported",
                self.architecture,
                key.unwrap_or_default()
            );
            return Err(self.error("rope.scaling.type", reason));
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
                self.check_yarn(factor, original)?;
                let mut scaling = json!({"rope_type": kind, "factor": factor});
                let original = original.or(size("context_length")?);
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
                let n = self.rotary_dim()? / 2;
                by_table(&vec![factor as f32; n])
            }
            "linear" if factor != 1.0 => Ok(json!({"rope_type": kind, "factor": factor})),
            _ => Ok(Value::Null),
        }
    }

    /// Refuses what YaRN is not defined for: transformers and llama.cpp differ there.
    fn check_yarn(&self, factor: f64, original: Option<usize>) -> Result<()> {
        let keys = ["rope.scaling.factor", "rope.scale_linear"];
        if factor < 1.0 {
            let key = keys.into_iter().find(|key| self.peek(key).is_some());
            let reason = format!("is {factor}, expected at least 1 with YaRN");
            return Err(self.error(key.unwrap_or(keys[0]), reason));
        }
        for key in ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"] {
            if self
                .peek(key)
                .and_then(|beta| beta.as_f64())
                .is_some_and(|beta| beta <= 0.0)
            {
                return Err(self.error(key, "is not above 0".to_string()));
            }
        }
        let theta = match self.peek("rope.freq_base") {
            Some(_) => self.number("rope.freq_base")?,
            None => 10000.0,
        };
        if theta <= 1.0 {
            let reason = format!("is {theta}, expected more than 1 with YaRN");
            return Err(self.error("rope.freq_base", reason));
        }
        // The last dimension that turns too often to be scaled.
        let slow = self
            .peek("rope.scaling.yarn_beta_slow")
            .and_then(|slow| slow.as_f64());
        let Some(length) = original.map_or_else(
            || {
                self.peek("context_length")
                    .and_then(|length| length.as_f64())
            },
            |length| Some(length as f64),
        ) else {
            return Ok(());
        };
        let n_rotations = length / (2.0 * std::f64::consts::PI * slow.unwrap_or(1.0));
        if (self.rotary_dim()? as f64 * n_rotations.ln() / (2.0 * theta.ln())).ceil() < 0.0 {
            let slow = slow.map_or(String::new(), |slow| {
                format!(
                    " with {slow} in \"{}.rope.scaling.yarn_beta_slow\"",
                    self.architecture
                )
            });
            let reason = format!("is {length}, too little for YaRN{slow}");
            return Err(self.error("rope.scaling.original_context_length", reason));
        }
        Ok(())
    }

    /// Returns whether any layer has a window.
    fn has_windows(&self) -> bool {
        const KEY: &str = "attention.sliding_window";
        let is_always = |entry: &Architecture| {
            let mut calls = entry
                .calls
                .iter()
                .filter_map(|(_, call)| call.split_once(' '));
            calls.any(|(function, arguments)| {
                function == "windows" && self.has_windows_unsaid(arguments)
            }) || entry
                .neutral
                .iter()
                .any(|(key, sizes)| *key == KEY && !sizes.is_empty())
        };
        let size = self.peek(KEY);
        size.map_or_else(
            || self.entry().is_some_and(is_always),
            |size| size != json!(0),
        )
    }
}
