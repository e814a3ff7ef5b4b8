//! One forward pass through a stack, with values that all blocks share.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, TensorId, bail};

use crate::config::{
    AlibiConfig, AttentionConfig, Distances, HeadsOfRank, PositionTemperature, Precision,
    RotaryAxes, RotaryConfig, TemperatureBy,
};
use crate::layers::ForwardContext;
use crate::layers::mask::{KeySource, mask_of_heads};
use crate::layers::packed::{CachedSequences, PassTables, UnpaddedRows, check_evaluation};
use crate::layers::padding_mask::{PaddingMask, padding_before};
use crate::layers::position::{
    DistanceRows, RelativeBias, RelativeEmbeddings, RotaryTables, alibi_bias, alibi_on_both_sides,
};
use crate::ops::{BiasTensor, Constants, TapTable, Value, uploaded};

mod layer;
mod taps;

#[doc(hidden)]
pub use layer::{KeysAndValues, Layer};

/// The layer whose input begins a tape.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct Origin {
    /// The layer's name in errors.
    op: &'static str,
    is_packed: bool,
}

impl Origin {
    pub fn new(op: &'static str, is_packed: bool) -> Self {
        Self { op, is_packed }
    }
}

/// A forward pass: the context, the sizes of the input, the state of the cache, and the tables computed so far.
#[doc(hidden)]
pub struct Pass<'c> {
    pub context: &'c ForwardContext,
    pub batch: usize,
    /// The number of positions in this pass.
    pub seq: usize,
    /// The number of positions before this pass.
    pub seen: usize,
    /// The key mask, `[batch, all positions]`, 1 = keep.
    pub(crate) keep: Option<PaddingMask>,
    /// The relative position bias of the current block.
    relative_bias: RefCell<Option<BiasTensor>>,
    /// The current layer, in a stack.
    layer: RefCell<Layer>,
    /// Keys and values that earlier layers share with later ones, with the layer's index.
    shared: RefCell<Vec<(usize, KeysAndValues)>>,
    /// The embeddings of relative distances for disentangled attention or a gated bias.
    pub relative: Option<Tensor>,
    /// Constants that all passes on a device share.
    pub(crate) constants: Constants,
    /// The pass of each sequence's last position, if the last layer computes only that output.
    pub last: Option<Box<Self>>,
    /// The rows that packed layers compute, if padding is left out.
    pub(crate) unpadded: Option<UnpaddedRows>,
    /// The sequences of packed layers with a cache, if there is padding before some.
    pub(crate) sequences: Option<CachedSequences>,
    /// Tables of the packed layers for this pass.
    pub(crate) packed: PassTables,
    last_masks: Memo<usize, PaddingMask>,
    tables: Memo<(RotaryConfig, DType), RotaryTables>,
    temperatures: Memo<(TemperatureKey, DType), Option<RotaryTables>>,
    alibi: Memo<(AlibiKey, DType), BiasTensor>,
    chunks: Memo<(usize, DType), Option<Tensor>>,
    distances: Memo<(Distances, bool), (Tensor, DistanceRows)>,
    masks_of_heads: Memo<(TensorId, HeadsOfRank), Tensor>,
    taps: Memo<(usize, bool), Arc<TapTable>>,
    sequence_rows: Memo<(), Arc<Vec<Vec<u32>>>>,
    first_rows: Memo<(), Arc<Vec<u32>>>,
}

/// A temperature by position, and half the head width.
pub(crate) type TemperatureKey = (PositionTemperature, usize);

/// A linear bias (ALiBi) with its number of heads, and the keys it applies to with their number.
pub(crate) type AlibiKey = ((AlibiConfig, usize), (KeySource, usize));

/// The encoder output for the cross-attentions of a pass.
pub(crate) struct PassEncoderOutput<'c> {
    /// `[batch, keys, d_encoder]`.
    pub hidden_states: &'c Tensor,
    pub keys: usize,
    /// `[batch, keys]`, 1 = keep.
    pub keep: Option<&'c PaddingMask>,
    /// Added to the scores of every block.
    pub additive: Option<Tensor>,
}

impl<'c> Pass<'c> {
    /// Creates a pass without a cache, for an input with these dimensions.
    ///
    /// # Errors
    /// If there are not one to three dimensions.
    pub fn new(context: &'c ForwardContext, dims: &[usize]) -> Result<Self> {
        let keep = context.mask().padding_mask().cloned();
        Ok(Self::after(context, batch_and_seq(dims)?, 0, keep))
    }

    /// Creates a pass of `seq` positions after `seen` earlier positions. `keep` masks all of them.
    pub(crate) fn after(
        context: &'c ForwardContext,
        (batch, seq): (usize, usize),
        seen: usize,
        keep: Option<PaddingMask>,
    ) -> Self {
        Self {
            context,
            batch,
            seq,
            seen,
            keep,
            relative_bias: RefCell::default(),
            layer: RefCell::default(),
            shared: RefCell::default(),
            relative: context.relative_embeddings().cloned(),
            constants: Constants::default(),
            last: None,
            unpadded: None,
            sequences: None,
            packed: PassTables::default(),
            last_masks: Memo::default(),
            tables: Memo::default(),
            temperatures: Memo::default(),
            alibi: Memo::default(),
            chunks: Memo::default(),
            distances: Memo::default(),
            masks_of_heads: Memo::default(),
            taps: Memo::default(),
            sequence_rows: Memo::default(),
            first_rows: Memo::default(),
        }
    }

    /// Wraps a tensor in a value, which begins a tape.
    ///
    /// # Errors
    /// If the layer is packed and the context trains or sets a precision, or as in [`Value::packed`].
    pub fn value(&self, origin: Origin, tensor: &Tensor) -> Result<Value> {
        let precision = self.context.precision();
        if !origin.is_packed {
            return Value::multiplied_in(precision, tensor);
        }
        if precision != Precision::F32 {
            bail!(
                "a packed layer multiplies in the precision to which it was packed; leave out ForwardContext::with_precision"
            );
        }
        check_evaluation(self.context.train())?;
        Value::packed(origin.op, tensor)
    }

    /// Applies a layer to a tensor, with threads that stay awake between its steps.
    pub fn through(
        &self,
        origin: Origin,
        x: &Tensor,
        layer: impl FnOnce(&Value) -> Result<Value>,
    ) -> Result<Tensor> {
        let value = self.value(origin, x)?;
        let y = value.working(|| layer(&value)?.tensor())?;
        match origin.is_packed {
            true => y.to_dtype(x.dtype()),
            false => Ok(y),
        }
    }

    /// Returns the pass with the constants of earlier passes on a device.
    pub(crate) fn with_constants(self, constants: &Constants) -> Self {
        let constants = constants.clone();
        Self { constants, ..self }
    }

    /// Adds the relative position bias of the next blocks to their scores, in place of an earlier bias.
    pub fn enter(&self, bias: Option<&RelativeBias>) -> Result<()> {
        if let Some(bias) = bias {
            let all = self.seen + self.seq;
            self.put_relative_bias(bias.by_distance(self.seq, all, &self.constants)?);
        }
        Ok(())
    }

    /// Sets the relative position bias of the next blocks.
    pub fn put_relative_bias(&self, bias: BiasTensor) {
        self.relative_bias.replace(Some(bias));
    }

    /// Returns the relative position bias of the current block.
    pub fn relative_bias(&self) -> Option<BiasTensor> {
        self.relative_bias.borrow().clone()
    }

    /// Returns the additive mask and the relative position bias for the current block's attention.
    ///
    /// # Errors
    /// Same as `mask_of_heads`.
    pub fn added(&self, attention: &AttentionConfig) -> Result<Vec<BiasTensor>> {
        let mask = self.context.mask().additive();
        let mask = self.of_heads(mask, attention, self.seen + self.seq)?;
        let mask = mask.map(BiasTensor::by_score);
        Ok(mask.into_iter().chain(self.relative_bias()).collect())
    }

    /// Returns the part of an additive mask for this rank's heads.
    fn of_heads(
        &self,
        mask: Option<&Tensor>,
        attention: &AttentionConfig,
        keys: usize,
    ) -> Result<Option<Tensor>> {
        let (Some(mask), Some(heads)) = (mask, attention.heads_of_rank) else {
            return Ok(mask.cloned());
        };
        let lengths = [self.batch, self.seq, keys];
        let part = || Ok(mask_of_heads(mask, heads, lengths)?);
        self.masks_of_heads.get(&(mask.id(), heads), part).map(Some)
    }

    /// Sets the embeddings of relative distances, if there are any.
    pub fn with_relative(mut self, relative: Option<&RelativeEmbeddings>) -> Result<Self> {
        if let Some(relative) = relative {
            self.relative = Some(relative.rows()?);
        }
        Ok(self)
    }

    /// Leaves out the padding around each sequence, if that changes nothing for the other rows.
    pub fn leave_out_padding(&mut self) -> Result<()> {
        let keep = self.keep.as_ref().map(|keep| &keep.host);
        if let Some(keep) = keep
            && keep.dims() == [self.batch, self.seq]
            && self.seen == 0
            && self.context.mask().additive().is_none()
        {
            self.unpadded = UnpaddedRows::new(&keep.flatten_all()?.to_vec1()?, self.seq);
        }
        Ok(())
    }

    /// Leaves out the padding before each sequence, in a pass with a cache.
    pub(crate) fn leave_out_padding_before(&mut self) -> Result<()> {
        self.check_keep()?;
        if let Some(keep) = &self.keep {
            let marks = keep.host.flatten_all()?.to_vec1()?;
            if let Some((sequences, rows)) = CachedSequences::new(&marks, (self.seen, self.seq)) {
                (self.sequences, self.unpadded) = (Some(sequences), rows);
            }
        }
        Ok(())
    }

    /// Returns the embeddings of relative distances, and the row for each pair of query and key. With `all`, returns
    /// the whole table.
    ///
    /// # Errors
    /// If there are no embeddings, or their number differs from the configuration.
    pub(crate) fn distances(
        &self,
        distances: &Distances,
        all: bool,
    ) -> Result<(Tensor, DistanceRows)> {
        self.distances.get(&(*distances, all), || {
            let Some(table) = &self.relative else {
                bail!(
                    "attention: no relative embeddings given; run the block in its stack, or see \
                     ForwardContext::with_relative_embeddings"
                )
            };
            let rows = match all {
                true => DistanceRows::of_all(distances, self.seq),
                false => DistanceRows::new(distances, self.seq),
            };
            let n_rows = distances.n_rows();
            if table.rank() != 2 || table.dims()[0] != n_rows {
                let found = table.dims();
                bail!("relative embeddings: have shape {found:?}, expected {n_rows} rows");
            }
            let table = table.narrow(0, rows.range.start, rows.range.len())?;
            Ok((table, rows))
        })
    }

    /// Returns the key mask of the last `keys` positions.
    ///
    /// # Errors
    /// If the mask does not cover all positions.
    pub(crate) fn keep_of_last(&self, keys: usize) -> Result<Option<PaddingMask>> {
        self.check_keep()?;
        let all = self.seen + self.seq;
        let last =
            |keep: &PaddingMask| self.last_masks.get(&keys, || keep.narrow(all - keys, keys));
        self.keep.as_ref().map(last).transpose()
    }

    /// # Errors
    /// If the mask does not cover all positions.
    pub fn check_keep(&self) -> Result<()> {
        let all = self.seen + self.seq;
        Ok(KeySource::Input.check(self.keep.as_ref().map(|keep| &keep.host), self.batch, all)?)
    }

    /// Returns the cosines and sines for this pass's positions.
    ///
    /// # Errors
    /// If the context's positions or patches do not fit the input.
    pub fn rotary_tables(
        &self,
        config: &RotaryConfig,
        dtype: DType,
        device: &Device,
    ) -> Result<RotaryTables> {
        self.tables.get(&(config.clone(), dtype), || {
            if let Some(RotaryAxes::Patches(axes)) = &config.axes {
                let grid = self.context.patches(axes, self.seq)?;
                return RotaryTables::of_patches(config, axes, grid, (dtype, device));
            }
            if !self.context.has_positions() && self.batch * self.seq > 0 {
                let range = self.seen..self.seen + self.seq;
                if let Some(tables) =
                    RotaryTables::kept(config, range, (dtype, device), &self.constants)?
                {
                    return Ok(tables);
                }
            }
            let (batch, seq, seen) = (self.batch, self.seq, self.seen);
            let positions = match config.axes {
                Some(RotaryAxes::Tokens(_)) => self.context.positions_of_axes(batch, seq, seen)?,
                _ => vec![self.context.positions(batch, seq, seen)?],
            };
            RotaryTables::of_axes(config, &positions, (dtype, device))
        })
    }

    /// Returns the temperature of this pass's positions as tables that rotate queries by an angle of 0, or `None` if
    /// it is 1 everywhere.
    ///
    /// # Errors
    /// If the context's positions do not fit the input.
    pub fn temperatures(
        &self,
        key: TemperatureKey,
        dtype: DType,
        device: &Device,
    ) -> Result<Option<RotaryTables>> {
        self.temperatures.get(&(key, dtype), || {
            let positions = match key.0.by {
                TemperatureBy::Position => {
                    self.context.positions(self.batch, self.seq, self.seen)?
                }
                TemperatureBy::Place => {
                    vec![(self.seen as u32..(self.seen + self.seq) as u32).collect()]
                }
            };
            RotaryTables::of_temperature(key, &positions, dtype, device)
        })
    }

    /// Returns the linear bias (ALiBi) of every head: for each key, or on both sides of a query by distance.
    pub fn alibi(
        &self,
        key: AlibiKey,
        keep: Option<&Tensor>,
        (dtype, device): (DType, &Device),
    ) -> Result<BiasTensor> {
        let ((config, n_heads), (_, keys)) = key;
        self.alibi.get(&(key, dtype), || {
            let queries = self.seen..self.seen + self.seq;
            let bias = match config.both_sides {
                true => alibi_on_both_sides(&config, n_heads, queries, keys)?,
                false => alibi_bias(&config, n_heads, keys, keep)?,
            };
            bias.uploaded(dtype, device)
        })
    }

    /// Returns an additive mask that hides keys in other chunks from each query, `[batch or 1, 1, seq, keys]`, or
    /// `None` if there is only one chunk. `keep` is the key mask of all positions.
    pub fn chunks(
        &self,
        chunk: usize,
        keep: Option<&Tensor>,
        (dtype, device): (DType, &Device),
    ) -> Result<Option<Tensor>> {
        let keys = self.seen + self.seq;
        if keys <= chunk {
            return Ok(None);
        }
        self.chunks.get(&(chunk, dtype), || {
            let padding = |marks: Vec<u8>| padding_before(&marks);
            let starts: Vec<usize> = match keep {
                Some(keep) => keep.to_vec2()?.into_iter().map(padding).collect(),
                None => vec![0],
            };
            let mut hidden = Vec::with_capacity(starts.len() * self.seq * keys);
            for start in &starts {
                // Another chunk may precede the first.
                let number = |key: usize| (key + chunk - start % chunk) / chunk;
                for query in self.seen..keys {
                    let is_other = |key: usize| number(key) != number(query);
                    hidden.extend((0..keys).map(|key| {
                        if is_other(key) {
                            f64::NEG_INFINITY
                        } else {
                            0.0
                        }
                    }));
                }
            }
            let hidden = Tensor::from_vec(hidden, (starts.len(), 1, self.seq, keys), &Device::Cpu)?;
            uploaded(&hidden, dtype, device).map(Some)
        })
    }

    /// Returns the encoder output for a cross-attention.
    ///
    /// # Errors
    /// If the context has no encoder output, its batch differs, or its mask does not cover it or has other heads.
    pub(crate) fn encoder_output(
        &self,
        attention: &AttentionConfig,
    ) -> Result<PassEncoderOutput<'c>> {
        let Some(encoder) = self.context.encoder_output() else {
            bail!(
                "cross-attention: no encoder_hidden_states given; set them in the input, or with ForwardContext::with_encoder_output"
            )
        };
        let (batch, keys) = batch_and_seq(encoder.hidden_states.dims())?;
        if batch != self.batch {
            bail!(
                "encoder_hidden_states: has a batch of {batch}, expected {}",
                self.batch
            );
        }
        KeySource::Encoder.check(encoder.mask.keep(), batch, keys)?;
        Ok(PassEncoderOutput {
            hidden_states: &encoder.hidden_states,
            keys,
            keep: encoder.mask.padding_mask(),
            additive: self.of_heads(encoder.mask.additive(), attention, keys)?,
        })
    }
}

/// Returns batch and sequence length. `[d]` is one position, `[seq, d]` one sequence.
fn batch_and_seq(dims: &[usize]) -> Result<(usize, usize)> {
    match *dims {
        [_] => Ok((1, 1)),
        [seq, _] => Ok((1, seq)),
        [batch, seq, _] => Ok((batch, seq)),
        _ => bail!(
            "attention: input has shape {dims:?}, expected [batch, seq, d_model], [seq, d_model] or [d_model]"
        ),
    }
}

/// A cache of computed values, each computed once.
pub(crate) struct Memo<K, V>(RefCell<Vec<(K, V)>>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<K: Clone + PartialEq, V: Clone> Memo<K, V> {
    /// Returns the value for `key`, which `make` computes the first time.
    pub fn get(&self, key: &K, make: impl FnOnce() -> Result<V>) -> Result<V> {
        if let Some((_, known)) = self.0.borrow().iter().find(|(known, _)| known == key) {
            return Ok(known.clone());
        }
        let made = make()?;
        self.0.borrow_mut().push((key.clone(), made.clone()));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::AttentionMask;

    /// Compares with the keys that transformers 5.23's `chunked_causal_mask_function(3, [0, 2])` hides. Keys after
    /// the query are not compared.
    #[test]
    fn chunks_begin_after_the_padding_on_the_left() {
        let marks = [[1u8, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]];
        let marks = Tensor::new(&marks, &Device::Cpu).unwrap();
        let context = ForwardContext::evaluation();
        let context = context.with_mask(AttentionMask::padding(&marks).unwrap());
        let keep = context.mask().padding_mask().cloned();
        let pass = Pass::after(&context, (2, 3), 4, keep);
        let hidden = pass.chunks(3, Some(&marks), (DType::F32, &Device::Cpu));
        let hidden = hidden.unwrap().unwrap();
        assert_eq!(hidden.dims(), [2, 1, 3, 7]);
        let first_seen = |row: Vec<f32>| row.iter().position(|&x| x == 0.0).unwrap();
        let rows = hidden.flatten_to(2).unwrap().to_vec2::<f32>().unwrap();
        let first: Vec<usize> = rows.into_iter().map(first_seen).collect();
        assert_eq!(first, [3, 3, 6, 2, 5, 5]);
        assert!(
            pass.chunks(7, None, (DType::F32, &Device::Cpu))
                .unwrap()
                .is_none()
        );
    }
}
