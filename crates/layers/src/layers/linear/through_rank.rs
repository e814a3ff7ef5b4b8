//! A projection by way of a few columns.

use candle_core::Result;

use crate::layers::packed::Packing;
use crate::layers::{Linear, ParameterSource, visit::parts};
use crate::ops::Value;

/// A projection without a bias, through a few columns if it has a low rank: `full(low(x))`.
#[derive(Clone, Debug)]
pub(in crate::layers) struct ThroughRank {
    low: Option<Linear>,
    full: Linear,
}

parts!(ThroughRank: Self { low, full } => [full] [low]);

impl ThroughRank {
    /// Creates the projection, and with a rank `low` `[rank, d_in]` before it.
    pub fn new(
        vb: &ParameterSource,
        [d_in, d_out]: [usize; 2],
        rank: Option<usize>,
    ) -> Result<Self> {
        let low = rank.map(|rank| Linear::unbiased([d_in, rank], vb.pp("low")));
        Ok(Self {
            low: low.transpose()?,
            full: Linear::unbiased([rank.unwrap_or(d_in), d_out], vb.clone())?,
        })
    }

    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        packing.linears_of(self)
    }

    pub fn apply(&self, x: &Value, train: bool) -> Result<Value> {
        match &self.low {
            Some(low) => self.full.apply(&low.apply(x, None, train)?, None, train),
            None => self.full.apply(x, None, train),
        }
    }
}
