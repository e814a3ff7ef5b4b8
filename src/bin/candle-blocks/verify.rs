//! `candle-blocks verify`: every stage of all blocks, compared with a fixture made by PyTorch.

use std::{collections::HashMap, path::PathBuf};

use anyhow::Result;
use candle_blocks::{
    trace,
    verify::{Comparer, Fixture, Scope},
};

use crate::{
    Outcome,
    model::{ComputeArgs, Form, ModelArgs},
    output,
    run::{located, trace_input},
};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The fixture: a safetensors file with hidden_states and what PyTorch made of them.
    #[arg(long, value_name = "FILE")]
    fixture: PathBuf,
    /// Also compare the gradients of the input and of every parameter.
    #[arg(long)]
    backward: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn verify(args: &Args) -> Result<Outcome> {
    let (dtype, device) = (args.compute.dtype(), args.compute.device()?);
    let checkpoint = args.model.open()?;
    let fixture = Fixture::open(&args.fixture)?;
    let input = trace_input(&fixture)?;
    let stages = match args.compute.form(args.backward)? {
        Form::Packed(precision) => trace::run_packed(&checkpoint, &input, dtype, precision),
        Form::Plain if args.backward => trace::run_backward(&checkpoint, &input, dtype, &device),
        Form::Plain => trace::run(&checkpoint, &input, dtype, &device),
    };
    let stages = stages.map_err(|error| located(error, &args.fixture))?;
    let scope = match args.backward {
        true => Scope::ForwardAndBackward,
        false => Scope::Forward,
    };
    let produced: HashMap<_, _> = stages.into_iter().collect();
    let report = Comparer::new().verify(&fixture, &produced, scope);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!("{report}\n"))?;
    }
    if report.passed {
        return Ok(Outcome::Done);
    }
    for (name, index) in checkpoint.non_finite()? {
        output::warn(format_args!(
            "note: weight {name} holds a value that is not finite, first at {index:?}"
        ));
    }
    Ok(Outcome::Mismatch)
}
