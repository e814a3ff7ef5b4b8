//! One forward pass through a stack: what its blocks share and compute once.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};

use crate::{
    config::RotaryConfig,
    layers::{ForwardContext, kv_cache::KvCache, position::RotaryTables},
};

/// A context with what depends on the cache, and the tables made so far.
pub(crate) struct Pass<'c> {
    pub context: &'c ForwardContext,
    /// Positions before this pass's.
    pub seen: usize,
    /// `[batch, all keys]`, 1 = keep.
    pub keep: Option<Tensor>,
    /// Added to the scores of every block.
    pub additive: Option<Tensor>,
    tables: RefCell<Vec<(RotaryConfig, RotaryTables)>>,
}

impl<'c> Pass<'c> {
    /// A pass without a cache.
    pub fn new(context: &'c ForwardContext) -> Self {
        Self {
            context,
            seen: 0,
            keep: context.mask().keep().cloned(),
            additive: context.mask().additive().cloned(),
            tables: RefCell::default(),
        }
    }

    /// A pass of `seq` positions behind those in `cache`.
    pub fn cached(
        context: &'c ForwardContext,
        cache: &mut KvCache,
        batch: usize,
        seq: usize,
    ) -> Result<Self> {
        let seen = cache.seen;
        let keep = cache.extend_keep(context.mask().keep(), batch, seq)?;
        cache.seen += seq;
        Ok(Self {
            seen,
            keep,
            ..Self::new(context)
        })
    }

    /// Cosines and sines of this pass's `seq` positions of `batch` sequences.
    pub fn rotary_tables(
        &self,
        config: &RotaryConfig,
        (batch, seq): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<RotaryTables> {
        let mut tables = self.tables.borrow_mut();
        let known = tables
            .iter()
            .find(|(known, t)| known == config && t.cos.dtype() == dtype && t.cos.dims()[1] == seq);
        if let Some((_, known)) = known {
            return Ok(known.clone());
        }
        let positions = self.context.positions(batch, seq, self.seen)?;
        let made = RotaryTables::new(config, &positions, dtype, device)?;
        tables.push((config.clone(), made.clone()));
        Ok(made)
    }
}
