//! Opens models that give scores: classifiers, cross-encoders and rankers.

use std::path::Path;

use super::Belonging::{Pairs, Scores, Vectors};
use super::TextOptions;
use crate::config::{Activation, HeadTask};
use crate::error::{Error, Result};
use crate::text::TextClassifier;
use crate::text::classifier::Head;
use crate::text::encoder::Encoder;
use crate::text::encoder::folder::Folder;
use crate::text::scoring::ScoreFunction;
use crate::text::sentence_files::{Kind, ResultBody, SentenceFiles, torch_class};
use crate::text::sentences::stages::{Feature, ModuleStep};
use crate::text::sentences::{Sentences, VectorSource};
use crate::text::tasks::ranker::{Judge, TextRanker};

/// The library whose functions convert logits to scores if a folder without `modules.json` names none.
#[derive(Clone, Copy, PartialEq)]
enum ScoreDefaults {
    /// transformers' text classification.
    Pipeline,
    /// sentence-transformers' `CrossEncoder`.
    CrossEncoder,
}

impl TextOptions {
    /// Opens a classifier or a cross-encoder.
    ///
    /// # Errors
    /// If the checkpoint has no classification head and `modules.json` names no modules that compute scores, a file is
    /// missing or malformed, a module or key is unknown, the tokenizer belongs to another model, or an option is set that
    /// vectors alone have.
    pub fn classifier(self, path: impl AsRef<Path>) -> Result<TextClassifier> {
        self.classifier_as(path.as_ref(), ScoreDefaults::Pipeline)
    }

    fn classifier_as(self, path: &Path, defaults: ScoreDefaults) -> Result<TextClassifier> {
        self.refuse(&[Vectors], "scores")?;
        let folder = Folder::of(path, &self.checkpoint)?;
        let is_cross_encoder = folder.kind == Some(Kind::CrossEncoder);
        let mut files = match is_cross_encoder {
            true => SentenceFiles::open(folder.directory, &Kind::CrossEncoder)?,
            false => folder.without_files(),
        };
        let mut route = files.first_route(folder.directory);
        self.shorten(&mut route.reading);
        let checkpoint = self
            .checkpoint
            .clone()
            .whole()
            .open(folder.model(path, &route.model))?;
        files.notes.extend(self.notes(&checkpoint));
        let reading = route.reading;
        let (head, labels) = match route.body {
            ResultBody::Pooling(mut pooling) if is_cross_encoder => {
                let steps = std::mem::take(&mut pooling.steps);
                let model = self.loader(&checkpoint).base_model()?;
                let encoder = Encoder::new(model, &checkpoint, reading)?;
                let source = VectorSource::Pooling(pooling);
                modules(encoder, source, steps)?
            }
            ResultBody::Pooler(steps) => {
                let encoder =
                    Encoder::new(self.loader(&checkpoint).model()?, &checkpoint, reading)?;
                modules(encoder, VectorSource::Pooler, steps)?
            }
            ResultBody::NextToken { yes, no } => {
                let encoder =
                    Encoder::new(self.loader(&checkpoint).model()?, &checkpoint, reading)?;
                let n_tokens = encoder.n_tokens()?;
                if let Some(id) = [Some(yes), no]
                    .into_iter()
                    .flatten()
                    .find(|&id| id as usize >= n_tokens)
                {
                    return Err(Error::InvalidConfig(format!(
                        "the LogitScore that modules.json names reads token {id}, but the model \
                         has {n_tokens} token embeddings"
                    )));
                }
                (Head::NextToken { encoder, yes, no }, vec![label(0)])
            }
            ResultBody::Classifier
            | ResultBody::Projection(_)
            | ResultBody::Pooling(_)
            | ResultBody::Static(..)
            | ResultBody::EachToken(_) => {
                let task = HeadTask::SequenceClassification;
                let encoder = self.with_head(&folder, &checkpoint, reading, task)?;
                (Head::Own(encoder), checkpoint.labels()?)
            }
        };
        let json = checkpoint.config_json()?;
        let named = match (files.scoring, &json) {
            _ if self.function_to_apply.is_some() => self.function_to_apply.map(Into::into),
            (None, Some(json)) => torch_class::of_cross_encoder(json)?,
            (scoring, _) => scoring,
        };
        let scoring = match named {
            Some(scoring) => scoring,
            None if is_cross_encoder || defaults == ScoreDefaults::CrossEncoder => {
                ScoreFunction::Each(match labels.len() {
                    1 => Activation::Sigmoid,
                    _ => Activation::Identity,
                })
            }
            None => ScoreFunction::of_pipeline(json.as_ref(), labels.len())?,
        };
        Ok(TextClassifier::new(
            head,
            labels,
            scoring,
            files.prompts,
            files.notes,
        ))
    }

    /// Opens a ranker: a cross-encoder, which is a classifier with one label, or an embedder. Without a `modules.json`, a
    /// pooling set by the caller selects the embedder, and otherwise the checkpoint's head selects one.
    ///
    /// # Errors
    /// If a classifier has another number of labels, an option is set that the other kind alone has, or as in
    /// [`Self::classifier`] and [`Self::embedder`].
    pub fn ranker(self, path: impl AsRef<Path>) -> Result<TextRanker> {
        let path = path.as_ref();
        let folder = Folder::of(path, &self.checkpoint)?;
        let reads_pairs = match &folder.kind {
            Some(kind) => *kind == Kind::CrossEncoder,
            None if folder.is_model2vec || !self.pooling.is_empty() => false,
            None => {
                let checkpoint = self.checkpoint.clone().whole().open(path)?;
                let head = checkpoint.model_config()?.head.as_ref();
                let task = head.map(|head| head.task).or(checkpoint.missing_head()?);
                task == Some(HeadTask::SequenceClassification)
            }
        };
        if !reads_pairs {
            self.refuse(&[Scores, Pairs], "similarities")?;
            return Ok(TextRanker::new(Judge::Vectors(Box::new(
                self.embedder(path)?,
            ))));
        }
        let classifier = self.classifier_as(path, ScoreDefaults::CrossEncoder)?;
        let n_labels = classifier.labels().len();
        if n_labels != 1 {
            return Err(Error::InvalidConfig(format!(
                "{}: the model has {n_labels} labels, and a ranking needs one score; use a cross-encoder with one, or an \
                 embedding model (`TextClassifier` gives the scores of all labels)",
                path.display()
            )));
        }
        Ok(TextRanker::new(Judge::Pairs(Box::new(classifier))))
    }
}

/// Returns a cross-encoder's modules and labels.
fn modules(
    encoder: Encoder,
    source: VectorSource,
    steps: Vec<ModuleStep>,
) -> Result<(Head, Vec<String>)> {
    let sentences = Sentences::new(encoder, source, steps, Feature::Scores)?;
    let labels = (0..sentences.width()).map(label).collect();
    Ok((Head::Modules(Box::new(sentences)), labels))
}

/// Returns the name for a label that has none.
fn label(i: usize) -> String {
    format!("LABEL_{i}")
}
