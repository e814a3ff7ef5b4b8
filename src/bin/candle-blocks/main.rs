//! The `candle-blocks` program: look into a checkpoint, run its blocks, verify them against PyTorch, time them.
//!
//! Exit status: 0 done (and within tolerance), 1 a mismatch, 2 bad input.

mod bench;
mod download;
mod inspect;
mod model;
mod output;
mod run;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Look into a transformer checkpoint, run its blocks, verify them against PyTorch, time them.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print family, configuration, parameters by role, and what becomes of every tensor.
    Inspect(inspect::Args),
    /// Run all blocks on a file's hidden_states and write every stage to another file.
    Run(run::Args),
    /// Run all blocks on a fixture's input and compare every stage with PyTorch's.
    Verify(verify::Args),
    /// Measure how long a feed-forward, a block or a checkpoint's stack takes on the CPU.
    Bench(bench::Args),
}

/// What a command found out.
enum Outcome {
    Done,
    Mismatch,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Bench(args) => bench::bench(&args),
    };
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Mismatch) => ExitCode::from(1),
        Err(error) => {
            output::warn(format_args!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}
