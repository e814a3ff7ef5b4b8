//! The part of a stack that one of several ranks computes: whole heads, and columns of the hidden layer.

use std::ops::Range;

use super::{
    AttentionConfig, BlockConfig, ExpertBranch, FeedForwardConfig, HeadsOfRank, OwnConfig,
    Position, QueryKeyNormSpan, StackConfig,
};
use crate::error::{Error, Result};

impl StackConfig {
    /// Returns the part for rank `rank` out of `size`. Embeddings, norms, routers and visible keys are the whole
    /// stack's.
    ///
    /// # Errors
    /// If the ranks do not divide heads or hidden columns, or a block has a part that cannot be divided.
    #[doc(hidden)]
    pub fn part_of(&self, rank: usize, size: usize) -> Result<Self> {
        let mut part = self.clone();
        for (i, block) in part.blocks.iter_mut().enumerate() {
            block.divide(rank, size).map_err(|reason| {
                Error::InvalidConfig(format!(
                    "block {i} cannot be divided among {size} ranks: {reason}"
                ))
            })?;
        }
        if let (Some(bias), Some(block)) = (&mut part.relative_bias, part.blocks.first()) {
            // As many as every other block has.
            bias.n_heads = block
                .facts()
                .heads
                .map_or(bias.n_heads, |heads| heads.n_heads);
        }
        Ok(part)
    }
}

impl BlockConfig {
    fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        if let OwnConfig::Adapter { .. } = self.own {
            return Err("its adapter is not divided among ranks".to_string());
        }
        self.mixer.divide(rank, size)?;
        if let Some(cross) = &mut self.cross_attention {
            cross.divide(rank, size)?;
        }
        self.feed_forward.divide(rank, size)
    }
}

impl AttentionConfig {
    pub(super) fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        let refused = |what: &str| Err(format!("it has {what}, computed over all heads together"));
        if self.latent.is_some() {
            return refused("keys and values from a latent");
        }
        match &self.position {
            Position::Disentangled(_) => return refused("disentangled attention"),
            Position::GatedBias(_) => return refused("a gated bias by distance"),
            Position::Alibi(_) => return refused("a linear bias"),
            _ => {}
        }
        match self.query_key_norm.map(|norm| norm.span) {
            Some(QueryKeyNormSpan::Whole) => return refused("a norm of whole queries and keys"),
            Some(QueryKeyNormSpan::EachHead) => {
                return refused("norms of each head");
            }
            Some(QueryKeyNormSpan::Head) | None => {}
        }
        if self.sub_norm.is_some() {
            return refused("a norm before the output projection");
        }
        let (all, n_kv_heads) = (self.n_heads, self.n_kv_heads);
        let range = rank_range(n_kv_heads, rank, size);
        let first = if n_kv_heads >= size {
            // Query heads with their common key head.
            self.n_heads = all / n_kv_heads * range.len();
            self.n_kv_heads = range.len();
            all / n_kv_heads * range.start
        } else if size.is_multiple_of(n_kv_heads) && all.is_multiple_of(size) {
            // Several ranks compute the same key head.
            self.n_heads /= size;
            self.n_kv_heads = 1;
            self.n_heads * rank
        } else {
            return Err(format!(
                "it has {} query heads and {n_kv_heads} key heads; choose at most as many ranks as key heads, or a multiple \
                 of them that divides the query heads",
                self.n_heads
            ));
        };
        let own = self.n_heads;
        self.heads_of_rank = (size > 1).then_some(HeadsOfRank { first, own, all });
        self.bias.output &= rank == 0; // it is added once
        Ok(())
    }
}

impl FeedForwardConfig {
    /// Divides the hidden layer in a network or in each expert.
    fn divide(&mut self, rank: usize, size: usize) -> std::result::Result<(), String> {
        if self.sparsity.is_some() {
            return Err("it has sparsity, computed over all hidden columns together".to_string());
        }
        if self.sub_norm.is_some() {
            return Err(
                "it has a norm before the down projection, computed over all hidden columns together"
                    .to_string(),
            );
        }
        if self.experts.is_some_and(|experts| experts.output_bias) {
            return Err(
                "it has a bias on the sum of its experts, which every rank would add".to_string(),
            );
        }
        let branch = self.experts.map(|experts| experts.branch);
        if branch.is_some_and(|branch| branch != ExpertBranch::Plain) {
            return Err("the branch of its experts is not divided among ranks".to_string());
        }
        let shared = self
            .experts
            .as_mut()
            .and_then(|experts| experts.shared.as_mut());
        let shared = shared.map(|shared| &mut shared.d_ff);
        for d_ff in [Some(&mut self.d_ff), shared].into_iter().flatten() {
            if *d_ff < size {
                return Err(format!("it has {d_ff} hidden columns; choose fewer ranks"));
            }
            *d_ff = rank_range(*d_ff, rank, size).len();
        }
        self.down_bias &= rank == 0; // it is added once
        Ok(())
    }
}

/// Returns the range of items, out of `n`, for rank `rank` out of `size`. Ranges differ in length by at most 1.
#[doc(hidden)]
pub fn rank_range(n: usize, rank: usize, size: usize) -> Range<usize> {
    n * rank / size..n * (rank + 1) / size
}
