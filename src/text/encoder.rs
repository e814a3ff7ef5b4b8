//! A model that reads texts: its tokenizer, length limits, and batched inference.

pub(crate) mod batches;
pub(crate) mod folder;
pub(crate) mod reading;

use candle_core::{DType, Device, Tensor};

use super::sentence_files::TokenFeatures;
use super::{TokenizedText, Tokenizer};
use crate::Checkpoint;
use crate::checkpoint::AppliedAdapter;
use crate::config::{EmbeddingsConfig, HeadTask, TokenEmbeddingsConfig, TokenSelection};
use crate::error::{Error, Result};
use crate::model::{Model, ModelInput, ModelOutput, Seq2Seq};
use crate::text::chat::messages::Messages;
use crate::text::encoder::batches::{BatchLengths, batches, padded};
use crate::text::encoder::reading::{LengthLimit, TextInput, TextReading};
use crate::text::sentences::expansion::{Expansion, attended};
use candle_blocks_tokenizers::token_types;

/// A model with its tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    pub model: Model,
    /// The same model with its decoder, if the decoder computes the results.
    whole: Option<Box<Seq2Seq>>,
    pub tokenizer: Tokenizer,
    /// The chat template for texts, if the model needs one.
    messages: Option<Messages>,
    max_length: Option<usize>,
    /// The number of positions that the model has; `None` if any number of tokens fits.
    n_positions: Option<usize>,
    lengths: BatchLengths,
    /// The padding token for the shorter sequences of a batch.
    padding: u32,
    /// The model has token types, which tell the two texts of a pair apart.
    has_types: bool,
    expansion: Option<Expansion>,
    /// A note on a limit that the model does not have, or that does not shorten texts.
    limit_note: Option<String>,
    /// The adapters in its weights.
    pub adapters: Vec<AppliedAdapter>,
}

impl Encoder {
    /// Makes an encoder from a model and the checkpoint's tokenizer, which reads texts as `reading` says.
    ///
    /// # Errors
    /// If the model does not read tokens or attends to an encoder's output, if the tokenizer is missing, malformed or
    /// belongs to another model, or if the chat template that the model needs is missing.
    pub fn new(model: Model, checkpoint: &Checkpoint, reading: TextReading) -> Result<Self> {
        Self::built(model, None, checkpoint, reading)
    }

    /// Makes an encoder like [`Self::new`], whose results are a decoder's that attends to it.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub fn with_decoder(
        whole: Seq2Seq,
        checkpoint: &Checkpoint,
        reading: TextReading,
    ) -> Result<Self> {
        let model = whole.encoder().clone();
        Self::built(model, Some(Box::new(whole)), checkpoint, reading)
    }

    fn built(
        model: Model,
        whole: Option<Box<Seq2Seq>>,
        checkpoint: &Checkpoint,
        reading: TextReading,
    ) -> Result<Self> {
        let mut tokenizer = Tokenizer::of(checkpoint)?;
        let embeddings = token_embeddings(&model)?;
        if model.attends_to_encoder() {
            return Err(Error::InvalidConfig(
                "the model attends to an encoder's output, which a text does not provide; run it \
                 with Model::forward and ModelInput::with_encoder_output"
                    .into(),
            ));
        }
        tokenizer.check_vocabulary(embeddings.n_tokens)?;
        let json = checkpoint.config_json()?;
        let trained = || -> Result<Option<usize>> {
            let positions = match &json {
                Some(json) => json.optional_size(&["max_position_embeddings"])?,
                None => None,
            };
            Ok(least([tokenizer.max_length()?, positions]))
        };
        let length = match reading.limit {
            LengthLimit::OfFiles => trained()?,
            LengthLimit::Tokens(length) | LengthLimit::Asked(length) => Some(length),
            LengthLimit::OfTokenizer => tokenizer.max_length()?,
            LengthLimit::Positions | LengthLimit::Unlimited => None,
        };
        let positions = embeddings.positions.map(|table| table.n_positions());
        let max_length = match reading.limit {
            LengthLimit::OfTokenizer | LengthLimit::Unlimited => length,
            _ => least([length, positions]),
        };
        let expansion = reading.expansion.as_ref();
        let side = reading.padding_side;
        let expansion = expansion.map(|added| Expansion::new(added, side, &tokenizer, positions));
        let expansion = expansion.transpose()?;
        let model_type = match &json {
            Some(json) => json.text(&["model_type"])?,
            None => None,
        };
        if let (Some(added), Some(name)) = (&expansion, &model_type)
            && let Some(reason) = added.unsupported(name)
        {
            return Err(Error::InvalidConfig(reason));
        }
        if expansion.is_some() && reading.chat.is_some() {
            return Err(Error::InvalidConfig(
                "query_expansion lengthens texts, which a chat template does not allow; leave one out".into(),
            ));
        }
        let messages = reading
            .chat
            .map(|chat| Messages::new(&tokenizer, chat, json.as_ref()));
        let messages = messages.transpose()?;
        if reading.without_special_tokens || messages.is_some() {
            tokenizer.leave_out_special_tokens(); // a chat template writes them
        }
        if let Some(max_length) = max_length {
            tokenizer.truncate_by(max_length, reading.truncation)?;
            if reading.keeps_whole {
                tokenizer.keep_whole();
            }
        }
        if reading.lower_case {
            tokenizer.lower_case()?;
        }
        let takes_types = match reading.types {
            Some(takes) => takes,
            None => token_types::are_given(&tokenizer, json.as_ref())?,
        };
        let context = checkpoint.context_length()?.filter(|_| positions.is_none());
        let limit_note = match (reading.limit, positions, context) {
            (LengthLimit::Asked(length), Some(n), _) if length > n => Some(format!(
                "max_length is {length}, but the model has {n} positions, to which longer texts are shortened"
            )),
            (_, _, Some(n)) if max_length.is_none_or(|length| length > n) => Some(format!(
                "texts with more tokens than the model's context length, {n}, are not shortened to it; max_length shortens them"
            )),
            _ => None,
        };
        let last = whole.as_ref().map_or(&model, |whole| whole.decoder());
        let reads = last.config().head.as_ref().map(|head| &head.readout.reads);
        let (reads_alike, padding) = match reads {
            Some(TokenSelection::LastExcept(Some(padding))) => (true, *padding),
            // mBART's decoder begins with the last token that is no padding.
            Some(TokenSelection::Each) if whole.is_some() => {
                (true, embeddings.padding.unwrap_or(0))
            }
            None | Some(TokenSelection::First | TokenSelection::Pooled | TokenSelection::Each) => {
                (true, 0)
            }
            Some(_) => (false, 0),
        };
        let is_elsewhere = !model.device().is_cpu();
        let lengths = match reads_alike && (model.leaves_out_padding() || is_elsewhere) {
            true => BatchLengths::Any,
            false => BatchLengths::Equal,
        };
        Ok(Self {
            adapters: checkpoint.report().adapters,
            limit_note,
            has_types: takes_types && embeddings.n_types.is_some(),
            expansion,
            model,
            whole,
            tokenizer,
            messages,
            max_length,
            n_positions: positions,
            lengths,
            padding,
        })
    }

    /// Returns the tokenizer's notes, and one on long texts.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.tokenizer.notes();
        notes.extend(self.limit_note.clone());
        notes
    }

    /// Returns the length in tokens to which texts are truncated; `None` for no truncation.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// Returns the vocabulary's size.
    ///
    /// # Errors
    /// If it does not read tokens.
    pub fn n_tokens(&self) -> Result<usize> {
        Ok(token_embeddings(&self.model)?.n_tokens)
    }

    /// Returns the number of a token's features of this kind.
    ///
    /// # Errors
    /// If the model does not compute them.
    pub fn width_of(&self, features: TokenFeatures) -> Result<usize> {
        let config = self.model.config();
        let head = config.head.as_ref();
        let vocabulary = head.filter(|head| head.task == HeadTask::MaskedLm);
        match features {
            TokenFeatures::Hidden => Ok(config.output_width()),
            TokenFeatures::Logits => vocabulary
                .and_then(|head| head.readout.output.as_ref())
                .map(|output| output.n_out)
                .ok_or_else(no_masked_lm),
        }
    }

    /// Returns the number of a prompt's tokens before a text, without a special token that ends a text.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn prompt_length(&self, prompt: &str) -> Result<usize> {
        if prompt.is_empty() || self.messages.is_some() {
            return Ok(0); // as in sentence-transformers, where chats have no prompt length
        }
        let ids = self.tokenizer.encode(prompt)?.ids;
        let ends = ids.last().is_some_and(|&id| self.tokenizer.is_special(id));
        Ok(ids.len() - usize::from(ends))
    }

    /// Tokenizes texts or pairs with a prompt before them.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, or one that the model does not have.
    pub fn encode(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<TokenizedText>> {
        let mut encoded = match &self.messages {
            Some(messages) => messages.encode(&self.tokenizer, texts, prompt, self.max_length)?,
            None => {
                let inputs = texts.iter().map(|text| text.after_prompt(prompt));
                self.tokenizer.encode_all(inputs)?
            }
        };
        for text in &mut encoded {
            self.expansion.iter().for_each(|added| added.lengthen(text));
        }
        self.check(&encoded)?;
        Ok(encoded)
    }

    /// Checks that the model can read parts of texts, like [`Self::check`]; `owners` has the index of each part's text.
    ///
    /// # Errors
    /// The errors of [`Self::check`], with the index of a text.
    pub fn check_parts(&self, encoded: &[TokenizedText], owners: &[usize]) -> Result<()> {
        self.check(encoded).map_err(|error| match error {
            Error::Text { index, reason } => Error::Text {
                index: owners[index],
                reason,
            },
            other => other,
        })
    }

    /// Checks that the model can read tokenized texts.
    ///
    /// # Errors
    /// [`Error::Text`] if a text has no token, one that the model does not have, or more than the model has positions.
    pub fn check(&self, encoded: &[TokenizedText]) -> Result<()> {
        let embeddings = token_embeddings(&self.model)?;
        let beyond = |ids: &[u32], n: usize| ids.iter().copied().find(|&id| id as usize >= n);
        for (index, text) in encoded.iter().enumerate() {
            let fail = |reason| Err(Error::Text { index, reason });
            if text.ids.is_empty() {
                let reason = "the tokenizer returns no token for it; leave it out, or give a text";
                return fail(reason.to_string());
            }
            if let Some(n) = self.n_positions.filter(|&n| n < text.ids.len()) {
                return fail(format!(
                    "has {} tokens, but the model has {n} positions; shorten it, or set a max_length of up to {n}",
                    text.ids.len()
                ));
            }
            if let Some(id) = beyond(&text.ids, embeddings.n_tokens) {
                return fail(format!(
                    "contains token {id} ({:?} of {}), but the model has {} token embeddings",
                    self.tokenizer.inner().id_to_token(id).unwrap_or_default(),
                    self.tokenizer.path().display(),
                    embeddings.n_tokens
                ));
            }
            if let (true, Some(n_types)) = (self.has_types, embeddings.n_types)
                && let Some(id) = beyond(&text.types, n_types)
            {
                return fail(format!(
                    "{} gives its tokens type {id}, but the model has {n_types}: it belongs to another model",
                    self.tokenizer.path().display()
                ));
            }
        }
        Ok(())
    }

    /// Runs the model on all texts in batches. Calls `each` with a batch's indices into `texts` and the output.
    ///
    /// # Errors
    /// The errors of [`Model::forward`]; an error from `each` ends the run.
    pub fn run(
        &self,
        texts: &[TokenizedText],
        mut each: impl FnMut(&[usize], ModelOutput) -> Result<()>,
    ) -> Result<()> {
        self.each_batch(texts, self.lengths, |batch, input| {
            let output = match &self.whole {
                Some(whole) => whole.forward(&input)?.decoder,
                None => {
                    let texts = batch.iter().map(|&text| &texts[text]);
                    let attended = attended(&texts.collect::<Vec<_>>())?;
                    self.model.forward_attending(&input, attended.as_ref())?
                }
            };
            each(batch, output)
        })
    }

    /// Calls `each` with a text's index and the logits `[n, n_tokens]` of those of its tokens that `selected` names, one batch
    /// of texts after another. Other tokens' logits are not computed.
    ///
    /// # Errors
    /// The errors of [`Model::forward`]; an error from `each` ends the run.
    pub fn logits_at(
        &self,
        texts: &[TokenizedText],
        selected: &[Vec<usize>],
        mut each: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.each_batch(texts, self.lengths, |batch, input| {
            let seq = input.input_ids.as_ref().map_or(Ok(0), |ids| ids.dim(1))?;
            let rows = batch.iter().enumerate();
            let rows = rows.flat_map(|(row, &text)| {
                let tokens = selected[text].iter();
                tokens.map(move |token| (row * seq + token) as u32)
            });
            let rows: Vec<u32> = rows.collect();
            let logits = match &self.whole {
                Some(whole) => whole.logits_at(&input, &rows)?,
                None => self.model.logits_at(&input, &rows)?,
            };
            let mut before = 0;
            for &text in batch {
                let n = selected[text].len();
                each(text, logits.narrow(0, before, n)?)?;
                before += n;
            }
            Ok(())
        })
    }

    /// Calls `each` with the next token's logits `[batch, n_tokens]` after each text, like [`Self::run`].
    ///
    /// # Errors
    /// The errors of [`Model::next_logits`]; an error from `each` ends the run.
    pub fn next_logits(
        &self,
        texts: &[TokenizedText],
        mut each: impl FnMut(&[usize], Tensor) -> Result<()>,
    ) -> Result<()> {
        self.each_batch(texts, BatchLengths::Equal, |batch, input| {
            let mut cache = self.model.new_cache();
            each(batch, self.model.next_logits(&input, &mut cache)?)
        })
    }

    fn each_batch(
        &self,
        texts: &[TokenizedText],
        lengths: BatchLengths,
        mut each: impl FnMut(&[usize], ModelInput) -> Result<()>,
    ) -> Result<()> {
        let n_tokens: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        for batch in batches(&n_tokens, lengths) {
            each(&batch, self.input(texts, &batch)?)?;
        }
        Ok(())
    }

    /// Returns a batch of texts, with shorter ones padded on the right.
    fn input(&self, texts: &[TokenizedText], batch: &[usize]) -> Result<ModelInput> {
        let texts: Vec<_> = batch.iter().map(|&text| &texts[text]).collect();
        padded(&texts, self.padding, self.has_types, &Device::Cpu)
    }
}

/// Returns the token embeddings' configuration.
fn token_embeddings(model: &Model) -> Result<&TokenEmbeddingsConfig> {
    match &model.config().embeddings {
        EmbeddingsConfig::Tokens(config) => Ok(config),
        _ => Err(Error::InvalidConfig(
            "the model does not read texts; select the checkpoint's part that does".into(),
        )),
    }
}

/// Returns the error for a checkpoint without the logits of a masked language model.
pub(super) fn no_masked_lm() -> Error {
    Error::InvalidConfig(
        "modules.json reads the logits of a masked language model (fill-mask), but the checkpoint has none; use one whose \
         `architectures` in config.json names a class that ends with ForMaskedLM, with that class's weights"
            .into(),
    )
}

fn least<const N: usize>(limits: [Option<usize>; N]) -> Option<usize> {
    limits.into_iter().flatten().min()
}

/// Returns rows in f32 on the CPU.
pub(crate) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    Ok(tensor.flatten_all()?.to_vec1()?)
}
