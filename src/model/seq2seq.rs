//! An encoder and the decoder that attends to its output.

use candle_core::{DType, Result, Tensor};

use super::{Model, ModelCache, ModelInput, ModelOutput};
use crate::Error;
use crate::config::{EmbeddingsConfig, Task, getters};
use crate::layers::{DropoutSource, of_sequences};

/// An encoder and its decoder (BART, T5, Whisper), made by [`Checkpoint::seq2seq`](crate::Checkpoint::seq2seq).
///
/// ```no_run
/// use candle_blocks::{CheckpointOptions, Precision, model::ModelInput};
/// use candle_blocks::candle_core::{D, Device, Tensor};
/// let checkpoint = CheckpointOptions::default().whole().open("bart-base")?;
/// let model = checkpoint.packed_seq2seq(Precision::F32)?;
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

/// What an encoder made of an input, which its decoder attends to in every step.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// `[batch, encoder_seq, d_model]`.
    pub hidden_states: Tensor,
    /// Which positions are real, `[batch, encoder_seq]`.
    pub mask: Option<Tensor>,
    /// The tokens that the encoder has read, `[batch, encoder_seq]`, if it reads tokens: some settings of generation depend on
    /// them, such as `encoder_repetition_penalty`.
    pub input_ids: Option<Tensor>,
}

impl Encoded {
    /// Goes on with these sequences of the batch alone.
    pub(crate) fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let kept = |of: &Tensor| of_sequences(of, sequences);
        self.hidden_states = kept(&self.hidden_states)?;
        self.mask = self.mask.as_ref().map(kept).transpose()?;
        self.input_ids = self.input_ids.as_ref().map(kept).transpose()?;
        Ok(())
    }
}

/// What both stacks give for an input.
#[derive(Clone, Debug)]
pub struct Seq2SeqOutput {
    /// What the encoder gives.
    pub encoder: ModelOutput,
    /// What the decoder gives.
    pub decoder: ModelOutput,
}

impl Seq2Seq {
    getters! {
        /// The encoder, as a model of its own.
        encoder(&self) -> &Model => &self.encoder;
        /// The decoder, as a model of its own: it reads an encoder's output beside its tokens.
        decoder(&self) -> &Model => &self.decoder;
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.encoder.set_dropout_source(source);
        self.decoder.set_dropout_source(source);
    }

    /// Runs both stacks. A model that classifies texts reads `decoder_input_ids` only where they are given: by default, the
    /// decoder sees the encoder's tokens, one place later.
    ///
    /// # Errors
    /// If the input lacks what either reads, or as for [`Model::forward`].
    pub fn forward(&self, input: &ModelInput) -> Result<Seq2SeqOutput> {
        let encoder = self.encoder.forward(&self.encoder_input(input))?;
        let decoder = self.decoder_input(input, &encoder.last_hidden_state)?;
        let decoder = self.decoder.forward(&decoder)?;
        Ok(Seq2SeqOutput { encoder, decoder })
    }

    /// Runs the encoder.
    ///
    /// # Errors
    /// As for [`Model::forward`].
    pub fn encode(&self, input: &ModelInput) -> Result<Encoded> {
        let output = self.encoder.forward(&self.encoder_input(input))?;
        Ok(Encoded {
            hidden_states: output.last_hidden_state,
            mask: input.attention_mask.clone(),
            input_ids: input.input_ids.clone(),
        })
    }

    /// An empty cache for [`Self::next_logits`].
    pub fn new_cache(&self) -> ModelCache {
        self.decoder.new_cache()
    }

    /// The decoder's logits `[batch, n_tokens]` behind the last of some new tokens `[batch, seq]`, which follow those in
    /// `cache` and are added to it.
    ///
    /// # Errors
    /// As for [`Model::next_logits`].
    pub fn next_logits(
        &self,
        ids: &Tensor,
        encoded: &Encoded,
        cache: &mut ModelCache,
    ) -> Result<Tensor> {
        let input = ModelInput::tokens(ids);
        let input = input.with_memory(&encoded.hidden_states, encoded.mask.as_ref());
        self.decoder.next_logits(&input, cache)
    }

    /// The encoder's part of an input.
    pub(crate) fn encoder_input(&self, input: &ModelInput) -> ModelInput {
        ModelInput {
            decoder_input_ids: None,
            ..input.clone()
        }
    }

    /// The decoder's part of an input, with the encoder's output. `input_ids` stay those of the encoder: where a head
    /// chooses a position by its token, it is theirs.
    pub(crate) fn decoder_input(&self, input: &ModelInput, memory: &Tensor) -> Result<ModelInput> {
        let ids = match &input.decoder_input_ids {
            Some(ids) => ids.clone(),
            None => self.one_place_later(input)?,
        };
        Ok(ModelInput {
            decoder_input_ids: Some(ids),
            attention_mask: input.decoder_attention_mask.clone(),
            position_ids: None,
            token_type_ids: None,
            ..input.clone()
        }
        .with_memory(memory, input.attention_mask.as_ref()))
    }

    /// The encoder's tokens one place later, for a model that classifies texts: transformers' `shift_tokens_right`.
    fn one_place_later(&self, input: &ModelInput) -> Result<Tensor> {
        let reads_same_text = !matches!(self.decoder.task(), None | Some(Task::CausalLm));
        let (Some(ids), true) = (&input.input_ids, reads_same_text) else {
            let reason = "missing; the decoder reads them beside what the encoder reads";
            return Err(Error::input("decoder_input_ids", reason).into());
        };
        let (batch, seq) = ids.dims2()?;
        let first = match self.start_token {
            Some(start) => Tensor::full(start, (batch, 1), ids.device())?.to_dtype(ids.dtype())?,
            None => self.last_of_each(ids)?,
        };
        Tensor::cat(&[&first, &ids.narrow(1, 0, seq.saturating_sub(1))?], 1)
    }

    /// The token at the end of each sequence, `[batch, 1]`: the language of mBART's texts. transformers counts the tokens that are
    /// no padding, also where padding stands in front of them.
    fn last_of_each(&self, ids: &Tensor) -> Result<Tensor> {
        let padding = match &self.decoder.config.embeddings {
            EmbeddingsConfig::Tokens(embeddings) => embeddings.padding,
            _ => None,
        };
        let Some(padding) = padding else {
            let reason = "missing; transformers makes them of the last token before the padding, but config.json has no pad_token_id";
            return Err(Error::input("decoder_input_ids", reason).into());
        };
        let rows = ids.to_dtype(DType::I64)?.to_vec2::<i64>()?;
        let last = rows.iter().map(|row| {
            let n_real = row.iter().filter(|&&id| id != i64::from(padding)).count();
            // Of padding alone, PyTorch's index of -1 is out of range.
            n_real.checked_sub(1).map(|last| row[last])
        });
        match last.collect::<Option<Vec<i64>>>() {
            Some(last) => {
                Tensor::from_vec(last, (rows.len(), 1), ids.device())?.to_dtype(ids.dtype())
            }
            None => Err(Error::input("input_ids", "a sequence has padding alone").into()),
        }
    }
}
