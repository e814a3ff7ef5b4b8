//! `candle-blocks classify --images` and `candle-blocks embed --images`: labels and vectors of image files.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use candle_blocks::candle_core::{D, Tensor};
use candle_blocks::pictures::{Backend, Image};
use clap::builder::TypedValueParser;
use rayon::prelude::*;
use serde::Serialize;

use crate::embed::EMBEDDINGS;
use crate::model::names;
use crate::texts::{Inputs, JsonLines, OutputFormat, TextResults, in_groups, is_same};
use crate::zero_shot::RankedLine;
use crate::{CommandOutcome, classify, embed};

/// The number of images that are in memory at once.
const AT_ONCE: usize = 16;
/// The number of labels that transformers' pipeline returns.
const TOP_K: usize = 5;

/// How images become a model's input.
#[derive(clap::Args)]
pub struct StepArgs {
    /// The library whose results resizing and normalizing have [default: torchvision, as in transformers].
    #[arg(long, value_name = "LIBRARY", requires = "images",
        value_parser = names(&Backend::NAMES).try_map(|name| name.parse::<Backend>()))]
    resize: Option<Backend>,
}

impl StepArgs {
    fn backend(&self) -> Backend {
        self.resize.unwrap_or_default()
    }
}

impl Inputs for Vec<PathBuf> {
    fn contain(&self, existing: &Path) -> bool {
        self.iter().any(|path| is_same(path, existing))
    }
}

/// Decodes files in parallel, and passes on several at a time.
fn each(paths: &[PathBuf], mut work: impl FnMut(&[Image]) -> Result<()>) -> Result<CommandOutcome> {
    in_groups("images", AT_ONCE, paths, |_, paths| {
        let images: Vec<_> = paths.par_iter().map(Image::open).collect();
        let images: candle_blocks::Result<Vec<_>> = images.into_iter().collect();
        work(&images?)
    })
}

/// Scores the model's labels, or the caller's, for each image.
pub fn classify(args: &classify::Args) -> Result<CommandOutcome> {
    let path = args.model.path()?;
    let options = args.compute.image_options(&args.model)?;
    let mut options = options.backend(args.image_steps.backend());
    let mut results = JsonLines::to(args.output.as_ref(), &args.images, &path)?;
    args.model.note_unread(&path);
    let outcome = if let Some(labels) = args.zero_shot.labels()? {
        let mut classifier = options.zero_shot_classifier(&path)?;
        if let Some(template) = &args.zero_shot.hypothesis_template {
            classifier = classifier.with_template(template.clone());
        }
        each(&args.images, |images| {
            let ranked = classifier.classify(images, &labels)?.into_iter();
            results.extend(ranked.map(RankedLine::from))
        })
    } else {
        if let Some(function) = args.function_to_apply {
            options = options.function_to_apply(function);
        }
        let classifier = options.classifier(&path)?;
        let labels = classifier.labels();
        each(&args.images, |images| {
            results.extend(classifier.classify(images)?.iter().map(|scores| {
                let best = scores.ranked().into_iter();
                let best = best.take(args.top_k.unwrap_or(TOP_K));
                let (labels, scores) = best.map(|i| (labels[i].clone(), scores.scores[i])).unzip();
                RankedLine { labels, scores }
            }))
        })
    }?;
    results.finish(&outcome)?;
    Ok(outcome)
}

/// One line in the results.
#[derive(Serialize)]
struct ImageLine<'a> {
    image: &'a Path,
    embedding: Vec<f32>,
}

/// Computes a vector for each image.
pub fn embed(args: &embed::Args) -> Result<CommandOutcome> {
    let path = args.model.path()?;
    let format = OutputFormat::of(&args.output, &args.images, &path)?;
    let options = args.compute.image_options(&args.model)?;
    let options = options.backend(args.image_steps.backend());
    args.model.note_unread(&path);
    let embedder = options.embedder(&path)?;
    let mut vectors = Vec::new();
    let outcome = each(&args.images, |images| {
        let mut some = embedder.embed(images)?;
        if args.normalize == Some(true) {
            some = some.broadcast_div(&some.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)?;
        }
        vectors.push(some);
        Ok(())
    })?;
    if vectors.is_empty() {
        return Ok(outcome);
    }
    let embeddings = Tensor::cat(&vectors, 0)?;
    let rows = embeddings.to_vec2::<f32>()?;
    if let Some(path) = args.images.iter().find(|path| path.to_str().is_none()) {
        bail!("{}: the name is not UTF-8; rename the file", path.display());
    }
    let lines = args.images.iter().zip(rows);
    let results = TextResults {
        tensors: vec![(EMBEDDINGS.to_string(), embeddings)],
        signed: None,
        lines: lines
            .map(|(image, embedding)| ImageLine { image, embedding })
            .collect(),
    };
    results.write(&args.output, format, &outcome)?;
    Ok(outcome)
}
