//! Reads a file of texts, one per line, and passes them on in groups, with progress.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use candle_blocks::Error;
use candle_blocks::candle_core::Tensor;
use candle_blocks::checkpoint::write::{
    Overwrite, TensorRecord, npy_header, write_streamed, write_tensor, write_whole,
};
use clap::ValueEnum;
use safetensors::Dtype;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::progress::Progress;
use crate::{CommandOutcome, input, interrupt, output};

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
#[command(next_help_heading = "Texts")]
pub struct TextArgs {
    /// A UTF-8 file with one text per line; `-` or nothing is standard input.
    #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
    file: PathBuf,
    /// How texts are written: one per line, or as JSON Lines, which may hold line breaks: a string on each line, or an object
    /// whose `text` is one [default: jsonl if FILE ends in .jsonl, otherwise lines].
    #[arg(long, value_enum, value_name = "FORMAT")]
    texts: Option<TextFormat>,
    /// The maximum number of tokens in a text, special tokens included [default: from the model's files].
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,
}

/// How a file's texts are written.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum TextFormat {
    Lines,
    Jsonl,
}

/// A text in a JSON Lines file.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextLine {
    Text(String),
    Object { text: String },
}

impl TextArgs {
    /// Returns the texts.
    pub fn read(&self) -> Result<Vec<String>> {
        match self.format() {
            TextFormat::Lines => self.lines(),
            TextFormat::Jsonl => self.json_lines(
                |line| match line {
                    TextLine::Text(text) | TextLine::Object { text } => text,
                },
                "expected a JSON string, or an object whose \"text\" is one; --texts lines reads each line as it is",
            ),
        }
    }

    /// Returns pairs of texts: two with a tab between them, or a JSON array of two strings.
    pub fn pairs(&self) -> Result<Vec<(String, String)>> {
        if self.format() == TextFormat::Jsonl {
            return self.json_lines(
                |pair| pair,
                "expected a JSON array of two strings; --texts lines reads lines with a tab between two texts",
            );
        }
        let pair = |(i, line): (usize, String)| match line.split_once('\t') {
            Some((first, second)) if !second.contains('\t') => {
                Ok((first.to_string(), second.to_string()))
            }
            _ => bail!(
                "{}: line {} is not a pair: --pairs needs one tab between two texts",
                self.name(),
                i + 1
            ),
        };
        self.lines()?.into_iter().enumerate().map(pair).collect()
    }

    /// Reads each line as JSON, and converts it. `expected` completes the error for another line.
    pub fn json_lines<J: DeserializeOwned, L>(
        &self,
        convert: impl Fn(J) -> L,
        expected: &str,
    ) -> Result<Vec<L>> {
        if self.texts == Some(TextFormat::Lines) {
            bail!("--texts lines: here each line is JSON; leave the option out");
        }
        let read = |(i, line): (usize, &String)| {
            let read = serde_json::from_str(line).map(&convert);
            read.map_err(|error| {
                anyhow::anyhow!("{}: line {}: {error}; {expected}", self.name(), i + 1)
            })
        };
        self.lines()?.iter().enumerate().map(read).collect()
    }

    /// Returns how the texts are written.
    fn format(&self) -> TextFormat {
        let is_jsonl = self.file.extension().is_some_and(|end| end == "jsonl");
        self.texts.unwrap_or(match is_jsonl {
            true => TextFormat::Jsonl,
            false => TextFormat::Lines,
        })
    }

    /// Returns the lines, without line breaks.
    fn lines(&self) -> Result<Vec<String>> {
        let name = self.name();
        let text = String::from_utf8(input::bytes(&self.file)?).map_err(|error| {
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

    /// Returns the file's name for error messages.
    pub fn name(&self) -> String {
        input::name(&self.file)
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
        is_same(&self.file, existing)
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
    let progress = Progress::of(items.len(), noun)?;
    let mut n_done = 0;
    while n_done < items.len() && !interrupt::was_pressed() {
        let some = &items[n_done..items.len().min(n_done + at_once)];
        work(n_done, some)?;
        n_done += some.len();
        progress.set(n_done);
    }
    drop(progress);
    let seconds = begin.elapsed().as_secs_f64();
    let done = match n_done {
        1 => noun.trim_end_matches('s'),
        _ => noun,
    };
    output::warn(format_args!(
        "{n_done} {done} in {seconds:.2} s, {:.1} {noun}/s",
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

/// The format of the output.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum OutputFormat {
    Safetensors,
    Npy,
    Jsonl,
}

impl OutputFormat {
    /// Returns the format for the extension of an output file, and checks that the file can be written and is no input.
    pub fn of(output: &Path, inputs: &impl Inputs, model: &Path) -> Result<Self> {
        let format = match output.extension().and_then(|end| end.to_str()) {
            Some("safetensors") => Self::Safetensors,
            Some("npy") => Self::Npy,
            Some("jsonl") => Self::Jsonl,
            _ => bail!(
                "{}: --output must end in .safetensors, .npy or .jsonl, which selects the format",
                output.display()
            ),
        };
        check_output(output, inputs, model)?;
        Ok(format)
    }
}

/// Checks that an output can be written and is no input.
fn check_output(output: &Path, inputs: &impl Inputs, model: &Path) -> Result<()> {
    output::check("--output", output, |existing| {
        let is_inside = |folder: PathBuf| existing.starts_with(folder);
        inputs.contain(existing) || model.canonicalize().is_ok_and(is_inside)
    })
}

/// A file, or `-` for standard output, and the format of what is written there.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub struct VectorOutput {
    /// The file to write: .safetensors with `embeddings` [n, d] (where each token has one, those of all lines, and the number
    /// of each in `lengths`), .npy with that array alone, or .jsonl with one object per line, in which a vector over
    /// the vocabulary is `weights` by token. `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// The format, instead of the one that the name of the file selects [default for `-`: jsonl].
    #[arg(long, value_enum)]
    format: Option<OutputFormat>,
    /// Replace an existing file. Without this option the program asks on a terminal, and refuses elsewhere.
    #[arg(long)]
    replace: bool,
}

impl VectorOutput {
    /// Returns the format, and checks that the output can be written, is no input, and may be replaced.
    pub fn format(&self, inputs: &impl Inputs, model: &Path) -> Result<OutputFormat> {
        if !input::is_standard(&self.output) {
            let format = match self.format {
                Some(format) => check_output(&self.output, inputs, model).map(|()| format),
                None => OutputFormat::of(&self.output, inputs, model),
            }?;
            output::check_replaced(&self.output, self.replace)?;
            return Ok(format);
        }
        let format = self.format.unwrap_or(OutputFormat::Jsonl);
        match format {
            OutputFormat::Safetensors => {
                bail!("--output -: standard output takes --format jsonl or npy, not safetensors")
            }
            OutputFormat::Npy if std::io::stdout().is_terminal() => bail!(
                "--output -: standard output is a terminal, and --format npy is not text; redirect it"
            ),
            _ => Ok(format),
        }
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
    /// Writes the results; after Ctrl-C, under the name of a partial file. `-` is standard output.
    pub fn write(
        &self,
        output: &Path,
        format: OutputFormat,
        outcome: &CommandOutcome,
    ) -> Result<()> {
        if input::is_standard(output) {
            let mut bytes = Vec::new();
            self.write_to(&mut bytes, output, format)?;
            return output::print_bytes(&bytes);
        }
        let path = &match outcome {
            CommandOutcome::Interrupted => output::partial(output),
            _ => output.to_path_buf(),
        };
        match format {
            OutputFormat::Safetensors => self.write_tensors(path)?,
            _ => write_whole(path, |out: &mut dyn Write| self.write_to(out, path, format))?,
        }
        Ok(())
    }

    /// Writes the lines, or the first tensor in NumPy's format.
    fn write_to(
        &self,
        out: &mut dyn Write,
        path: &Path,
        format: OutputFormat,
    ) -> candle_blocks::Result<()> {
        let failed = |cause| Error::io(path, "write", cause);
        if format == OutputFormat::Npy
            && let [(name, tensor), ..] = self.tensors.as_slice()
        {
            let header = npy_header(&self.record(name, tensor)?)?;
            out.write_all(&header).map_err(failed)?;
            write_tensor(name, tensor, &mut |bytes| {
                out.write_all(bytes).map_err(failed)
            })?;
        }
        if format == OutputFormat::Jsonl {
            for line in &self.lines {
                let written = serde_json::to_writer(&mut *out, line).map_err(Into::into);
                let written = written.and_then(|()| out.write_all(b"\n"));
                written.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Returns the record of one of the tensors.
    fn record(&self, name: &str, tensor: &Tensor) -> candle_blocks::Result<TensorRecord> {
        let mut record = TensorRecord::of(name, tensor)?;
        if self.signed == Some(name) {
            record.dtype = Dtype::I8;
        }
        Ok(record)
    }

    fn write_tensors(&self, path: &Path) -> Result<()> {
        let records = self.tensors.iter();
        let records = records.map(|(name, tensor)| self.record(name, tensor));
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
        let output = output.filter(|output| !input::is_standard(output));
        if let Some(output) = output {
            if output.extension().is_none_or(|end| end != "jsonl") {
                bail!(
                    "{}: --output must end in .jsonl here: the results are lines of JSON, not tensors",
                    output.display()
                );
            }
            check_output(output, inputs, model)?;
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
