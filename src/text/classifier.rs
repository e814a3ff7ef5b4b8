//! Texts, or pairs of them, to scores of labels.

use std::collections::BTreeMap;
use std::path::Path;

use super::TextOptions;
use super::encoder::{Encoder, TextInput, host};
use super::prompts::Prompts;
use super::scoring::Scoring;
use super::sentences::Sentences;
use crate::checkpoint::AppliedAdapter;
use crate::config::getters;
use crate::error::{Error, Result};
use crate::model::Model;

/// Gives texts, or pairs of texts, a score for each label: a sequence classifier, or a cross-encoder.
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
    scoring: Scoring,
    prompts: Prompts,
    notes: Vec<String>,
}

/// A model with what makes a text's logits of its output.
#[derive(Clone, Debug)]
pub(super) enum Head {
    /// The model's own head does it.
    Own(Encoder),
    /// A pooling does it, with the modules behind it.
    Modules(Box<Sentences>),
    /// The logit of one token behind the text, from which another one's may be subtracted.
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

/// What a classifier says of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The head's output, a number for each label.
    pub logits: Vec<f32>,
    /// What the files say that it means: the function of sentence-transformers' `CrossEncoder` where they name one. Otherwise
    /// that of transformers' text classification: of a regression the logits themselves; of a single label, or labels that
    /// may hold together, the sigmoid of each; of others the softmax.
    pub scores: Vec<f32>,
}

impl Scores {
    /// The place of the label with the highest score.
    pub fn best(&self) -> usize {
        let mut best = 0;
        for (i, score) in self.scores.iter().enumerate() {
            if *score > self.scores[best] {
                best = i;
            }
        }
        best
    }
}

impl TextClassifier {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU; [`TextOptions`] has other forms.
    ///
    /// # Errors
    /// As for [`TextOptions::classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().classifier(directory)
    }

    /// Puts the parts together.
    pub(super) fn new(
        head: Head,
        labels: Vec<String>,
        scoring: Scoring,
        prompts: Prompts,
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(head.encoder().tokenizer.notes());
        Self {
            head,
            labels,
            scoring,
            prompts,
            notes,
        }
    }

    getters! {
        /// The model.
        model(&self) -> &Model => &self.encoder().model;
        /// The adapters that are part of its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.encoder().adapters;
        /// The names of the labels.
        labels(&self) -> &[String] => &self.labels;
        /// The number of tokens to which texts are shortened, if to any.
        max_length(&self) -> Option<usize> => self.encoder().max_length();
        /// The prompts of the model, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts.by_name;
        /// Notes on what the files say and scores do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    fn encoder(&self) -> &Encoder {
        self.head.encoder()
    }

    /// The prompt of this name, to be put in front of texts by [`Self::classify_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the model has none of this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.named(name)
    }

    /// The scores of some texts, in their order. If the model has a default prompt, it is in front of every text.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, or one that the model does not have.
    pub fn classify<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Scores>> {
        self.classify_prompted(texts, self.prompts.default_prompt()?)
    }

    /// Like [`Self::classify`], with `prompt` in front of every text instead of a default.
    ///
    /// # Errors
    /// As for [`Self::classify`].
    pub fn classify_prompted<T: AsRef<str>>(
        &self,
        texts: &[T],
        prompt: &str,
    ) -> Result<Vec<Scores>> {
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.scores(&texts.collect::<Vec<_>>(), prompt)
    }

    /// The scores of some pairs of texts, such as a question and a passage, in their order. Of a pair that is too long, the
    /// longer text is shortened. If the model has a default prompt, it is in front of every first text.
    ///
    /// # Errors
    /// As for [`Self::classify`].
    pub fn classify_pairs<A: AsRef<str>, B: AsRef<str>>(
        &self,
        pairs: &[(A, B)],
    ) -> Result<Vec<Scores>> {
        self.classify_pairs_prompted(pairs, self.prompts.default_prompt()?)
    }

    /// Like [`Self::classify_pairs`], with `prompt` in front of every first text instead of a default.
    ///
    /// # Errors
    /// As for [`Self::classify`].
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

    /// The logits of each text.
    fn logits(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<Vec<f32>>> {
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
