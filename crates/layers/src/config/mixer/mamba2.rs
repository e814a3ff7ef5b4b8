//! The configuration of Mamba-2's state space model.

use serde::{Deserialize, Serialize};

use super::{Mamba2Multipliers, MixerFacts};
use crate::config::{NormConfig, finite, setters, size, sizes};
use crate::error::{Error, Result};

/// The place of Mamba-2's norm. Set it in [`Mamba2Config::norm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mamba2Norm {
    /// `norm(read * silu(gate))`.
    #[default]
    AfterGate,
    /// `norm(read) * silu(gate)`.
    BeforeGate,
    /// `read * silu(gate)`, without a norm.
    Absent,
}

/// Mamba-2's state space model (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>), the mixer in most layers of
/// Granite 4 H and Bamba. Each head has a state `S`, `[state_dim, head_dim]`:
///
/// ```text
/// v, k, q = silu(convolution(value(x))), silu(convolution(key(x))), silu(convolution(query(x)))
/// tₚ      = min(max(softplus(decay(xₚ) + decay_bias), min_step), max_step)         for each head: the step
/// Sₚ      = exp(-exp(rate) · tₚ) Sₚ₋₁ + kₚ ⊗ tₚ vₚ
/// y       = output(norm((Sₚᵀ qₚ + skip * vₚ) * silu(gate(xₚ))))           the norm is over each group of heads
/// ```
///
/// The projections may have constant factors ([`Mamba2Multipliers`]), and the norm may be at another place or absent
/// ([`Mamba2Norm`]).
///
/// `v`, `k` and `q` are the paper's `x`, `B` and `C`. The heads of a group share keys and queries. Convolutions are as in
/// [`ShortConvolutionConfig`](crate::config::ShortConvolutionConfig). A cache holds the state and the last `taps - 1` rows
/// for each convolution, whatever the length. Pass it to [`Mamba2::new`](crate::layers::Mamba2::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct Mamba2Config {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many heads values, gates and states have.
    pub n_heads: usize,
    /// A head's width for values.
    pub head_dim: usize,
    /// How many groups of heads share keys and queries: a divisor of `n_heads`.
    pub n_groups: usize,
    /// The width for keys and queries.
    pub state_dim: usize,
    /// How many positions a convolution reads.
    pub taps: usize,
    /// The convolutions have biases.
    pub convolution_bias: bool,
    /// The smallest step.
    pub min_step: f64,
    /// The largest step, if it is limited.
    pub max_step: Option<f64>,
    /// The place of the norm.
    #[serde(default)]
    pub norm: Mamba2Norm,
    /// The norm's eps.
    pub norm_eps: f64,
    /// The factors on the projections.
    #[serde(default)]
    pub multipliers: Mamba2Multipliers,
}

impl Mamba2Config {
    /// Returns a mixer with these heads and their width, and one group with states of `state_dim`: convolutions of four
    /// taps with biases, and steps of any length.
    pub fn new(d_model: usize, [n_heads, head_dim]: [usize; 2], state_dim: usize) -> Self {
        Self {
            d_model,
            n_heads,
            head_dim,
            n_groups: 1,
            state_dim,
            taps: 4,
            convolution_bias: true,
            min_step: 0.0,
            max_step: None,
            norm: Mamba2Norm::AfterGate,
            norm_eps: 1e-5,
            multipliers: Mamba2Multipliers::default(),
        }
    }

    setters! {
        /// Sets how many groups share keys and queries.
        with_groups(n_groups: usize) => n_groups = n_groups;
        /// Sets how many positions a convolution reads.
        with_taps(taps: usize) => taps = taps;
        /// Sets whether the convolutions have biases.
        with_convolution_bias(bias: bool) => convolution_bias = bias;
        /// Sets the smallest step.
        with_min_step(step: f64) => min_step = step;
        /// Sets the largest step, or no limit.
        with_max_step(step: Option<f64>) => max_step = step;
        /// Sets the place of the norm.
        with_norm(norm: Mamba2Norm) => norm = norm;
        /// Sets the factors on the projections.
        with_multipliers(multipliers: Mamba2Multipliers) => multipliers = multipliers;
        /// Sets the norm's eps.
        with_norm_eps(eps: f64) => norm_eps = eps;
    }

    /// Returns all heads' width for values.
    pub fn values_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns all groups' width for keys.
    pub fn keys_width(&self) -> usize {
        self.n_groups * self.state_dim
    }

    /// Returns the smallest and the largest step.
    pub(crate) fn steps(&self) -> [f64; 2] {
        [self.min_step, self.max_step.unwrap_or(f64::INFINITY)]
    }

    /// Returns how many weights each position multiplies.
    pub(super) fn multiplied_weights(&self) -> usize {
        let convolved = 2 * self.keys_width() + self.values_width();
        let projected = convolved + 2 * self.values_width() + self.n_heads;
        // The state is read by the query, and written.
        projected * self.d_model + convolved * self.taps + 2 * self.values_width() * self.state_dim
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        let convolved = 2 * self.keys_width() + self.values_width();
        let state = self.values_width() * self.state_dim;
        MixerFacts::recurrent(
            self.d_model,
            self.taps.saturating_sub(1) * convolved + state,
        )
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        sizes!(
            self, "Mamba-2", d_model, n_heads, head_dim, n_groups, state_dim, taps
        );
        let state = self.values_width().max(self.keys_width());
        size("the state of Mamba-2", state.saturating_mul(self.state_dim))?;
        let (heads, groups) = (self.n_heads, self.n_groups);
        let invalid = |reason: String| Err(Error::InvalidConfig(reason));
        if !heads.is_multiple_of(groups) {
            return invalid(format!(
                "{heads} heads of Mamba-2 in {groups} groups; expected a multiple"
            ));
        }
        let [low, high] = self.steps();
        if !(0.0 <= low && low <= high) {
            return invalid(format!(
                "steps of Mamba-2 from {low} to {high}; expected a smallest and a largest one, from 0 on"
            ));
        }
        let of = &self.multipliers;
        for multiplier in [of.gate, of.value, of.key, of.query, of.step] {
            finite("a multiplier of Mamba-2", multiplier)?;
        }
        NormConfig::rms_norm(self.values_width() / groups, self.norm_eps).validate()
    }
}
