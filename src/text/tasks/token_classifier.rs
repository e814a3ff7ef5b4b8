//! Finds entities in texts: a label for each token, joined to words and entities.

use std::path::Path;

use tokenizers::{Encoding, ModelWrapper, OffsetType};

use super::entities::{Aggregation, Entity, ScoredToken, entities, without_overlaps};
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;
use crate::text::encoder::{Encoder, host};
use crate::text::scoring::ScoreFunction;
use crate::text::{TextOptions, TokenizedText};
use candle_blocks_tokenizers::{DividedText, TokenWindows};

/// Finds entities in texts, such as names of persons and places: transformers' token classification.
///
/// ```no_run
/// use candle_blocks::text::{Aggregation, TokenClassifier};
/// let classifier = TokenClassifier::open("bert-base-NER")?;
/// for entity in &classifier.entities(&["Angela lives in Berlin."], Aggregation::Simple)?[0] {
///     println!("{} {} {:?}", entity.label, entity.word, entity.span); // PER Angela Some(0..6)
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenClassifier {
    encoder: Encoder,
    labels: Vec<String>,
    /// How many tokens two windows over a long text share; `None` for no windows.
    stride: Option<usize>,
    notes: Vec<String>,
}

impl TokenClassifier {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::token_classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().token_classifier(directory)
    }

    /// Makes a classifier from its parts.
    pub(in crate::text) fn new(
        encoder: Encoder,
        labels: Vec<String>,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(encoder.notes());
        Self {
            encoder,
            labels,
            stride: None,
            notes,
        }
    }

    /// Reads texts with more than [`Self::max_length`] tokens whole, as windows that share this number of tokens: transformers'
    /// `stride`. Where entities overlap, the longest remains, or among equally long ones that with the highest score.
    #[must_use]
    pub fn with_stride(mut self, n_tokens: usize) -> Self {
        self.stride = Some(n_tokens);
        self
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Model => &self.encoder.model;
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.encoder.adapters;
        /// Returns the labels' names.
        labels(&self) -> &[String] => &self.labels;
        /// Returns the number of tokens to which texts are truncated; `None` for no truncation.
        max_length(&self) -> Option<usize> => self.encoder.max_length();
        /// Returns notes on settings in the files that results do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the entities in texts, in their order, without tokens that have the label `O`.
    ///
    /// Texts are truncated to the tokenizer's limit, as in transformers, and have no entities after it, unless
    /// [`Self::with_stride`] divides them.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, one that the model does not have, or more than the model has positions;
    /// [`Error::InvalidInput`] if whole words get labels or texts are divided, and the tokenizer's class is written in Python,
    /// which gives no offsets, or if texts are divided and entities are single tokens.
    pub fn entities<T: AsRef<str>>(
        &self,
        texts: &[T],
        aggregation: Aggregation,
    ) -> Result<Vec<Vec<Entity>>> {
        let tokenizer = &self.encoder.tokenizer;
        if aggregation.joins_words() && !tokenizer.has_offsets() {
            let reason = format!(
                "{aggregation} needs the offsets of tokens in a text, which this class of tokenizers does not give; use simple or \
                 none"
            );
            return Err(Error::input("aggregation", reason));
        }
        let (encodings, owners) = self.windows(texts, aggregation)?;
        let encoded: Vec<TokenizedText> = encodings.iter().map(TokenizedText::from).collect();
        self.encoder.check_parts(&encoded, &owners)?;
        let n_labels = self.labels.len();
        let mut found = vec![Vec::new(); encodings.len()];
        self.encoder.run(&encoded, |batch, output| {
            let missing = || Error::InvalidConfig("the model gives no logits".to_string());
            let logits = output.logits.ok_or_else(missing)?;
            let (_, seq, _) = logits.dims3()?; // [batch, seq, n_labels]
            for (logits, &window) in host(&logits)?.chunks_exact(seq * n_labels).zip(batch) {
                let text = texts[owners[window]].as_ref();
                let tokens = self.tokens(text, &encodings[window], logits)?;
                found[window] = entities(&tokens, aggregation, tokenizer)?;
            }
            Ok(())
        })?;
        let mut all = vec![Vec::new(); texts.len()];
        let mut n_windows = vec![0; texts.len()];
        for (found, &text) in found.into_iter().zip(&owners) {
            all[text].extend(found);
            n_windows[text] += 1;
        }
        for (entities, n_windows) in all.iter_mut().zip(n_windows) {
            if n_windows > 1 {
                *entities = without_overlaps(std::mem::take(entities));
            }
        }
        Ok(all)
    }

    /// Returns each text's tokens, or those in each window over it, with the text's index.
    fn windows<T: AsRef<str>>(
        &self,
        texts: &[T],
        aggregation: Aggregation,
    ) -> Result<(Vec<Encoding>, Vec<usize>)> {
        let tokenizer = &self.encoder.tokenizer;
        let inputs = texts.iter().map(|text| text.as_ref());
        let (Some(stride), Some(max_length)) = (self.stride, self.encoder.max_length()) else {
            let encodings = tokenizer.encodings(inputs, OffsetType::Char)?;
            return Ok((encodings, (0..texts.len()).collect()));
        };
        let fail = |reason: &str| Err(Error::input("stride", reason));
        if aggregation == Aggregation::None {
            return fail(
                "joins the entities of windows, which need an aggregation other than none",
            );
        }
        if !tokenizer.has_offsets() {
            return fail(
                "needs the offsets of tokens, which this class of tokenizers does not give; leave it out",
            );
        }
        let windows = TokenWindows {
            max_length,
            stride,
            divided: DividedText::First,
        };
        let (mut encodings, mut owners) = (Vec::new(), Vec::new());
        for (index, text) in inputs.enumerate() {
            let of_text = tokenizer.windows(index, text.into(), windows)?;
            owners.extend(vec![index; of_text.len()]);
            encodings.extend(of_text);
        }
        Ok((encodings, owners))
    }

    /// Returns a text's tokens with their scores, without the special ones around it: transformers' `gather_pre_entities`.
    fn tokens(
        &self,
        text: &str,
        encoding: &Encoding,
        logits: &[f32],
    ) -> Result<Vec<ScoredToken<'_>>> {
        let tokenizer = &self.encoder.tokenizer;
        let unknown = tokenizer.named_id("unk_token");
        let knows_words = marks_subwords(tokenizer.inner().get_model());
        let characters: Vec<char> = text.chars().collect();
        let is_special = encoding.get_special_tokens_mask();
        let mut tokens = Vec::new();
        let rows = logits.chunks_exact(self.labels.len());
        for (index, (&id, logits)) in encoding.get_ids().iter().zip(rows).enumerate() {
            if is_special[index] == 1 {
                continue;
            }
            let mut token = ScoredToken {
                word: tokenizer.inner().id_to_token(id).unwrap_or_default(),
                scores: ScoreFunction::Softmax.scores(logits)?,
                span: None,
                index,
                is_subword: false,
                labels: &self.labels,
            };
            if tokenizer.has_offsets() {
                let (start, end) = encoding.get_offsets()[index];
                let written: String = characters
                    .get(start..end)
                    .unwrap_or_default()
                    .iter()
                    .collect();
                token.is_subword = match knows_words {
                    true => token.word.chars().count() != written.chars().count(),
                    // transformers' guess: a word begins at a space.
                    false => {
                        let before = start.checked_sub(1).and_then(|at| characters.get(at));
                        before.is_some_and(|c| *c != ' ') && characters.get(start) != Some(&' ')
                    }
                };
                if Some(id) == unknown {
                    token.word = written;
                    token.is_subword = false;
                }
                token.span = Some(start..end);
            }
            tokens.push(token);
        }
        Ok(tokens)
    }
}

/// Returns whether tokens within a word begin with a mark, such as `##`.
fn marks_subwords(model: &ModelWrapper) -> bool {
    match model {
        ModelWrapper::WordPiece(model) => !model.continuing_subword_prefix.is_empty(),
        ModelWrapper::BPE(model) => {
            let prefix = model.continuing_subword_prefix.as_ref();
            prefix.is_some_and(|prefix| !prefix.is_empty())
        }
        _ => false,
    }
}
