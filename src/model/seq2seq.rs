//! Encoder-decoder models.

use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};

use super::{Model, ModelCache, ModelInput, ModelOutput};
use crate::Error;
use crate::config::{EmbeddingsConfig, HeadTask};
use crate::error::getters;
use crate::layers::{DropoutSource, of_sequences};

/// An encoder and its decoder (BART, T5, Whisper), made by [`Loader::seq2seq`](crate::Loader::seq2seq).
///
/// ```no_run
/// use candle_blocks::{CheckpointOptions, Precision, model::ModelInput, Weights};
/// use candle_blocks::candle_core::{D, Device, Tensor};
/// let checkpoint = CheckpointOptions::default().whole().open("bart-base")?;
/// let model = checkpoint.load(Weights::Packed(Precision::F32)).seq2seq()?;
/// let text = Tensor::new(&[[0u32, 31414, 232, 2]], &Device::Cpu)?;
/// let encoded = model.encode(&ModelInput::tokens(&text))?;
/// let (mut cache, mut token) = (model.new_cache(), Tensor::new(&[[2u32]], &Device::Cpu)?);
/// for _ in 0..3 {
///     let logits = model.next_logits(&token, &encoded, &mut cache)?;
///     token = logits.argmax_keepdim(D::Minus1)?;
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Seq2Seq {
    pub(super) encoder: Model,
    pub(super) decoder: Model,
    pub(super) start_token: Option<u32>,
}

/// An encoder's output, to which the decoder attends in every step.
/// Pass it to [`CausalDecoder::with_encoder_output`](crate::generate::CausalDecoder::with_encoder_output).
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The encoder's last hidden state, `[batch, encoder_seq, d_model]`.
    pub hidden_states: Tensor,
    /// The padding mask, `[batch, encoder_seq]`: 1 = a real position, 0 = padding.
    pub mask: Option<Tensor>,
    /// The encoder's token ids, `[batch, encoder_seq]`, if it reads tokens. Generation settings such as
    /// `encoder_repetition_penalty` depend on them.
    pub input_ids: Option<Tensor>,
}

impl Encoded {
    /// Keeps only the given sequences of the batch.
    pub(crate) fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let kept = |of: &Tensor| of_sequences(of, sequences);
        self.hidden_states = kept(&self.hidden_states)?;
        self.mask = self.mask.as_ref().map(kept).transpose()?;
        self.input_ids = self.input_ids.as_ref().map(kept).transpose()?;
        Ok(())
    }
}

/// The outputs of an encoder and its decoder. [`Seq2Seq::forward`](crate::model::Seq2Seq::forward) returns them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seq2SeqOutput {
    /// The encoder's output.
    pub encoder: ModelOutput,
    /// The decoder's output.
    pub decoder: ModelOutput,
}

impl Seq2Seq {
    getters! {
        /// The encoder, as a separate model.
        encoder(&self) -> &Model => &self.encoder;
        /// The decoder, as a separate model. Its input holds the encoder output beside the tokens.
        decoder(&self) -> &Model => &self.decoder;
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.encoder.set_dropout_source(source);
        self.decoder.set_dropout_source(source);
    }

    /// Runs encoder and decoder. A sequence classification model needs no `decoder_input_ids`: by default, its
    /// decoder reads the encoder's tokens, shifted right by one.
    ///
    /// If the input lacks the encoder's or the decoder's tokens, or as in [`Model::forward`].
    pub fn forward(&self, input: &ModelInput) -> Result<Seq2SeqOutput> {
        let encoder = self.encoder.forward(&self.encoder_input(input))?;
        let decoder = self.decoder_input(input, &encoder.last_hidden_state)?;
        let decoder = self.decoder.forward(&decoder)?;
        Ok(Seq2SeqOutput { encoder, decoder })
    }

    /// Returns the decoder's logits `[n, n_tokens]` at some positions like [`Model::logits_at`], where it reads the encoder's
    /// tokens shifted right by one.
    ///
    /// # Errors
    /// Same as [`Model::logits_at`].
    #[cfg(feature = "text")]
    pub(crate) fn logits_at(&self, input: &ModelInput, positions: &[u32]) -> Result<Tensor> {
        let encoded = self.encoder.forward(&self.encoder_input(input))?;
        let input = ModelInput {
            decoder_input_ids: Some(self.one_place_later(input)?),
            ..input.clone()
        };
        let input = self.decoder_input(&input, &encoded.last_hidden_state)?;
        self.decoder.logits_at(&input, positions)
    }

    /// Runs the encoder.
    ///
    /// # Errors
    /// Same as [`Model::forward`].
    pub fn encode(&self, input: &ModelInput) -> Result<Encoded> {
        let output = self.encoder.forward(&self.encoder_input(input))?;
        Ok(Encoded {
            hidden_states: output.last_hidden_state,
            mask: input.attention_mask.clone(),
            input_ids: input.input_ids.clone(),
        })
    }

    /// Creates an empty cache for [`Self::next_logits`].
    pub fn new_cache(&self) -> ModelCache {
        self.decoder.new_cache()
    }

    /// Reads a cache of the decoder, like [`Model::load_cache`].
    ///
    /// # Errors
    /// The errors of [`Model::load_cache`].
    pub fn load_cache(&self, path: impl AsRef<Path>, device: &Device) -> crate::Result<ModelCache> {
        self.decoder.load_cache(path, device)
    }

    /// Returns the decoder's logits `[batch, n_tokens]` after the last of the new tokens `ids` `[batch, seq]`. The
    /// new tokens follow those in `cache` and are added to it.
    ///
    /// # Errors
    /// Same as [`Model::next_logits`].
    pub fn next_logits(
        &self,
        ids: &Tensor,
        encoded: &Encoded,
        cache: &mut ModelCache,
    ) -> Result<Tensor> {
        let input = ModelInput::tokens(ids);
        let input = input.with_encoder_output(&encoded.hidden_states, encoded.mask.as_ref());
        self.decoder.next_logits(&input, cache)
    }

    /// Returns the encoder's part of an input.
    pub(crate) fn encoder_input(&self, input: &ModelInput) -> ModelInput {
        ModelInput {
            decoder_input_ids: None,
            ..input.clone()
        }
    }

    /// Returns the decoder's part of an input, with the encoder output. `input_ids` remain the encoder's: a head that
    /// selects a position by its token reads the encoder's tokens.
    pub(crate) fn decoder_input(
        &self,
        input: &ModelInput,
        encoder_output: &Tensor,
    ) -> Result<ModelInput> {
        let reads_same_text = !matches!(self.decoder.task(), None | Some(HeadTask::CausalLm));
        let ids = match &input.decoder_input_ids {
            Some(ids) => ids.clone(),
            None if reads_same_text => self.one_place_later(input)?,
            None => {
                return missing(
                    "missing; the decoder needs its own tokens beside the encoder's input",
                );
            }
        };
        Ok(ModelInput {
            decoder_input_ids: Some(ids),
            attention_mask: input.decoder_attention_mask.clone(),
            position_ids: None,
            token_type_ids: None,
            ..input.clone()
        }
        .with_encoder_output(encoder_output, input.attention_mask.as_ref()))
    }

    /// Returns the encoder's tokens shifted right by one: transformers' `shift_tokens_right`.
    fn one_place_later(&self, input: &ModelInput) -> Result<Tensor> {
        let Some(ids) = &input.input_ids else {
            return missing("missing; the decoder needs tokens, its own or the encoder's");
        };
        let (batch, seq) = ids.dims2()?;
        let first = match self.start_token {
            Some(start) => Tensor::full(start, (batch, 1), ids.device())?.to_dtype(ids.dtype())?,
            None => self.last_of_each(ids)?,
        };
        Tensor::cat(&[&first, &ids.narrow(1, 0, seq.saturating_sub(1))?], 1)
    }

    /// Returns the last real token of each sequence, `[batch, 1]`. For mBART this is the language token. Like
    /// transformers, counts all tokens that are not padding, even if padding precedes them.
    fn last_of_each(&self, ids: &Tensor) -> Result<Tensor> {
        let padding = match &self.decoder.config.embeddings {
            EmbeddingsConfig::Tokens(embeddings) => embeddings.padding,
            _ => None,
        };
        let Some(padding) = padding else {
            return missing(
                "missing; transformers shifts in the last token before the padding, but config.json has no pad_token_id",
            );
        };
        let rows = ids.to_dtype(DType::I64)?.to_vec2::<i64>()?;
        let last = rows.iter().map(|row| {
            let n_real = row.iter().filter(|&&id| id != i64::from(padding)).count();
            // For a sequence of padding only, PyTorch's index of -1 is out of range.
            n_real.checked_sub(1).map(|last| row[last])
        });
        match last.collect::<Option<Vec<i64>>>() {
            Some(last) => {
                Tensor::from_vec(last, (rows.len(), 1), ids.device())?.to_dtype(ids.dtype())
            }
            None => Err(Error::input("input_ids", "a sequence holds only padding").into()),
        }
    }
}

fn missing<T>(reason: &str) -> Result<T> {
    Err(Error::input("decoder_input_ids", reason).into())
}
