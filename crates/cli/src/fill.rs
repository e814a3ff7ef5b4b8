//! `candle-blocks fill`: fills the masks in each line of a file.

use std::path::PathBuf;

use anyhow::Result;
use candle_blocks::text::Filling;
use serde::Serialize;

use crate::model::{ComputeArgs, ModelArgs, note_adapters};
use crate::texts::{JsonLines, TextArgs};
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks fill --model bert-base-uncased sentences.txt
  candle-blocks fill --model roberta-base --top-k 10 sentences.txt --output words.jsonl";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    texts: TextArgs,
    /// The number of tokens for each mask.
    #[arg(long, value_name = "N", default_value_t = 5)]
    top_k: usize,
    /// The .jsonl file to write. Without it, the lines are printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
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
    let path = args.model.path()?;
    let mut results = JsonLines::to(args.output.as_ref(), &args.texts, &path)?;
    let lines = args.texts.read()?;
    let options = args.compute.text_options(&args.model, &args.texts)?;
    args.model.note_unread(&path);
    let filler = options.mask_filler(&path)?;
    note_adapters(filler.adapters());
    output::notes(filler.notes());
    let of_mask = |tokens: Vec<Filling>| tokens.into_iter().map(FillingFields::from).collect();
    let outcome = args.texts.each(&lines, |lines| {
        let blanks = filler.fill(lines, args.top_k)?.into_iter();
        results.extend(blanks.map(|masks| BlanksLine {
            blanks: masks.into_iter().map(of_mask).collect(),
        }))
    })?;
    results.finish(&outcome)?;
    Ok(outcome)
}
