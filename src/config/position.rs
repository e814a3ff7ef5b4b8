//! The configuration of position embeddings: rotary and ALiBi.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, DisentangledConfig, RotaryAxes, finite, positive, setters, size};
use crate::error::{Error, Result};

/// The position embedding of an attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Position {
    /// None: positions are part of the input embeddings, or the stack adds a relative bias to the scores.
    #[default]
    None,
    /// Rotary embedding of queries and keys (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
    Rotary(RotaryConfig),
    /// ALiBi: scores that decrease linearly with distance (Press et al. 2021, <https://arxiv.org/abs/2108.12409>).
    Alibi(AlibiConfig),
    /// Disentangled attention: scores of contents and embeddings of distances, in a stack that has these.
    Disentangled(DisentangledConfig),
}

impl Position {
    /// Checks the settings for an attention.
    pub(super) fn validate(&self, attention: &AttentionConfig) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Disentangled(disentangled) => disentangled.validate(attention),
            Self::Rotary(rotary) => rotary.validate(attention.head_dim),
            Self::Alibi(alibi) => {
                if let AlibiSlopes::Interleaved { max } = alibi.slopes {
                    finite("the exponent of the smallest ALiBi slope", max)?;
                }
                finite("the factor on the ALiBi bias", alibi.scale)
            }
        }
    }
}

/// Which two dimensions of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryPairing {
    /// `i` and `i + dim/2` (Llama, GPT-NeoX).
    Halves,
    /// `2i` and `2i + 1` (GPT-J, Cohere).
    Interleaved,
}

/// The configuration of a rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct RotaryConfig {
    /// How many dimensions of each head are rotated; the rest pass through.
    pub dim: usize,
    /// The base of the frequencies, `rope_theta`.
    pub theta: f64,
    /// Which dimensions are rotated together.
    pub pairing: RotaryPairing,
    /// How the frequencies are scaled for longer contexts.
    pub scaling: RotaryScaling,
    /// The number of dimensions that the frequencies are computed for, if not `dim`: see [`Self::rounded_up`].
    #[serde(default)]
    pub frequency_dim: Option<usize>,
    /// What the angles are multiples of, if not a token's position.
    #[serde(default)]
    pub axes: Option<RotaryAxes>,
}

impl RotaryConfig {
    /// Rotates all of `dim` dimensions, paired by halves, without scaling.
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
        /// Sets which dimensions are rotated together.
        with_pairing(pairing: RotaryPairing) => pairing = pairing;
        /// Sets the scaling.
        with_scaling(scaling: RotaryScaling) => scaling = scaling;
        /// Sets what the angles are multiples of.
        with_axes(axes: RotaryAxes) => axes = Some(axes);
    }

    /// Instead of an odd number of dimensions, rotates the next even number of them with the frequencies of the odd one, as
    /// transformers does in GPT-NeoX and Phi-3.
    pub fn rounded_up(mut self) -> Self {
        if !self.dim.is_multiple_of(2) {
            self.frequency_dim = Some(self.dim);
            self.dim += 1;
        }
        self
    }

    /// Checks that the angles of every position are finite, and that they turn at most a whole head.
    fn validate(&self, head_dim: usize) -> Result<()> {
        if self.dim > head_dim || !self.dim.is_multiple_of(2) {
            return Err(Error::InvalidConfig(format!(
                "{} dimensions of each head turn; expected an even number up to head_dim {head_dim}",
                self.dim
            )));
        }
        if let Some(dim) = self.frequency_dim
            && dim.div_ceil(2) != self.dim / 2
        {
            return Err(Error::InvalidConfig(format!(
                "the frequencies are those of {dim} dimensions, but {} turn; expected {} or {}",
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

/// How rotary frequencies are scaled for longer contexts: the scalings of transformers' `ROPE_INIT_FUNCTIONS`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_rope_utils.py>).
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
    /// The first pairs alone turn, by the frequencies of the whole head (Gemma 4).
    Proportional {
        /// The number of pairs that turn.
        n_turning: usize,
        /// The divisor of every frequency.
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
        /// The divisor of low frequencies.
        factor: f64,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is divided.
        beta_slow: f64,
        /// Length of the original context.
        original_positions: usize,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// Llama 3's scaling: by the wavelength relative to the original context, with a smooth transition.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Length of the original context.
        original_positions: usize,
    },
    /// LongRoPE: one divisor per frequency, with one list for short and one for long sequences
    /// (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
    LongRope {
        /// Divisors up to `original_positions`.
        short_factor: Vec<f64>,
        /// Divisors beyond that length.
        long_factor: Vec<f64>,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// That of long sequences, if it is another.
        #[serde(default)]
        long_attention_factor: Option<f64>,
        /// Length of the original context.
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
                        "{n_turning} pairs of a head turn, which has {}",
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
                        "dynamic rotary scaling divides by dim - 2; expected more than 2 dimensions that turn",
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
                             of dimensions that turn"
                        ));
                    }
                    let name = format!("a divisor in the rotary scaling's {name}");
                    factors.iter().try_for_each(|&f| positive(&name, f))?;
                }
                finite(&named("attention_factor"), attention_factor)?;
                let of_long = long_attention_factor.unwrap_or(attention_factor);
                finite(&named("long_attention_factor"), of_long)?;
                size("original_positions", original_positions)
            }
        }
    }
}

/// The order of ALiBi's slopes over heads whose number is not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiSlopes {
    /// The slopes of the next lower power of two, then every other slope of twice as many heads; distances do not count
    /// positions that the mask drops (BLOOM, Falcon).
    Appended,
    /// Every other slope of the next higher power of two, then the rest, starting at `2^(-max/n)`; distances count every
    /// position (MPT).
    Interleaved {
        /// The exponent of the smallest slope.
        max: f64,
    },
}

/// What the bias is rounded to, independently of the dtype of the layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiRounding {
    /// Only to the dtype of the scores.
    #[default]
    None,
    /// bfloat16: slopes, positions and their products, as transformers does for Falcon.
    Bf16,
}

/// The configuration of attention with linear biases (ALiBi).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlibiConfig {
    /// The order of the slopes.
    pub slopes: AlibiSlopes,
    /// Factor on the bias; Falcon scales it together with the scores.
    pub scale: f64,
    /// What the bias is rounded to before it is scaled.
    #[serde(default)]
    pub rounding: AlibiRounding,
}
