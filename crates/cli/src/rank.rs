//! `candle-blocks rank`: ranks the lines of a file for a query.

use std::path::PathBuf;

use anyhow::Result;
use candle_blocks::text::{Pooling, RankedText};
use serde::Serialize;

use crate::embed::poolings;
use crate::model::{ComputeArgs, ModelArgs, note_adapters};
use crate::texts::{JsonLines, PromptArgs, TextArgs};
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks rank --model ms-marco-MiniLM-L6-v2 --query \"How many people live in Berlin?\" passages.txt
  candle-blocks rank --model all-MiniLM-L6-v2 --query \"a meal\" --top-k 5 sentences.txt --output best.jsonl";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    texts: TextArgs,
    /// The text for which lines are ranked. A prompt precedes this text alone.
    #[arg(long, value_name = "TEXT")]
    query: String,
    /// The number of lines in the result, the best [default: all].
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// The .jsonl file to write. Without it, the lines are printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The pooling of an embedding model, instead of the one in its files; several are concatenated.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = poolings())]
    pooling: Vec<Pooling>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// One line in the results, with the names of sentence-transformers.
#[derive(Serialize)]
struct RankedLine<'t> {
    corpus_id: usize,
    score: f32,
    text: &'t str,
}

pub fn rank(args: &Args) -> Result<CommandOutcome> {
    let path = args.model.path()?;
    let mut results = JsonLines::to(args.output.as_ref(), &args.texts, &path)?;
    let lines = args.texts.read()?;
    let options = args.compute.text_options(&args.model, &args.texts)?;
    args.model.note_unread(&path);
    let mut ranker = options.pooling(args.pooling.clone()).ranker(&path)?;
    note_adapters(ranker.adapters());
    output::notes(ranker.notes());
    let prompt = args.prompt.find(|name| ranker.prompt(name))?;
    if let Some(prompt) = prompt.map(str::to_string) {
        ranker = ranker.with_query_prompt(&prompt);
    }
    let mut scores = Vec::with_capacity(lines.len());
    let outcome = args.texts.each(&lines, |lines| {
        scores.extend(ranker.scores(&args.query, lines)?);
        Ok(())
    })?;
    let ranking = RankedText::ranking(&scores).into_iter();
    let best = ranking.take(args.top_k.unwrap_or(lines.len()));
    results.extend(best.map(|ranked| RankedLine {
        corpus_id: ranked.corpus_id,
        score: ranked.score,
        text: &lines[ranked.corpus_id],
    }))?;
    results.finish(&outcome)?;
    Ok(outcome)
}
