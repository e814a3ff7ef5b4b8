//! The part of a stack that one of several ranks computes: whole heads, and columns of the hidden layer.

use super::{
    AttentionConfig, BlockConfig, FeedForwardConfig, Position, QueryKeyNormSpan, StackConfig,
};
use crate::error::{Error, Result};

impl StackConfig {
    /// What rank `rank` of `size` has of the stack. Embeddings, norms and routers, and which keys are seen, are as of the whole.
    ///
    /// # Errors
    /// If the ranks do not divide heads or hidden columns, or a block has what cannot be divided.
    pub(crate) fn part_of(&self, rank: usize, size: usize) -> Result<Self> {
        let mut part = self.clone();
        for (i, block) in part.blocks.iter_mut().enumerate() {
            block.divide(rank, size).map_err(|reason| {
                Error::InvalidConfig(format!(
                    "block {i} cannot be divided among {size} ranks: {reason}"
                ))
            })?;
        }
        if let Some(bias) = &mut part.relative_bias {
            bias.n_heads /= size; // as many as those of every attention
        }
        Ok(part)
    }
}

impl BlockConfig {
    fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        for attention in [Some(&mut self.attention), self.cross_attention.as_mut()] {
            if let Some(attention) = attention {
                attention.divide(rank, size)?;
            }
        }
        self.feed_forward.divide(rank, size)
    }
}

impl AttentionConfig {
    fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        let refused = |what: &str| Err(format!("it has {what}, which is of all heads together"));
        if self.latent.is_some() {
            return refused("keys and values from a latent");
        }
        match &self.position {
            Position::Disentangled(_) => return refused("disentangled attention"),
            Position::Alibi(_) => return refused("a linear bias"),
            _ => {}
        }
        match self.query_key_norm.map(|norm| norm.span) {
            Some(QueryKeyNormSpan::Whole) => return refused("a norm of whole queries and keys"),
            Some(QueryKeyNormSpan::EachHead) => {
                return refused("a list of norms, one for each head,");
            }
            Some(QueryKeyNormSpan::Head) | None => {}
        }
        let n_kv_heads = self.n_kv_heads;
        self.n_heads = divided("query heads", self.n_heads, size)?;
        // With fewer key heads than ranks, several ranks have the same one.
        self.n_kv_heads = match size.is_multiple_of(n_kv_heads) {
            true => 1,
            false => divided("key heads", n_kv_heads, size)?,
        };
        self.bias.output &= rank == 0; // it is added once
        Ok(())
    }
}

impl FeedForwardConfig {
    /// The hidden layer of a network, or of each expert.
    fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        self.d_ff = divided("hidden columns", self.d_ff, size)?;
        if let Some(shared) = self
            .experts
            .as_mut()
            .and_then(|experts| experts.shared.as_mut())
        {
            shared.d_ff = divided("hidden columns of the shared expert", shared.d_ff, size)?;
        }
        self.down_bias &= rank == 0; // it is added once
        Ok(())
    }
}

fn divided(what: &str, n: usize, size: usize) -> std::result::Result<usize, String> {
    match n.is_multiple_of(size) {
        true => Ok(n / size),
        false => Err(format!(
            "it has {n} {what}; choose a number of ranks that divides them"
        )),
    }
}
