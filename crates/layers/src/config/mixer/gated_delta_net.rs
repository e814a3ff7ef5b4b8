//! The configuration of the gated delta rule.

use serde::{Deserialize, Serialize};

use super::MixerFacts;
use crate::config::{NormConfig, setters, size, sizes};
use crate::error::{Error, Result};

/// A gated delta rule (Gated DeltaNet; Yang, Kautz and Hatamizadeh 2024, <https://arxiv.org/abs/2412.06464>), the mixer
/// in most layers of Qwen3-Next and Qwen 3.5. Each value head has a state `S`, `[key_dim, value_dim]`:
///
/// ```text
/// q, k, v = silu(convolution(query(x))), silu(convolution(key(x))), silu(convolution(value(x)))
/// q, k    = q / √(|q|² + 1e-6) / √key_dim, k / √(|k|² + 1e-6)             for each key head
/// αₚ      = exp(-exp(rate) · softplus(decay(xₚ) + decay_bias))            for each value head
/// βₚ      = strength · sigmoid(write(xₚ))
/// Sₚ      = αₚ Sₚ₋₁ + kₚ ⊗ βₚ (vₚ - αₚ Sₚ₋₁ᵀ kₚ)
/// y       = output(norm(Sₚᵀ qₚ) * silu(gate(xₚ)))                    the norm is over each head
/// ```
///
/// By [`DeltaForm::Channel`], each row of a state has a factor, the gate has a sigmoid, and both come by way of a few columns:
///
/// ```text
/// αₚ      = exp(-exp(rate) · softplus(decay(decay.low(xₚ)) + decay_bias))  for each row of each value head's state
/// Sₚ      = αₚ ⊙ Sₚ₋₁ + kₚ ⊗ βₚ (vₚ - (αₚ ⊙ Sₚ₋₁)ᵀ kₚ)
/// y       = output(norm(Sₚᵀ qₚ) * sigmoid(gate(gate.low(xₚ))))
/// ```
///
/// Without a rank, each of the two is one projection. With a bound, `αₚ = exp(bound · sigmoid(exp(rate) · (.. + decay_bias)))`.
///
/// A key head serves `n_value_heads / n_key_heads` value heads. Convolutions are as in
/// [`ShortConvolutionConfig`](crate::config::ShortConvolutionConfig), without a bias. A cache holds the state and the last
/// `taps - 1` rows for each convolution, whatever the length. Pass it to
/// [`GatedDeltaNet::new`](crate::layers::GatedDeltaNet::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct GatedDeltaNetConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many heads queries and keys have.
    pub n_key_heads: usize,
    /// How many heads values, gates and states have: a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// A head's width for queries and keys.
    pub key_dim: usize,
    /// A head's width for values.
    pub value_dim: usize,
    /// How many positions a convolution reads.
    pub taps: usize,
    /// The largest `β`: 1, or 2 where a state may have negative eigenvalues (OLMo hybrid).
    pub strength: f64,
    /// The norm over each head's result.
    pub norm: NormConfig,
    /// The decay and the gate.
    #[serde(default)]
    pub form: DeltaForm,
}

/// The decay and the gate of a gated delta rule. Set them in [`GatedDeltaNetConfig::form`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeltaForm {
    /// A factor for each value head's state (Qwen3-Next).
    #[default]
    Head,
    /// A factor for each row of a state: Kimi Delta Attention (Kimi Team 2025, <https://arxiv.org/abs/2510.26692>).
    Channel {
        /// How many columns are between the two projections to the factors, and to the gate, if these are two each.
        rank: Option<usize>,
        /// The smallest logarithm of a factor, below 0, if there is a bound (Ling 3.0).
        #[serde(default)]
        bound: Option<f64>,
    },
}

impl GatedDeltaNetConfig {
    /// Returns a mixer with `[n_key_heads, n_value_heads]` and `[key_dim, value_dim]`: convolutions of
    /// four taps, and an RMS norm.
    pub fn new(d_model: usize, [n_key_heads, n_value_heads]: [usize; 2], dims: [usize; 2]) -> Self {
        let [key_dim, value_dim] = dims;
        Self {
            d_model,
            n_key_heads,
            n_value_heads,
            key_dim,
            value_dim,
            taps: 4,
            strength: 1.0,
            norm: NormConfig::rms_norm(value_dim, 1e-6),
            form: DeltaForm::Head,
        }
    }

    setters! {
        /// Sets how many positions a convolution reads.
        with_taps(taps: usize) => taps = taps;
        /// Sets the largest `β`.
        with_strength(strength: f64) => strength = strength;
        /// Sets the norm over each head's result.
        with_norm(norm: NormConfig) => norm = norm;
        /// Sets the decay and the gate.
        with_form(form: DeltaForm) => form = form;
    }

    /// Returns all heads' width for keys.
    pub fn keys_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Returns all heads' width for values.
    pub fn values_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Returns how many weights each position multiplies.
    pub(super) fn multiplied_weights(&self) -> usize {
        let convolved = 2 * self.keys_width() + self.values_width();
        let [values, heads] = [self.values_width(), self.n_value_heads];
        let projected = (convolved + values + heads) * self.d_model;
        let gates = match self.form {
            DeltaForm::Head => (values + heads) * self.d_model,
            DeltaForm::Channel { rank, .. } => {
                let both = values + heads * self.key_dim;
                rank.map_or(self.d_model * both, |rank| rank * (2 * self.d_model + both))
            }
        };
        // The state is read by the key and by the query, and written.
        projected + gates + convolved * self.taps + 3 * values * self.key_dim
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        let convolved = 2 * self.keys_width() + self.values_width();
        let state = self.values_width() * self.key_dim;
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
            self,
            "a gated delta rule",
            d_model,
            n_key_heads,
            n_value_heads,
            key_dim,
            value_dim,
            taps
        );
        let (n, keys) = (self.n_value_heads, self.n_key_heads);
        let invalid = |reason: String| Err(Error::InvalidConfig(reason));
        if let DeltaForm::Channel { rank, bound } = self.form {
            size("the rank of a gated delta rule", rank.unwrap_or(1))?;
            if let Some(bound) = bound.filter(|bound| !(bound.is_finite() && *bound < 0.0)) {
                return invalid(format!(
                    "the bound on the decay of a gated delta rule is {bound}; expected a number below 0"
                ));
            }
        }
        if !n.is_multiple_of(keys) {
            return invalid(format!(
                "{n} value heads of a gated delta rule for {keys} key heads; expected a multiple"
            ));
        }
        let of = [self.keys_width(), self.values_width()];
        size(
            "the state of a gated delta rule",
            of[0].max(of[1]).saturating_mul(self.key_dim),
        )?;
        if self.norm.d_model != self.value_dim {
            return invalid(format!(
                "the norm of a gated delta rule is over {} dimensions; expected value_dim, {}",
                self.norm.d_model, self.value_dim
            ));
        }
        if !(self.strength > 0.0 && self.strength <= 2.0) {
            return invalid(format!(
                "strength {} of a gated delta rule; expected a number from 0 to 2",
                self.strength
            ));
        }
        self.norm.validate()
    }
}
