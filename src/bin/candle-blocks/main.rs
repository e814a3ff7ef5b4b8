//! The `candle-blocks` program: inspects a checkpoint, runs its blocks, verifies them against PyTorch, quantises them and
//! measures their speed.
//!
//! Exit status: 0 for success (within tolerance), 1 for a mismatch, 2 for bad input, 130 after Ctrl-C, 143 after
//! SIGTERM, 129 after SIGHUP.

mod advice;
mod bench;
mod classify;
mod conversation;
mod download;
mod embed;
mod generate;
mod generation_settings;
mod inspect;
mod interrupt;
mod model;
mod output;
mod quantize;
mod run;
mod texts;
mod threads;
mod verify;

use std::process::ExitCode;

use candle_blocks::candle_core;
use clap::{Parser, Subcommand};

/// Inspect a transformer checkpoint, run its blocks, verify them against PyTorch, and measure their speed.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the family, configuration, parameter counts by role, and how every tensor is used.
    Inspect(inspect::Args),
    /// Run all blocks on the hidden_states of a file and write every intermediate result to another file.
    Run(run::Args),
    /// Run all blocks on the input of a fixture and compare every intermediate result with PyTorch's.
    Verify(verify::Args),
    /// Continue a text, or token ids, with a decoder.
    Generate(Box<generate::Args>),
    /// Make a vector of each line of a file of texts.
    Embed(embed::Args),
    /// Score the labels of a classifier, or a cross-encoder's, for each line of a file of texts.
    Classify(classify::Args),
    /// Write a copy of a checkpoint whose blocks' weights have 4 to 8 bits: a GGUF file, or compressed-tensors.
    #[command(visible_alias = "quantise")]
    Quantize(quantize::Args),
    /// Measure the speed of a feed-forward, a block or a checkpoint's stack on the CPU.
    Bench(bench::Args),
}

/// The result of a command.
enum Outcome {
    Done,
    Mismatch,
    /// Ctrl-C; what was made is kept.
    Interrupted,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    interrupt::watch();
    threads::limit();
    let outcome = match command {
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Generate(args) => generate::generate(&args),
        Command::Embed(args) => embed::embed(&args),
        Command::Classify(args) => classify::classify(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Bench(args) => bench::bench(&args),
    };
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Mismatch) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(interrupt::exit_status()),
        Err(error) => {
            let line = advice::of_program(line(&error));
            output::warn(format_args!("error: {line}"));
            ExitCode::from(2)
        }
    }
}

/// An error and its causes in one line, without the backtrace that candle's carry where `RUST_BACKTRACE` is set.
fn line(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| match cause.downcast_ref() {
        Some(candle_core::Error::WithBacktrace { inner, .. }) => inner.to_string(),
        _ => cause.to_string(),
    });
    causes.collect::<Vec<_>>().join(": ")
}
