//! `candle-blocks verify`: runs a model and compares every intermediate result with a fixture from PyTorch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_blocks::Precision;
use candle_blocks::candle_core::DType;
use candle_blocks::verify::{Comparer, Comparison, Fixture, Report, Scope};

use crate::input::InputFile;
use crate::model::{ComputeArgs, Form, ModelArgs};
use crate::page::{Cell, Page};
use crate::progress::Progress;
use crate::run::{note_weights, trace_input};
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks verify --model weights/tiny-bert --fixture weights/tiny-bert/fixture.safetensors
  candle-blocks verify --model DIR --fixture fixture.safetensors --backward";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The fixture: a safetensors file (`-` is standard input) with an input (hidden_states, or input_ids for the whole model) and PyTorch's results.
    #[arg(long, short, value_name = "FILE")]
    fixture: PathBuf,
    /// Also compare the gradients of the input and of every parameter.
    #[arg(long)]
    backward: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also write a page to look at: a heat map of errors by layer and tensor.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn verify(args: &Args) -> Result<CommandOutcome> {
    let compute = &args.compute;
    let device = compute.device()?;
    let checkpoint = args.model.open()?;
    let file = InputFile::of(&args.fixture)?;
    if let Some(html) = &args.html {
        output::check_file("--html", html, &checkpoint, [file.path()].into_iter())?;
    }
    let fixture = Fixture::open(file.path())?;
    let input = trace_input(&fixture)?;
    let run = || compute.stages(&device, &checkpoint, &input, args.backward, file.path());
    let stages = Progress::during("running the model", run)?;
    let scope = match args.backward {
        true => Scope::ForwardAndBackward,
        false => Scope::Forward,
    };
    let produced: HashMap<_, _> = stages.into_iter().collect();
    let report = Comparer::new().verify(&fixture, &produced, scope);
    if let Some(html) = &args.html {
        let model = checkpoint.files().path();
        page(&report, model, &args.fixture).write(html)?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!("{report}\n"))?;
    }
    if report.passed {
        return Ok(CommandOutcome::Done);
    }
    note_weights(&checkpoint)?;
    if let Some(note) = precision_note(compute.form(args.backward)?, compute.dtype) {
        output::warn(format_args!("note: {note}"));
    }
    Ok(CommandOutcome::Mismatch)
}

/// Returns a page with all comparisons.
fn page(report: &Report, model: &Path, fixture: &Path) -> Page {
    let mut page = Page::new(&format!("{} and PyTorch", model.display()));
    page.paragraph(&format!("Fixture: {}", fixture.display()));
    page.paragraph(&match &report.first_divergence {
        Some(first) => format!(
            "The first tensor beyond its tolerance is {first}: the cause is there or just before."
        ),
        None if report.passed => "All tensors agree with PyTorch's.".to_string(),
        None => "Nothing was compared.".to_string(),
    });
    page.heading("Errors, as shares of the tolerance");
    page.heat_map(&report.comparisons.iter().map(cell).collect::<Vec<_>>());
    page.heading("All comparisons");
    page.printed(&report.to_string());
    page
}

fn cell(of: &Comparison) -> Cell<'_> {
    Cell {
        name: &of.name,
        share: of.share_used,
        passed: of.passed(),
        note: format!("largest error {:.2e}", of.max_abs),
    }
}

/// Returns the note that explains why a run packed more coarsely than `dtype` fails: it is compared at the precision of
/// `dtype`.
fn precision_note(form: Form, dtype: DType) -> Option<&'static str> {
    match (form, dtype) {
        (Form::Packed(Precision::Int8 | Precision::Int4 { .. } | Precision::AsStored), _) => Some(
            "int8, int4 and as-stored have no tolerance; with --dtype bf16 the results are compared with the tolerance for \
             bf16, which only some models meet",
        ),
        (Form::Packed(Precision::Bf16), DType::F32 | DType::F16) => Some(
            "results are compared with the tolerance for --dtype, which is finer than bf16 weights can meet; \
             give --dtype bf16 with --precision bf16",
        ),
        (Form::Packed(Precision::F16), DType::F32) => Some(
            "results are compared with the tolerance for --dtype, which is finer than weights rounded to f16 can meet; \
             give --dtype f16 with --precision f16",
        ),
        _ => None,
    }
}
