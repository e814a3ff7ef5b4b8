//! Assigns scores for labels to texts or text pairs.

use std::collections::BTreeMap;
use std::path::Path;

use super::TextOptions;
use super::encoder::reading::TextInput;
use super::encoder::{Encoder, host};
use super::prompts::Prompts;
use super::scoring::{ScoreFunction, best, best_first};
use super::sentences::Sentences;
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;

/// Returns a score for each label, for texts or text pairs: a sequence classifier, or a cross-encoder.
///
/// ```no_run
/// use candle_blocks::text::TextClassifier;
/// let ranker = TextClassifier::open("ms-marco-MiniLM-L6-v2")?;
/// let scores = ranker.classify_pairs(&[("How many people live in Berlin?", "Berlin has 3,520,031 inhabitants.")])?;
/// println!("{} (logit {})", scores[0].scores[0], scores[0].logits[0]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextClassifier {
    head: Head,
    labels: Vec<String>,
    scoring: ScoreFunction,
    prompts: Prompts,
    notes: Vec<String>,
}

/// A model with the part that computes a text's logits.
#[derive(Clone, Debug)]
pub(super) enum Head {
    /// The model's own head.
    Own(Encoder),
    /// A pooling, with the modules after it.
    Modules(Box<Sentences>),
    /// The logit of one next token, optionally minus another's.
    NextToken {
        encoder: Encoder,
        yes: u32,
        no: Option<u32>,
    },
}

impl Head {
    fn encoder(&self) -> &Encoder {
        match self {
            Self::Own(encoder) | Self::NextToken { encoder, .. } => encoder,
            Self::Modules(sentences) => &sentences.encoder,
        }
    }
}

/// A classifier's result for a text. [`TextClassifier::classify`](crate::text::TextClassifier::classify) returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The head's output, one value for each label.
    pub logits: Vec<f32>,
    /// The logits after the function of [`TextOptions::function_to_apply`](crate::text::TextOptions::function_to_apply), or
    /// else after the model's activation. If the files name one, that is sentence-transformers' `CrossEncoder`
    /// activation. Otherwise it is that of transformers' text classification: the identity for regression, the sigmoid for a
    /// single label or multi-label classification, and the softmax in all other cases.
    pub scores: Vec<f32>,
}

impl Scores {
    /// Returns the index of the label with the highest score.
    pub fn best(&self) -> usize {
        best(&self.scores)
    }

    /// Returns the labels' indices, the highest score first, and equal ones in their order.
    pub fn ranked(&self) -> Vec<usize> {
        best_first(&self.scores)
    }
}

impl TextClassifier {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().classifier(directory)
    }

    /// Makes a classifier from its parts.
    pub(super) fn new(
        head: Head,
        labels: Vec<String>,
        scoring: ScoreFunction,
        prompts: Prompts,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(head.encoder().notes());
        Self {
            head,
            labels,
            scoring,
            prompts,
            notes,
        }
    }

    getters! {
        /// Returns the model; of an encoder-decoder (BART), the encoder.
        model(&self) -> &Model => &self.encoder().model;
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.encoder().adapters;
        /// Returns the labels' names.
        labels(&self) -> &[String] => &self.labels;
        /// Returns the length in tokens to which texts are truncated; `None` for no truncation.
        max_length(&self) -> Option<usize> => self.encoder().max_length();
        /// Returns the model's prompts, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts.by_name;
        /// Returns notes on settings in the files that scores do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    fn encoder(&self) -> &Encoder {
        self.head.encoder()
    }

    /// Returns the prompt with this name, for [`Self::classify_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the model has no prompt with this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.named(name)
    }

    /// Returns scores for texts, in their order. If the model has a default prompt, it precedes every text.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, or one that the model does not have.
    pub fn classify<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Scores>> {
        self.classify_prompted(texts, self.prompts.default_prompt()?)
    }

    /// Like [`Self::classify`], with `prompt` before every text instead of the default.
    ///
    /// # Errors
    /// The errors of [`Self::classify`].
    pub fn classify_prompted<T: AsRef<str>>(
        &self,
        texts: &[T],
        prompt: &str,
    ) -> Result<Vec<Scores>> {
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.scores(&texts.collect::<Vec<_>>(), prompt)
    }

    /// Returns scores for text pairs, such as a question and a passage, in their order. If a pair is too long, its longer
    /// text is truncated. If the model has a default prompt, it precedes every first text.
    ///
    /// # Errors
    /// The errors of [`Self::classify`].
    pub fn classify_pairs<A: AsRef<str>, B: AsRef<str>>(
        &self,
        pairs: &[(A, B)],
    ) -> Result<Vec<Scores>> {
        self.classify_pairs_prompted(pairs, self.prompts.default_prompt()?)
    }

    /// Like [`Self::classify_pairs`], with `prompt` before every first text instead of the default.
    ///
    /// # Errors
    /// The errors of [`Self::classify`].
    pub fn classify_pairs_prompted<A: AsRef<str>, B: AsRef<str>>(
        &self,
        pairs: &[(A, B)],
        prompt: &str,
    ) -> Result<Vec<Scores>> {
        let pairs = pairs
            .iter()
            .map(|(a, b)| TextInput::Pair(a.as_ref(), b.as_ref()));
        self.scores(&pairs.collect::<Vec<_>>(), prompt)
    }

    fn scores(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<Scores>> {
        let of = |logits: Vec<f32>| {
            Ok(Scores {
                scores: self.scoring.scores(&logits)?,
                logits,
            })
        };
        self.logits(texts, prompt)?.into_iter().map(of).collect()
    }

    /// Returns each text's logits.
    pub(super) fn logits(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<Vec<f32>>> {
        let mut all = vec![Vec::new(); texts.len()];
        match &self.head {
            Head::Own(encoder) => {
                encoder.run(&encoder.encode(texts, prompt)?, |batch, output| {
                    let missing = || Error::InvalidConfig("the model gives no logits".to_string());
                    let logits = host(&output.logits.ok_or_else(missing)?)?;
                    for (logits, &text) in logits.chunks_exact(self.labels.len()).zip(batch) {
                        all[text] = logits.to_vec();
                    }
                    Ok(())
                })?;
            }
            Head::Modules(sentences) => all = sentences.vectors(texts, prompt)?.to_vec2()?,
            Head::NextToken { encoder, yes, no } => {
                encoder.next_logits(&encoder.encode(texts, prompt)?, |batch, logits| {
                    let n_tokens = logits.dim(1)?;
                    for (logits, &text) in host(&logits)?.chunks_exact(n_tokens).zip(batch) {
                        let no = no.map_or(0.0, |no| logits[no as usize]);
                        all[text] = vec![logits[*yes as usize] - no];
                    }
                    Ok(())
                })?;
            }
        }
        Ok(all)
    }
}
