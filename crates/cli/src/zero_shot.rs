//! `candle-blocks classify --labels`: scores labels that the caller names.

use anyhow::{Result, bail};
use candle_blocks::text::{HypothesisTemplate, RankedLabels};
use serde::Serialize;

use crate::CommandOutcome;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};

/// Labels of the caller.
#[derive(clap::Args)]
#[command(next_help_heading = "Your own labels")]
pub struct ZeroShotArgs {
    /// Score these labels, separated by commas, with a model trained on entailment (NLI), or for images with one like CLIP. Each
    /// line of the results has `labels` and `scores`, the best first.
    #[arg(long, value_name = "A,B,C", conflicts_with_all = ["pairs", "prompt", "prompt_name"])]
    labels: Option<String>,
    /// The sentence about a label, with {} in its place [default: This example is {}., or for images This is a photo of {}.].
    #[arg(long, value_name = "TEXT", requires = "labels")]
    pub hypothesis_template: Option<HypothesisTemplate>,
    /// Score each label alone: several may fit a text.
    #[arg(long, requires = "labels")]
    multi_label: bool,
}

/// Labels with their scores: one line in the results.
#[derive(Serialize)]
pub struct RankedLine {
    pub labels: Vec<String>,
    pub scores: Vec<f32>,
}

impl From<RankedLabels> for RankedLine {
    fn from(ranked: RankedLabels) -> Self {
        Self {
            labels: ranked.labels,
            scores: ranked.scores,
        }
    }
}

impl ZeroShotArgs {
    /// Returns the labels, if any are given.
    pub fn labels(&self) -> Result<Option<Vec<&str>>> {
        self.labels.as_deref().map(labels_in).transpose()
    }

    /// Scores the labels for each line.
    pub fn classify(
        &self,
        labels: &[&str],
        args: &TaskArgs,
        Task {
            path,
            lines,
            options,
        }: Task,
    ) -> Result<CommandOutcome> {
        let template = self.hypothesis_template.clone().unwrap_or_default();
        let classifier = Progress::loading(|| options.zero_shot_classifier(&path))?
            .with_template(template)
            .with_multi_label(self.multi_label);
        note_loaded(classifier.adapters(), classifier.notes());
        args.run(&path, &lines, |lines| {
            let ranked = classifier.classify(lines, labels)?.into_iter();
            Ok(ranked.map(RankedLine::from).collect())
        })
    }
}

/// Returns the labels in a list that is separated by commas.
pub fn labels_in(text: &str) -> Result<Vec<&str>> {
    let labels = text.split(',').map(str::trim);
    let labels: Vec<&str> = labels.filter(|label| !label.is_empty()).collect();
    if labels.is_empty() {
        bail!(
            "--labels {text:?} names no label; separate them by commas, as in --labels sports,politics"
        );
    }
    Ok(labels)
}
