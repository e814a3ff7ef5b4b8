//! `candle-blocks rank`: ranks the lines of a file for a query.

use std::num::NonZeroUsize;

use anyhow::Result;
use candle_blocks::text::RankedText;
use serde::Serialize;

use crate::CommandOutcome;
use crate::embed::VectorArgs;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};
use crate::texts::PromptArgs;

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks rank --model ms-marco-MiniLM-L6-v2 --query \"How many people live in Berlin?\" passages.txt
  candle-blocks rank --model all-MiniLM-L6-v2 --query \"a meal\" --top-k 5 sentences.txt --output best.jsonl";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
    /// The text for which lines are ranked. A prompt precedes this text alone.
    #[arg(long, short, value_name = "TEXT")]
    query: String,
    /// The number of lines in the result, the best [default: all].
    #[arg(long, value_name = "N")]
    top_k: Option<NonZeroUsize>,
    #[command(flatten)]
    form: VectorArgs,
    /// The text that a cross-encoder shortens if a pair has too many tokens [default: from the model's files].
    #[arg(long, value_name = "TEXT", value_parser = ["longest_first", "only_first", "only_second"])]
    truncation: Option<String>,
    #[command(flatten)]
    prompt: PromptArgs,
}

/// One line in the results, with the names of sentence-transformers.
#[derive(Serialize)]
struct RankedLine<'t> {
    corpus_id: usize,
    score: f32,
    text: &'t str,
}

pub fn rank(args: &Args) -> Result<CommandOutcome> {
    let Task {
        path,
        lines,
        options,
    } = args.task.start()?;
    let mut results = args.task.results(&path)?;
    let mut options = args.form.set(options);
    if let Some(truncation) = &args.truncation {
        options = options.truncation(truncation.parse()?);
    }
    let mut ranker = Progress::loading(|| options.ranker(&path))?;
    note_loaded(ranker.adapters(), ranker.notes());
    let prompt = args.prompt.find(|name| ranker.prompt(name))?;
    if let Some(prompt) = prompt.map(str::to_string) {
        ranker = ranker.with_query_prompt(&prompt);
    }
    let query = ranker.query(&args.query)?;
    let mut scores = Vec::with_capacity(lines.len());
    let outcome = args.task.each(&lines, |lines| {
        scores.extend(ranker.scores_of(&query, lines)?);
        Ok(())
    })?;
    let ranking = RankedText::ranking(&scores).into_iter();
    let best = ranking.take(args.top_k.map_or(lines.len(), NonZeroUsize::get));
    results.extend(best.map(|ranked| RankedLine {
        corpus_id: ranked.corpus_id,
        score: ranked.score,
        text: &lines[ranked.corpus_id],
    }))?;
    results.finish(&outcome)?;
    Ok(outcome)
}
