//! Reads rotary embeddings from `config.json`, with the keys of newer and older transformers.
//!
//! Newer files have `rope_parameters: {rope_theta, rope_type, ..}`, for each layer type if they differ; older ones have
//! `rope_theta` and `rope_scaling: {type or rope_type, ..}`.

use crate::checkpoint::config_json::ConfigJson;
use crate::config::{RotaryConfig, RotaryScaling};
use crate::error::Result;

/// Reads rotary embeddings from a [`ConfigJson`], which implements it.
pub trait RotaryKeys {
    /// Returns the file or section with the keys.
    #[doc(hidden)]
    fn json(&self) -> &ConfigJson;

    /// Reads rotary embeddings for whole heads with width `head_dim`, the same in all layers.
    ///
    /// # Errors
    /// If a key is malformed, or the scaling type is unknown or lacks a setting.
    fn rotary(&self, head_dim: usize, default_theta: f64) -> Result<RotaryConfig> {
        self.check_head_dim(head_dim)?;
        let parameters = self.rotary_section()?;
        if let Some(parameters) = &parameters {
            self.check_whole(parameters)?;
        }
        self.rotary_of(parameters.as_ref(), head_dim, default_theta)
    }

    /// Refuses partial rotary embeddings, which transformers only supports without scaling; otherwise it applies the share
    /// to the frequencies alone.
    #[doc(hidden)]
    fn check_whole(&self, parameters: &ConfigJson) -> Result<()> {
        let kind = parameters.text(&["rope_type", "type"])?;
        match kind.as_deref() {
            None | Some("default" | "mrope") => Ok(()),
            _ => self.only_whole_heads(),
        }
    }

    /// Refuses partial rotary embeddings.
    ///
    /// # Errors
    /// If the share is not 1.
    #[doc(hidden)]
    fn only_whole_heads(&self) -> Result<()> {
        let key = ["partial_rotary_factor"];
        match self.rotary_number(self.rotary_section()?.as_ref(), &key, 1.0)? {
            1.0 => Ok(()),
            share => {
                let reason = format!("{share} is not supported, only 1: whole heads are rotated");
                Err(self.json().error(&key, reason))
            }
        }
    }

    /// Refuses a `head_dim` that transformers uses for the rotation, but not for the heads.
    #[doc(hidden)]
    fn check_head_dim(&self, head_dim: usize) -> Result<()> {
        let key = ["head_dim"];
        match self.json().optional_size(&key)? {
            Some(found) if found != head_dim => {
                let reason = format!("found {found}, expected {head_dim}, the width of the heads");
                Err(self.json().error(&key, reason))
            }
            _ => Ok(()),
        }
    }

    /// Reads partial rotary embeddings for heads with width `head_dim`, in families that read `partial_rotary_factor`. All
    /// other families rotate whole heads, whatever the key says. An odd number of dimensions is refused later, unless the
    /// family [rounds it up](RotaryConfig::rounded_up). Errors as for [`Self::rotary`].
    fn partial_rotary(
        &self,
        head_dim: usize,
        default_share: f64,
        default_theta: f64,
    ) -> Result<RotaryConfig> {
        let parameters = self.rotary_section()?;
        self.partial_rotary_of(
            parameters.as_ref(),
            head_dim,
            [default_share, default_theta],
        )
    }

    /// Like [`Self::partial_rotary`], from `parameters`.
    #[doc(hidden)]
    fn partial_rotary_of(
        &self,
        parameters: Option<&ConfigJson>,
        head_dim: usize,
        [default_share, default_theta]: [f64; 2],
    ) -> Result<RotaryConfig> {
        self.check_head_dim(head_dim)?;
        let keys = ["partial_rotary_factor"];
        let share = self.rotary_number(parameters, &keys, default_share)?;
        let kind = parameters.map(|own| own.text(&["rope_type", "type"]));
        let turning = match kind.transpose()?.flatten().as_deref() {
            Some("proportional") => head_dim, // this type applies the share itself
            _ => (head_dim as f64 * share) as usize,
        };
        self.rotary_of(parameters, turning, default_theta)
    }

    /// Returns `rope_scaling`, older files' section, or else `rope_parameters`. If a file has both, transformers uses the
    /// first.
    ///
    /// # Errors
    /// If it is not an object.
    fn rotary_section(&self) -> Result<Option<ConfigJson>> {
        match self.json().section(&["rope_scaling"])? {
            Some(parameters) if parameters.keys().next().is_some() => Ok(Some(parameters)),
            _ => self.json().section(&["rope_parameters"]),
        }
    }

    /// Reads a number from `parameters` or, in older files, beside them.
    #[doc(hidden)]
    fn rotary_number(
        &self,
        parameters: Option<&ConfigJson>,
        keys: &[&str],
        default: f64,
    ) -> Result<f64> {
        let own = parameters.map(|parameters| parameters.optional_number(keys));
        match own.transpose()?.flatten() {
            Some(number) => Ok(number),
            None => self.json().number(keys, default),
        }
    }

    /// Reads rotary embeddings for one layer type (`full_attention`, `sliding_attention`): its own section of
    /// `rope_parameters` if there is one, otherwise without scaling and with the base under `theta_key`. Errors as for
    /// [`Self::rotary`].
    fn rotary_of_type(
        &self,
        layer_type: &str,
        theta_key: &str,
        head_dim: usize,
        default_theta: f64,
    ) -> Result<RotaryConfig> {
        let own = match self.json().section(&["rope_parameters"])? {
            Some(parameters) => parameters.section(&[layer_type])?,
            None => None,
        };
        match own {
            // transformers reads `truncate` beside the layer types' sections.
            Some(own) => self.rotary_of(Some(&own.without("truncate")), head_dim, default_theta),
            None => {
                let theta = self.json().number(&[theta_key], default_theta)?;
                let theta = self.json().positive(theta, &[theta_key])?;
                Ok(RotaryConfig::new(head_dim, theta))
            }
        }
    }

    /// Reads rotary embeddings for `turning` dimensions of each head, described in `parameters`, such as
    /// [`Self::rotary_section`], or in older files beside it. Errors as for [`Self::rotary`].
    fn rotary_of(
        &self,
        parameters: Option<&ConfigJson>,
        turning: usize,
        default_theta: f64,
    ) -> Result<RotaryConfig> {
        let keys = ["rope_theta"];
        let theta = self.rotary_number(parameters, &keys, default_theta)?;
        let rotary = RotaryConfig::new(turning, self.json().positive(theta, &keys)?);
        match parameters {
            Some(parameters) => Ok(rotary.with_scaling(self.rotary_scaling(parameters, turning)?)),
            None => Ok(rotary),
        }
    }

    /// Returns how many pairs rotate by time, row and column, in families whose tokens have such positions; `default` if
    /// absent.
    ///
    /// # Errors
    /// If these are not three counts.
    #[doc(hidden)]
    fn pairs_of_axes(&self, default: [usize; 3]) -> Result<[usize; 3]> {
        let key = ["mrope_section"];
        let Some(parameters) = self.rotary_section()? else {
            return Ok(default);
        };
        let Some(numbers) = parameters.numbers(&key)? else {
            return Ok(default);
        };
        let is_count = |number: &f64| number.fract() == 0.0 && (0.0..1e9).contains(number);
        match numbers[..] {
            [time, down, across] if numbers.iter().all(is_count) => {
                Ok([time, down, across].map(|count| count as usize))
            }
            _ => {
                let expected = "expected three counts, for time, rows and columns";
                Err(parameters.error(&key, format!("holds {numbers:?}, {expected}")))
            }
        }
    }

    /// Returns the factor that latent attention applies to its scores if the context is extended: the square of the factor
    /// from `mscale_all_dim`, which other attentions apply to cosine and sine.
    ///
    /// # Errors
    /// If a key is malformed, or `factor` is missing.
    #[doc(hidden)]
    fn score_stretch(&self) -> Result<f64> {
        let Some(parameters) = self.rotary_section()? else {
            return Ok(1.0);
        };
        let kind = parameters.text(&["rope_type", "type"])?;
        let all = parameters.number(&["mscale_all_dim"], 0.0)?;
        if all == 0.0 || kind.is_none_or(|kind| kind == "default") {
            return Ok(1.0);
        }
        let factor = parameters.optional_number(&["factor"])?;
        let missing = || parameters.error(&["factor"], "missing, expected a number");
        Ok(magnitude(factor.ok_or_else(missing)?, all).powi(2))
    }

    #[doc(hidden)]
    fn rotary_scaling(&self, parameters: &ConfigJson, head_dim: usize) -> Result<RotaryScaling> {
        let required = |key: &str| {
            let number = parameters.optional_number(&[key])?;
            number.ok_or_else(|| parameters.error(&[key], "missing, expected a number"))
        };
        let max_positions = || self.json().size(&["max_position_embeddings"]);
        let original_positions = || {
            let keys = ["original_max_position_embeddings"];
            // transformers gives priority to the key outside.
            match self.json().optional_size(&keys)? {
                Some(size) => Ok(size),
                None => match parameters.optional_size(&keys)? {
                    Some(size) => Ok(size),
                    None => max_positions(),
                },
            }
        };
        // Models with an extended context give the extension by their two lengths.
        let stretch = || -> Result<f64> {
            match parameters.optional_number(&["factor"])? {
                Some(factor) => Ok(factor),
                None => Ok(max_positions()? as f64 / original_positions()? as f64),
            }
        };
        let kind = parameters.text(&["rope_type", "type"])?;
        Ok(match kind.as_deref() {
            None | Some("default" | "mrope") => RotaryScaling::None,
            Some("linear") => RotaryScaling::Linear {
                factor: required("factor")?,
            },
            Some("proportional") => {
                let share = parameters.number(&["partial_rotary_factor"], 1.0)?;
                RotaryScaling::Proportional {
                    n_turning: (share * head_dim as f64 / 2.0) as usize,
                    factor: parameters.number(&["factor"], 1.0)?,
                }
            }
            Some("dynamic") => RotaryScaling::DynamicNtk {
                factor: required("factor")?,
                max_positions: max_positions()?,
            },
            Some("yarn") => {
                let factor = stretch()?;
                let mscale = |m: f64| magnitude(factor, m);
                let given = parameters.optional_number(&["attention_factor"])?;
                let m = parameters.number(&["mscale"], 0.0)?;
                let all = parameters.number(&["mscale_all_dim"], 0.0)?;
                let inferred = match m != 0.0 && all != 0.0 {
                    true => mscale(m) / mscale(all),
                    false => mscale(1.0),
                };
                RotaryScaling::Yarn {
                    factor,
                    attention_factor: given.unwrap_or(inferred),
                    beta_fast: parameters.number(&["beta_fast"], 32.0)?,
                    beta_slow: parameters.number(&["beta_slow"], 1.0)?,
                    original_positions: original_positions()?,
                    truncate: parameters.flag(&["truncate"], true)?,
                }
            }
            Some("llama3") => RotaryScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_positions: original_positions()?,
            },
            Some("longrope" | "su") => {
                let factors = |key: &str| {
                    let list = parameters.numbers(&[key])?;
                    list.ok_or_else(|| {
                        parameters.error(&[key], "missing, expected a list of numbers")
                    })
                };
                let (factor, original) = (stretch()?, original_positions()?);
                let inferred = match factor <= 1.0 {
                    true => 1.0,
                    false => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
                };
                let given = parameters.optional_number(&["attention_factor"])?;
                RotaryScaling::LongRope {
                    short_factor: factors("short_factor")?,
                    long_factor: factors("long_factor")?,
                    attention_factor: given.unwrap_or(inferred),
                    long_attention_factor: None,
                    original_positions: original,
                }
            }
            Some(other) => {
                let known = "default, linear, proportional, dynamic, yarn, llama3, longrope";
                return Err(parameters.error(
                    &["rope_type", "type"],
                    format!("{other:?} is unknown; known: {known}"),
                ));
            }
        })
    }
}

impl RotaryKeys for ConfigJson {
    fn json(&self) -> &ConfigJson {
        self
    }
}

/// Returns YaRN's factor on cosine and sine for a context extended by `factor`, with an additional setting that is usually
/// 1.
fn magnitude(factor: f64, setting: f64) -> f64 {
    match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * setting * factor.ln() + 1.0,
    }
}
