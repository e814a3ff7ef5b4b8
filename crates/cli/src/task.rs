//! The options and the steps that commands share which print a JSON line for each text.

use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_blocks::checkpoint::AppliedAdapter;
use candle_blocks::text::TextOptions;
use serde::Serialize;

use crate::model::{ComputeArgs, ModelArgs, note_adapters};
use crate::texts::{JsonLines, TextArgs};
use crate::{CommandOutcome, output};

/// The texts, the model and the output.
#[derive(clap::Args)]
pub struct TaskArgs {
    #[command(flatten)]
    texts: TextArgs,
    /// The .jsonl file to write. Without it, the lines are printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// A command's inputs, read before its model is loaded.
pub struct Task {
    pub path: PathBuf,
    pub lines: Vec<String>,
    pub options: TextOptions,
}

impl TaskArgs {
    /// Checks the output, reads the texts, and notes what in the model's files is not read.
    pub fn start(&self) -> Result<Task> {
        let path = self.model.path()?;
        self.results::<()>(&path)?;
        let lines = self.texts.read()?;
        let options = self.compute.text_options(&self.model, &self.texts)?;
        self.model.note_unread(&path);
        Ok(Task {
            path,
            lines,
            options,
        })
    }

    /// Returns the results, which have no lines yet.
    pub fn results<T: Serialize>(&self, model: &Path) -> Result<JsonLines<'_, T>> {
        JsonLines::to(self.output.as_ref(), &self.texts, model)
    }

    /// Prints or writes the lines that `work` returns for each group of `texts`.
    pub fn run<L, T: Serialize>(
        &self,
        model: &Path,
        texts: &[L],
        mut work: impl FnMut(&[L]) -> Result<Vec<T>>,
    ) -> Result<CommandOutcome> {
        let mut results = self.results(model)?;
        let outcome = self.each(texts, |some| results.extend(work(some)?))?;
        results.finish(&outcome)?;
        Ok(outcome)
    }

    /// Passes texts to `work` in groups, as [`TextArgs::each`].
    pub fn each<L>(
        &self,
        texts: &[L],
        work: impl FnMut(&[L]) -> Result<()>,
    ) -> Result<CommandOutcome> {
        self.texts.each(texts, work)
    }

    /// Returns the error for a line, counted from 0.
    pub fn bad_line(&self, index: usize, reason: &str) -> anyhow::Error {
        anyhow::anyhow!("{}: line {}: {reason}", self.texts.name(), index + 1)
    }
}

/// Prints notes on a loaded model.
pub fn note_loaded(adapters: &[AppliedAdapter], notes: &[String]) {
    note_adapters(adapters);
    output::notes(notes);
}
