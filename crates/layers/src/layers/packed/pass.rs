//! One forward pass through packed blocks: masks, tables and encoder output, in the form that the kernels read.

use std::{cell::OnceCell, sync::Arc};

use candle_blocks_kernels::attention::Sequences;
use candle_core::{DType, Device, Result, Tensor, TensorId};

use super::additive::Additive;
use super::unpadded_rows::{CachedSequences, UnpaddedRows};
use crate::config::{AttentionConfig, Distances, RotaryConfig, getters};
use crate::layers::{AlibiKey, DistanceRows, Memo, Pass, RotaryTables, TemperatureKey};
use crate::ops::BiasTensor;

/// A pass with its masks and tables in the form that the kernels read.
#[derive(Clone, Copy)]
pub(in crate::layers) struct PackedPass<'p>(pub &'p Pass<'p>);

/// The masks and tables of a pass in the form that the kernels read. Each is computed once.
#[derive(Default)]
pub(crate) struct PassTables {
    mask_bytes: OnceCell<Option<Vec<u8>>>,
    additive: Memo<TensorId, Arc<Additive>>,
    encoder: OnceCell<PackedEncoderOutput>,
    tables: Memo<RotaryConfig, Arc<Tables>>,
    temperatures: Memo<TemperatureKey, Option<Arc<Tables>>>,
    alibi: Memo<AlibiKey, Arc<Additive>>,
    chunks: Memo<usize, Option<Arc<Additive>>>,
    distances: Memo<Distances, Arc<DistanceRows>>,
}

/// The encoder output for every cross-attention of a pass.
pub(crate) struct PackedEncoderOutput {
    /// `[batch, keys, d_encoder]`.
    pub hidden_states: Tensor,
    pub keys: usize,
    /// `[batch, keys]`, 1 = keep.
    pub keep: Option<Tensor>,
    pub mask_bytes: Option<Vec<u8>>,
    /// Added to the scores of every block.
    pub additive: Option<Additive>,
}

impl<'p> PackedPass<'p> {
    getters! {
        /// How many sequences there are.
        batch(&self) -> usize => self.0.batch;
        /// How many new positions there are.
        seq(&self) -> usize => self.0.seq;
        /// How many earlier positions there are.
        seen(&self) -> usize => self.0.seen;
        /// The mask of all positions.
        keep(&self) -> Option<&'p Tensor> => self.0.keep.as_ref().map(|keep| &keep.host);
    }

    /// Returns the indices of the rows that are computed, or `None` for all.
    pub fn unpadded(self) -> Option<&'p [usize]> {
        Some(&self.0.unpadded.as_ref()?.rows)
    }

    /// Returns the sequences, if there is padding before some, in a pass with a cache.
    pub fn sequences(self) -> Option<&'p CachedSequences> {
        self.0.sequences.as_ref()
    }

    /// Returns the additive mask and the relative position bias for the current block's attention.
    ///
    /// # Errors
    /// Same as [`Pass::added`] and [`Additive::new`].
    pub fn added(self, attention: &AttentionConfig) -> Result<Vec<Arc<Additive>>> {
        let added = self.0.added(attention)?.into_iter().map(|bias| {
            let known = &self.0.packed.additive;
            known.get(&bias.tensor.id(), || {
                Additive::new(bias.clone()).map(Arc::new)
            })
        });
        added.collect()
    }

    /// Returns the new positions of each sequence.
    pub fn queries(self) -> Sequences<'p> {
        match &self.0.unpadded {
            Some(UnpaddedRows { starts, .. }) => Sequences::Ragged { starts },
            None => self.keys(self.0.seq),
        }
    }

    /// Returns the sequences with `seq` positions each.
    pub fn keys(self, seq: usize) -> Sequences<'static> {
        Sequences::Equal {
            batch: self.0.batch,
            seq,
        }
    }

    /// Returns the key mask of all positions, `[batch, keys]`.
    ///
    /// # Errors
    /// If the mask has another shape.
    pub fn mask_bytes(self) -> Result<Option<&'p [u8]>> {
        self.0.check_keep()?;
        let is_padding_alone = match &self.0.sequences {
            Some(sequences) => !sequences.has_gaps,
            None => self.0.unpadded.is_some(),
        };
        if is_padding_alone {
            return Ok(None);
        }
        let cell = &self.0.packed.mask_bytes;
        if cell.get().is_none() {
            let made = self.keep().map(elements).transpose()?;
            let _ = cell.set(made);
        }
        Ok(cell.get().and_then(Option::as_deref))
    }

    /// Returns the encoder output for cross-attention.
    ///
    /// # Errors
    /// Same as [`Pass::encoder_output`] and [`Additive::new`].
    pub fn encoder_output(self, attention: &AttentionConfig) -> Result<&'p PackedEncoderOutput> {
        if let Some(known) = self.0.packed.encoder.get() {
            return Ok(known);
        }
        let encoder = self.0.encoder_output(attention)?;
        let additive = encoder
            .additive
            .map(|mask| Additive::new(BiasTensor::by_score(mask)));
        let made = PackedEncoderOutput {
            hidden_states: encoder.hidden_states.clone(),
            keys: encoder.keys,
            keep: encoder.keep.map(|keep| keep.host.clone()),
            mask_bytes: encoder.keep.map(|keep| elements(&keep.host)).transpose()?,
            additive: additive.transpose()?,
        };
        Ok(self.0.packed.encoder.get_or_init(|| made))
    }

    /// Returns the cosines and sines for this pass's positions.
    ///
    /// # Errors
    /// Same as [`Pass::rotary_tables`].
    pub fn rotary_tables(self, config: &RotaryConfig) -> Result<Arc<Tables>> {
        self.0.packed.tables.get(config, || {
            let made = self.0.rotary_tables(config, DType::F32, &Device::Cpu)?;
            Tables::new(&made)
        })
    }

    /// Returns the temperature of this pass's positions as rotation tables, or `None` if it is 1 everywhere.
    ///
    /// # Errors
    /// Same as [`Pass::temperatures`].
    pub fn temperatures(self, key: TemperatureKey) -> Result<Option<Arc<Tables>>> {
        self.0.packed.temperatures.get(&key, || {
            let made = self.0.temperatures(key, DType::F32, &Device::Cpu)?;
            made.as_ref().map(Tables::new).transpose()
        })
    }

    /// Returns the rows of relative embeddings for this pass's distances.
    pub fn distances(self, of: &Distances) -> Result<Arc<DistanceRows>> {
        let seq = self.0.seq;
        let rows = || Ok(Arc::new(DistanceRows::new(of, seq)));
        self.0.packed.distances.get(of, rows)
    }

    /// Returns an additive mask that hides keys in other chunks, or `None` if there is only one chunk.
    pub fn chunks(self, chunk: usize) -> Result<Option<Arc<Additive>>> {
        self.0.packed.chunks.get(&chunk, || {
            // Without its padding, a sequence begins with its first chunk.
            let is_left_out = self.0.unpadded.is_some() && self.0.sequences.is_none();
            let keep = self.keep().filter(|_| !is_left_out);
            let hidden = self.0.chunks(chunk, keep, (DType::F32, &Device::Cpu))?;
            let hidden = hidden.map(|hidden| Additive::new(BiasTensor::by_score(hidden)));
            Ok(hidden.transpose()?.map(Arc::new))
        })
    }

    /// Returns the linear bias (ALiBi), as in [`Pass::alibi`].
    pub fn alibi(self, key: AlibiKey, keep: Option<&Tensor>) -> Result<Arc<Additive>> {
        self.0.packed.alibi.get(&key, || {
            Additive::new(self.0.alibi(key, keep, (DType::F32, &Device::Cpu))?).map(Arc::new)
        })
    }
}

#[doc(hidden)]
pub fn elements(keep: &Tensor) -> Result<Vec<u8>> {
    keep.flatten_all()?.to_vec1()
}

/// Cosines and sines, `[rows, pairs]`. The rows belong to one sequence that all share, or to all sequences.
#[doc(hidden)]
pub struct Tables {
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

    /// Returns the cosines and sines for a row of the batch.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let rows = self.cos.len() / self.pairs.max(1);
        let at = row % rows.max(1) * self.pairs;
        (
            &self.cos[at..at + self.pairs],
            &self.sin[at..at + self.pairs],
        )
    }
}
