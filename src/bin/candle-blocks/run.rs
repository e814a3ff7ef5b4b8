//! `candle-blocks run`: every stage of all blocks on a file's input, written to another file.

use std::path::PathBuf;

use anyhow::Result;
use candle_blocks::{
    checkpoint::write::write_safetensors,
    trace::{self, TraceInput},
    verify::Fixture,
};

use crate::{
    Outcome,
    model::{ComputeArgs, ModelArgs},
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A safetensors file with hidden_states [batch, seq, width] and perhaps attention_mask [batch, seq].
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// The safetensors file to write the stages to.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Also read grad_output and write the gradients of the input and of every parameter.
    #[arg(long)]
    backward: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let checkpoint = args.model.open()?;
    let input = trace_input(&Fixture::open(&args.input)?);
    let run = if args.backward {
        trace::run_backward
    } else {
        trace::run
    };
    let stages = run(
        &checkpoint,
        &input,
        args.compute.dtype(),
        &args.compute.device()?,
    )?;
    write_safetensors(&args.output, &stages, None)?;
    Ok(Outcome::Done)
}

/// The input side of a fixture.
pub fn trace_input(fixture: &Fixture) -> TraceInput {
    TraceInput {
        hidden_states: fixture.hidden_states().clone(),
        attention_mask: fixture.attention_mask().cloned(),
        grad_output: fixture.grad_output().cloned(),
    }
}
