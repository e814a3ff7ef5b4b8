//! A model's inputs.

use candle_core::{Device, Tensor};

use crate::error::{Result, setters};
use crate::layers::{AttentionMask, ForwardContext, KeySource, Tokens};

/// The inputs of a model: token ids, an image or a spectrogram, with masks and positions.
/// Pass them to [`Model::forward`](crate::model::Model::forward).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ModelInput {
    /// Token ids, `[batch, seq]` of any integer type.
    pub input_ids: Option<Tensor>,
    /// Token types, `[batch, seq]`. The default is 0.
    pub token_type_ids: Option<Tensor>,
    /// Positions, `[batch, seq]`. By default the model counts them. A model with three-axis rotary embeddings also
    /// accepts `[3, batch, seq]`: time, row and column ([`ForwardContext::with_position_ids`]).
    pub position_ids: Option<Tensor>,
    /// `[batch, seq]`, 1 = a real token, 0 = padding.
    pub attention_mask: Option<Tensor>,
    /// An image, `[batch, channels, height, width]`.
    pub pixel_values: Option<Tensor>,
    /// The log-mel spectrogram of an audio clip, `[batch, bands, steps]`.
    pub input_features: Option<Tensor>,
    /// The decoder's token ids, `[batch, decoder_seq]`, if `input_ids` are the encoder's.
    pub decoder_input_ids: Option<Tensor>,
    /// The decoder's padding mask, `[batch, decoder_seq]`: 1 = a real token, 0 = padding.
    pub decoder_attention_mask: Option<Tensor>,
    /// An encoder's output `[batch, encoder_seq, d_encoder]`, for cross-attention.
    pub encoder_hidden_states: Option<Tensor>,
    /// The padding mask of the encoder output, `[batch, encoder_seq]`: 1 = a real position, 0 = padding.
    pub encoder_attention_mask: Option<Tensor>,
    /// Turns dropout on.
    pub train: bool,
}

impl ModelInput {
    /// Creates an input from token ids, `[batch, seq]`.
    pub fn tokens(ids: &Tensor) -> Self {
        Self {
            input_ids: Some(ids.clone()),
            ..Self::default()
        }
    }

    /// Creates an input from images, `[batch, channels, height, width]`.
    pub fn pixels(pixels: &Tensor) -> Self {
        Self {
            pixel_values: Some(pixels.clone()),
            ..Self::default()
        }
    }

    /// Creates an input from log-mel spectrograms, `[batch, bands, steps]`.
    pub fn spectrum(features: &Tensor) -> Self {
        Self {
            input_features: Some(features.clone()),
            ..Self::default()
        }
    }

    setters! {
        /// Sets the padding mask: 1 = a real token, 0 = padding.
        with_mask(mask: &Tensor) => attention_mask = Some(mask.clone());
        /// Sets the token types.
        with_types(types: &Tensor) => token_type_ids = Some(types.clone());
        /// Sets the positions.
        with_positions(positions: &Tensor) => position_ids = Some(positions.clone());
        /// Turns dropout on or off.
        with_train(train: bool) => train = train;
        /// Sets the decoder's token ids.
        with_decoder(ids: &Tensor) => decoder_input_ids = Some(ids.clone());
    }

    /// Sets the encoder output and its padding mask.
    pub fn with_encoder_output(mut self, hidden_states: &Tensor, mask: Option<&Tensor>) -> Self {
        self.encoder_hidden_states = Some(hidden_states.clone());
        self.encoder_attention_mask = mask.cloned();
        self
    }

    /// Returns the token inputs. `counted` has the number of tokens that each sequence already had.
    ///
    /// Only a decoder with cross-attention reads `decoder_input_ids`.
    pub(super) fn as_tokens<'t>(
        &'t self,
        attends_to_encoder: bool,
        counted: &'t [u32],
    ) -> Option<Tokens<'t>> {
        let decoders = self
            .decoder_input_ids
            .as_ref()
            .filter(|_| attends_to_encoder);
        Some(Tokens {
            name: decoders.map_or("input_ids", |_| "decoder_input_ids"),
            ids: decoders.or(self.input_ids.as_ref())?,
            types: self.token_type_ids.as_ref(),
            positions: self.position_ids.as_ref(),
            mask: self.attention_mask.as_ref(),
            counted,
        })
    }

    /// Returns the context for the blocks: masks, positions and mode.
    ///
    /// # Errors
    /// If a mask or positions are malformed.
    pub(crate) fn context(&self, device: &Device) -> Result<ForwardContext> {
        let masked = |mask: &Option<Tensor>, of| match mask {
            Some(mask) => AttentionMask::of_keys(mask, of, device),
            None => Ok(AttentionMask::none()),
        };
        let mask = masked(&self.attention_mask, KeySource::Input)?;
        let mut context = ForwardContext::evaluation()
            .with_train(self.train)
            .with_mask(mask);
        if let Some(positions) = &self.position_ids {
            context = context.with_position_ids(positions)?;
        }
        if let Some(memory) = &self.encoder_hidden_states {
            let mask = masked(&self.encoder_attention_mask, KeySource::Encoder)?;
            context = context.with_encoder_output(memory.clone(), mask);
        }
        Ok(context)
    }
}
