//! `candle-blocks fill`: fills the masks in each line of a file.

use anyhow::Result;
use candle_blocks::text::Filling;
use serde::Serialize;

use crate::CommandOutcome;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks fill --model bert-base-uncased sentences.txt
  candle-blocks fill --model roberta-base --top-k 10 sentences.txt --output words.jsonl";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
    /// The number of tokens for each mask.
    #[arg(long, value_name = "N", default_value_t = 5)]
    top_k: usize,
    /// Fill masks with these tokens alone, separated by commas.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    targets: Vec<String>,
}

/// One line in the results: the tokens for each mask.
#[derive(Serialize)]
struct BlanksLine {
    blanks: Vec<Vec<FillingFields>>,
}

/// A token, with the names of transformers.
#[derive(Serialize)]
struct FillingFields {
    score: f32,
    token: u32,
    token_str: String,
    sequence: String,
}

impl From<Filling> for FillingFields {
    fn from(filling: Filling) -> Self {
        Self {
            score: filling.score,
            token: filling.token,
            token_str: filling.token_text,
            sequence: filling.sequence,
        }
    }
}

pub fn fill(args: &Args) -> Result<CommandOutcome> {
    let Task {
        path,
        lines,
        options,
    } = args.task.start()?;
    let mut filler = Progress::loading(|| options.mask_filler(&path))?;
    if !args.targets.is_empty() {
        filler = filler.with_targets(&args.targets)?;
    }
    note_loaded(filler.adapters(), filler.notes());
    let of_mask = |tokens: Vec<Filling>| tokens.into_iter().map(FillingFields::from).collect();
    args.task.run(&path, &lines, |lines| {
        let blanks = filler.fill(lines, args.top_k)?.into_iter();
        let line = |masks: Vec<Vec<Filling>>| BlanksLine {
            blanks: masks.into_iter().map(of_mask).collect(),
        };
        Ok(blanks.map(line).collect())
    })
}
