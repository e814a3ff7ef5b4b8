//! How an attention knows positions: rotation, linear bias, learned relative bias.

use serde::{Deserialize, Serialize};

/// What an attention does with positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Position {
    /// Nothing: positions are in the embeddings, or added to the scores by the stack.
    #[default]
    None,
    /// Queries and keys are rotated (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
    Rotary(RotaryConfig),
    /// Scores fall linearly with distance (Press et al. 2021, <https://arxiv.org/abs/2108.12409>).
    Alibi(AlibiConfig),
}

/// Which two dimensions of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryPairing {
    /// `i` and `i + dim/2` (Llama, GPT-NeoX).
    Halves,
    /// `2i` and `2i + 1` (GPT-J, Cohere).
    Interleaved,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RotaryConfig {
    /// How many dimensions of each head turn; the rest pass through.
    pub dim: usize,
    /// Base of the wavelengths.
    pub theta: f64,
    /// Which dimensions turn together.
    pub pairing: RotaryPairing,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RotaryScaling,
}

impl RotaryConfig {
    /// All of `dim` dimensions, in halves, not stretched.
    pub fn new(dim: usize, theta: f64) -> Self {
        Self {
            dim,
            theta,
            pairing: RotaryPairing::Halves,
            scaling: RotaryScaling::None,
        }
    }

    /// With the given pairing.
    pub fn with_pairing(mut self, pairing: RotaryPairing) -> Self {
        self.pairing = pairing;
        self
    }

    /// With the given scaling.
    pub fn with_scaling(mut self, scaling: RotaryScaling) -> Self {
        self.scaling = scaling;
        self
    }
}

/// The scalings of transformers' `ROPE_INIT_FUNCTIONS`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_rope_utils.py>).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotaryScaling {
    /// Frequencies as they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the sequence beyond `max_positions`.
    DynamicNtk {
        /// Stretch.
        factor: f64,
        /// Length from which the base grows.
        max_positions: usize,
    },
    /// Low frequencies divided by `factor`, high ones kept, a ramp between
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
    /// Llama 3's: by wavelength against the original context, with a smooth middle.
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
    /// One divisor per frequency, one list for short and one for long sequences
    /// (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
    LongRope {
        /// Divisors up to `original_positions`.
        short_factor: Vec<f64>,
        /// Divisors beyond.
        long_factor: Vec<f64>,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// Length of the original context.
        original_positions: usize,
    },
}

/// How ALiBi's slopes are laid out over heads whose number is no power of two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiSlopes {
    /// The next lower power's slopes, then every other one of twice as many; positions that a mask drops are not
    /// counted (BLOOM, Falcon).
    Appended,
    /// Every other slope of the next higher power, then the rest, from `2^(-max/n)`; every position counts (MPT).
    Interleaved {
        /// The exponent of the smallest slope.
        max: f64,
    },
}

/// What a bias is rounded to, whatever the precision of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlibiRounding {
    /// Nothing but the type of the scores.
    #[default]
    None,
    /// bfloat16: slopes, positions and their products, as transformers computes Falcon's.
    Bf16,
}

/// Attention with linear biases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlibiConfig {
    /// The slopes' layout.
    pub slopes: AlibiSlopes,
    /// Factor on the bias: Falcon scales it with the scores.
    pub scale: f64,
    /// What it is rounded to before that.
    #[serde(default)]
    pub rounding: AlibiRounding,
}

/// A learned bias per head and bucket of distance, shared by all blocks of a stack (Raffel et al.
/// 2019, <https://arxiv.org/abs/1910.10683>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativeBiasConfig {
    /// Rows of the table.
    pub n_buckets: usize,
    /// Distance from which all share the last bucket.
    pub max_distance: usize,
    /// Columns of the table.
    pub n_heads: usize,
}
