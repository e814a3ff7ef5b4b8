//! Output that a closed pipe (`| head`) ends quietly.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// Prints `text`; a reader that has gone away is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a line to standard error. Where nobody reads it, `eprintln!` would panic.
pub fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
