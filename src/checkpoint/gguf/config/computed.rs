//! Values in `config.json` that stand in several keys in a GGUF file, by the names that the tables call them by.

use serde_json::{Value, json};

use crate::checkpoint::gguf::architecture::Architecture;
use crate::checkpoint::gguf::config::Keys;
use crate::error::Result;

type Compute = fn(&Keys, &str) -> Result<Value>;

/// The functions, by name.
const ALL: &[(&str, Compute)] = &[
    ("head-dim", |keys, _| Ok(keys.head_dim()?.into())),
    ("rope-scaling", |keys, _| Ok(or_none(keys.rope_scaling()?))),
    ("rope-of-layers", |keys, local| keys.rope_of_layers(local)),
    ("part-of-head", |keys, default| keys.part_of_head(default)),
    ("windows", |keys, period| keys.windows(period)),
    ("query-scalar", |keys, n_largest| {
        keys.query_scalar(n_largest)
    }),
    ("minus", |keys, names| keys.minus(names)),
    ("layers-from", |keys, kinds| keys.layers_from(kinds)),
    ("types-by-key-heads", |keys, other| {
        keys.types_by_key_heads(other)
    }),
    ("one-of-layers", |keys, key| keys.one_of_layers(key)),
    ("types-of-sublayers", |keys, feed_forward| {
        keys.types_of_sublayers(feed_forward)
    }),
    ("number", |keys, names| {
        Ok(json!(keys.number(keys.first(names))?))
    }),
    ("layers-of-attention", |keys, _| keys.layers_of_attention()),
    ("period", |keys, of| Ok(keys.period(of)?.0.into())),
    ("offset", |keys, of| Ok(keys.period(of)?.1.into())),
    ("recurrent-layers", |keys, _| keys.recurrent_layers()),
    ("divided", |keys, names| keys.divided(names)),
    ("sections", |keys, _| keys.sections()),
    ("n-blocks", |keys, _| Ok(keys.n_blocks()?.into())),
    // llama.cpp's for files without the keys.
    ("minicpm-residual", |keys, _| {
        Ok(json!(1.4 / (keys.n_blocks()? as f64).sqrt()))
    }),
    ("exaone-window", |keys, _| {
        Ok(if keys.n_blocks()? == 64 {
            json!(4096)
        } else {
            Value::Null
        })
    }),
    ("minicpm-logits", |keys, _| {
        Ok(json!(256.0 / keys.size("embedding_length")? as f64))
    }),
    ("score-scale", |keys, _| keys.score_scale()),
    // 0 is for the usual factor.
    ("attention-scale", |keys, _| {
        let scale = match keys.optional("attention.scale") {
            Some(_) => keys.number("attention.scale")?,
            None => 0.0,
        };
        match scale {
            0.0 => keys.score_scale(),
            scale => Ok(json!(scale)),
        }
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
        let mut scaling = or_none(keys.rope_scaling()?);
        if scaling["rope_type"] == "yarn" {
            scaling["truncate"] = false.into();
        }
        Ok(scaling)
    }),
    ("yarn-of-latent", |keys, _| keys.yarn_of_latent()),
    ("latent-yarn-with-temperature", |keys, _| {
        keys.latent_yarn_with_temperature()
    }),
    ("yarn-with-temperature", |keys, _| {
        keys.yarn_with_temperature()
    }),
    ("label-names", |keys, tensor| Ok(keys.label_names(tensor))),
    ("dense-and-output", |keys, _| keys.check_classifier()),
    ("classifier-pooling", |keys, _| keys.classifier_pooling()),
    ("rows-of", |keys, tensor| Ok(keys.rows(tensor).into())),
    ("rows-or-one", |keys, tensor| {
        Ok(keys.rows(tensor).unwrap_or(1).into())
    }),
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

/// Returns a scaling, which is none where the file says nothing: the default of a class in transformers may be another.
fn or_none(scaling: Value) -> Value {
    match scaling {
        Value::Null => json!({"rope_type": "default"}),
        scaling => scaling,
    }
}

#[cfg(test)]
pub(crate) fn is_known(name: &str) -> bool {
    ALL.iter().any(|(known, _)| *known == name)
}

impl Keys<'_> {
    /// Returns the value that a table's function makes.
    pub(crate) fn computed(&self, name: &str, arguments: &str) -> Result<Value> {
        let found = ALL.iter().find(|(known, _)| *known == name);
        found.map_or(Ok(Value::Null), |(_, compute)| compute(self, arguments))
    }

    /// One over a head's root width.
    fn score_scale(&self) -> Result<Value> {
        Ok(json!(1.0 / (self.head_dim()? as f64).sqrt()))
    }

    fn n_blocks(&self) -> Result<usize> {
        let unused = self
            .optional("nextn_predict_layers")
            .and_then(|n| n.as_u64());
        let unused = unused.unwrap_or(0) as usize;
        let n_blocks = self.size("block_count")?.saturating_sub(unused);
        let has = |name: &str| self.exists(&format!("blk.{n_blocks}.{name}"));
        if unused > 0 && has("attn_norm.weight") && !has("nextn.eh_proj.weight") {
            let reason = format!(
                "is {unused}, but block {n_blocks} has no tensor \"nextn.eh_proj.weight\", so that it does not predict a further token; \
                 expected the number of blocks that do, which are the last"
            );
            return Err(self.error("nextn_predict_layers", reason));
        }
        Ok(n_blocks)
    }

    /// The share that turns in each head; with `whole`, other heads than the width divided by their number are refused.
    fn part_of_head(&self, condition: &str) -> Result<Value> {
        let (head_dim, per_head) = (self.head_dim()?, self.divided_width()?);
        if condition == "whole" && head_dim != per_head {
            let reason =
                format!("is {head_dim}, expected {per_head}, the width divided by the heads");
            return Err(self.error("attention.key_length", reason));
        }
        self.optional("rope.dimension_count");
        Ok(json!(self.rotary_dim()? as f64 / head_dim.max(1) as f64))
    }

    /// Returns the squared divisor for Gemma's scores: the model with `n_largest` layers divides by the width over the heads.
    fn query_scalar(&self, n_largest: &str) -> Result<Value> {
        let is_largest = self.size("block_count")?.to_string() == n_largest;
        Ok(match is_largest {
            true => self.divided_width()?.into(),
            false => self.head_dim()?.into(),
        })
    }

    /// Returns the first of some keys that the file has, or all of them.
    fn first<'n>(&self, names: &'n str) -> &'n str {
        let is_there = |name: &&str| self.optional(name).is_some();
        names.split('|').find(is_there).unwrap_or(names)
    }

    /// One size less another.
    fn minus(&self, names: &str) -> Result<Value> {
        let (from, less) = names.split_once(' ').unwrap_or((names, ""));
        let from = self.first(from);
        let (size, less_size) = (self.size(from)?, self.size(less)?);
        let left = size.checked_sub(less_size).ok_or_else(|| {
            self.error(
                from,
                format!("is {size}, expected at least {less}, which is {less_size}"),
            )
        })?;
        Ok(left.into())
    }

    /// One size divided by another, without a remainder.
    fn divided(&self, names: &str) -> Result<Value> {
        let (of, by) = names.split_once(' ').unwrap_or((names, ""));
        let (size, divisor) = (self.size(of)?, self.size(by)?);
        match divisor > 0 && size.is_multiple_of(divisor) {
            true => Ok((size / divisor).into()),
            false => Err(self.error(
                of,
                format!("is {size}, expected a multiple of {by}, which is {divisor}"),
            )),
        }
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

    /// Each layer's number of key heads, which is 0 where it has another mixer than attention.
    fn key_heads(&self) -> Result<Vec<usize>> {
        self.of_used_layers("attention.head_count_kv")
    }

    /// Returns an item for each layer that is used.
    fn of_used_layers(&self, key: &str) -> Result<Vec<usize>> {
        let mut sizes = self.of_layers(key)?;
        sizes.truncate(self.n_blocks()?);
        Ok(sizes)
    }

    /// The type of each layer that is a mixer or a feed-forward alone, of the given type.
    fn types_of_sublayers(&self, feed_forward: &str) -> Result<Value> {
        let widths = self.of_used_layers("feed_forward_length")?;
        let kind = |(n_keys, width)| match (n_keys, width) {
            (0, 0) => "linear_attention",
            (_, 0) => "full_attention",
            _ => feed_forward,
        };
        Ok(self
            .key_heads()?
            .into_iter()
            .zip(widths)
            .map(kind)
            .collect())
    }

    /// The type of each layer: attention, or `other` for layers without key heads.
    fn types_by_key_heads(&self, other: &str) -> Result<Value> {
        let kind = |n: usize| if n == 0 { other } else { "full_attention" };
        Ok(self.key_heads()?.into_iter().map(kind).collect())
    }

    /// The indices of the layers with key heads.
    fn layers_of_attention(&self) -> Result<Value> {
        let layers = self.key_heads()?.into_iter().enumerate();
        let attended = layers.filter(|(_, n)| *n > 0).map(|(i, _)| i);
        Ok(attended.collect())
    }

    /// The distance between layers that have more than 0 under a key, or the tensor that `of` names after the key, and the first such
    /// layer.
    fn period(&self, of: &str) -> Result<(usize, usize)> {
        let (key, tensor) = of
            .split_once(' ')
            .map_or((of, None), |(key, tensor)| (key, Some(tensor)));
        let has: Vec<bool> = match tensor {
            Some(tensor) => (0..self.n_blocks()?)
                .map(|i| self.exists(&tensor.replace("{i}", &i.to_string())))
                .collect(),
            None => self
                .of_used_layers(key)?
                .into_iter()
                .map(|n| n > 0)
                .collect(),
        };
        let mut layers = (0..has.len()).filter(|&i| has[i]);
        let first = layers.next().unwrap_or(has.len());
        let period = match layers.next() {
            Some(second) => second - first,
            None => has.len().max(first + 1),
        };
        match (0..has.len()).all(|i| has[i] == (i % period == first)) {
            true => Ok((period, first)),
            false => {
                let layers: Vec<usize> = (0..has.len()).filter(|&i| has[i]).collect();
                let what = tensor.unwrap_or("more than 0");
                let reason = format!(
                    "layers {layers:?} have {what}, expected layers at one distance, which begin within it"
                );
                Err(self.error(key, reason))
            }
        }
    }

    /// The types of layers: the file says which are recurrent, or at which interval layers have attention.
    fn recurrent_layers(&self) -> Result<Value> {
        const KEYS: [&str; 2] = ["attention.recurrent_layers", "full_attention_interval"];
        let n_blocks = self.n_blocks()?;
        let kind = |is_recurrent: bool| match is_recurrent {
            true => "linear_attention",
            false => "full_attention",
        };
        let interval = match self.optional(KEYS[1]) {
            Some(_) => self.size(KEYS[1])?.max(1),
            None => 4,
        };
        let Some(layers) = self.optional(KEYS[0]) else {
            return Ok((0..n_blocks)
                .map(|i| kind((i + 1) % interval != 0))
                .collect());
        };
        let is_recurrent = |layer: &Value| layer.as_bool().or(layer.as_u64().map(|n| n != 0));
        let layers = match &layers {
            Value::Array(layers) => layers.get(..n_blocks).and_then(|layers| {
                let kinds = layers.iter().map(|layer| is_recurrent(layer).map(kind));
                kinds.collect()
            }),
            all => is_recurrent(all).map(|is| vec![kind(is); n_blocks].into()),
        };
        layers.ok_or_else(|| {
            let reason = format!("expected true or false for each of {n_blocks} layers");
            self.error(KEYS[0], reason)
        })
    }

    /// The one size that layers have which have any.
    fn one_of_layers(&self, key: &str) -> Result<Value> {
        let mut sizes = self.of_used_layers(key)?;
        sizes.retain(|&n| n > 0);
        sizes.dedup();
        match sizes[..] {
            [] => Ok(Value::Null),
            [n] => Ok(n.into()),
            _ => {
                let reason = format!("is {sizes:?} in the layers that have any, expected one size");
                Err(self.error(key, reason))
            }
        }
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
        self.check_attention_factor()?;
        let mut scaling = self.rope_scaling()?;
        if scaling["rope_type"] != "yarn" {
            let reason = "is not supported without \"rope.scaling.type\" \"yarn\"".to_string();
            return Err(self.error("attention.temperature_scale", reason));
        }
        scaling["rope_theta"] = self.optional("rope.freq_base").unwrap_or(json!(10000.0));
        if let Some(all) = self.optional("rope.scaling.yarn_log_multiplier") {
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(1.0), all);
        }
        scaling["llama_4_scaling_beta"] = json!(self.number("attention.temperature_scale")?);
        Ok(scaling)
    }

    /// Refuses a factor on cosine and sine beside the one that YaRN's multipliers give.
    fn check_attention_factor(&self) -> Result<()> {
        const KEY: &str = "rope.scaling.attn_factor";
        match self.peek(KEY).and_then(|factor| factor.as_f64()) {
            None | Some(1.0) => Ok(()),
            Some(factor) => {
                let reason = format!("is {factor}, which is not supported for this architecture");
                Err(self.error(KEY, reason))
            }
        }
    }

    /// YaRN's settings as latent attention has them, whose factor on scores a file holds as a tenth. llama.cpp changes the scores with
    /// any other scaling too.
    fn yarn_of_latent(&self) -> Result<Value> {
        const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
        let mut scaling = self.rope_scaling()?;
        let is_said = |key: &&str| self.peek(key).is_some();
        let refused = |keys: &[&'static str], reason: &str| {
            let key = keys.iter().copied().find(|key| is_said(key));
            Err(self.error(key.unwrap_or(keys[0]), reason.to_string()))
        };
        self.check_attention_factor()?;
        let multiplier = match self.optional(MULTIPLIER) {
            Some(_) => self.number(MULTIPLIER)?,
            None => 0.0,
        };
        match (scaling["rope_type"] == "yarn", multiplier == 0.0) {
            (true, true) => {
                let reason = format!(
                    "is \"yarn\", which is not supported for latent attention without \"{}.{MULTIPLIER}\"",
                    self.architecture
                );
                return refused(&["rope.scaling.type"], &reason);
            }
            (false, false) => {
                let reason = format!("is not \"yarn\", but there is a \"{MULTIPLIER}\"");
                return refused(&["rope.scaling.type"], &reason);
            }
            (false, true) if !scaling.is_null() => {
                let reason = "is not supported for latent attention without YaRN";
                return refused(
                    &[
                        "rope.scaling.factor",
                        "rope.scale_linear",
                        "rope.scaling.type",
                    ],
                    reason,
                );
            }
            _ => {}
        }
        if multiplier != 0.0 {
            let all = 10.0 * multiplier;
            // What the quotient's shortest decimal is, in 32 bits.
            let all = f64::from(all as f32).to_string().parse().unwrap_or(all);
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(all), json!(all));
        }
        Ok(scaling)
    }

    /// YaRN's settings as latent attention has them, with a factor on scores that grows with the position. Its interval is the length
    /// before the scaling.
    fn latent_yarn_with_temperature(&self) -> Result<Value> {
        const SCALE: &str = "attention.temperature_scale";
        const LENGTH: &str = "attention.temperature_length";
        let mut scaling = self.yarn_of_latent()?;
        if scaling["rope_type"] != "yarn" {
            let reason =
                "expected \"yarn\", the only scaling that is supported for this architecture"
                    .to_string();
            return Err(self.error("rope.scaling.type", reason));
        }
        let beta = match self.optional(SCALE) {
            Some(_) => self.number(SCALE)?,
            None => 0.0,
        };
        let original = &scaling["original_max_position_embeddings"];
        if beta != 0.0 && *original != json!(self.size(LENGTH)?) {
            let reason = format!(
                "is {}, expected {original}, the length before the scaling",
                self.size(LENGTH)?
            );
            return Err(self.error(LENGTH, reason));
        }
        scaling["llama_4_scaling_beta"] = json!(beta);
        Ok(scaling)
    }

    /// The rotations for layers with a window and without; the scaling is for the latter. With `alike` the base is the same.
    fn rope_of_layers(&self, local: &str) -> Result<Value> {
        let base = |key: &str| match self.optional(key).unwrap_or(json!(10000.0)) {
            found if found.as_f64().is_some_and(|base| base > 0.0) => Ok(found),
            found => Err(self.error(key, format!("found {found}, expected a positive number"))),
        };
        let theta = base("rope.freq_base")?;
        let local = match local {
            "alike" => theta.clone(),
            _ => base("rope.freq_base_swa")?,
        };
        let mut full = match self.rope_scaling()? {
            Value::Null => json!({"rope_type": "default"}),
            scaling => scaling,
        };
        full["rope_theta"] = theta;
        Ok(
            json!({"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}),
        )
    }

    /// Returns whether layers have windows in a file without the window's size: the second argument is `always`, or the number of
    /// blocks.
    pub(crate) fn has_windows_unsaid(&self, arguments: &str) -> bool {
        match arguments.split_once(' ') {
            Some((_, "always")) => true,
            Some((_, n)) => self.n_blocks().is_ok_and(|found| found.to_string() == n),
            None => false,
        }
    }

    /// The kinds for layers by their windows: all but the last in each period have one, or as the file says. Without the
    /// window's size there is none, unless [`Self::has_windows_unsaid`].
    fn windows(&self, arguments: &str) -> Result<Value> {
        const KEY: &str = "attention.sliding_window_pattern";
        let n_blocks = self.n_blocks()?;
        let period = arguments.split(' ').next().unwrap_or_default();
        let size = self.peek("attention.sliding_window");
        let has_windows = size.map_or_else(
            || self.has_windows_unsaid(arguments),
            |size| size != json!(0),
        );
        let reads_causal = |entry: &Architecture| entry.keys.get("is_causal").is_some();
        let is_causal = self.peek("attention.causal") != Some(json!(false));
        if has_windows && !is_causal && self.entry().is_some_and(reads_causal) {
            let reason = "is false, which is not supported for layers with a window".to_string();
            return Err(self.error("attention.causal", reason));
        }
        let found = self.optional(KEY).and_then(|_| self.stored(KEY).cloned());
        let layers: Vec<bool> = match found {
            _ if !has_windows => vec![false; n_blocks],
            Some(Value::Array(layers)) if layers.len() == n_blocks => layers
                .iter()
                .map(|layer| ![json!(false), json!(0)].contains(layer))
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
