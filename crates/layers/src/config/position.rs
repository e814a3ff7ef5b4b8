//! The configuration of position embeddings: rotary and ALiBi.

use serde::{Deserialize, Serialize};

use super::{
    AttentionConfig, DisentangledConfig, RelativeBiasConfig, RotaryAxes, Visibility, finite,
    positive, setters, size,
};
use crate::error::{Error, Result};

/// The position embedding in an attention. Set it in [`AttentionConfig::position`](crate::AttentionConfig::position).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Position {
    /// No position embedding: positions are part of the input embeddings, or the stack adds a relative bias to the
    /// scores.
    #[default]
    None,
    /// A rotary embedding for queries and keys (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
    Rotary(RotaryConfig),
    /// ALiBi: scores that decrease linearly with distance (Press et al. 2021, <https://arxiv.org/abs/2108.12409>).
    Alibi(AlibiConfig),
    /// Disentangled attention: scores between contents and relative embeddings, which the stack provides.
    Disentangled(DisentangledConfig),
    /// A learned bias by distance, `table[bucket(key - query), head]`, that each query multiplies by a gate (WavLM, Chen et al. 2021,
    /// <https://arxiv.org/abs/2110.13900>). The stack provides the table, `[n_buckets, n_heads]`, as its relative embeddings. A gate is
    /// `σ(a) · (σ(b) · factor - 1) + 2`, with `a` and `b` projected from the head's part of the attention's input.
    GatedBias(RelativeBiasConfig),
}

impl Position {
    /// Checks the settings for an attention.
    pub(super) fn validate(&self, attention: &AttentionConfig) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Disentangled(disentangled) => disentangled.validate(attention),
            Self::GatedBias(bias) => {
                of_plain_heads("a gated bias", attention)?;
                if attention.query_width() != attention.d_model {
                    return Err(Error::InvalidConfig(format!(
                        "a gated bias reads each head's part of the input, of width {}, but the heads have {} in all",
                        attention.d_model,
                        attention.query_width()
                    )));
                }
                bias.validate(attention)
            }
            Self::Rotary(rotary) => rotary.validate(attention.head_dim),
            Self::Alibi(alibi) => {
                if let AlibiSlopes::Interleaved { max } = alibi.slopes {
                    finite("the exponent of the smallest ALiBi slope", max)?;
                }
                let is_plain = attention.visibility == Visibility::Bidirectional
                    && alibi.rounding == AlibiRounding::None;
                if alibi.both_sides && !is_plain {
                    let reason =
                        "ALiBi on both sides requires bidirectional attention, and no rounding";
                    return Err(Error::InvalidConfig(reason.to_string()));
                }
                finite("the factor on the ALiBi bias", alibi.scale)
            }
        }
    }

    /// Returns the table by distance that the stack provides to its attentions, if they read one.
    pub(crate) fn distances(&self) -> Option<Distances> {
        match self {
            Self::Disentangled(disentangled) => Some(Distances::Disentangled(*disentangled)),
            Self::GatedBias(bias) => Some(Distances::GatedBias(*bias)),
            _ => None,
        }
    }
}

/// A table with a row for each distance or range of distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distances {
    Disentangled(DisentangledConfig),
    GatedBias(RelativeBiasConfig),
}

impl Distances {
    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Disentangled(of) => 2 * of.span,
            Self::GatedBias(bias) => bias.n_buckets,
        }
    }

    /// Returns the rows' width in blocks of width `d_model`.
    pub fn width(&self, d_model: usize) -> usize {
        match self {
            Self::Disentangled(_) => d_model,
            Self::GatedBias(bias) => bias.n_heads,
        }
    }

    /// Returns the factor on the products with the rows, where scores have the factor `scale`.
    pub fn scale(&self, scale: f64) -> f64 {
        match self {
            Self::Disentangled(_) => scale,
            Self::GatedBias(_) => 1.0,
        }
    }

    /// Returns the row for `distance = query - key`.
    pub fn row(&self, distance: i64) -> usize {
        match self {
            Self::Disentangled(of) => of.row(distance),
            Self::GatedBias(bias) => bias.bucket(-distance, Visibility::Bidirectional),
        }
    }
}

/// Checks that each head has keys and values of the input itself, at all positions, whose scores nothing caps.
pub(super) fn of_plain_heads(what: &str, attention: &AttentionConfig) -> Result<()> {
    let is_plain = attention.visibility == Visibility::Bidirectional
        && attention.n_kv_heads == attention.n_heads
        && attention.d_encoder == attention.d_model
        && attention.soft_cap.is_none();
    match is_plain {
        true => Ok(()),
        false => Err(Error::InvalidConfig(format!(
            "{what} is for bidirectional self-attention with as many key heads as query heads and no soft cap; expected a \
             configuration of that kind"
        ))),
    }
}

/// The two dimensions in a head that are rotated together.
/// Set them in [`RotaryConfig::pairing`](crate::RotaryConfig::pairing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryPairing {
    /// `i` and `i + dim/2` (Llama, GPT-NeoX).
    Halves,
    /// `2i` and `2i + 1` (GPT-J, Cohere).
    Interleaved,
}

/// The configuration of a rotary position embedding. Set it in [`Position::Rotary`](crate::Position::Rotary).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct RotaryConfig {
    /// The number of rotated dimensions per head. The other dimensions are unchanged.
    pub dim: usize,
    /// The base of the frequencies, `rope_theta`.
    pub theta: f64,
    /// The dimensions that are rotated together.
    pub pairing: RotaryPairing,
    /// The scaling of frequencies for longer contexts.
    pub scaling: RotaryScaling,
    /// The dimension count for computing the frequencies, if not `dim`: see [`Self::rounded_up`].
    #[serde(default)]
    pub frequency_dim: Option<usize>,
    /// The coordinates for the angles, if not a token's position.
    #[serde(default)]
    pub axes: Option<RotaryAxes>,
}

impl RotaryConfig {
    /// Returns a rotary embedding for `dim` dimensions, paired by halves, without scaling.
    pub fn new(dim: usize, theta: f64) -> Self {
        Self {
            dim,
            frequency_dim: None,
            axes: None,
            theta,
            pairing: RotaryPairing::Halves,
            scaling: RotaryScaling::None,
        }
    }

    setters! {
        /// Sets the dimensions that are rotated together.
        with_pairing(pairing: RotaryPairing) => pairing = pairing;
        /// Sets the scaling.
        with_scaling(scaling: RotaryScaling) => scaling = scaling;
        /// Sets the coordinates for the angles.
        with_axes(axes: RotaryAxes) => axes = Some(axes);
    }

    /// Rounds an odd number of dimensions up to the next even number, with the odd number's frequencies, as
    /// transformers does in GPT-NeoX and Phi-3.
    pub fn rounded_up(mut self) -> Self {
        if !self.dim.is_multiple_of(2) {
            self.frequency_dim = Some(self.dim);
            self.dim += 1;
        }
        self
    }

    /// Checks that the angles are finite for every position, and that `dim` is at most the head's width.
    fn validate(&self, head_dim: usize) -> Result<()> {
        if self.dim > head_dim || !self.dim.is_multiple_of(2) {
            return Err(Error::InvalidConfig(format!(
                "{} dimensions of each head are rotated; expected an even number up to head_dim {head_dim}",
                self.dim
            )));
        }
        if let Some(dim) = self.frequency_dim
            && dim.div_ceil(2) != self.dim / 2
        {
            return Err(Error::InvalidConfig(format!(
                "the frequencies are for {dim} dimensions, but {} are rotated; expected {} or {}",
                self.dim,
                self.dim.saturating_sub(1),
                self.dim
            )));
        }
        positive("rope_theta", self.theta)?;
        match &self.axes {
            Some(RotaryAxes::Patches(axes)) => axes.validate(self)?,
            Some(RotaryAxes::Tokens(axes)) => axes.validate(self)?,
            None => {}
        }
        self.scaling.validate(self)
    }
}

/// The scaling of rotary frequencies for longer contexts, as in transformers' `ROPE_INIT_FUNCTIONS`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_rope_utils.py>).
/// Set it in [`RotaryConfig::scaling`](crate::RotaryConfig::scaling).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotaryScaling {
    /// No scaling.
    None,
    /// Position interpolation: every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Only the first pairs are rotated, with the frequencies for the whole head (Gemma 4).
    Proportional {
        /// The number of rotated pairs.
        n_turning: usize,
        /// The divisor for every frequency.
        factor: f64,
    },
    /// Dynamic NTK: the base grows with the sequence length beyond `max_positions`.
    DynamicNtk {
        /// The scaling factor.
        factor: f64,
        /// The length beyond which the base grows.
        max_positions: usize,
    },
    /// YaRN: low frequencies divided by `factor`, high ones kept, with a ramp between
    /// (Peng et al. 2023, <https://arxiv.org/abs/2309.00071>).
    Yarn {
        /// The divisor for low frequencies.
        factor: f64,
        /// The factor on cosine and sine.
        attention_factor: f64,
        /// The number of rotations above which a frequency is kept.
        beta_fast: f64,
        /// The number of rotations below which a frequency is divided.
        beta_slow: f64,
        /// The original context length.
        original_positions: usize,
        /// Rounds the ramp's ends outwards to whole dimensions.
        truncate: bool,
    },
    /// Llama 3's scaling: by the wavelength relative to the original context, with a smooth transition.
    Llama3 {
        /// The divisor for low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The original context length.
        original_positions: usize,
    },
    /// LongRoPE: one divisor per frequency, with one list for short and one for long sequences
    /// (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
    LongRope {
        /// Divisors for lengths up to `original_positions`.
        short_factor: Vec<f64>,
        /// Divisors for longer sequences.
        long_factor: Vec<f64>,
        /// The factor on cosine and sine.
        attention_factor: f64,
        /// The factor on cosine and sine for long sequences, if different.
        #[serde(default)]
        long_attention_factor: Option<f64>,
        /// The original context length.
        original_positions: usize,
    },
}

impl RotaryScaling {
    fn validate(&self, rotary: &RotaryConfig) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        let named = |setting: &str| format!("the rotary scaling's {setting}");
        let above_0 = |setting: &str, value: f64| positive(&named(setting), value);
        let n_frequencies = rotary.frequency_dim.unwrap_or(rotary.dim);
        match *self {
            Self::None => Ok(()),
            Self::Linear { factor } => above_0("factor", factor),
            Self::Proportional { n_turning, factor } => {
                if n_turning > rotary.dim / 2 {
                    return failed(&format!(
                        "{n_turning} pairs are rotated in a head that has {}",
                        rotary.dim / 2
                    ));
                }
                above_0("factor", factor)
            }
            Self::DynamicNtk {
                factor,
                max_positions,
            } => {
                above_0("factor", factor)?;
                if n_frequencies == 2 {
                    return failed(
                        "dynamic rotary scaling divides by dim - 2; expected more than 2 rotated dimensions",
                    );
                }
                size("max_positions", max_positions)
            }
            Self::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                original_positions,
                ..
            } => {
                above_0("factor", factor)?;
                finite(&named("attention_factor"), attention_factor)?;
                above_0("beta_fast", beta_fast)?;
                above_0("beta_slow", beta_slow)?;
                if rotary.theta == 1.0 {
                    return failed("YaRN divides by the logarithm of rope_theta, which is 1");
                }
                if !n_frequencies.is_multiple_of(2) {
                    return failed(
                        "YaRN has no ramp for the frequencies of an odd number of dimensions",
                    );
                }
                size("original_positions", original_positions)
            }
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_positions,
            } => {
                above_0("factor", factor)?;
                above_0("low_freq_factor", low)?;
                if !(high.is_finite() && high > low) {
                    return failed(&format!(
                        "the rotary scaling's high_freq_factor is {high}; expected a number above the \
                         low_freq_factor, {low}"
                    ));
                }
                size("original_positions", original_positions)
            }
            Self::LongRope {
                ref short_factor,
                ref long_factor,
                attention_factor,
                long_attention_factor,
                original_positions,
            } => {
                let n_pairs = rotary.dim / 2;
                let lists = [("short_factor", short_factor), ("long_factor", long_factor)];
                for (name, factors) in lists {
                    let n_factors = factors.len();
                    if n_factors != n_pairs {
                        return failed(&format!(
                            "the rotary scaling's {name} lists {n_factors} divisors, expected {n_pairs}, one per pair \
                             of rotated dimensions"
                        ));
                    }
                    let name = format!("a divisor in the rotary scaling's {name}");
                    factors.iter().try_for_each(|&f| positive(&name, f))?;
                }
                finite(&named("attention_factor"), attention_factor)?;
                let long_factor = long_attention_factor.unwrap_or(attention_factor);
                finite(&named("long_attention_factor"), long_factor)?;
                size("original_positions", original_positions)
            }
        }
    }
}

/// The order of ALiBi slopes for a head count that is not a power of two.
/// Set it in [`AlibiConfig::slopes`](crate::config::AlibiConfig::slopes).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiSlopes {
    /// The slopes for the next lower power of two, then every other slope for twice as many heads. Distances do not
    /// count positions that the mask drops (BLOOM, Falcon).
    Appended,
    /// Every other slope for the next higher power of two, then the rest, starting at `2^(-max/n)`. Distances count
    /// every position (MPT).
    Interleaved {
        /// The smallest slope's exponent.
        max: f64,
    },
}

/// The rounding of the bias, independent of the layer's dtype.
/// Set it in [`AlibiConfig::rounding`](crate::config::AlibiConfig::rounding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiRounding {
    /// Rounds only to the scores' dtype.
    #[default]
    None,
    /// Rounds slopes, positions and their products to bfloat16, as transformers does for Falcon.
    Bf16,
}

/// The configuration of attention with linear biases (ALiBi). Set it in [`Position::Alibi`](crate::Position::Alibi).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AlibiConfig {
    /// The order of the slopes.
    pub slopes: AlibiSlopes,
    /// The factor on the bias. Falcon scales it together with the scores.
    pub scale: f64,
    /// The rounding of the bias, before the factor.
    #[serde(default)]
    pub rounding: AlibiRounding,
    /// Scores decrease with the distance on both sides of a query, in bidirectional self-attention (Jina Embeddings 2,
    /// <https://arxiv.org/abs/2310.19923>). Otherwise the bias grows with a key's position.
    #[serde(default)]
    pub both_sides: bool,
}

impl AlibiConfig {
    /// Returns linear biases with these slopes, scale and rounding.
    #[must_use]
    pub fn new(slopes: AlibiSlopes, scale: f64, rounding: AlibiRounding) -> Self {
        Self {
            slopes,
            scale,
            rounding,
            both_sides: false,
        }
    }

    /// Sets whether scores decrease with the distance on both sides.
    #[must_use]
    pub fn with_both_sides(mut self, both_sides: bool) -> Self {
        self.both_sides = both_sides;
        self
    }
}
