//! Values in `config.json` that stand in several keys in a GGUF file, by the names that the tables call them by.

use serde_json::{Value, json};

use super::config::Keys;
use crate::error::Result;

type Compute = fn(&Keys, &str) -> Result<Value>;

/// The functions, by name.
const ALL: &[(&str, Compute)] = &[
    ("head-dim", |keys, _| Ok(keys.head_dim()?.into())),
    ("rope-scaling", |keys, _| keys.rope_scaling()),
    ("rope-of-layers", |keys, _| keys.rope_of_layers()),
    ("part-of-head", |keys, default| keys.part_of_head(default)),
    ("windows", |keys, period| keys.windows(period)),
    ("query-scalar", |keys, n_largest| {
        keys.query_scalar(n_largest)
    }),
    ("minus", |keys, names| keys.minus(names)),
    ("layers-from", |keys, kinds| keys.layers_from(kinds)),
    ("sections", |keys, _| keys.sections()),
    ("n-blocks", |keys, _| Ok(keys.n_blocks()?.into())),
    ("score-scale", |keys, _| {
        Ok(json!(1.0 / (keys.head_dim()? as f64).sqrt()))
    }),
    // llama.cpp's for files without the keys.
    ("minicpm-residual", |keys, _| {
        Ok(json!(1.4 / (keys.n_blocks()? as f64).sqrt()))
    }),
    ("minicpm-logits", |keys, _| {
        Ok(json!(256.0 / keys.size("embedding_length")? as f64))
    }),
    ("divided-width", |keys, _| Ok(keys.divided_width()?.into())),
    ("fewer-than", |keys, arguments| {
        let (key, limit) = arguments.split_once(' ').unwrap_or((arguments, ""));
        Ok((keys.size(key)? < limit.parse().unwrap_or(0)).into())
    }),
    // Expert groups are chosen from only where there are several.
    ("group-method", |keys, _| {
        let n_groups = keys.optional("expert_group_count").and_then(|n| n.as_u64());
        let is_grouped = n_groups.is_some_and(|n| n > 1);
        Ok(if is_grouped {
            "group_limited_greedy"
        } else {
            "greedy"
        }
        .into())
    }),
    ("rope-scaling-untruncated", |keys, _| {
        let mut scaling = keys.rope_scaling()?;
        match scaling["rope_type"] == "yarn" {
            true => scaling["truncate"] = false.into(),
            false => scaling = json!({"rope_type": "default"}),
        }
        Ok(scaling)
    }),
    ("yarn-of-latent", |keys, _| keys.yarn_of_latent()),
    ("yarn-with-temperature", |keys, _| {
        keys.yarn_with_temperature()
    }),
    ("rows-of", |keys, tensor| Ok(keys.rows(tensor).into())),
    ("shares-below", |keys, key| keys.shares_below(key)),
    ("narrowest-feed-forward", |keys, _| {
        Ok(keys.feed_forwards()?.0.into())
    }),
    ("has-wide-feed-forward", |keys, _| {
        Ok(keys.feed_forwards()?.1.into())
    }),
    ("heads-of-layers", |keys, _| keys.heads_of_layers()),
    ("values-are-keys", |keys, _| {
        Ok(keys.values_are_keys()?.into())
    }),
    ("rope-with-still-dimensions", |keys, _| {
        keys.rope_with_still_dimensions()
    }),
    ("half", |keys, name| Ok((keys.size(name)? / 2).into())),
];

#[cfg(test)]
pub(super) fn is_known(name: &str) -> bool {
    ALL.iter().any(|(known, _)| *known == name)
}

impl Keys<'_> {
    /// Returns the value that a table's function makes.
    pub(super) fn computed(&self, name: &str, arguments: &str) -> Result<Value> {
        let found = ALL.iter().find(|(known, _)| *known == name);
        found.map_or(Ok(Value::Null), |(_, compute)| compute(self, arguments))
    }

    fn n_blocks(&self) -> Result<usize> {
        let unused = self
            .optional("nextn_predict_layers")
            .and_then(|n| n.as_u64());
        Ok(self
            .size("block_count")?
            .saturating_sub(unused.unwrap_or(0) as usize))
    }

    /// The share that turns in each head; with `whole`, other heads than the width divided by their number are refused.
    fn part_of_head(&self, condition: &str) -> Result<Value> {
        let (head_dim, per_head) = (self.head_dim()?, self.divided_width()?);
        if condition == "whole" && head_dim != per_head {
            let reason =
                format!("is {head_dim}, expected {per_head}, the width divided by the heads");
            return Err(self.error("attention.key_length", reason));
        }
        match self.optional("rope.dimension_count") {
            None => Ok(Value::Null),
            Some(_) => {
                let turning = self.size("rope.dimension_count")?;
                Ok(json!(turning as f64 / head_dim as f64))
            }
        }
    }

    /// Returns the squared divisor for Gemma's scores: the model with `n_largest` layers divides by the width over the heads.
    fn query_scalar(&self, n_largest: &str) -> Result<Value> {
        let is_largest = self.size("block_count")?.to_string() == n_largest;
        Ok(match is_largest {
            true => self.divided_width()?.into(),
            false => self.head_dim()?.into(),
        })
    }

    /// One size less another.
    fn minus(&self, names: &str) -> Result<Value> {
        let (from, less) = names.split_once(' ').unwrap_or((names, ""));
        let is_there = |name: &&str| self.optional(name).is_some();
        let from = from.split('|').find(is_there).unwrap_or(from);
        let (size, less_size) = (self.size(from)?, self.size(less)?);
        let left = size.checked_sub(less_size).ok_or_else(|| {
            self.error(
                from,
                format!("is {size}, expected at least {less}, which is {less_size}"),
            )
        })?;
        Ok(left.into())
    }

    /// The kinds for layers: the first have one kind, the others another.
    fn layers_from(&self, kinds: &str) -> Result<Value> {
        let (first, other) = kinds.split_once(' ').unwrap_or((kinds, ""));
        let n_first = match self.optional("leading_dense_block_count") {
            Some(_) => self.size("leading_dense_block_count")?,
            None => 0,
        };
        let kinds = (0..self.n_blocks()?).map(|i| if i < n_first { first } else { other });
        Ok(kinds.collect())
    }

    /// The dimension pairs that turn by time, row and column.
    fn sections(&self) -> Result<Value> {
        const KEY: &str = "rope.dimension_sections";
        match self.optional(KEY) {
            Some(Value::Array(sections)) if (3..=4).contains(&sections.len()) => {
                if sections.get(3).is_some_and(|last| *last != json!(0)) {
                    return Err(self.error(
                        KEY,
                        format!("is {sections:?}, and a fourth axis is not supported"),
                    ));
                }
                let theta = self.optional("rope.freq_base").unwrap_or(json!(10000.0));
                Ok(
                    json!({"rope_type": "default", "rope_theta": theta, "mrope_section": sections[..3]}),
                )
            }
            found => {
                let found = found.unwrap_or(Value::Null);
                Err(self.error(
                    KEY,
                    format!("found {found}, expected the pairs of each axis"),
                ))
            }
        }
    }

    /// YaRN's settings with a factor on scores that grows with the position.
    fn yarn_with_temperature(&self) -> Result<Value> {
        let mut scaling = self.rope_scaling()?;
        if scaling["rope_type"] != "yarn" {
            let reason = "is not supported without \"rope.scaling.type\" \"yarn\"".to_string();
            return Err(self.error("attention.temperature_scale", reason));
        }
        scaling["llama_4_scaling_beta"] = json!(self.number("attention.temperature_scale")?);
        scaling["rope_theta"] = self.optional("rope.freq_base").unwrap_or(json!(10000.0));
        if let Some(all) = self.optional("rope.scaling.yarn_log_multiplier") {
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(1.0), all);
        }
        Ok(scaling)
    }

    /// YaRN's settings as latent attention has them, whose factor on scores a file holds as a tenth.
    fn yarn_of_latent(&self) -> Result<Value> {
        let mut scaling = self.rope_scaling()?;
        if scaling["rope_type"] == "yarn"
            && self.optional("rope.scaling.yarn_log_multiplier").is_some()
        {
            let all = 10.0 * self.number("rope.scaling.yarn_log_multiplier")?;
            // What the quotient's shortest decimal is, in 32 bits.
            let all = f64::from(all as f32).to_string().parse().unwrap_or(all);
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(all), json!(all));
        }
        Ok(scaling)
    }

    /// The rotations for layers with a window and without; the scaling is for the latter.
    fn rope_of_layers(&self) -> Result<Value> {
        let theta = self.optional("rope.freq_base").unwrap_or(json!(10000.0));
        let local = self.optional("rope.freq_base_swa").unwrap_or(theta.clone());
        let mut full = match self.rope_scaling()? {
            Value::Null => json!({"rope_type": "default"}),
            scaling => scaling,
        };
        full["rope_theta"] = theta;
        Ok(
            json!({"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}),
        )
    }

    /// The kinds for layers by their windows: all but the last in each period have one, or as the file says. Without the
    /// window's size there is none, unless the second argument is `always`.
    fn windows(&self, arguments: &str) -> Result<Value> {
        const KEY: &str = "attention.sliding_window_pattern";
        let n_blocks = self.n_blocks()?;
        let (period, always) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let size = self.peek("attention.sliding_window");
        let has_windows = size.map_or(always == "always", |size| size != json!(0));
        let layers: Vec<bool> = match self.optional(KEY) {
            _ if !has_windows => vec![false; n_blocks],
            Some(Value::Array(layers)) if layers.len() == n_blocks => layers
                .iter()
                .map(|layer| [json!(true), json!(1)].contains(layer))
                .collect(),
            Some(Value::Array(layers)) => {
                let reason = format!("has {} layers, but there are {n_blocks}", layers.len());
                return Err(self.error(KEY, reason));
            }
            found => {
                let period = match found {
                    Some(_) => self.size(KEY)?,
                    None => period.parse().unwrap_or(1),
                };
                (0..n_blocks)
                    .map(|i| period == 0 || i % period < period - 1)
                    .collect()
            }
        };
        let kind = |has: bool| {
            if has {
                "sliding_attention"
            } else {
                "full_attention"
            }
        };
        Ok(layers.into_iter().map(kind).collect())
    }
}
