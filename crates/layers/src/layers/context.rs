//! The context of a forward pass: all inputs except the hidden states.

use candle_core::{DType, Device, Tensor};

use crate::config::{PatchAxes, Precision, getters, setters};
use crate::{Error, Result, layers::AttentionMask};

/// The mask, positions, encoder output and mode of one forward pass, shared by every block of a stack.
///
/// Causality is not part of the context: it belongs to the attention's configuration
/// ([`Visibility`](crate::Visibility)), which a checkpoint sets for its family.
///
/// ```
/// use candle_blocks::{AttentionMask, ForwardContext};
/// let plain = ForwardContext::evaluation();
/// assert!(!plain.train());
/// let training = ForwardContext::training().with_mask(AttentionMask::none());
/// assert!(training.train());
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ForwardContext {
    mask: AttentionMask,
    positions: Option<Vec<PositionRows>>,
    patches: Option<[usize; 2]>,
    encoder: Option<EncoderOutput>,
    relative_embeddings: Option<Tensor>,
    layer_inputs: Option<Tensor>,
    train: bool,
    precision: Precision,
}

/// Positions of tokens: one row for all sequences, or one row each.
pub(crate) type PositionRows = Vec<Vec<u32>>;

/// The output of an encoder, for cross-attention.
/// [`ForwardContext::encoder_output`](crate::ForwardContext::encoder_output) returns it.
#[derive(Clone, Debug)]
pub struct EncoderOutput {
    /// `[batch, encoder_seq, d_encoder]`.
    pub hidden_states: Tensor,
    /// The padding mask of the encoder output.
    pub mask: AttentionMask,
}

impl ForwardContext {
    /// Creates a context for evaluation: dropout off, no mask, positions counted from 0 (or from the end of the
    /// cache).
    pub fn evaluation() -> Self {
        Self::default()
    }

    /// Creates a context like [`Self::evaluation`], with dropout on.
    pub fn training() -> Self {
        Self::evaluation().with_train(true)
    }

    setters! {
        /// Sets the mask.
        with_mask(mask: AttentionMask) => mask = mask;
        /// Turns dropout on or off.
        with_train(train: bool) => train = train;
        /// Sets the number of an image's patches, down and across, for rotary embeddings by row and column. The
        /// default is the number in the model's training images. A whole model counts the patches of its images
        /// itself.
        with_patches(down_and_across: [usize; 2]) => patches = Some(down_and_across);
        /// Sets the embeddings of relative distances `[2 * span, d_model]` for disentangled attention in a block
        /// outside its stack: [`RelativeEmbeddings::rows`](crate::layers::RelativeEmbeddings::rows). A stack has its
        /// own.
        with_relative_embeddings(rows: Tensor) => relative_embeddings = Some(rows);
        /// Sets the token rows `[batch, seq, n_layers · width]` from which per-layer inputs are computed
        /// ([`StackConfig::layer_inputs`](crate::StackConfig::layer_inputs)):
        /// [`TokenEmbeddings::layer_inputs`](crate::layers::TokenEmbeddings::layer_inputs). A whole model sets them
        /// itself.
        with_layer_inputs(rows: Tensor) => layer_inputs = Some(rows);
    }

    /// Sets the precision of the products in linear layers. [`Precision::F32`], the default, multiplies values as
    /// they are. [`Precision::Bf16`] rounds both operands of a product to bf16, in the backward pass too. Parameters,
    /// gradients, sums, products within attention and everything else stay in f32. PyTorch's `torch.autocast` does
    /// the same with more roundings. On a CPU with bf16 instructions, a training step takes little more than half the
    /// time.
    ///
    /// ```
    /// use candle_blocks::{ForwardContext, Precision};
    /// let context = ForwardContext::training().with_precision(Precision::Bf16)?;
    /// assert_eq!(context.precision(), Precision::Bf16);
    /// assert!(context.with_precision(Precision::Int8).is_err());
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// For other precisions, which only packed layers have. A forward pass in bf16 fails if the parameters are not
    /// f32 or the layers are packed: a packed layer multiplies in the precision to which it was packed.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self> {
        match precision {
            Precision::F32 | Precision::Bf16 => self.precision = precision,
            other => {
                let reason =
                    format!("is {other:?}, expected F32 or Bf16; pack the layer for others");
                return Err(Error::input("precision", reason));
            }
        }
        Ok(self)
    }

    /// Sets the positions for rotary embeddings, `[batch, seq]` or `[1, seq]` of any integer type, instead of
    /// counting from 0 or from the end of the cache. Sequences that are padded on the left need this. A model with
    /// three-axis rotary embeddings ([`TokenAxes`](crate::config::TokenAxes)) also accepts `[3, batch, seq]` or `[3,
    /// 1, seq]`: time, row and column, which are equal for a text token.
    ///
    /// # Errors
    /// If the shape differs, the dtype is not an integer, or a position is negative or above `u32::MAX`.
    pub fn with_position_ids(mut self, position_ids: &Tensor) -> Result<Self> {
        let fail = |reason| Err(Error::input("position_ids", reason));
        let (found, dtype) = (position_ids.dims(), position_ids.dtype());
        let axis_positions = match *found {
            [_, _] => position_ids.unsqueeze(0)?,
            [3, _, _] => position_ids.clone(),
            _ => {
                let expected = "[batch, seq], or [3, batch, seq] of time, rows and columns";
                return fail(format!("has shape {found:?}, expected {expected}"));
            }
        };
        if dtype.is_float() {
            return fail(format!("is {dtype:?}, expected an integer type"));
        }
        // On the CPU: CUDA and Metal do not convert every integer type.
        let axis_positions = axis_positions
            .to_device(&Device::Cpu)?
            .to_dtype(DType::I64)?;
        let axis_positions = axis_positions.to_vec3::<i64>()?;
        let (mut all, last) = (axis_positions.iter().flatten().flatten(), u32::MAX);
        if let Some(other) = all.find(|&&p| u32::try_from(p).is_err()) {
            return fail(format!("holds {other}, expected 0 to {last}"));
        }
        let row = |row: Vec<i64>| row.into_iter().map(|position| position as u32).collect();
        let rows = |rows: Vec<Vec<i64>>| rows.into_iter().map(row).collect();
        self.positions = Some(axis_positions.into_iter().map(rows).collect());
        Ok(self)
    }

    /// Sets the encoder output `[batch, encoder_seq, d_encoder]` for cross-attention, and its mask.
    pub fn with_encoder_output(mut self, hidden_states: Tensor, mask: AttentionMask) -> Self {
        self.encoder = Some(EncoderOutput {
            hidden_states,
            mask,
        });
        self
    }

    getters! {
        /// The embeddings of relative distances, if any.
        relative_embeddings(&self) -> Option<&Tensor> => self.relative_embeddings.as_ref();
        /// The token rows for per-layer inputs, if any.
        layer_inputs(&self) -> Option<&Tensor> => self.layer_inputs.as_ref();
        /// The mask.
        mask(&self) -> &AttentionMask => &self.mask;
        /// The encoder output, if any.
        encoder_output(&self) -> Option<&EncoderOutput> => self.encoder.as_ref();
        /// True if dropout is on.
        train(&self) -> bool => self.train;
        /// The precision in which linear layers multiply.
        precision(&self) -> Precision => self.precision;
    }

    /// Returns true if positions were set, and are not counted.
    pub(crate) fn has_positions(&self) -> bool {
        self.positions.is_some()
    }

    /// Returns the positions of `seq` new tokens in each of `batch` sequences, after `seen` earlier tokens.
    ///
    /// # Errors
    /// If the given positions have another shape, or three axes.
    pub(crate) fn positions(&self, batch: usize, seq: usize, seen: usize) -> Result<PositionRows> {
        match <[PositionRows; 1]>::try_from(self.positions_of_axes(batch, seq, seen)?) {
            Ok([rows]) => Ok(rows),
            Err(_) => Err(Error::input(
                "position_ids",
                format!(
                    "holds time, row and column of each token, but the rotary embedding has one axis; expected \
                     [{batch}, {seq}]"
                ),
            )),
        }
    }

    /// Returns positions like [`Self::positions`], for one axis or for time, row and column.
    ///
    /// # Errors
    /// If the given positions have another shape.
    pub(crate) fn positions_of_axes(
        &self,
        batch: usize,
        seq: usize,
        seen: usize,
    ) -> Result<Vec<PositionRows>> {
        let Some(positions) = &self.positions else {
            return Ok(vec![vec![(seen as u32..(seen + seq) as u32).collect()]]);
        };
        let first = &positions[0]; // of equal shapes, at least one
        let n_rows = first.len();
        if (n_rows != 1 && n_rows != batch) || first.iter().any(|row| row.len() != seq) {
            let found = [n_rows, first.first().map_or(0, Vec::len)];
            let reason = format!(
                "has shape {found:?}, expected [{batch}, {seq}] or [1, {seq}] of hidden_states"
            );
            return Err(Error::input("position_ids", reason));
        }
        Ok(positions.clone())
    }

    /// Returns the patches down and across of an image with `seq` tokens.
    ///
    /// # Errors
    /// If `seq` does not match, or the pass trains a model with random patch coordinates.
    pub(crate) fn patches(&self, axes: &PatchAxes, seq: usize) -> Result<[usize; 2]> {
        if self.train && axes.random_in_training {
            return Err(Error::InvalidConfig(
                "config.json requests patch coordinates that are shifted or scaled at random in training, which this crate \
                 does not have; set pos_embed_shift, pos_embed_jitter and pos_embed_rescale to null to train without"
                    .to_string(),
            ));
        }
        let [down, across] = self.patches.unwrap_or(axes.grid);
        let expected = axes.n_front.saturating_add(down.saturating_mul(across));
        if seq != expected {
            let n_front = axes.n_front;
            let reason = format!(
                "has {seq} positions, expected {expected}: {n_front} tokens in front of {down} x {across} patches; give the \
                 patches of other images by ForwardContext::with_patches"
            );
            return Err(Error::input("hidden_states", reason));
        }
        Ok([down, across])
    }
}
