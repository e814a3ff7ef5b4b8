//! `candle-blocks classify --images` and `candle-blocks embed --images`: labels and vectors for image files.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use candle_blocks::candle_core::{D, Tensor};
use candle_blocks::pictures::{Backend, Image, ImageOptions};
use candle_blocks::text::FunctionToApply;
use clap::builder::TypedValueParser;
use rayon::prelude::*;
use serde::Serialize;

use crate::model::{ComputeArgs, ModelArgs, names};
use crate::progress::Progress;
use crate::texts::{EMBEDDINGS, Inputs, JsonLines, TextResults, VectorOutput, in_groups, is_same};
use crate::zero_shot::{RankedLine, ZeroShotArgs};
use crate::{CommandOutcome, input};

/// How many images are in memory at once.
const AT_ONCE: usize = 16;
/// How many labels transformers' pipeline returns.
const TOP_K: usize = 5;

/// How images become a model's input.
#[derive(clap::Args)]
#[command(next_help_heading = "Images")]
pub struct StepArgs {
    /// The library whose results resizing and normalizing have [default: torchvision, as in transformers].
    #[arg(long, value_name = "LIBRARY", requires = "images",
        value_parser = names(&Backend::NAMES).try_map(|name| name.parse::<Backend>()))]
    resize: Option<Backend>,
}

impl Inputs for Vec<PathBuf> {
    fn contain(&self, existing: &Path) -> bool {
        self.iter().any(|path| is_same(path, existing))
    }
}

/// Decodes files in parallel, and passes on several at a time.
fn each(paths: &[PathBuf], mut work: impl FnMut(&[Image]) -> Result<()>) -> Result<CommandOutcome> {
    in_groups("images", AT_ONCE, paths, |_, paths| {
        let images: Vec<_> = paths.par_iter().map(opened).collect();
        let images: Result<Vec<_>> = images.into_iter().collect();
        work(&images?)
    })
}

/// Decodes a file, or standard input.
fn opened(path: &PathBuf) -> Result<Image> {
    let read = match input::is_standard(path) {
        true => Image::decode(&input::name(path), &input::bytes(path)?),
        false => Image::open(path),
    };
    Ok(read?)
}

/// Files, and the model that reads them.
pub struct ImageTask<'a> {
    pub files: &'a Vec<PathBuf>,
    pub steps: &'a StepArgs,
    pub model: &'a ModelArgs,
    pub compute: &'a ComputeArgs,
}

/// Settings for scores.
pub struct ScoreSettings<'a> {
    pub zero_shot: &'a ZeroShotArgs,
    pub function_to_apply: Option<FunctionToApply>,
    pub top_k: Option<usize>,
    pub output: Option<&'a PathBuf>,
}

impl ImageTask<'_> {
    fn options(&self) -> Result<ImageOptions> {
        let options = self.compute.image_options(self.model)?;
        Ok(options.backend(self.steps.resize.unwrap_or_default()))
    }

    /// Scores the model's labels, or the caller's, for each image.
    pub fn classify(&self, settings: &ScoreSettings) -> Result<CommandOutcome> {
        let path = self.model.path()?;
        let mut options = self.options()?;
        let mut results = JsonLines::to(settings.output, self.files, &path)?;
        self.model.note_unread(&path);
        let outcome = if let Some(labels) = settings.zero_shot.labels()? {
            let mut classifier = Progress::loading(|| options.zero_shot_classifier(&path))?;
            if let Some(template) = &settings.zero_shot.hypothesis_template {
                classifier = classifier.with_template(template.clone());
            }
            each(self.files, |images| {
                let ranked = classifier.classify(images, &labels)?.into_iter();
                results.extend(ranked.map(RankedLine::from))
            })
        } else {
            if let Some(function) = settings.function_to_apply {
                options = options.function_to_apply(function);
            }
            let classifier = Progress::loading(|| options.classifier(&path))?;
            let labels = classifier.labels();
            each(self.files, |images| {
                results.extend(classifier.classify(images)?.iter().map(|scores| {
                    let best = scores.ranked().into_iter();
                    let best = best.take(settings.top_k.unwrap_or(TOP_K));
                    let (labels, scores) =
                        best.map(|i| (labels[i].clone(), scores.scores[i])).unzip();
                    RankedLine { labels, scores }
                }))
            })
        }?;
        results.finish(&outcome)?;
        Ok(outcome)
    }

    /// Computes a vector for each image, with length 1 if `normalizes`.
    pub fn embed(&self, output: &VectorOutput, normalizes: bool) -> Result<CommandOutcome> {
        let path = self.model.path()?;
        let format = output.format(self.files, &path)?;
        let options = self.options()?;
        self.model.note_unread(&path);
        let embedder = Progress::loading(|| options.embedder(&path))?;
        let mut vectors = Vec::new();
        let outcome = each(self.files, |images| {
            let mut some = embedder.embed(images)?;
            if normalizes {
                some = some.broadcast_div(&some.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)?;
            }
            vectors.push(some);
            Ok(())
        })?;
        if vectors.is_empty() {
            return Ok(outcome);
        }
        if let Some(path) = self.files.iter().find(|path| path.to_str().is_none()) {
            bail!("{}: the name is not UTF-8; rename the file", path.display());
        }
        let embeddings = Tensor::cat(&vectors, 0)?;
        let lines = self.files.iter().zip(embeddings.to_vec2::<f32>()?);
        let results = TextResults {
            tensors: vec![(EMBEDDINGS.to_string(), embeddings)],
            signed: None,
            lines: lines
                .map(|(image, embedding)| ImageLine { image, embedding })
                .collect(),
        };
        results.write(&output.output, format, &outcome)?;
        Ok(outcome)
    }
}

/// One line in the results.
#[derive(Serialize)]
struct ImageLine<'a> {
    image: &'a Path,
    embedding: Vec<f32>,
}
