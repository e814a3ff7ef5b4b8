//! Texts, or pairs of them, to scores of labels.

use std::path::Path;

use super::TextOptions;
use super::encoder::{Encoder, host};
use crate::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::config::{Task, getters};
use crate::error::{Error, Result};
use crate::model::Model;
use tokenizers::EncodeInput;

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
    encoder: Encoder,
    labels: Vec<String>,
    scoring: Scoring,
}

/// What a classifier says of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The head's output, a number for each label.
    pub logits: Vec<f32>,
    /// What it means: of a single label, or labels that may hold together, the sigmoid of each; otherwise the softmax.
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

/// How logits become scores.
#[derive(Clone, Copy, Debug)]
enum Scoring {
    Sigmoid,
    Softmax,
}

impl Scoring {
    fn scores(self, logits: &[f32]) -> Vec<f32> {
        let exponentials = |shift: f64| logits.iter().map(move |&x| (f64::from(x) - shift).exp());
        match self {
            Self::Sigmoid => {
                let sigmoid = |&x: &f32| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32;
                logits.iter().map(sigmoid).collect()
            }
            Self::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f64 = exponentials(most.into()).sum();
                exponentials(most.into())
                    .map(|e| (e / total) as f32)
                    .collect()
            }
        }
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

    pub(super) fn new(
        encoder: Encoder,
        checkpoint: &Checkpoint,
        json: Option<&ConfigJson>,
    ) -> Result<Self> {
        let head = encoder.model.config().head.as_ref();
        if head.is_none_or(|head| head.task != Task::SequenceClassification) {
            let found = match head {
                Some(head) => format!("its head is for {}", head.task),
                None => "it has no head".to_string(),
            };
            return Err(Error::InvalidConfig(format!(
                "{} gives texts no labels: {found}; take a checkpoint of a class that ends in ForSequenceClassification, \
                 whose `architectures` in config.json says so",
                checkpoint.files().path().display()
            )));
        }
        let problem = json.map(|json| json.text(&["problem_type"])).transpose()?;
        let is_multiple = problem.flatten().as_deref() == Some("multi_label_classification");
        let labels = checkpoint.labels()?;
        Ok(Self {
            scoring: match labels.len() == 1 || is_multiple {
                true => Scoring::Sigmoid,
                false => Scoring::Softmax,
            },
            labels,
            encoder,
        })
    }

    getters! {
        /// The model.
        model(&self) -> &Model => &self.encoder.model;
        /// The names of the labels.
        labels(&self) -> &[String] => &self.labels;
        /// The number of tokens to which texts are shortened, if to any.
        max_length(&self) -> Option<usize> => self.encoder.max_length();
    }

    /// The scores of some texts, in their order.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, or one that the model does not have.
    pub fn classify<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Scores>> {
        self.scores(texts.iter().map(AsRef::as_ref))
    }

    /// The scores of some pairs of texts, such as a question and a passage, in their order. Of a pair that is too long, the
    /// longer text is shortened.
    ///
    /// # Errors
    /// As for [`Self::classify`].
    pub fn classify_pairs<A: AsRef<str>, B: AsRef<str>>(
        &self,
        pairs: &[(A, B)],
    ) -> Result<Vec<Scores>> {
        self.scores(pairs.iter().map(|(a, b)| (a.as_ref(), b.as_ref())))
    }

    fn scores<'t, T>(&self, texts: impl IntoIterator<Item = T>) -> Result<Vec<Scores>>
    where
        T: Into<EncodeInput<'t>>,
    {
        let encoded = self.encoder.encode(texts)?;
        let none = Scores {
            logits: Vec::new(),
            scores: Vec::new(),
        };
        let mut all = vec![none; encoded.len()];
        self.encoder.run(&encoded, |batch, output| {
            let missing = || Error::InvalidConfig("the model gives no logits".to_string());
            let logits = host(&output.logits.ok_or_else(missing)?)?;
            for (logits, &text) in logits.chunks_exact(self.labels.len()).zip(batch) {
                all[text] = Scores {
                    scores: self.scoring.scores(logits),
                    logits: logits.to_vec(),
                };
            }
            Ok(())
        })?;
        Ok(all)
    }
}
