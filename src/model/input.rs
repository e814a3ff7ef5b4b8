//! What a model reads.

use candle_core::{Device, Tensor};

use crate::config::setters;
use crate::error::Result;
use crate::layers::{AttentionMask, ForwardContext, Marked, Tokens};

/// What a model reads: token ids, pixels or a spectrum, and what goes with them.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ModelInput {
    /// Token ids, `[batch, seq]` of any integer type.
    pub input_ids: Option<Tensor>,
    /// Token types, `[batch, seq]`; 0 where not given.
    pub token_type_ids: Option<Tensor>,
    /// Positions, `[batch, seq]`, where they are not counted; also `[3, batch, seq]`, where queries and keys turn by time, row
    /// and column ([`ForwardContext::with_position_ids`]).
    pub position_ids: Option<Tensor>,
    /// `[batch, seq]`, 1 = a real token, 0 = padding.
    pub attention_mask: Option<Tensor>,
    /// An image, `[batch, channels, height, width]`.
    pub pixel_values: Option<Tensor>,
    /// The log-mel spectrum of a sound, `[batch, bands, steps]`.
    pub input_features: Option<Tensor>,
    /// What a decoder reads, `[batch, decoder_seq]`, where `input_ids` are an encoder's.
    pub decoder_input_ids: Option<Tensor>,
    /// Which of these are real, `[batch, decoder_seq]`.
    pub decoder_attention_mask: Option<Tensor>,
    /// An encoder's output `[batch, encoder_seq, d_encoder]`, for cross-attention.
    pub encoder_hidden_states: Option<Tensor>,
    /// Which of its positions are real, `[batch, encoder_seq]`.
    pub encoder_attention_mask: Option<Tensor>,
    /// Whether dropout is on.
    pub train: bool,
}

impl ModelInput {
    /// Token ids, `[batch, seq]`.
    pub fn tokens(ids: &Tensor) -> Self {
        Self {
            input_ids: Some(ids.clone()),
            ..Self::default()
        }
    }

    /// An image, `[batch, channels, height, width]`.
    pub fn pixels(pixels: &Tensor) -> Self {
        Self {
            pixel_values: Some(pixels.clone()),
            ..Self::default()
        }
    }

    /// The log-mel spectrum of a sound, `[batch, bands, steps]`.
    pub fn spectrum(features: &Tensor) -> Self {
        Self {
            input_features: Some(features.clone()),
            ..Self::default()
        }
    }

    setters! {
        /// Sets which tokens are real.
        with_mask(mask: &Tensor) => attention_mask = Some(mask.clone());
        /// Sets the token types.
        with_types(types: &Tensor) => token_type_ids = Some(types.clone());
        /// Sets the positions.
        with_positions(positions: &Tensor) => position_ids = Some(positions.clone());
        /// Turns dropout on or off.
        with_train(train: bool) => train = train;
        /// Sets what the decoder reads.
        with_decoder(ids: &Tensor) => decoder_input_ids = Some(ids.clone());
    }

    /// Sets the encoder's output and which of its positions are real.
    pub fn with_memory(mut self, hidden_states: &Tensor, mask: Option<&Tensor>) -> Self {
        self.encoder_hidden_states = Some(hidden_states.clone());
        self.encoder_attention_mask = mask.cloned();
        self
    }

    /// The tokens, of which `counted` were counted before.
    ///
    /// Only a decoder behind an encoder reads `decoder_input_ids`.
    pub(super) fn as_tokens<'t>(
        &'t self,
        is_behind: bool,
        counted: &'t [u32],
    ) -> Option<Tokens<'t>> {
        let decoders = self.decoder_input_ids.as_ref().filter(|_| is_behind);
        Some(Tokens {
            name: decoders.map_or("input_ids", |_| "decoder_input_ids"),
            ids: decoders.or(self.input_ids.as_ref())?,
            types: self.token_type_ids.as_ref(),
            positions: self.position_ids.as_ref(),
            mask: self.attention_mask.as_ref(),
            counted,
        })
    }

    /// What the blocks need besides the embeddings.
    ///
    /// # Errors
    /// If a mask or positions are malformed.
    pub(crate) fn context(&self, device: &Device) -> Result<ForwardContext> {
        let masked = |mask: &Option<Tensor>, of| match mask {
            Some(mask) => AttentionMask::of_keys(mask, of, device),
            None => Ok(AttentionMask::none()),
        };
        let mask = masked(&self.attention_mask, Marked::Sequence)?;
        let mut context = ForwardContext::evaluation()
            .with_train(self.train)
            .with_mask(mask);
        if let Some(positions) = &self.position_ids {
            context = context.with_position_ids(positions)?;
        }
        if let Some(memory) = &self.encoder_hidden_states {
            let mask = masked(&self.encoder_attention_mask, Marked::Memory)?;
            context = context.with_memory(memory.clone(), mask);
        }
        Ok(context)
    }
}
