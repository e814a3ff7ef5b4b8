//! One forward pass through packed blocks: masks, tables and an encoder's output, in the form that the kernels take.

use std::{
    cell::{OnceCell, RefCell},
    sync::Arc,
};

use candle_blocks_kernels::attention::Sequences;
use candle_core::{DType, Device, Result, Tensor, bail};

use super::{additive::Additive, kept::Kept};
use crate::config::{DisentangledConfig, Precision, RotaryConfig, getters};
use crate::layers::{
    AlibiKey, DistanceRows, ForwardContext, Memo, Pass, RelativeBias, RotaryTables, TemperatureKey,
};

/// A pass with its masks and tables as the kernels take them.
pub(super) struct PackedPass<'c> {
    pass: Pass<'c>,
    /// The marks of all positions.
    keep: Option<Vec<u8>>,
    /// The rows that are computed, if not all.
    kept: Option<Kept>,
    /// Added to the scores of the block that runs.
    additive: RefCell<Option<Arc<Additive>>>,
    memory: OnceCell<PackedMemory>,
    tables: Memo<RotaryConfig, Arc<Tables>>,
    temperatures: Memo<TemperatureKey, Option<Arc<Tables>>>,
    alibi: Memo<AlibiKey, Arc<Additive>>,
    chunks: Memo<usize, Option<Arc<Additive>>>,
    distances: Memo<DisentangledConfig, Arc<DistanceRows>>,
}

/// What every cross-attention of a pass attends to.
pub(super) struct PackedMemory {
    /// `[batch, keys, d_memory]`.
    pub hidden_states: Tensor,
    pub keys: usize,
    /// `[batch, keys]`, 1 = keep.
    pub keep: Option<Tensor>,
    pub marks: Option<Vec<u8>>,
    /// Added to the scores of every block.
    pub additive: Option<Additive>,
}

impl<'c> PackedPass<'c> {
    /// # Errors
    /// If the context trains, or what is added to the scores is refused by [`Additive::new`].
    pub fn new(pass: Pass<'c>, bias: Option<&RelativeBias>) -> Result<Self> {
        check_evaluation(pass.context)?;
        let made = Self {
            keep: pass
                .keep
                .as_ref()
                .map(|keep| elements(&keep.host))
                .transpose()?,
            kept: None,
            additive: RefCell::new(added(&pass)?),
            memory: OnceCell::new(),
            tables: Memo::default(),
            temperatures: Memo::default(),
            alibi: Memo::default(),
            chunks: Memo::default(),
            distances: Memo::default(),
            pass,
        };
        made.enter(bias)?;
        Ok(made)
    }

    /// As [`Pass::enter`].
    pub fn enter(&self, bias: Option<&RelativeBias>) -> Result<()> {
        if bias.is_some() {
            self.pass.enter(bias)?;
            self.additive.replace(added(&self.pass)?);
        }
        Ok(())
    }

    /// What is added to the scores of the block that runs.
    pub fn additive(&self) -> Option<Arc<Additive>> {
        self.additive.borrow().clone()
    }

    pub fn of_context(context: &'c ForwardContext, x: &Tensor) -> Result<Self> {
        Self::new(Pass::new(context, x.dims())?, None)
    }

    getters! {
        /// The number of sequences.
        batch(&self) -> usize => self.pass.batch;
        /// The number of new positions.
        seq(&self) -> usize => self.pass.seq;
        /// The number of positions before.
        seen(&self) -> usize => self.pass.seen;
        /// The rows that are computed, if not all.
        kept(&self) -> Option<&[usize]> => Some(&self.kept.as_ref()?.rows);
        /// The rows of words that the inputs of layers are made of.
        words(&self) -> Option<&Tensor> => self.pass.context.layer_inputs();
        /// The mask of all positions.
        keep(&self) -> Option<&Tensor> => self.pass.keep.as_ref().map(|keep| &keep.host);
    }

    /// How many of so many rows are those of the positions of the pass `asked`: of this one, or of its last ones alone.
    pub fn n_asked(&self, asked: &PackedPass, n_rows: usize) -> usize {
        match asked.seq() == self.seq() {
            true => n_rows,
            false => asked.batch() * asked.seq(),
        }
    }

    /// Leaves out the padding around each sequence, where that changes nothing for the rest.
    pub fn leave_out_padding(&mut self) {
        let fits = |keep: &Tensor| keep.dims() == [self.pass.batch, self.pass.seq];
        if let Some(marks) = &self.keep
            && self.keep().is_some_and(fits)
            && self.pass.seen == 0
            && self.additive.borrow().is_none()
        {
            self.kept = Kept::new(marks, self.pass.seq);
        }
    }

    /// The batch's new positions.
    pub fn queries(&self) -> Sequences<'_> {
        match &self.kept {
            Some(Kept { starts, .. }) => Sequences::Ragged { starts },
            None => self.keys(self.pass.seq),
        }
    }

    /// The batch's sequences, each of so many positions.
    pub fn keys(&self, seq: usize) -> Sequences<'static> {
        Sequences::Equal {
            batch: self.pass.batch,
            seq,
        }
    }

    /// The marks of all positions, `[batch, keys]`.
    ///
    /// # Errors
    /// If the mask has another shape.
    pub fn marks(&self) -> Result<Option<&[u8]>> {
        self.pass.check_keep()?;
        Ok(match &self.kept {
            Some(_) => None,
            None => self.keep.as_deref(),
        })
    }

    /// What cross-attention attends to.
    ///
    /// # Errors
    /// As [`Pass::memory`] and [`Additive::new`].
    pub fn memory(&self) -> Result<&PackedMemory> {
        if let Some(known) = self.memory.get() {
            return Ok(known);
        }
        let memory = self.pass.memory()?;
        let made = PackedMemory {
            hidden_states: memory.hidden_states.clone(),
            keys: memory.keys,
            keep: memory.keep.map(|keep| keep.host.clone()),
            marks: memory.keep.map(|keep| elements(&keep.host)).transpose()?,
            additive: memory.additive.map(Additive::new).transpose()?,
        };
        Ok(self.memory.get_or_init(|| made))
    }

    /// Cosines and sines of this pass's positions.
    ///
    /// # Errors
    /// As [`Pass::rotary_tables`].
    pub fn rotary_tables(&self, config: &RotaryConfig) -> Result<Arc<Tables>> {
        self.tables.get(config, || {
            let made = self.pass.rotary_tables(config, DType::F32, &Device::Cpu)?;
            Tables::new(&made)
        })
    }

    /// The temperature of this pass's positions, as tables to turn queries by; `None` if it is 1 for all.
    ///
    /// # Errors
    /// As [`Pass::temperatures`].
    pub fn temperatures(&self, key: TemperatureKey) -> Result<Option<Arc<Tables>>> {
        self.temperatures.get(&key, || {
            let made = self.pass.temperatures(key, DType::F32, &Device::Cpu)?;
            made.as_ref().map(Tables::new).transpose()
        })
    }

    /// Which rows of relative embeddings this pass's distances have.
    pub fn distances(&self, config: &DisentangledConfig) -> Result<Arc<DistanceRows>> {
        let seq = self.pass.seq;
        self.distances
            .get(config, || Ok(Arc::new(DistanceRows::new(config, seq))))
    }

    /// What hides the keys of other chunks, where there is more than one.
    pub fn chunks(&self, chunk: usize) -> Result<Option<Arc<Additive>>> {
        self.chunks.get(&chunk, || {
            // Without its padding, a sequence begins with its first chunk.
            let keep = self.keep().filter(|_| self.kept.is_none());
            let hidden = self.pass.chunks(chunk, keep, (DType::F32, &Device::Cpu))?;
            hidden
                .map(|hidden| Additive::new(&hidden).map(Arc::new))
                .transpose()
        })
    }

    /// The linear bias of every head and key.
    pub fn alibi(&self, key: AlibiKey, keep: Option<&Tensor>) -> Result<Arc<Additive>> {
        self.alibi.get(&key, || {
            Additive::new(&self.pass.alibi(key, keep, (DType::F64, &Device::Cpu))?).map(Arc::new)
        })
    }
}

/// # Errors
/// If the context trains, or chooses a precision.
pub(super) fn check_evaluation(context: &ForwardContext) -> Result<()> {
    if context.precision() != Precision::F32 {
        bail!(
            "packed layers multiply in the precision that they were packed to; leave out ForwardContext::with_precision"
        );
    }
    if context.train() {
        bail!("packed layers do not train; pack them after training, or use evaluation()");
    }
    Ok(())
}

fn added(pass: &Pass) -> Result<Option<Arc<Additive>>> {
    let made = pass
        .additive()
        .map(|added| Additive::new(&added).map(Arc::new));
    made.transpose()
}

fn elements(keep: &Tensor) -> Result<Vec<u8>> {
    keep.flatten_all()?.to_vec1()
}

/// Cosines and sines, `[rows, pairs]`; the rows of one sequence, or of all.
pub(super) struct Tables {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Tables {
    fn new(tables: &RotaryTables) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            pairs: tables.cos.dim(2)?,
            cos: tables.cos.flatten_all()?.to_vec1()?,
            sin: tables.sin.flatten_all()?.to_vec1()?,
        }))
    }

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
