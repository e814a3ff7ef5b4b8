//! Classifies texts by labels that a caller names: a model for entailment compares a text with a sentence about each label.

use std::path::Path;
use std::str::FromStr;

use crate::Checkpoint;
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;
use crate::text::encoder::reading::TextInput;
use crate::text::scoring::ScoreFunction;
#[cfg(feature = "media")]
use crate::text::scoring::best_first;
use crate::text::{TextClassifier, TextOptions};

/// Scores labels that the caller names, by a model trained on entailment: transformers' zero-shot classification
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/zero_shot_classification.py>).
///
/// ```no_run
/// use candle_blocks::text::ZeroShotClassifier;
/// let classifier = ZeroShotClassifier::open("bart-large-mnli")?;
/// let ranking = &classifier.classify(&["The parcel came two weeks late."], &["delivery", "price"])?[0];
/// println!("{} {}", ranking.labels[0], ranking.scores[0]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ZeroShotClassifier {
    classifier: TextClassifier,
    /// The indices of two of the model's own labels.
    entailment: usize,
    contradiction: usize,
    template: HypothesisTemplate,
    is_multi_label: bool,
    notes: Vec<String>,
}

/// Labels with their scores, the highest first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RankedLabels {
    /// The labels.
    pub labels: Vec<String>,
    /// The score of each label.
    pub scores: Vec<f32>,
}

impl RankedLabels {
    /// Sorts labels by their scores. transformers reverses an ascending order, so the last of equal labels comes first.
    fn new(labels: &[&str], scores: &[f32]) -> Self {
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        order.reverse();
        Self::ordered(labels, scores, &order)
    }

    /// Sorts labels by their scores. The first of equal labels comes first.
    #[cfg(feature = "media")]
    pub(crate) fn first_of_equals(labels: &[&str], scores: &[f32]) -> Self {
        Self::ordered(labels, scores, &best_first(scores))
    }

    fn ordered(labels: &[&str], scores: &[f32], order: &[usize]) -> Self {
        Self {
            labels: order.iter().map(|&i| labels[i].to_string()).collect(),
            scores: order.iter().map(|&i| scores[i]).collect(),
        }
    }
}

/// A sentence about a label, with `{}` in the label's place: transformers' `hypothesis_template`.
///
/// ```
/// use candle_blocks::text::HypothesisTemplate;
/// let template: HypothesisTemplate = "This text is about {}.".parse()?;
/// assert_eq!(template.about("sports"), "This text is about sports.");
/// assert!("This text is about sports.".parse::<HypothesisTemplate>().is_err());
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HypothesisTemplate {
    /// The texts around the labels; at least two.
    around: Vec<String>,
}

impl Default for HypothesisTemplate {
    /// Returns transformers' template, `This example is {}.`
    fn default() -> Self {
        Self {
            around: vec!["This example is ".into(), ".".into()],
        }
    }
}

impl HypothesisTemplate {
    /// Returns the sentence about a label.
    pub fn about(&self, label: &str) -> String {
        self.around.join(label)
    }

    /// Returns the sentence about each label.
    ///
    /// # Errors
    /// If there is no label.
    pub(crate) fn sentences(&self, labels: &[&str]) -> Result<Vec<String>> {
        if labels.is_empty() {
            let reason = "missing; name at least one label";
            return Err(Error::input("labels", reason));
        }
        let labels = labels.iter();
        Ok(labels.map(|label| self.about(label)).collect())
    }
}

impl FromStr for HypothesisTemplate {
    type Err = Error;

    /// Reads a template as Python's `str.format` does: `{}`, or `{0}` any number of times, is the label's place, and `{{` and
    /// `}}` are braces.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no place for the label, or another brace.
    fn from_str(template: &str) -> Result<Self> {
        let fail = |what: &str| {
            let reason = format!(
                "{template:?} {what}; write {{}} in the label's place, as in \"This example is {{}}.\", and {{{{ or }}}} for a \
                 brace"
            );
            Err(Error::input("hypothesis_template", reason))
        };
        let mut around = vec![String::new()];
        let mut n_unnamed = 0;
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            let text = around.len() - 1;
            around[text].push_str(&rest[..at]);
            rest = &rest[at..];
            let places = ["{{", "}}", "{}", "{0}"];
            let Some(found) = places.into_iter().find(|place| rest.starts_with(place)) else {
                return fail("has a brace that is no place for a label");
            };
            match found {
                "{{" | "}}" => around[text].push_str(&found[..1]),
                _ => {
                    n_unnamed += usize::from(found == "{}");
                    around.push(String::new());
                }
            }
            rest = &rest[found.len()..];
        }
        let text = around.len() - 1;
        around[text].push_str(rest);
        match (around.len() - 1, n_unnamed) {
            (0, _) => fail("has no place for the label"),
            (1, _) | (_, 0) => Ok(Self { around }),
            _ => fail("has several places, which must then all be {0}"),
        }
    }
}

impl ZeroShotClassifier {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::zero_shot_classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().zero_shot_classifier(directory)
    }

    /// Makes a classifier from one whose labels are entailment and contradiction.
    ///
    /// # Errors
    /// If `label2id` is malformed, or there are fewer than two labels.
    pub(in crate::text) fn new(
        classifier: TextClassifier,
        checkpoint: &Checkpoint,
    ) -> Result<Self> {
        let n_labels = classifier.labels().len();
        if n_labels < 2 {
            return Err(Error::InvalidConfig(format!(
                "{}: the model has one label, but labels of the caller need two, for entailment and contradiction; use a model \
                 trained on natural language inference (NLI)",
                checkpoint.files().path().display()
            )));
        }
        let mut notes = classifier.notes().to_vec();
        let entailment = entailment(&classifier, checkpoint)?.unwrap_or_else(|| {
            notes.push(format!(
                "label2id in config.json names no label for entailment: as in transformers, the last, {:?}, is taken for it; if it is \
                 another, scores mean nothing",
                classifier.labels()[n_labels - 1]
            ));
            n_labels - 1
        });
        Ok(Self {
            entailment,
            // As in transformers: the first label, or else the last.
            contradiction: if entailment == 0 { n_labels - 1 } else { 0 },
            classifier,
            template: HypothesisTemplate::default(),
            is_multi_label: false,
            notes,
        })
    }

    /// Sets the sentence about a label.
    #[must_use]
    pub fn with_template(mut self, template: HypothesisTemplate) -> Self {
        self.template = template;
        self
    }

    /// Sets whether several labels may fit a text. A label's score is then its entailment against its contradiction. Otherwise,
    /// the scores of all labels sum to 1.
    #[must_use]
    pub fn with_multi_label(mut self, is_multi_label: bool) -> Self {
        self.is_multi_label = is_multi_label;
        self
    }

    getters! {
        /// Returns the model; of an encoder-decoder (BART), the encoder.
        model(&self) -> &Model => self.classifier.model();
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => self.classifier.adapters();
        /// Returns the number of tokens to which pairs are truncated; `None` for no truncation.
        max_length(&self) -> Option<usize> => self.classifier.max_length();
        /// Returns notes on settings in the files that scores do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the labels for each text, in the order of the texts, the best first.
    ///
    /// A pair that is too long is shortened in its text, not in the sentence about the label.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no label; [`Error::Text`] if a text is empty, or gives a token that the model does not
    /// have, or more than the model has positions.
    pub fn classify<T: AsRef<str>, L: AsRef<str>>(
        &self,
        texts: &[T],
        labels: &[L],
    ) -> Result<Vec<RankedLabels>> {
        let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
        let sentences = self.template.sentences(&labels)?;
        if let Some(index) = texts.iter().position(|text| text.as_ref().is_empty()) {
            let reason = "is empty, and no label can fit it; leave it out, or give a text".into();
            return Err(Error::Text { index, reason });
        }
        let pairs = texts.iter().flat_map(|text| {
            let sentences = sentences.iter();
            sentences.map(|sentence| TextInput::Pair(text.as_ref(), sentence))
        });
        let pairs: Vec<TextInput> = pairs.collect();
        let logits = self.classifier.logits(&pairs, "");
        let logits = logits.map_err(|error| match error {
            Error::Text { index, reason } => Error::Text {
                index: index / labels.len(),
                reason: format!(
                    "with the label {:?}, {reason}",
                    labels[index % labels.len()]
                ),
            },
            other => other,
        })?;
        let of_text = |logits: &[Vec<f32>]| {
            let scores = self.scores(logits)?;
            Ok(RankedLabels::new(&labels, &scores))
        };
        logits.chunks_exact(labels.len()).map(of_text).collect()
    }

    /// Returns the scores of a text's labels.
    fn scores(&self, logits: &[Vec<f32>]) -> Result<Vec<f32>> {
        if !self.is_multi_label && logits.len() > 1 {
            let entailment: Vec<f32> = logits.iter().map(|of| of[self.entailment]).collect();
            return ScoreFunction::Softmax.scores(&entailment);
        }
        let against = |of: &Vec<f32>| {
            let both = [of[self.contradiction], of[self.entailment]];
            Ok(ScoreFunction::Softmax.scores(&both)?[1])
        };
        logits.iter().map(against).collect()
    }
}

/// Returns the index of the label for entailment; `None` if no name begins so.
fn entailment(classifier: &TextClassifier, checkpoint: &Checkpoint) -> Result<Option<usize>> {
    const KEY: &str = "label2id";
    let is_it = |name: &str| name.to_lowercase().starts_with("entail");
    let labels = classifier.labels();
    let json = checkpoint.config_json()?;
    let has_names = |path: &str| {
        let value = json.as_ref().and_then(|json| json.at(path));
        value.is_some_and(|value| !value.is_null())
    };
    // Without id2label, transformers reads no label2id.
    let Some(json) = json
        .as_ref()
        .filter(|_| has_names(KEY) && has_names("id2label"))
    else {
        return Ok(labels.iter().position(|label| is_it(label)));
    };
    let ids = json.at(KEY).and_then(|ids| ids.as_object());
    let found = ids.and_then(|ids| ids.iter().find(|(name, _)| is_it(name)));
    let Some((name, id)) = found else {
        return Ok(None);
    };
    let index = id.as_u64().and_then(|id| usize::try_from(id).ok());
    let index = index.filter(|&index| index < labels.len());
    let reason = || {
        let n = labels.len();
        format!("gives {name:?} the id {id}, expected the index of one of {n} labels")
    };
    index.map(Some).ok_or_else(|| json.error(&[KEY], reason()))
}
