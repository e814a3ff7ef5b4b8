//! `candle-blocks tag`: finds the entities in each line of a file.

use anyhow::Result;
use candle_blocks::text::{Aggregation, Entity};
use clap::builder::TypedValueParser;
use serde::Serialize;

use crate::CommandOutcome;
use crate::model::names;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};
use crate::zero_shot::labels_in;

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks tag --model bert-base-NER --aggregation simple articles.txt
  candle-blocks tag --model bert-base-NER articles.txt --output entities.jsonl
  candle-blocks tag --model gliner_small-v2.1 --labels person,city --threshold 0.4 articles.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
    /// How labeled tokens become entities: each token is one; adjacent tokens with one label are; or whole words, with the label
    /// of their first token, of the mean of their scores, or of the highest score.
    #[arg(long, value_name = "STRATEGY", default_value = "none",
        value_parser = names(&["none", "simple", "first", "average", "max"])
            .try_map(|name| name.parse::<Aggregation>()))]
    aggregation: Aggregation,
    /// Read texts that are too long whole, as windows that share N tokens; needs an --aggregation.
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Find entities with these labels, separated by commas, by a GLiNER model.
    #[arg(long, value_name = "A,B,C", conflicts_with_all = ["aggregation", "stride"], help_heading = "Your own labels")]
    labels: Option<String>,
    /// The score that an entity must exceed [default: 0.5].
    #[arg(
        long,
        value_name = "SCORE",
        requires = "labels",
        value_parser = share,
        help_heading = "Your own labels"
    )]
    threshold: Option<f64>,
    /// Find entities inside other ones, too.
    #[arg(long, requires = "labels", help_heading = "Your own labels")]
    nested: bool,
    /// Give the same words several labels, if their scores exceed the threshold.
    #[arg(long, requires = "labels", help_heading = "Your own labels")]
    multi_label: bool,
}

/// One line in the results.
#[derive(Serialize)]
struct EntitiesLine {
    entities: Vec<EntityFields>,
}

/// An entity, with the names of transformers.
#[derive(Serialize)]
struct EntityFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_group: Option<String>,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    word: String,
    start: Option<usize>,
    end: Option<usize>,
}

impl From<Entity> for EntityFields {
    fn from(entity: Entity) -> Self {
        let (token_label, group_label) = match entity.index {
            Some(_) => (Some(entity.label), None),
            None => (None, Some(entity.label)),
        };
        Self {
            entity: token_label,
            entity_group: group_label,
            score: entity.score,
            index: entity.index,
            word: entity.word,
            start: entity.span.as_ref().map(|span| span.start),
            end: entity.span.map(|span| span.end),
        }
    }
}

impl From<Vec<Entity>> for EntitiesLine {
    fn from(entities: Vec<Entity>) -> Self {
        Self {
            entities: entities.into_iter().map(EntityFields::from).collect(),
        }
    }
}

/// Reads a number from 0 to 1.
fn share(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok();
    let share = number.filter(|number| (0.0..=1.0).contains(number));
    share.ok_or("expected a number from 0 to 1")
}

pub fn tag(args: &Args) -> Result<CommandOutcome> {
    let labels = args.labels.as_deref().map(labels_in).transpose()?;
    let Task {
        path,
        lines,
        options,
    } = args.task.start()?;
    let found = |entities: Vec<Vec<Entity>>| {
        let entities = entities.into_iter();
        Ok(entities.map(EntitiesLine::from).collect())
    };
    if let Some(labels) = labels {
        let gliner = Progress::loading(|| options.gliner(&path))?
            .with_threshold(args.threshold.unwrap_or(0.5))
            .with_nested(args.nested)
            .with_multi_label(args.multi_label);
        note_loaded(&[], gliner.notes());
        return args.task.run(&path, &lines, |lines| {
            found(gliner.entities(lines, &labels)?)
        });
    }
    let mut classifier = Progress::loading(|| options.token_classifier(&path))?;
    if let Some(stride) = args.stride {
        classifier = classifier.with_stride(stride);
    }
    note_loaded(classifier.adapters(), classifier.notes());
    args.task.run(&path, &lines, |lines| {
        found(classifier.entities(lines, args.aggregation)?)
    })
}
