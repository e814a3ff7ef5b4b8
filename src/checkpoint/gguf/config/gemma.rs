//! Values for Gemma 3n and 4, which differ between layers.

use serde_json::{Map, Value, json};

use crate::checkpoint::gguf::config::Keys;
use crate::error::Result;

impl Keys<'_> {
    /// Returns an item for each layer from a key that may hold one number for all.
    pub(crate) fn of_layers(&self, key: &str) -> Result<Vec<usize>> {
        let n_blocks = self.size("block_count")?;
        match self.optional(key) {
            Some(Value::Array(items)) if items.len() == n_blocks => {
                let size = |item: &Value| item.as_u64().map(|size| size as usize);
                let sizes: Option<Vec<usize>> = items.iter().map(size).collect();
                sizes.ok_or_else(|| self.error(key, "expected whole numbers".to_string()))
            }
            Some(Value::Array(items)) => {
                let reason = format!("has {} layers, but there are {n_blocks}", items.len());
                Err(self.error(key, reason))
            }
            _ => Ok(vec![self.size(key)?; n_blocks]),
        }
    }

    /// Returns the feed-forwards' width, and whether the layers that share keys have twice it.
    pub(crate) fn feed_forwards(&self) -> Result<(usize, bool)> {
        const KEY: &str = "feed_forward_length";
        let widths = self.of_layers(KEY)?;
        let shared = match self.optional("attention.shared_kv_layers") {
            Some(_) => self.size("attention.shared_kv_layers")?,
            None => 0,
        };
        let (own, sharing) = widths.split_at(widths.len().saturating_sub(shared));
        let width = own.first().or(sharing.first()).copied().unwrap_or(0);
        let is_wide = sharing.first().is_some_and(|&other| other != width);
        let expected = if is_wide { 2 * width } else { width };
        if own.iter().any(|&other| other != width) || sharing.iter().any(|&other| other != expected)
        {
            let reason = format!(
                "is {widths:?}, expected one width, or twice it in the last {shared} layers"
            );
            return Err(self.error(KEY, reason));
        }
        Ok((width, is_wide))
    }

    /// Returns each layer's head width and number.
    pub(crate) fn heads_of_layers(&self) -> Result<Value> {
        let kinds = self.computed("windows", "6 always")?;
        let (full, local) = (self.head_dim()?, self.size("attention.key_length_swa")?);
        let n_kv_heads = self.of_layers("attention.head_count_kv")?;
        let kinds = kinds.as_array().cloned().unwrap_or_default();
        let last = kinds.len().saturating_sub(1);
        let layers = kinds.iter().zip(n_kv_heads).enumerate();
        let layers = layers.map(|(i, (kind, n_kv_heads))| {
            // The last layer sees all positions, whatever its kind.
            let is_local = kind == "sliding_attention" && i < last;
            let head_dim = if is_local { local } else { full };
            let own = json!({"head_dim": head_dim, "num_key_value_heads": n_kv_heads});
            (i.to_string(), own)
        });
        Ok(Value::Object(layers.collect::<Map<_, _>>()))
    }

    /// Returns whether layers without a window have no value projection.
    pub(crate) fn values_are_keys(&self) -> Result<bool> {
        let n_blocks = self.size("block_count")?;
        let is_there = |i: usize, name: &str| self.exists(&format!("blk.{i}.{name}.weight"));
        Ok((0..n_blocks).any(|i| is_there(i, "attn_k") && !is_there(i, "attn_v")))
    }

    /// Returns the rotations for both kinds; those without a window turn some dimensions, and the others' factors
    /// are enormous.
    pub(crate) fn rope_with_still_dimensions(&self) -> Result<Value> {
        let rotary_dim = match self.optional("rope.dimension_count_swa") {
            Some(_) => self.size("rope.dimension_count_swa")?,
            None => self.size("attention.key_length_swa")?,
        };
        if rotary_dim != self.size("attention.key_length_swa")? {
            let reason = format!(
                "is {rotary_dim}: a part that is not turned is not supported for this architecture"
            );
            return Err(self.error("rope.dimension_count_swa", reason));
        }
        let factors = (self.file.numbers)("rope_freqs.weight")?.unwrap_or_default();
        let n_turning = factors.iter().take_while(|&&factor| factor == 1.0).count();
        let is_still = |factor: &f32| *factor >= 1e20;
        if factors.is_empty() || !factors[n_turning..].iter().all(is_still) {
            let reason =
                "is not supported without a tensor rope_freqs.weight of ones and enormous numbers"
                    .to_string();
            return Err(self.error("rope.freq_base", reason));
        }
        let share = n_turning as f64 / factors.len() as f64;
        let theta = self.optional("rope.freq_base").unwrap_or(json!(10000.0));
        let local = self
            .optional("rope.freq_base_swa")
            .unwrap_or(json!(10000.0));
        Ok(json!({
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": local}
        }))
    }

    /// Returns a normal distribution's shares below the given deviations; minus infinity is null.
    pub(crate) fn shares_below(&self, key: &str) -> Result<Value> {
        let Some(found) = self.optional(key) else {
            return Ok(Value::Null);
        };
        let n_blocks = self.size("block_count")?;
        let items = match found {
            Value::Array(items) => items,
            one => vec![one; n_blocks],
        };
        let share = |item: &Value| item.as_f64().map_or(0.0, normal_share);
        Ok(items.iter().map(|item| json!(share(item))).collect())
    }
}

/// Returns a normal distribution's share below `x` deviations, to seven digits, as f32 has.
fn normal_share(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    // The series for erf(x / √2).
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / (2.0 * n as f64);
        sum += term / (2 * n + 1) as f64;
    }
    let share = 0.5 + sum / (2.0 * std::f64::consts::PI).sqrt();
    (share * 1e7).round() / 1e7
}
