//! `candle-blocks transcribe`: transcripts for audio files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use candle_blocks::config::OwnConfig;
use candle_blocks::generate::SpeechTask;
use candle_blocks::speech::{Audio, PromptCondition, SpeechOptions, TimestampKind, Transcript};
use candle_blocks::{Architecture, BlockConfig};
use clap::builder::TypedValueParser;

use crate::model::{ComputeArgs, Form, ModelArgs, names};
use crate::output::Escaped;
use crate::progress::Progress;
use crate::{CommandOutcome, input, interrupt, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks transcribe --model whisper-tiny talk.mp3
  candle-blocks transcribe --model whisper-small --language german --task translate --output talk.srt talk.m4a
  candle-blocks transcribe --model whisper-tiny --timestamps word a.wav b.flac --output talks.jsonl
  candle-blocks transcribe -m whisper-small --temperatures 0,0.2,0.4,0.6,0.8,1 --condition-on-prev-tokens true talk.mp3";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC) files; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The language that is spoken, by its name or code [default: the model detects it]; for a model with an adapter for each language (MMS), the name of its adapter.
    #[arg(long, short, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Transcribe in the language that is spoken, or translate to English [default: from the model's files].
    #[arg(long, value_parser = names(&["transcribe", "translate"])
        .try_map(|name| name.parse::<SpeechTask>()))]
    task: Option<SpeechTask>,
    /// The parts that have times [default: none; segment for subtitles].
    #[arg(long, value_name = "PARTS", value_parser = names(&["none", "segment", "word"])
        .try_map(|name| name.parse::<TimestampKind>()))]
    timestamps: Option<TimestampKind>,
    /// The number of beams [default: from the model's files, or 5].
    #[arg(long, value_name = "N")]
    beams: Option<usize>,
    /// The file to write: .jsonl with an object for each clip, .txt with a line for each, or .srt or .vtt with subtitles for a
    /// single clip. Without it, the objects are printed.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// For a model with a CTC head: divide clips into windows of this length, so that memory does not grow with theirs.
    #[arg(long, value_name = "SECONDS")]
    chunk_length_s: Option<f64>,
    /// How much at the beginning and the end of such a window is context [default: a sixth of it each].
    #[arg(
        long,
        value_name = "SECONDS,SECONDS",
        value_delimiter = ',',
        num_args = 2
    )]
    stride_length_s: Vec<f64>,
    #[command(flatten)]
    decoding: DecodingArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Settings for decoding Whisper's windows; each but the prompt's replaces the model's own.
#[derive(clap::Args)]
#[command(next_help_heading = "Whisper's windows")]
struct DecodingArgs {
    /// The temperatures for decoding a window, one after another while a threshold is passed [default: 0].
    #[arg(long, value_name = "T,T", value_delimiter = ',')]
    temperatures: Vec<f64>,
    /// Decode a window again whose tokens can be compressed by more than this factor.
    #[arg(long, value_name = "RATIO")]
    compression_ratio_threshold: Option<f64>,
    /// Decode a window again whose tokens' mean log probability is below this.
    #[arg(long, value_name = "MEAN", allow_negative_numbers = true)]
    logprob_threshold: Option<f64>,
    /// Leave out a window below the threshold for log probabilities whose probability of silence is above this.
    #[arg(long, value_name = "P")]
    no_speech_threshold: Option<f64>,
    /// Let each window read the text of the windows before it, or not.
    #[arg(long, value_name = "BOOL")]
    condition_on_prev_tokens: Option<bool>,
    /// A text that seems to precede the clip, such as the names in it.
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// The windows that the prompt precedes, if they read earlier text [default: first-segment].
    #[arg(long, value_name = "WINDOWS", requires = "prompt",
        value_parser = names(&["first-segment", "all-segments"])
            .try_map(|name| name.parse::<PromptCondition>()))]
    prompt_condition: Option<PromptCondition>,
}

impl DecodingArgs {
    /// Adds the settings to the options for opening the model.
    fn over(&self, mut options: SpeechOptions) -> SpeechOptions {
        if !self.temperatures.is_empty() {
            options = options.temperatures(self.temperatures.as_slice());
        }
        if let Some(ratio) = self.compression_ratio_threshold {
            options = options.compression_ratio_threshold(ratio);
        }
        if let Some(mean) = self.logprob_threshold {
            options = options.logprob_threshold(mean);
        }
        if let Some(probability) = self.no_speech_threshold {
            options = options.no_speech_threshold(probability);
        }
        if let Some(reads) = self.condition_on_prev_tokens {
            options = options.condition_on_prev_tokens(reads);
        }
        if let Some(prompt) = &self.prompt {
            options = options.prompt(prompt.as_str());
        }
        if let Some(condition) = self.prompt_condition {
            options = options.prompt_condition(condition);
        }
        options
    }
}

/// The result format.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Jsonl,
    Text,
    SubRip,
    WebVtt,
}

impl Format {
    /// Returns the format for an output file's extension.
    fn of(output: Option<&Path>) -> Result<Self> {
        let Some(output) = output else {
            return Ok(Self::Jsonl);
        };
        match output.extension().and_then(|end| end.to_str()) {
            Some("jsonl") => Ok(Self::Jsonl),
            Some("txt") => Ok(Self::Text),
            Some("srt") => Ok(Self::SubRip),
            Some("vtt") => Ok(Self::WebVtt),
            _ => bail!(
                "{}: --output must end in .jsonl, .txt, .srt or .vtt, which selects the format",
                output.display()
            ),
        }
    }

    fn has_times(self) -> bool {
        matches!(self, Self::SubRip | Self::WebVtt)
    }

    /// Returns a transcript as text; the clip ends after `seconds`.
    fn written(self, transcript: &Transcript, seconds: f64) -> Result<String> {
        match self {
            Self::Jsonl => output::json_line(transcript),
            Self::Text => Ok(transcript.text.trim().replace('\n', " ") + "\n"),
            Self::SubRip => subtitles(transcript, seconds, "", ','),
            Self::WebVtt => subtitles(transcript, seconds, "WEBVTT\n\n", '.'),
        }
    }
}

/// Returns subtitles. A part without an end lasts until the clip ends.
fn subtitles(transcript: &Transcript, seconds: f64, head: &str, mark: char) -> Result<String> {
    let mut text = head.to_string();
    for (i, chunk) in transcript.chunks.iter().enumerate() {
        let (from, to) = chunk.timestamp;
        let from = from.unwrap_or(0.0);
        let (from, to) = (
            time(from, mark),
            time(to.unwrap_or(seconds).max(from), mark),
        );
        write!(
            text,
            "{}\n{from} --> {to}\n{}\n\n",
            i + 1,
            chunk.text.trim()
        )?;
    }
    Ok(text)
}

/// Returns a time in hours, minutes, seconds and thousandths.
fn time(seconds: f64, mark: char) -> String {
    let all = (seconds * 1000.0).round() as u64;
    let (minutes, thousandths) = (all / 60_000, all % 60_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let (seconds, thousandths) = (thousandths / 1000, thousandths % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{mark}{thousandths:03}")
}

pub fn transcribe(args: &Args) -> Result<CommandOutcome> {
    let path = args.model.path()?;
    if let Some(language) = &args.language
        && has_language_adapters(&path)
    {
        args.model
            .fetch(&format!("adapter.{language}.safetensors"))?;
    }
    let format = Format::of(args.output.as_deref())?;
    if let Some(output) = &args.output {
        output::check("--output", output, |existing| {
            let is = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == existing);
            let is_inside = |folder: PathBuf| existing.starts_with(folder);
            args.files.iter().any(is) || path.canonicalize().is_ok_and(is_inside)
        })?;
    }
    let timestamps = match (args.timestamps, format.has_times()) {
        (Some(TimestampKind::None), true) => bail!(
            "--timestamps none leaves subtitles without times; give segment or word, or let --output end in .txt"
        ),
        (Some(kind), _) => kind,
        (None, true) => TimestampKind::Segment,
        (None, false) => TimestampKind::None,
    };
    if format.has_times() && args.files.len() > 1 {
        bail!(
            "--output holds the subtitles of one clip, and {} files are given; give one, or let --output end in .jsonl",
            args.files.len()
        );
    }
    args.model.note_unread(&path);
    let options = options(args)?.timestamps(timestamps);
    let transcriber = Progress::loading(|| options.transcriber(&path))?;
    output::notes(&transcriber.notes());
    let (begin, mut seconds, mut n_done) = (Instant::now(), 0.0, 0);
    let mut written = Vec::new();
    for file in &args.files {
        if interrupt::was_pressed() {
            break;
        }
        let sound = read(file, transcriber.rate())?;
        let name = input::name(file);
        let transcript = Progress::during(&format!("transcribing {}", Escaped(&name)), || {
            transcriber.transcribe(&sound)
        });
        let transcript = transcript.map_err(|error| error.context(name))?;
        let text = format.written(&transcript, sound.seconds())?;
        match args.output {
            Some(_) => written.push(text),
            None => output::print(&text)?,
        }
        (seconds, n_done) = (seconds + sound.seconds(), n_done + 1);
    }
    let took = begin.elapsed().as_secs_f64();
    output::warn(format_args!(
        "{n_done} clips of {seconds:.1} s in {took:.2} s, {:.1} times as fast as they last",
        seconds / took
    ));
    let outcome = match n_done < args.files.len() {
        true => CommandOutcome::Interrupted,
        false => CommandOutcome::Done,
    };
    if let (Some(output), false) = (&args.output, written.is_empty()) {
        let path = &match outcome {
            CommandOutcome::Interrupted => output::partial(output),
            _ => output.clone(),
        };
        output::write_text(path, &written.concat())?;
    }
    Ok(outcome)
}

/// Returns whether a model has adapters for languages, each in a file beside the weights. A download leaves them out.
fn has_language_adapters(path: &Path) -> bool {
    let architecture = Architecture::open(path.join("config.json"));
    let adapts = |block: &BlockConfig| matches!(block.own, OwnConfig::Adapter { .. });
    architecture.is_ok_and(|of| of.config.blocks.iter().any(adapts))
}

/// Reads a file, or standard input.
fn read(file: &Path, rate: u32) -> Result<Audio> {
    Ok(match input::is_standard(file) {
        true => Audio::from_bytes(input::bytes(file)?, Path::new(&input::name(file)), rate)?,
        false => Audio::read(file, rate)?,
    })
}

/// Returns the options for opening the model.
fn options(args: &Args) -> Result<SpeechOptions> {
    let mut options = SpeechOptions::default().checkpoint(args.model.options());
    options = match args.compute.form(false)? {
        Form::Packed(precision) => options.precision(precision),
        Form::Plain => options.device(args.compute.dtype, &args.compute.device()?),
    };
    if let Some(language) = &args.language {
        options = options.language(language.as_str());
    }
    if let Some(task) = args.task {
        options = options.task(task);
    }
    if let Some(seconds) = args.chunk_length_s {
        options = options.chunk_length_s(seconds);
    }
    if let [before, after] = args.stride_length_s[..] {
        options = options.stride_length_s([before, after]);
    }
    if let Some(beams) = args.beams {
        options = options.beams(beams);
    }
    Ok(args.decoding.over(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_hours_and_thousandths() {
        assert_eq!(time(0.0, ','), "00:00:00,000");
        assert_eq!(time(59.9996, '.'), "00:01:00.000");
        assert_eq!(time(3_723.04, ','), "01:02:03,040");
    }
}
