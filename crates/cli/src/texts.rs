//! Reads a file of texts, one per line, and passes them on in groups, with progress.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_blocks::Error;
use candle_blocks::candle_core::Tensor;
use candle_blocks::checkpoint::write::{
    Overwrite, TensorRecord, write_streamed, write_tensor, write_whole,
};
use indicatif::{ProgressBar, ProgressStyle};
use safetensors::Dtype;
use serde::Serialize;

use crate::{CommandOutcome, interrupt, output};

/// The name for vectors in an output file.
pub const EMBEDDINGS: &str = "embeddings";
/// The number of texts computed between two checks for Ctrl-C.
const AT_ONCE: usize = 256;

/// Kinds of files that hold no text: the place and value of the bytes that tell, and the kind.
const NO_TEXTS: [(usize, &[u8], &str); 14] = [
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (8, b"WEBP", "a WebP image"),
    (8, b"WAVE", "WAV audio"),
    (0, b"fLaC", "FLAC audio"),
    (0, b"OggS", "Ogg audio"),
    (0, b"ID3", "MP3 audio"),
    (0, b"\xff\xfb", "MP3 audio"),
    (4, b"ftyp", "MPEG-4 audio or video"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a zip archive or an office document"),
];

/// The source of the texts.
#[derive(clap::Args)]
pub struct TextArgs {
    /// A UTF-8 file with one text per line; `-` or nothing is standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The maximum number of tokens in a text, special tokens included [default: from the model's files].
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,
}

impl TextArgs {
    /// Returns the lines, without line breaks.
    pub fn read(&self) -> Result<Vec<String>> {
        let (name, bytes) = match self.path() {
            Some(path) => (self.name(), std::fs::read(path)),
            None => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                (self.name(), read.map(|_| bytes))
            }
        };
        let bytes = bytes.with_context(|| format!("{name}: cannot read"))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let is_at = |(at, magic, _): &&(usize, &[u8], &str)| {
                error.as_bytes()[(*at).min(error.as_bytes().len())..].starts_with(magic)
            };
            if let Some((_, _, kind)) = NO_TEXTS.iter().find(is_at) {
                return anyhow::anyhow!(
                    "{name}: it is {kind}, expected a file with one text per line; `classify` and `embed` read images with \
                     --images, and `candle-blocks run` takes a file with pixel_values or input_features"
                );
            }
            let at = error.utf8_error().valid_up_to();
            let before = &error.as_bytes()[..at];
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            let byte = error.as_bytes()[at];
            let is_utf_16 = [b"\xff\xfe", b"\xfe\xff"].iter().any(|mark| error.as_bytes().starts_with(*mark));
            let found = if is_utf_16 { "UTF-16" } else { "ISO-8859-1" };
            anyhow::anyhow!(
                "{name}: line {line} is not UTF-8 (byte {byte:#04x}); convert the file, such as with `iconv -f \
                 {found} -t UTF-8`"
            )
        })?;
        // Some editors begin a file with a mark that is no part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        if lines.is_empty() {
            bail!("{name}: is empty; give one text per line");
        }
        Ok(lines)
    }

    /// Returns the file, unless it is standard input.
    pub fn path(&self) -> Option<&Path> {
        let path = self.file.as_deref();
        path.filter(|path| *path != Path::new("-"))
    }

    /// Returns the file's name for error messages.
    pub fn name(&self) -> String {
        let name = self.path().map(|path| path.display().to_string());
        name.unwrap_or_else(|| "standard input".to_string())
    }

    /// Passes the lines to `work` in groups, until all are done or Ctrl-C is pressed. An error about a text names its
    /// line.
    pub fn each<T>(
        &self,
        lines: &[T],
        mut work: impl FnMut(&[T]) -> Result<()>,
    ) -> Result<CommandOutcome> {
        in_groups("texts", AT_ONCE, lines, |n_done, some| {
            work(some).map_err(|error| self.located(error, n_done))
        })
    }

    /// Adds the line number to an error about a text; `before` lines precede the group.
    fn located(&self, error: anyhow::Error, before: usize) -> anyhow::Error {
        match error.downcast::<Error>() {
            Ok(Error::Text { index, reason }) => {
                anyhow::anyhow!("{}: line {}: {reason}", self.name(), before + index + 1)
            }
            Ok(other) => other.into(),
            Err(other) => other,
        }
    }
}

impl Inputs for TextArgs {
    fn contain(&self, existing: &Path) -> bool {
        self.path().is_some_and(|path| is_same(path, existing))
    }
}

/// Files that a command reads.
pub trait Inputs {
    /// Returns true if the file at this canonical path is one.
    fn contain(&self, existing: &Path) -> bool;
}

/// Returns true if `path` leads to the file at a canonical path.
pub fn is_same(path: &Path, existing: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == existing)
}

/// Passes items to `work` in groups, each with how many came before, until all are done or Ctrl-C is pressed. Shows progress.
pub fn in_groups<T>(
    noun: &str,
    at_once: usize,
    items: &[T],
    mut work: impl FnMut(usize, &[T]) -> Result<()>,
) -> Result<CommandOutcome> {
    let begin = Instant::now();
    let style = format!("[{{wide_bar}}] {{pos}}/{{len}} {noun}, {{per_sec}}, {{eta}} left");
    let bar = ProgressBar::new(items.len() as u64);
    bar.set_style(ProgressStyle::with_template(&style)?);
    let mut n_done = 0;
    while n_done < items.len() && !interrupt::was_pressed() {
        let some = &items[n_done..items.len().min(n_done + at_once)];
        work(n_done, some)?;
        n_done += some.len();
        bar.set_position(n_done as u64);
    }
    bar.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    output::warn(format_args!(
        "{n_done} {noun} in {seconds:.2} s, {:.1} {noun}/s",
        n_done as f64 / seconds
    ));
    Ok(match n_done < items.len() {
        true => CommandOutcome::Interrupted,
        false => CommandOutcome::Done,
    })
}

/// The prompt before each text.
#[derive(clap::Args)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The text to put before each text (in a pair, before the first), instead of the model's default prompt.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The name of one of the model's prompts.
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
}

impl PromptArgs {
    /// Returns whether texts are queries, for a model that reads these in another way than documents.
    pub fn are_queries(&self) -> Result<bool> {
        match (&self.prompt, self.prompt_name.as_deref()) {
            (None, Some("query")) => Ok(true),
            (None, Some("document") | None) => Ok(false),
            _ => bail!(
                "a vector for each token goes with no prompt but --prompt-name query or document; leave it out"
            ),
        }
    }

    /// Returns the given prompt, or the prompt that `named` finds for the given name.
    pub fn find<'p>(
        &'p self,
        named: impl FnOnce(&str) -> candle_blocks::Result<&'p str>,
    ) -> Result<Option<&'p str>> {
        Ok(match (&self.prompt, &self.prompt_name) {
            (Some(prompt), _) => Some(prompt.as_str()),
            (None, Some(name)) => Some(named(name)?),
            (None, None) => None,
        })
    }
}

/// The format of the output file.
#[derive(Clone, Copy, PartialEq)]
pub enum OutputFormat {
    Safetensors,
    Jsonl,
}

impl OutputFormat {
    /// Returns the format for the extension of an output file, and checks that the file can be written and is no input.
    pub fn of(output: &Path, inputs: &impl Inputs, model: &Path) -> Result<Self> {
        let format = match output.extension().and_then(|end| end.to_str()) {
            Some("safetensors") => Self::Safetensors,
            Some("jsonl") => Self::Jsonl,
            _ => bail!(
                "{}: --output must end in .safetensors or .jsonl, which selects the format",
                output.display()
            ),
        };
        output::check(output, |existing| {
            let is_inside = |folder: PathBuf| existing.starts_with(folder);
            inputs.contain(existing) || model.canonicalize().is_ok_and(is_inside)
        })?;
        Ok(format)
    }
}

/// Results to write: as tensors, or line by line.
pub struct TextResults<T> {
    pub tensors: Vec<(String, Tensor)>,
    /// The tensor whose bytes are signed, a type that candle does not have.
    pub signed: Option<&'static str>,
    pub lines: Vec<T>,
}

impl<T: Serialize> TextResults<T> {
    /// Writes the results; after Ctrl-C, under the name of a partial file.
    pub fn write(
        &self,
        output: &Path,
        format: OutputFormat,
        outcome: &CommandOutcome,
    ) -> Result<()> {
        let path = &match outcome {
            CommandOutcome::Interrupted => output::partial(output),
            _ => output.to_path_buf(),
        };
        match format {
            OutputFormat::Safetensors => self.write_tensors(path)?,
            OutputFormat::Jsonl => write_whole(path, |out: &mut dyn Write| {
                self.lines.iter().try_for_each(|line| {
                    let written = serde_json::to_writer(&mut *out, line).map_err(Into::into);
                    let written = written.and_then(|()| out.write_all(b"\n"));
                    written.map_err(|cause| Error::Io {
                        path: path.clone(),
                        action: "write",
                        cause,
                    })
                })
            })?,
        }
        Ok(())
    }

    fn write_tensors(&self, path: &Path) -> Result<()> {
        let record = |(name, tensor): &(String, Tensor)| {
            let mut record = TensorRecord::of(name, tensor)?;
            if self.signed == Some(name.as_str()) {
                record.dtype = Dtype::I8;
            }
            Ok(record)
        };
        let records = self.tensors.iter().map(record);
        let records = records.collect::<candle_blocks::Result<_>>()?;
        let to = (path, Overwrite::Allowed);
        write_streamed(to, records, None, |name, write| {
            let mut tensors = self.tensors.iter();
            match tensors.find(|(known, _)| known == name) {
                Some((_, tensor)) => write_tensor(name, tensor, write),
                None => Ok(()),
            }
        })?;
        Ok(())
    }
}

/// Results that a command prints as lines with one JSON object each, or writes to a `.jsonl` file.
pub struct JsonLines<'p, T> {
    output: Option<&'p Path>,
    lines: Vec<T>,
}

impl<'p, T: Serialize> JsonLines<'p, T> {
    /// Starts without lines. Checks that the file, if one is given, can be written and is no input.
    pub fn to(output: Option<&'p PathBuf>, inputs: &impl Inputs, model: &Path) -> Result<Self> {
        if let Some(output) = output
            && OutputFormat::of(output, inputs, model)? != OutputFormat::Jsonl
        {
            bail!(
                "{}: --output must end in .jsonl here: the results are lines of JSON, not tensors",
                output.display()
            );
        }
        Ok(Self {
            output: output.map(PathBuf::as_path),
            lines: Vec::new(),
        })
    }

    /// Adds lines: prints them, unless there is a file.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = T>) -> Result<()> {
        if self.output.is_some() {
            self.lines.extend(lines);
            return Ok(());
        }
        let texts = lines.into_iter().map(|line| output::json_line(&line));
        output::print(&texts.collect::<Result<String>>()?)
    }

    /// Writes the file, if there is one; after Ctrl-C, under the name of a partial file.
    pub fn finish(self, outcome: &CommandOutcome) -> Result<()> {
        let (Some(output), false) = (self.output, self.lines.is_empty()) else {
            return Ok(());
        };
        let results = TextResults {
            tensors: Vec::new(),
            signed: None,
            lines: self.lines,
        };
        results.write(output, OutputFormat::Jsonl, outcome)
    }
}
