//! `candle-blocks answer`: answers the question in each line of a file from its context.

use anyhow::Result;
use candle_blocks::text::{Answer, AnswerOptions};
use serde::{Deserialize, Serialize};

use crate::CommandOutcome;
use crate::progress::Progress;
use crate::task::{Task, TaskArgs, note_loaded};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks answer --model roberta-base-squad2 --question \"Where does Anna live?\" --context \"Anna lives in Berlin.\"
  candle-blocks answer --model roberta-base-squad2 questions.jsonl
  candle-blocks answer --model roberta-base-squad2 --top-k 3 --handle-impossible questions.jsonl --output answers.jsonl

A line is {\"question\": \"Where does Anna live?\", \"context\": \"I am Anna and live in Berlin.\"}; other keys are passed over.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
    /// A question about the --context, instead of a FILE with many.
    #[arg(long, value_name = "TEXT", requires = "context", conflicts_with_all = ["file", "texts"])]
    question: Option<String>,
    /// The text in which the answer to the --question is found.
    #[arg(long, value_name = "TEXT", requires = "question")]
    context: Option<String>,
    /// The most answers to a question.
    #[arg(long, value_name = "N", default_value_t = 1)]
    top_k: usize,
    /// The most tokens in an answer.
    #[arg(long, value_name = "N", default_value_t = 15)]
    max_answer_length: usize,
    /// How many tokens two windows over a long context share [default: 128, at most half the --max-length].
    #[arg(long, value_name = "N")]
    doc_stride: Option<usize>,
    /// Allow that a context has no answer: an empty one, with its score.
    #[arg(long)]
    handle_impossible: bool,
    /// Give answers by tokens, which may cut words.
    #[arg(long)]
    parts_of_words: bool,
}

/// One line of the input.
#[derive(Deserialize)]
struct QuestionLine {
    question: String,
    context: String,
}

/// One line in the results.
#[derive(Serialize)]
struct AnswersLine {
    answers: Vec<AnswerFields>,
}

/// An answer, with the names of transformers.
#[derive(Serialize)]
struct AnswerFields {
    score: f64,
    start: usize,
    end: usize,
    answer: String,
}

impl From<Answer> for AnswerFields {
    fn from(answer: Answer) -> Self {
        Self {
            score: answer.score,
            start: answer.span.start,
            end: answer.span.end,
            answer: answer.answer,
        }
    }
}

pub fn answer(args: &Args) -> Result<CommandOutcome> {
    let Task {
        path,
        lines: questions,
        options,
    } = args
        .task
        .start_with(|texts| match (&args.question, &args.context) {
            (Some(question), Some(context)) => Ok(vec![(question.clone(), context.clone())]),
            _ => texts.json_lines(
                |QuestionLine { question, context }| (question, context),
                "expected a JSON object with a \"question\" and a \"context\", which are strings",
            ),
        })?;
    let answerer = Progress::loading(|| options.question_answerer(&path))?;
    note_loaded(answerer.adapters(), answerer.notes());
    let mut options = AnswerOptions::default()
        .top_k(args.top_k)
        .max_answer_length(args.max_answer_length)
        .handle_impossible_answer(args.handle_impossible)
        .align_to_words(!args.parts_of_words);
    if let Some(stride) = args.doc_stride {
        options = options.doc_stride(stride);
    }
    args.task.run(&path, &questions, |questions| {
        let answers = answerer.answer(questions, &options)?.into_iter();
        let line = |answers: Vec<Answer>| AnswersLine {
            answers: answers.into_iter().map(AnswerFields::from).collect(),
        };
        Ok(answers.map(line).collect())
    })
}
