//! `candle-blocks completions` and `candle-blocks man`: what shells complete, and manual pages.

use anyhow::{Result, bail};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, CommandOutcome, output};

/// Commands for the end of the help.
const COMPLETIONS: &str = "Examples:
  candle-blocks completions bash
  candle-blocks completions zsh

bash reads them with: source <(candle-blocks completions bash)";
/// Commands for the end of the help.
const MAN: &str = "Examples:
  candle-blocks man
  candle-blocks man generate

A page is read with: candle-blocks man generate | man -l -";

#[derive(clap::Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(clap::Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// The command whose page is printed [default: the program's].
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints a script that completes commands, options and their values.
pub fn completions(args: &CompletionsArgs) -> Result<CommandOutcome> {
    let mut command = Cli::command();
    let name = command.get_name().to_string();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    output::print_bytes(&script)?;
    Ok(CommandOutcome::Done)
}

/// Prints a manual page as roff.
pub fn man(args: &ManArgs) -> Result<CommandOutcome> {
    // With its subcommands' names in full.
    let mut command = Cli::command();
    command.build();
    if let Some(name) = &args.command {
        let Some(found) = command.find_subcommand(name) else {
            bail!("{name}: there is no such command; `candle-blocks --help` names them");
        };
        command = found.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output::print_bytes(&page)?;
    Ok(CommandOutcome::Done)
}
