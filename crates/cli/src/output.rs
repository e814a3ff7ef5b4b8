//! Output: a closed pipe (`| head`) ends it quietly, text from files cannot control the terminal, and input files are never
//! replaced.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use candle_blocks::checkpoint::write::write_whole;
use candle_blocks::{Checkpoint, Error};

use crate::progress;

pub(crate) use candle_blocks_base::escape::Escaped;
use candle_blocks_base::escape::is_hidden;

/// Prints `text`; a closed pipe is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes a whole file, or nothing.
pub fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(write_whole(path, |out: &mut dyn Write| {
        let written = out.write_all(text.as_bytes());
        written.map_err(|cause| Error::io(path, "write", cause))
    })?)
}

/// Prints bytes like [`print`].
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let printed = progress::beside(|| {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    });
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints generated text. On a terminal, control characters other than line breaks and tabs are escaped.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        return print(text);
    }
    let acts = |c: &char| is_hidden(*c) && !['\n', '\t'].contains(c);
    print(&text.chars().filter(|c| !acts(c)).collect::<String>())
}

/// Prints a line to standard error. On a closed pipe, `eprintln!` would panic.
pub fn warn(line: impl Display) {
    let _ = progress::beside(|| writeln!(io::stderr(), "{}", Escaped(line)));
}

/// Prints notes to standard error.
pub fn notes(notes: &[String]) {
    for note in notes {
        warn(format_args!("note: {note}"));
    }
}

/// Returns the path for output that Ctrl-C left unfinished, and prints a note about it.
pub fn partial(output: &Path) -> PathBuf {
    let mut path = output.as_os_str().to_owned();
    path.push(".partial");
    let path = PathBuf::from(path);
    warn(format_args!(
        "note: interrupted; the results so far are in {}",
        path.display()
    ));
    path
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(escaped_json(&serde_json::to_string_pretty(value)?) + "\n"))
}

/// Returns `value` as a line of JSON.
pub fn json_line(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(escaped_json(&serde_json::to_string(value)?) + "\n")
}

/// Escapes the control characters that JSON itself leaves.
fn escaped_json(json: &str) -> String {
    let mut text = String::new();
    for c in json.chars() {
        match c {
            '\n' => text.push(c),
            c if is_hidden(c) => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

/// Refuses, before any work, an output that cannot be written, or that is an input file.
pub fn check(
    option: &str,
    output: &Path,
    is_read: impl FnOnce(&Path) -> bool,
) -> anyhow::Result<()> {
    let fail = |reason: &str| anyhow::bail!("{}: {option} {reason}", output.display());
    match output.parent() {
        Some(folder) if folder != Path::new("") && !folder.is_dir() => {
            return fail("lies in a folder that does not exist; create it first");
        }
        _ => {}
    }
    if let Err(reason) = candle_blocks::checkpoint::write::reserved::check(output) {
        anyhow::bail!("{}: {reason}", output.display());
    }
    if output.is_dir() {
        return fail("is a folder; give the name of a file in it");
    }
    if output.exists() && !output.is_file() {
        return fail("is a device or a pipe; give the name of a file");
    }
    match output.canonicalize() {
        Ok(existing) if is_read(&existing) => {
            fail("is a file that the run reads; give another name")
        }
        _ => Ok(()),
    }
}

/// Lets a file be replaced if `replaces` is given; otherwise asks on a terminal, and refuses elsewhere.
pub fn check_replaced(output: &Path, replaces: bool) -> anyhow::Result<()> {
    if replaces || !output.exists() {
        return Ok(());
    }
    let name = output.display();
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        let _ = write!(
            io::stderr(),
            "{}: exists; replace it? [y/N] ",
            Escaped(&name)
        );
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            return Ok(());
        }
    }
    anyhow::bail!("{name}: exists and is kept; give another name, or --replace")
}

/// Applies [`check`] to an output, with the files of a checkpoint and `others` as inputs.
pub fn check_file<'p>(
    option: &str,
    output: &Path,
    checkpoint: &'p Checkpoint,
    others: impl Iterator<Item = &'p Path>,
) -> anyhow::Result<()> {
    let directory = checkpoint.files().directory();
    let directory = Path::new(".").join(directory).canonicalize().ok();
    check(option, output, |existing| {
        // An adapter is a directory of files that are read.
        let is_it = |path: &Path| {
            let is_or_has = |path: PathBuf| {
                path == existing || path.is_dir() && existing.parent() == Some(&path)
            };
            path.canonicalize().is_ok_and(is_or_has)
        };
        // The configuration, the tokenizer, templates; in the Hub's cache, links.
        let is_beside = |path: &Path| {
            let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
            let is_other = path.extension().is_none_or(|end| end != "safetensors");
            is_other && folder.is_some() && folder == directory
        };
        let named = std::path::absolute(output);
        is_beside(existing)
            || named.is_ok_and(|named| is_beside(&named))
            || weights(checkpoint).into_iter().chain(others).any(is_it)
    })
}

/// Refuses an output that is one of a checkpoint's files or of `others`, or a folder that contains one.
pub fn check_spares<'p>(
    output: &Path,
    checkpoint: &'p Checkpoint,
    others: impl Iterator<Item = &'p Path>,
) -> anyhow::Result<()> {
    let Ok(existing) = output.canonicalize() else {
        return Ok(());
    };
    let mut read = weights(checkpoint).into_iter().chain(others);
    let has = |path: &Path| {
        path.canonicalize()
            .is_ok_and(|path| path.starts_with(&existing))
    };
    if read.any(has) {
        let output = output.display();
        anyhow::bail!("{output}: --output contains an input file; give another name");
    }
    Ok(())
}

/// Returns the paths of a checkpoint's weight files, each once.
fn weights(checkpoint: &Checkpoint) -> BTreeSet<&Path> {
    let files = checkpoint.files();
    let infos = files.names().filter_map(|name| files.info(name));
    let paths = infos.map(|info| info.path.as_path());
    paths.chain([files.path()]).collect()
}
