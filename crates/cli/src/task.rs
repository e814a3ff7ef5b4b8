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
    pub texts: TextArgs,
    /// The .jsonl file to write. Without it, the lines are printed.
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// A command's inputs, read before its model is loaded.
pub struct Task<L = String> {
    pub path: PathBuf,
    pub lines: Vec<L>,
    pub options: TextOptions,
}

impl TaskArgs {
    /// Checks the output, reads the texts, and notes what in the model's files is not read.
    pub fn start(&self) -> Result<Task> {
        self.start_with(TextArgs::read)
    }

    /// Starts like [`Self::start`], with what `read` returns in place of texts.
    pub fn start_with<L>(&self, read: impl FnOnce(&TextArgs) -> Result<Vec<L>>) -> Result<Task<L>> {
        let path = self.model.path()?;
        self.results::<()>(&path)?;
        self.open(path, read)
    }

    /// Starts after the output is checked, for the model at `path`.
    pub fn open<L>(
        &self,
        path: PathBuf,
        read: impl FnOnce(&TextArgs) -> Result<Vec<L>>,
    ) -> Result<Task<L>> {
        let lines = read(&self.texts)?;
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
}

/// Prints notes on a loaded model.
pub fn note_loaded(adapters: &[AppliedAdapter], notes: &[String]) {
    note_adapters(adapters);
    output::notes(notes);
}
