//! What a block adds to its attention's output besides the residual: a learned augmented residual.

use std::f64::consts::FRAC_1_SQRT_2;

use candle_core::{Result, bail};
use candle_nn::VarBuilder;

use crate::config::{LinearConfig, NormConfig, getters};
use crate::layers::{Linear, Norm, visit::parts};
use crate::ops::Value;

/// Adds to the output `y` of an attention sublayer what a low rank makes of its normalised input `n`:
/// `(y + n + norm(up(down(n)))) / √2` (LAuReL, Menghani et al. 2024, <https://arxiv.org/abs/2411.07501>), as transformers'
/// `Gemma3nTextLaurelBlock`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma3n/modeling_gemma3n.py>).
#[derive(Clone, Debug)]
pub struct Laurel {
    down: Linear,
    up: Linear,
    norm: Norm,
}

impl Laurel {
    /// Gets `down`, `up` and `norm` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(rank: usize, norm: &NormConfig, vb: &VarBuilder) -> Result<Self> {
        let linear = |name: &str, d_in: usize, d_out: usize| {
            let config = LinearConfig::new(d_in, d_out).with_bias(false);
            Linear::new(&config, vb.pp(name))
        };
        Self::from_parts(
            linear("down", norm.d_model, rank)?,
            linear("up", rank, norm.d_model)?,
            Norm::new(norm, vb.pp("norm"))?,
        )
    }

    /// Builds the layer from its projections, `[rank, d_model]` and `[d_model, rank]`, and the norm behind them.
    ///
    /// # Errors
    /// If they do not fit each other.
    pub fn from_parts(down: Linear, up: Linear, norm: Norm) -> Result<Self> {
        let laurel = Self { down, up, norm };
        laurel.check_shapes()?;
        Ok(laurel)
    }

    pub(crate) fn check_shapes(&self) -> Result<()> {
        let (rank, d_model) = self.down.shape();
        self.up.expect_shape("laurel", "up", [d_model, rank])?;
        match self.norm.config().d_model {
            width if width == d_model => Ok(()),
            width => bail!("laurel: a norm of {width} columns for rows of {d_model}"),
        }
    }

    getters! {
        /// The projection to the low rank, `[rank, d_model]`.
        down(&self) -> &Linear => &self.down;
        /// The projection back, `[d_model, rank]`.
        up(&self) -> &Linear => &self.up;
        /// The norm behind it.
        norm(&self) -> &Norm => &self.norm;
    }

    /// `(y + n + norm(up(down(n)))) / √2`.
    pub(super) fn apply(&self, n: &Value, y: &Value, train: bool) -> Result<Value> {
        let low_rank = self.down.apply(n, None, train)?;
        let added = self.norm.apply(&self.up.apply(&low_rank, None, train)?)?;
        y.add(&n.add(&added)?)?.scale(FRAC_1_SQRT_2)
    }
}

parts!(Laurel: Self { down, up, .. } => [down, up] []);
