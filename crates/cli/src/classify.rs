//! `candle-blocks classify`: scores labels for each line in a file.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::text::{FunctionToApply, Scores};
use clap::builder::TypedValueParser;
use serde::Serialize;

#[cfg(feature = "media")]
use crate::images::{ImageTask, ScoreSettings, StepArgs};
use crate::model::names;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};
use crate::texts::{OutputFormat, PromptArgs, TextResults};
use crate::zero_shot::{RankedLine, ZeroShotArgs};
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks classify --model sentiment reviews.txt --output labels.jsonl
  candle-blocks classify --model ms-marco-MiniLM-L6-v2 --pairs questions-and-answers.tsv
  candle-blocks classify --model bart-large-mnli --labels delivery,price,quality reviews.txt
  candle-blocks classify --model clip-vit-base-patch32 --labels cat,dog --images photos/*.jpg";

/// The help for --output, which takes more here than in other commands.
const OUTPUT: &str = "The file to write: .safetensors with `logits` and `scores` [n, labels], or .jsonl with one object per line. \
Without it, the best label and its score are printed for each line; with --labels, the lines of JSON";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("output", |output| output.help(OUTPUT)))]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
    /// Classify these PNG, JPEG, GIF, BMP or WebP files instead of texts. The lines of the results have `labels` and `scores`, the
    /// best first.
    #[cfg(feature = "media")]
    #[arg(long, value_name = "FILE", help_heading = "Images", num_args = 1..,
        conflicts_with_all = ["file", "texts", "max_length", "pairs", "truncation", "multi_label", "prompt", "prompt_name"])]
    images: Vec<PathBuf>,
    #[cfg(feature = "media")]
    #[command(flatten)]
    image_steps: StepArgs,
    /// Read each line as a pair of texts separated by a tab, for a cross-encoder.
    #[arg(long)]
    pairs: bool,
    /// The text to shorten if a pair has too many tokens [default: from the model's files, or longest_first].
    #[arg(long, value_name = "TEXT", value_parser = ["longest_first", "only_first", "only_second"])]
    truncation: Option<String>,
    /// The function that converts logits to scores [default: from the model's files].
    #[arg(long, value_name = "FUNCTION", conflicts_with = "labels",
        value_parser = names(&["sigmoid", "softmax", "none"])
            .try_map(|name| name.parse::<FunctionToApply>()))]
    function_to_apply: Option<FunctionToApply>,
    /// Print or write lines of JSON with the N best of the model's labels: `labels` and `scores`, the best first [default for
    /// images: 5].
    #[arg(long, value_name = "N", conflicts_with = "labels")]
    top_k: Option<NonZeroUsize>,
    #[command(flatten)]
    zero_shot: ZeroShotArgs,
    #[command(flatten)]
    prompt: PromptArgs,
}

/// One line in the results.
#[derive(Serialize)]
struct ScoresLine<'a> {
    label: &'a str,
    scores: BTreeMap<&'a str, f32>,
    logits: &'a [f32],
}

pub fn classify(args: &Args) -> Result<CommandOutcome> {
    #[cfg(feature = "media")]
    if !args.images.is_empty() {
        let task = ImageTask {
            files: &args.images,
            steps: &args.image_steps,
            model: &args.task.model,
            compute: &args.task.compute,
        };
        return task.classify(&ScoreSettings {
            zero_shot: &args.zero_shot,
            function_to_apply: args.function_to_apply,
            top_k: args.top_k.map(NonZeroUsize::get),
            output: args.task.output.as_ref(),
        });
    }
    let path = args.task.model.path()?;
    let zero_shot = args.zero_shot.labels()?;
    let format = match &args.task.output {
        Some(output) if zero_shot.is_none() && args.top_k.is_none() => {
            Some(OutputFormat::of(output, &args.task.texts, &path)?)
        }
        _ => args.task.results::<()>(&path).map(|_| None)?,
    };
    if format == Some(OutputFormat::Npy) {
        bail!(
            "--output: .npy holds one array, but there are `logits` and `scores`; let it end in .safetensors or .jsonl"
        );
    }
    let mut pairs = Vec::new();
    let started = args.task.open(path, |texts| match args.pairs {
        true => texts.pairs().map(|read| {
            pairs = read;
            Vec::new()
        }),
        false => texts.read(),
    });
    let mut task = started?;
    if let Some(truncation) = &args.truncation {
        task.options = task.options.truncation(truncation.parse()?);
    }
    if let Some(labels) = zero_shot {
        return args.zero_shot.classify(&labels, &args.task, task);
    }
    let Task {
        path,
        lines,
        mut options,
    } = task;
    if let Some(function) = args.function_to_apply {
        options = options.function_to_apply(function);
    }
    let mut ranked = match args.top_k {
        Some(n) => Some((n.get(), args.task.results(&path)?)),
        None => None,
    };
    let classifier = Progress::loading(|| options.classifier(&path))?;
    note_loaded(classifier.adapters(), classifier.notes());
    let prompt = args.prompt.find(|name| classifier.prompt(name))?;
    let labels = classifier.labels();
    if format == Some(OutputFormat::Jsonl) && ranked.is_none() {
        // There, each label is a key.
        let mut sorted: Vec<_> = labels.iter().collect();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!(
                "{}: id2label in config.json names {:?} twice; let --output end in .safetensors",
                path.display(),
                pair[0]
            );
        }
    }
    let mut all: Vec<Scores> = Vec::new();
    let mut keep = |scores: Vec<Scores>| -> Result<()> {
        if let Some((n, lines)) = &mut ranked {
            return lines.extend(scores.iter().map(|scores| {
                let best = scores.ranked().into_iter().take(*n);
                let (labels, scores) = best.map(|i| (labels[i].clone(), scores.scores[i])).unzip();
                RankedLine { labels, scores }
            }));
        }
        if format.is_none() {
            let line = |scores: &Scores| {
                let best = scores.best();
                let label = output::Escaped(&labels[best]);
                format!("{label}\t{}\n", scores.scores[best])
            };
            output::print(&scores.iter().map(line).collect::<String>())?;
        }
        all.extend(scores);
        Ok(())
    };
    let outcome = match args.pairs {
        true => args.task.each(&pairs, |pairs| {
            keep(match prompt {
                Some(prompt) => classifier.classify_pairs_prompted(pairs, prompt)?,
                None => classifier.classify_pairs(pairs)?,
            })
        }),
        false => args.task.each(&lines, |lines| {
            keep(match prompt {
                Some(prompt) => classifier.classify_prompted(lines, prompt)?,
                None => classifier.classify(lines)?,
            })
        }),
    }?;
    if let Some((_, lines)) = ranked {
        lines.finish(&outcome)?;
        return Ok(outcome);
    }
    let (Some(output), Some(format)) = (&args.task.output, format) else {
        return Ok(outcome);
    };
    if all.is_empty() {
        return Ok(outcome);
    }
    let table = |values: fn(&Scores) -> &[f32]| {
        let values: Vec<f32> = all.iter().flat_map(values).copied().collect();
        Tensor::from_vec(values, (all.len(), labels.len()), &Device::Cpu)
    };
    let named = |scores: &Scores| -> BTreeMap<_, _> {
        let labels = labels.iter().map(String::as_str);
        labels.zip(scores.scores.iter().copied()).collect()
    };
    let line = |scores| ScoresLine {
        label: &labels[Scores::best(scores)],
        scores: named(scores),
        logits: &scores.logits,
    };
    let results = TextResults {
        tensors: vec![
            ("logits".to_string(), table(|scores| &scores.logits)?),
            ("scores".to_string(), table(|scores| &scores.scores)?),
        ],
        signed: None,
        lines: all.iter().map(line).collect(),
    };
    results.write(output, format, &outcome)?;
    Ok(outcome)
}
