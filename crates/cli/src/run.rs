//! `candle-blocks run`: runs all blocks, or a whole model, on the input in a file and writes every intermediate result to another.
//!
//! NaN and infinity are results like any other, as in PyTorch: they are written, a note says where they begin, and
//! the exit status is 0.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::config::EmbeddingsConfig;
use candle_blocks::trace::TraceInput;
use candle_blocks::verify::Fixture;
use candle_blocks::{Checkpoint, Error};

use crate::input::InputFile;
use crate::model::{ComputeArgs, ModelArgs};
use crate::progress::Progress;
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks run --model DIR --input ids.safetensors --output out.safetensors
  candle-blocks run --model DIR --input ids.safetensors --output out.safetensors --device cuda --dtype bf16";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A safetensors file (`-` is standard input) with hidden_states [batch, seq, d_model] to run the blocks, or with input_ids [batch, seq],
    /// pixel_values or input_features to run the whole model (and decoder_input_ids if it has a decoder); attention_mask
    /// [batch, seq] is optional.
    #[arg(long, short, value_name = "FILE")]
    input: PathBuf,
    /// The safetensors file to write the results to.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Also read grad_output, and write the gradients of the input and of every parameter.
    #[arg(long)]
    backward: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn run(args: &Args) -> Result<CommandOutcome> {
    let device = args.compute.device()?;
    let checkpoint = args.model.open()?;
    let read = args.model.files().chain([args.input.as_path()]);
    output::check_file("--output", &args.output, &checkpoint, read)?;
    let file = InputFile::of(&args.input)?;
    let fixture = Fixture::open_input(file.path());
    let fixture = fixture.map_err(|error| without_input(error, &checkpoint))?;
    let input = trace_input(&fixture)?;
    let compute = &args.compute;
    let run = || compute.stages(&device, &checkpoint, &input, args.backward, file.path());
    let stages = Progress::during("running the model", run)?;
    write_safetensors(&args.output, &stages, None)?;
    note_unread(&checkpoint, &fixture, &input)?;
    note_context(&checkpoint, &fixture)?;
    if input.hidden_states.is_none()
        && let Some(task) = checkpoint.missing_head()?
    {
        output::warn(format_args!(
            "note: there are no logits: config.json names a model with a head for {task}, and the files have no weights for it"
        ));
    }
    note_non_finite(&checkpoint, &input, &stages)?;
    Ok(CommandOutcome::Done)
}

/// Prints a note if the sequences are longer than the model's context length.
fn note_context(checkpoint: &Checkpoint, fixture: &Fixture) -> Result<()> {
    let ids = fixture.tensor("input_ids");
    let length = ids.and_then(|ids| ids.dims().last().copied());
    if let (Some(length), Some(limit)) = (length, checkpoint.context_length()?)
        && length > limit
    {
        output::warn(format_args!(
            "note: {}: sequences have {length} tokens, but the model's context length is {limit}",
            fixture.path().display()
        ));
    }
    Ok(())
}

/// The largest number of tensors in a file that a message names.
const MAX_NAMES: usize = 8;

/// Returns the error for a file without any input, with the inputs that the checkpoint reads.
fn without_input(error: Error, checkpoint: &Checkpoint) -> anyhow::Error {
    let Error::MissingTensor { path, similar, .. } = &error else {
        return error.into();
    };
    let files = match TensorFiles::open(path) {
        Ok(files) if similar.is_empty() => files,
        _ => return error.into(), // which names what may be meant
    };
    let names: Vec<&str> = files.names().collect();
    let some = names[..names.len().min(MAX_NAMES)].join(", ");
    let held = match names.len() {
        0 => "no tensor".to_string(),
        n if n > MAX_NAMES => format!("{some} and {} more", n - MAX_NAMES),
        _ => some,
    };
    let family = checkpoint.family();
    let path = path.display();
    match checkpoint.model_config().map(|model| &model.embeddings) {
        Ok(embeddings) => {
            let name = match embeddings {
                EmbeddingsConfig::Patches(_) => "pixel_values",
                EmbeddingsConfig::Spectrum(_) => "input_features",
                _ => "input_ids",
            };
            anyhow!(
                "{path}: it holds {held}, but {family} reads {name}, or hidden_states for its blocks alone"
            )
        }
        Err(_) => anyhow!(
            "{path}: it holds {held}, but only the blocks of {family} load here, which read hidden_states [batch, seq, \
             d_model]: the first of the `hidden_states` that transformers' model returns with `output_hidden_states=True`"
        ),
    }
}

/// Prints a note with the input's tensors that the model does not read.
fn note_unread(checkpoint: &Checkpoint, fixture: &Fixture, input: &TraceInput) -> Result<()> {
    let unread = input.unread(checkpoint)?;
    let unknown = fixture.unknown().iter().map(String::as_str);
    let names: Vec<&str> = unread.into_iter().chain(unknown).collect();
    if !names.is_empty() {
        output::warn(format_args!(
            "note: {}: the model does not read {}",
            fixture.path().display(),
            names.join(", ")
        ));
    }
    Ok(())
}

/// Prints notes about the first result with NaN or infinity, and about inputs and weights that hold such values.
fn note_non_finite(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    stages: &[(String, Tensor)],
) -> Result<()> {
    let Some(first) =
        first_non_finite(stages.iter().map(|(name, tensor)| (name.as_str(), tensor)))?
    else {
        return Ok(());
    };
    output::warn(format_args!(
        "note: {first} holds values that are not finite; it was written unchanged"
    ));
    let inputs = [
        ("hidden_states", input.hidden_states.as_ref()),
        ("pixel_values", input.model.pixel_values.as_ref()),
        ("input_features", input.model.input_features.as_ref()),
        (
            "encoder_hidden_states",
            input.model.encoder_hidden_states.as_ref(),
        ),
        ("grad_output", input.grad_output.as_ref()),
        ("grad_logits", input.grad_logits.as_ref()),
    ];
    let inputs = inputs
        .into_iter()
        .filter_map(|(name, tensor)| Some((name, tensor?)));
    if let Some(name) = first_non_finite(inputs)? {
        output::warn(format_args!("note: so does the input {name}"));
    }
    note_weights(checkpoint)
}

/// Returns the name of the first tensor with NaN or infinity.
fn first_non_finite<'t>(
    tensors: impl Iterator<Item = (&'t str, &'t Tensor)>,
) -> Result<Option<&'t str>> {
    for (name, tensor) in tensors {
        // Times 0, NaN and infinity give NaN.
        let zeros = (tensor.to_dtype(DType::F64)? * 0.0)?.sum_all()?;
        if zeros.to_scalar::<f64>()? != 0.0 {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Prints a note for each weight with NaN or infinity.
pub fn note_weights(checkpoint: &Checkpoint) -> Result<()> {
    for (name, index) in checkpoint.non_finite()? {
        output::warn(format_args!(
            "note: weight {name} holds a value that is not finite, first at {index:?}"
        ));
    }
    Ok(())
}

/// Returns the inputs in a fixture.
pub fn trace_input(fixture: &Fixture) -> Result<TraceInput> {
    Ok(TraceInput::new(|name| fixture.tensor(name).cloned())?)
}
