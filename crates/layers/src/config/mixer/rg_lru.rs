//! The configuration of a real-gated linear recurrent unit.

use serde::{Deserialize, Serialize};

use super::MixerFacts;
use crate::config::{Activation, setters, sizes};
use crate::error::{Error, Result};

/// A real-gated linear recurrent unit (RG-LRU) after a convolution, the mixer in most layers of RecurrentGemma (De et al.
/// 2024, <https://arxiv.org/abs/2402.19427>). Each of `d_inner` channels has a state of one number:
///
/// ```text
/// v  = convolution(value(x))
/// i  = sigmoid(input_gate(v))                           each head's columns by themselves
/// r  = sigmoid(recurrence_gate(v))                      each head's columns by themselves
/// t  = 8 · r * softplus(rate)
/// Sₚ = exp(-tₚ) * Sₚ₋₁ + √(1 - exp(-2 tₚ)) * iₚ * vₚ    S₁ = i₁ * v₁ at a sequence's first position
/// y  = output(Sₚ * activation(gate(xₚ)))
/// ```
///
/// All projections and the convolution, which is as in [`ShortConvolutionConfig`](crate::config::ShortConvolutionConfig),
/// have biases. A cache holds the states and the last `taps - 1` rows for the convolution, whatever the length. Pass it to
/// [`RgLru::new`](crate::layers::RgLru::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct RgLruConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// How many channels values, gates and states have: a multiple of `n_heads`.
    pub d_inner: usize,
    /// How many parts of the channels have gates of their own.
    pub n_heads: usize,
    /// How many positions the convolution reads.
    pub taps: usize,
    /// The activation of the gate on the output.
    pub activation: Activation,
}

impl RgLruConfig {
    /// Returns a mixer with this many channels in this many heads, a convolution of four taps and a GELU by tanh.
    pub fn new(d_model: usize, d_inner: usize, n_heads: usize) -> Self {
        Self {
            d_model,
            d_inner,
            n_heads,
            taps: 4,
            activation: Activation::GeluTanh,
        }
    }

    setters! {
        /// Sets how many positions the convolution reads.
        with_taps(taps: usize) => taps = taps;
        /// Sets the activation of the gate on the output.
        with_activation(activation: Activation) => activation = activation;
    }

    /// Returns how many channels a head has.
    pub(crate) fn head_dim(&self) -> usize {
        self.d_inner / self.n_heads.max(1)
    }

    /// Returns how many weights each position multiplies.
    pub(super) fn multiplied_weights(&self) -> usize {
        // The state is read and written.
        (3 * self.d_model + 2 * self.head_dim() + self.taps + 2) * self.d_inner
    }

    /// Returns the properties by which other parts of a model know this mixer.
    pub(crate) fn facts(&self) -> MixerFacts {
        MixerFacts::recurrent(self.d_model, self.taps * self.d_inner)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        sizes!(self, "an RG-LRU", d_model, d_inner, n_heads, taps);
        if !self.d_inner.is_multiple_of(self.n_heads) {
            return Err(Error::InvalidConfig(format!(
                "an RG-LRU's channels are {}, expected a multiple of n_heads, {}",
                self.d_inner, self.n_heads
            )));
        }
        Ok(())
    }
}
