//! One forward pass through packed blocks: masks, tables and an encoder's output, in the form that the kernels take.

mod additive;
mod memory;

use std::{
    cell::{OnceCell, RefCell},
    sync::Arc,
};

use candle_core::{DType, Device, Result, Tensor, bail};

pub(super) use self::{additive::Additive, memory::PassMemory};
use super::cache::PackedCache;
use crate::{
    config::{AlibiConfig, RotaryConfig},
    cpu::attention::Sequences,
    layers::{ForwardContext, Marked, RotaryTables, alibi_bias},
};

/// The configuration of a linear bias and its number of heads.
type AlibiKey = (AlibiConfig, usize);

/// Sizes, masks, and the tables made so far.
pub(super) struct PackedPass<'c> {
    context: &'c ForwardContext,
    pub batch: usize,
    pub seq: usize,
    /// Positions before this pass's.
    pub seen: usize,
    /// `[batch, all keys]`, 1 = keep.
    keep: Option<Tensor>,
    keep_elements: Option<Vec<u8>>,
    /// The rows that are computed, if not all.
    kept: Option<Kept>,
    /// Added to the scores of every block.
    pub additive: Vec<Additive>,
    memory: OnceCell<PassMemory>,
    tables: RefCell<Vec<(RotaryConfig, Arc<Tables>)>>,
    alibi: RefCell<Vec<(AlibiKey, Arc<Additive>)>>,
}

impl<'c> PackedPass<'c> {
    /// A pass without a cache.
    pub fn new(context: &'c ForwardContext, batch: usize, seq: usize) -> Result<Self> {
        Self::behind(context, batch, seq, 0, context.mask().keep().cloned())
    }

    /// A pass of `seq` positions behind those in `cache`.
    pub fn cached(
        context: &'c ForwardContext,
        cache: &mut PackedCache,
        batch: usize,
        seq: usize,
    ) -> Result<Self> {
        let (seen, keep) = cache.extend(context.mask().keep(), batch, seq)?;
        Self::behind(context, batch, seq, seen, keep)
    }

    fn behind(
        context: &'c ForwardContext,
        batch: usize,
        seq: usize,
        seen: usize,
        keep: Option<Tensor>,
    ) -> Result<Self> {
        if context.train() {
            bail!("packed layers do not train; pack them after training, or use evaluation()");
        }
        let additive = context.mask().additive().map(Additive::new).transpose()?;
        let keep_elements = keep.as_ref().map(|keep| keep.flatten_all()?.to_vec1());
        Ok(Self {
            context,
            batch,
            seq,
            seen,
            keep_elements: keep_elements.transpose()?,
            keep,
            kept: None,
            additive: additive.into_iter().collect(),
            memory: OnceCell::new(),
            tables: RefCell::default(),
            alibi: RefCell::default(),
        })
    }

    /// Leaves out the padding around each sequence, where that changes nothing for the rest.
    pub fn leave_out_padding(&mut self) {
        let fits = |keep: &Tensor| keep.dims() == [self.batch, self.seq];
        if let Some(marks) = &self.keep_elements
            && self.keep.as_ref().is_some_and(fits)
            && self.seen == 0
            && self.additive.is_empty()
        {
            self.kept = Kept::new(marks, self.seq);
        }
    }

    /// The rows that are computed, if not all.
    pub fn kept(&self) -> Option<&[usize]> {
        Some(&self.kept.as_ref()?.rows)
    }

    /// The batch's new positions.
    pub fn queries(&self) -> Sequences<'_> {
        match &self.kept {
            Some(Kept { starts, .. }) => Sequences::Ragged { starts },
            None => self.keys(self.seq),
        }
    }

    /// The batch's sequences, each of so many positions.
    pub fn keys(&self, seq: usize) -> Sequences<'static> {
        Sequences::Equal {
            batch: self.batch,
            seq,
        }
    }

    /// `[batch, keys]`, 1 = keep.
    ///
    /// # Errors
    /// If the mask has another shape.
    pub fn keep(&self, keys: usize) -> Result<Option<&[u8]>> {
        Marked::Sequence.check(self.keep.as_ref(), self.batch, keys)?;
        Ok(match &self.kept {
            Some(_) => None,
            None => self.keep_elements.as_deref(),
        })
    }

    /// What cross-attention attends to.
    ///
    /// # Errors
    /// As [`PassMemory::new`].
    pub fn memory(&self) -> Result<&PassMemory> {
        if let Some(known) = self.memory.get() {
            return Ok(known);
        }
        let made = PassMemory::new(self.context, self.batch)?;
        Ok(self.memory.get_or_init(|| made))
    }

    /// Cosines and sines of this pass's positions.
    pub fn rotary_tables(&self, config: &RotaryConfig) -> Result<Arc<Tables>> {
        let mut tables = self.tables.borrow_mut();
        if let Some((_, known)) = tables.iter().find(|(known, _)| known == config) {
            return Ok(known.clone());
        }
        let positions = self.context.positions(self.batch, self.seq, self.seen)?;
        let RotaryTables { cos, sin } =
            RotaryTables::new(config, &positions, DType::F32, &Device::Cpu)?;
        let made = Arc::new(Tables {
            pairs: cos.dim(2)?,
            cos: cos.flatten_all()?.to_vec1()?,
            sin: sin.flatten_all()?.to_vec1()?,
        });
        tables.push((config.clone(), made.clone()));
        Ok(made)
    }

    /// The linear bias of every head and key.
    pub fn alibi(
        &self,
        config: &AlibiConfig,
        n_heads: usize,
        keys: usize,
    ) -> Result<Arc<Additive>> {
        let mut known = self.alibi.borrow_mut();
        let wanted = (*config, n_heads);
        if let Some((_, bias)) = known.iter().find(|(of, _)| *of == wanted) {
            return Ok(bias.clone());
        }
        let made = Arc::new(Additive::new(&alibi_bias(
            config,
            n_heads,
            keys,
            self.keep.as_ref(),
        )?)?);
        known.push((wanted, made.clone()));
        Ok(made)
    }
}

/// The rows of a batch without the padding around its sequences.
struct Kept {
    /// The first row of each sequence, and how many there are.
    starts: Vec<usize>,
    /// Where they are in the batch.
    rows: Vec<usize>,
}

impl Kept {
    /// From marks `[batch, seq]`, 1 = keep. `None` if there is no padding, or a sequence has a gap: without its rows
    /// distances across it would shrink.
    fn new(marks: &[u8], seq: usize) -> Option<Self> {
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for (b, marks) in marks.chunks_exact(seq.max(1)).enumerate() {
            let first = marks.iter().position(|&mark| mark != 0).unwrap_or(seq);
            let end = marks
                .iter()
                .rposition(|&mark| mark != 0)
                .map_or(first, |last| last + 1);
            if marks[first..end].contains(&0) {
                return None;
            }
            rows.extend(b * seq + first..b * seq + end);
            starts.push(rows.len());
        }
        (rows.len() < marks.len()).then_some(Self { starts, rows })
    }
}

/// Cosines and sines, `[rows, pairs]`; the rows of one sequence, or of all.
pub(super) struct Tables {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Tables {
    /// The cosines and sines of a row of the batch.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let rows = self.cos.len() / self.pairs.max(1);
        let at = row % rows.max(1) * self.pairs;
        (
            &self.cos[at..at + self.pairs],
            &self.sin[at..at + self.pairs],
        )
    }
}
