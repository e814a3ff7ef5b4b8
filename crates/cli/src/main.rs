//! The `candle-blocks` program: runs transformer checkpoints, generates and embeds text, compares results with PyTorch, and
//! measures speed.
//!
//! Exit status: 0 for success (within tolerance), 1 for a mismatch, 2 for bad input, 130 after Ctrl-C, 143 after
//! SIGTERM, 129 after SIGHUP.

mod advice;
mod answer;
mod bench;
mod chat;
mod classify;
mod conversation;
mod download;
mod embed;
mod fill;
mod generate;
mod generation_settings;
#[cfg(feature = "media")]
mod images;
mod input;
mod inspect;
mod interrupt;
mod manual;
mod model;
mod output;
mod page;
mod progress;
mod quantize;
mod rank;
mod run;
mod tag;
mod task;
mod texts;
mod threads;
#[cfg(feature = "media")]
mod transcribe;
mod verify;
mod zero_shot;

use std::process::ExitCode;

use candle_blocks::candle_core;
use clap::{Parser, Subcommand};

/// Run transformer checkpoints: generate and embed text, compare with PyTorch, quantize, and measure speed.
#[derive(Parser)]
#[command(name = env!("CARGO_BIN_NAME"), version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print a checkpoint's family, configuration, parameter counts, and the use of every tensor.
    Inspect(inspect::Args),
    /// Run a whole model on input_ids, or its blocks on hidden_states, and write every intermediate result to a file.
    Run(run::Args),
    /// Run a model on a fixture's input, and compare every intermediate result with PyTorch's.
    Verify(verify::Args),
    /// Continue a text, answer a chat, or continue token ids.
    Generate(Box<generate::Args>),
    /// Talk with a model: each line that is read is a message, and the answers are printed.
    Chat(Box<chat::Args>),
    /// Compute an embedding for each line of a text file.
    Embed(embed::Args),
    /// Classify each line of a text file, by the model's labels or by yours, or score pairs with a cross-encoder.
    Classify(classify::Args),
    /// Rank the lines of a text file for a query, with a cross-encoder or an embedding model.
    Rank(rank::Args),
    /// Find the entities in each line of a text file, such as names of persons and places.
    Tag(tag::Args),
    /// Fill the masks in each line of a text file with the most probable tokens.
    Fill(fill::Args),
    /// Answer the question in each line of a JSON Lines file by parts of the context beside it.
    Answer(answer::Args),
    /// Transcribe sound files with Whisper or a model with a CTC head, with or without times.
    #[cfg(feature = "media")]
    Transcribe(transcribe::Args),
    /// Quantize the blocks of a checkpoint to 4 to 8 bits, as a GGUF file or as compressed-tensors.
    #[command(visible_alias = "quantise")]
    Quantize(quantize::Args),
    /// Measure the speed of a feed-forward, a block, or all blocks of a checkpoint on the CPU.
    Bench(bench::Args),
    /// Print a script by which a shell completes commands and options.
    Completions(manual::CompletionsArgs),
    /// Print a manual page.
    Man(manual::ManArgs),
}

/// The result of a command.
enum CommandOutcome {
    Done,
    Mismatch,
    /// Ctrl-C; results so far are kept.
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
        Command::Chat(args) => chat::chat(&args),
        Command::Embed(args) => embed::embed(&args),
        Command::Classify(args) => classify::classify(&args),
        Command::Rank(args) => rank::rank(&args),
        Command::Tag(args) => tag::tag(&args),
        Command::Fill(args) => fill::fill(&args),
        Command::Answer(args) => answer::answer(&args),
        #[cfg(feature = "media")]
        Command::Transcribe(args) => transcribe::transcribe(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    match outcome {
        Ok(CommandOutcome::Done) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Mismatch) => ExitCode::from(1),
        Ok(CommandOutcome::Interrupted) => ExitCode::from(interrupt::exit_status()),
        Err(error) => {
            let line = advice::of_program(line(&error));
            output::warn(format_args!("error: {line}"));
            ExitCode::from(2)
        }
    }
}

/// Returns an error and its causes in one line, without the backtrace that candle's errors carry if `RUST_BACKTRACE` is set.
fn line(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| match cause.downcast_ref() {
        Some(candle_core::Error::WithBacktrace { inner, .. }) => inner.to_string(),
        _ => cause.to_string(),
    });
    causes.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn commands_in_the_help_are_valid() {
        let mut commands = 0;
        for command in Cli::command().get_subcommands() {
            let end = command.get_after_help().expect("examples").to_string();
            let mut examples = 0;
            for line in end.lines().filter_map(|line| line.strip_prefix("  ")) {
                let line = line.split(" < ").next().unwrap();
                // A text in quotation marks is one argument.
                let parts = line.split('"').enumerate();
                let words = parts.flat_map(|(i, part)| match i % 2 {
                    0 => part.split_whitespace().collect(),
                    _ => vec![part],
                });
                Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
                examples += 1;
            }
            assert!(examples > 0, "{}", command.get_name());
            commands += 1;
        }
        assert!(commands >= 8, "{commands}");
    }
}
