//! The configuration of lightning attention.

use serde::{Deserialize, Serialize};

use super::MixerFacts;
use crate::config::{Activation, NormConfig, finite, setters, size, sizes};
use crate::error::Result;

/// Lightning attention (Qin et al. 2024, <https://arxiv.org/abs/2401.04658>), linear attention with a constant decay for each
/// head: the mixer in most layers of MiniMax.
///
/// ```text
/// q, k, v = activation(query(x)), activation(key(x)), activation(value(x))
/// αₕ      = exp(-slope · 2^(-8h / n_heads))             for the heads h = 1, 2, ..
/// Sₚ      = αₕ Sₚ₋₁ + kₚ ⊗ vₚ
/// y       = output(norm(Sₚᵀ qₚ) * sigmoid(gate(xₚ)))    the norm is over all heads together
/// ```
///
/// A cache holds the states, whatever the length. Pass it to
/// [`LightningAttention::new`](crate::layers::LightningAttention::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct LightningConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many heads there are.
    pub n_heads: usize,
    /// A head's width for queries, keys and values.
    pub head_dim: usize,
    /// The activation of queries, keys and values.
    pub activation: Activation,
    /// The factor on all heads' decays, which MiniMax lowers from layer to layer.
    pub slope: f64,
    /// The norm over the results.
    pub norm: NormConfig,
}

impl LightningConfig {
    /// Returns a mixer with SiLU, a slope of 1 and an RMS norm with an epsilon of 1e-6.
    pub fn new(d_model: usize, n_heads: usize, head_dim: usize) -> Self {
        Self {
            d_model,
            n_heads,
            head_dim,
            activation: Activation::Silu,
            slope: 1.0,
            norm: NormConfig::rms_norm(n_heads * head_dim, 1e-6),
        }
    }

    setters! {
        /// Sets the activation of queries, keys and values.
        with_activation(activation: Activation) => activation = activation;
        /// Sets the factor on all heads' decays.
        with_slope(slope: f64) => slope = slope;
    }

    /// Returns the width of all heads.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the logarithm of each head's decay.
    pub(crate) fn decays(&self) -> Vec<f64> {
        let exponent = |head: usize| -8.0 * (head + 1) as f64 / self.n_heads as f64;
        let decay = |head| -self.slope * exponent(head).exp2();
        (0..self.n_heads).map(decay).collect()
    }

    /// Returns how many weights each position multiplies.
    pub(super) fn multiplied_weights(&self) -> usize {
        // The state is read by the query, and written.
        (5 * self.d_model + 2 * self.head_dim) * self.width()
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        MixerFacts::recurrent(self.d_model, self.width() * self.head_dim)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        sizes!(self, "lightning attention", d_model, n_heads, head_dim);
        let state = self.n_heads.saturating_mul(self.head_dim);
        size(
            "the state of lightning attention",
            state.saturating_mul(self.head_dim),
        )?;
        finite("the slope of lightning attention", self.slope)?;
        self.norm.validate_eps()
    }
}
