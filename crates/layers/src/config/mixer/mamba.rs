//! The configuration of Mamba's state space model.

use serde::{Deserialize, Serialize};

use super::MixerFacts;
use crate::config::{NormConfig, setters, size, sizes};
use crate::error::{Error, Result};

/// Mamba's state space model (Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>), the mixer in all layers of Mamba and
/// Falcon Mamba and in most layers of Jamba. Each of `d_inner` channels has a state of `state_dim` elements:
///
/// ```text
/// v        = silu(convolution(value(x)))
/// d, k, q  = norm(decay(v)), norm(key(v)), norm(query(v))
/// t        = softplus(step(d) + step_bias)                                       for each channel: the step
/// Sₚ[c, i] = exp(-exp(rate[c, i]) · tₚ[c]) Sₚ₋₁[c, i] + kₚ[i] · tₚ[c] · vₚ[c]
/// y        = output((Sₚ qₚ + skip * vₚ) * silu(gate(xₚ)))
/// ```
///
/// `k` and `q` are the paper's `B` and `C`, and `d` has `step_rank` columns. The convolution is as in
/// [`ShortConvolutionConfig`](crate::config::ShortConvolutionConfig). A cache holds the states and the last `taps - 1` rows
/// for the convolution, whatever the length. With several heads (Zamba), each has an equal share of the channels, and
/// weights of its own for `d`, `k`, `q` and `t`. Pass it to [`Mamba::new`](crate::layers::Mamba::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct MambaConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many channels values, gates and states have.
    pub d_inner: usize,
    /// How many heads share the channels.
    #[serde(default = "crate::config::one")]
    pub n_heads: usize,
    /// How many elements a channel's state has.
    pub state_dim: usize,
    /// The width from which steps are projected.
    pub step_rank: usize,
    /// How many positions the convolution reads.
    pub taps: usize,
    /// The convolution has a bias.
    pub convolution_bias: bool,
    /// The norms over `d`, `k` and `q`, if there are any. Their widths are those of the rows.
    pub norm: Option<NormConfig>,
}

impl MambaConfig {
    /// Returns a mixer with this many channels, elements in each state and columns from which steps are projected: a
    /// convolution of four taps with a bias, one head, and no norms.
    pub fn new(d_model: usize, d_inner: usize, state_dim: usize, step_rank: usize) -> Self {
        Self {
            d_model,
            d_inner,
            n_heads: 1,
            state_dim,
            step_rank,
            taps: 4,
            convolution_bias: true,
            norm: None,
        }
    }

    setters! {
        /// Sets how many heads share the channels.
        with_heads(n_heads: usize) => n_heads = n_heads;
        /// Sets how many positions the convolution reads.
        with_taps(taps: usize) => taps = taps;
        /// Sets whether the convolution has a bias.
        with_convolution_bias(bias: bool) => convolution_bias = bias;
        /// Sets the norms over `d`, `k` and `q`, or removes them.
        with_norm(norm: Option<NormConfig>) => norm = norm;
    }

    /// Returns how many weights each position multiplies.
    pub(super) fn multiplied_weights(&self) -> usize {
        let projected = 3 * self.d_model + 2 * self.step_rank + 2 * self.state_dim;
        // The state is read by the query, and written.
        (projected + self.taps + 2 * self.state_dim) * self.d_inner
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        let rows = self.taps.saturating_sub(1);
        MixerFacts::recurrent(self.d_model, (rows + self.state_dim) * self.d_inner)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        sizes!(
            self, "Mamba", d_model, d_inner, n_heads, state_dim, step_rank, taps
        );
        let state = self.d_inner.saturating_mul(self.state_dim);
        size("the state of Mamba", state)?;
        if !self.d_inner.is_multiple_of(self.n_heads) {
            return Err(Error::InvalidConfig(format!(
                "n_heads of Mamba is {}, which does not divide d_inner, {}",
                self.n_heads, self.d_inner
            )));
        }
        match &self.norm {
            Some(norm) => norm.validate_eps(),
            None => Ok(()),
        }
    }
}
