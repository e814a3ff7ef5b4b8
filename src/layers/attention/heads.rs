//! From a projection to the heads of queries, keys or values.

use candle_core::{Result, Tensor};

use super::Attention;
use crate::ops;

/// Which of the three projections.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Query,
    Key,
    Value,
}

impl Attention {
    /// `[.., n_heads · head_dim]` to `[batch, n_heads, seq, head_dim]`, clamped and normalised.
    pub(super) fn heads(
        &self,
        x: &Tensor,
        (batch, seq): (usize, usize),
        role: Role,
    ) -> Result<Tensor> {
        let n_heads = match role {
            Role::Query => self.config.n_heads,
            Role::Key | Role::Value => self.config.n_kv_heads,
        };
        let x = x.to_dtype(ops::product_dtype(x))?;
        let x = match self.config.clip {
            Some(clip) => x.clamp(-clip, clip)?,
            None => x,
        };
        let x = match (&self.norms, role) {
            (Some(norms), Role::Query) => norms.query(&x)?,
            (Some(norms), Role::Key) => norms.key(&x)?,
            _ => x,
        };
        x.reshape((batch, seq, n_heads, self.config.head_dim))?
            .transpose(1, 2)?
            .contiguous()
    }
}
