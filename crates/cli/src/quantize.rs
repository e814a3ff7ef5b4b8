//! `candle-blocks quantize`: writes a quantized copy of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use candle_blocks::candle_core::Tensor;
use candle_blocks::checkpoint::{ExistingFiles, GgufType, Quantization, QuantizedTensor};
use candle_blocks::{Error, SaveOptions};
use clap::ValueEnum;
use serde::Serialize;

use crate::model::ModelArgs;
use crate::output::Escaped;
use crate::progress::Progress;
use crate::{CommandOutcome, interrupt, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Example:
  candle-blocks quantize --model Qwen2.5-0.5B-Instruct --to q4_k --output model.gguf";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The format of the quantized weights.
    #[arg(long, value_enum)]
    to: QuantizeFormat,
    /// The group size (weights that share a scale) with --to w4a16 or w8a16: 32, 64 or 128.
    #[arg(long, value_name = "SIZE", default_value_t = 128)]
    group: usize,
    /// The GGUF file to write; with --to w4a16 or w8a16, the directory.
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,
    /// Replace the output of an earlier run.
    #[arg(long)]
    replace: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Quantized formats, by the names that llama.cpp and compressed-tensors use.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum QuantizeFormat {
    /// GGUF, 8.5 bits per weight.
    #[value(name = "q8_0")]
    Q8_0,
    /// GGUF, 4.5 bits per weight, one scale for 32 weights.
    #[value(name = "q4_0")]
    Q4_0,
    /// GGUF, 4.5 bits per weight, scales in two levels: more exact than q4_0.
    #[value(name = "q4_k")]
    Q4K,
    /// GGUF, 6.6 bits per weight.
    #[value(name = "q6_k")]
    Q6K,
    /// compressed-tensors, 4-bit integers with a scale for each group.
    #[value(name = "w4a16")]
    W4A16,
    /// compressed-tensors, 8-bit integers with a scale for each group.
    #[value(name = "w8a16")]
    W8A16,
}

impl Args {
    fn quantization(&self) -> Quantization {
        let group_size = self.group;
        match self.to {
            QuantizeFormat::Q8_0 => Quantization::Gguf(GgufType::Q8_0),
            QuantizeFormat::Q4_0 => Quantization::Gguf(GgufType::Q4_0),
            QuantizeFormat::Q4K => Quantization::Gguf(GgufType::Q4K),
            QuantizeFormat::Q6K => Quantization::Gguf(GgufType::Q6K),
            QuantizeFormat::W4A16 => Quantization::CompressedTensors {
                bits: 4,
                group_size,
            },
            QuantizeFormat::W8A16 => Quantization::CompressedTensors {
                bits: 8,
                group_size,
            },
        }
    }
}

pub fn quantize(args: &Args) -> Result<CommandOutcome> {
    let checkpoint = args.model.open()?;
    let files = checkpoint.files();
    output::check_spares(&args.output, &checkpoint, args.model.files())?;
    let shapes = files.names().filter_map(|name| files.info(name));
    let n = shapes.map(|info| info.shape.iter().product::<usize>() as u64);
    let template = "{msg} [{wide_bar}] {percent} %, {left} left";
    let progress = Progress::with_template(n.sum(), template)?;
    let (mut report, mut was_pressed) = (QuantizeReport::default(), interrupt::was_pressed());
    let unchanged = Vec::<(String, Tensor)>::new();
    let quantization = args.quantization();
    let existing = match args.replace {
        true => ExistingFiles::Replace,
        false => ExistingFiles::Refuse,
    };
    let saved = SaveOptions::default().existing(existing).save_quantized(
        &checkpoint,
        quantization,
        &args.output,
        unchanged,
        |tensor| {
            progress.add(tensor.n, Escaped(&tensor.name).to_string());
            report.add(tensor);
            was_pressed |= interrupt::was_pressed();
            match was_pressed {
                true => Err(Error::InvalidConfig("interrupted".to_string())),
                false => Ok(()),
            }
        },
    );
    drop(progress);
    if was_pressed && saved.is_err() {
        output::warn("note: interrupted; nothing was written");
        return Ok(CommandOutcome::Interrupted);
    }
    saved?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text()?)?;
    }
    for (note, names) in &report.notes() {
        let first = names.first().map_or("", |name| name);
        let others = match names.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        output::warn(format_args!("note: {first}{others}: {note}"));
    }
    if matches!(quantization, Quantization::Gguf(_)) {
        output::warn(
            "note: the file has no tokenizer, so llama.cpp can only read token ids from it; its convert_hf_to_gguf.py \
             and `llama-quantize` make a file with one",
        );
    }
    Ok(CommandOutcome::Done)
}

/// The written tensors.
#[derive(Default, Serialize)]
struct QuantizeReport {
    tensors: Vec<TensorLine>,
    kinds: BTreeMap<String, FormatTotal>,
}

/// A tensor, and its error relative to the root mean square of its values.
#[derive(Serialize)]
struct TensorLine {
    name: String,
    kind: String,
    error: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// All tensors in one format.
#[derive(Default, Serialize)]
struct FormatTotal {
    tensors: usize,
    numbers: usize,
    bytes: usize,
    largest_error: f64,
}

impl QuantizeReport {
    fn add(&mut self, tensor: &QuantizedTensor) {
        let sum = self.kinds.entry(tensor.kind.clone()).or_default();
        sum.tensors += 1;
        sum.numbers += tensor.n;
        sum.bytes += tensor.n_bytes;
        sum.largest_error = sum.largest_error.max(tensor.error);
        self.tensors.push(TensorLine {
            name: tensor.name.clone(),
            kind: tensor.kind.clone(),
            error: tensor.error,
            note: tensor.note.clone(),
        });
    }

    /// Formats each tensor with an error, then one line for each format.
    fn text(&self) -> Result<String> {
        let mut out = String::new();
        for line in self.tensors.iter().filter(|line| line.error > 0.0) {
            let (name, kind) = (Escaped(&line.name).to_string(), &line.kind);
            writeln!(out, "{name:<50} {kind:<24} {:>8.4} %", 100.0 * line.error)?;
        }
        writeln!(
            out,
            "\n{:<24} {:>7} {:>13} {:>13} {:>6} {:>14}",
            "kind", "tensors", "numbers", "bytes", "bits", "largest error"
        )?;
        for (kind, sum) in &self.kinds {
            let bits = 8.0 * sum.bytes as f64 / sum.numbers.max(1) as f64;
            writeln!(
                out,
                "{kind:<24} {:>7} {:>13} {:>13} {bits:>6.2} {:>12.4} %",
                sum.tensors,
                sum.numbers,
                sum.bytes,
                100.0 * sum.largest_error
            )?;
        }
        Ok(out)
    }

    /// Returns the tensors for each note.
    fn notes(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let mut notes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for line in &self.tensors {
            if let Some(note) = &line.note {
                let note = format!("{}, since {note}", line.kind);
                notes.entry(note).or_default().insert(&line.name);
            }
        }
        notes
    }
}
