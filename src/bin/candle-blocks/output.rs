//! Output that a closed pipe (`| head`) ends quietly, in which no file's text acts on the terminal, and that replaces no file
//! that is read.

#[path = "../../error/escape.rs"]
mod escape;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use candle_blocks::Checkpoint;

pub(crate) use escape::Escaped;
use escape::is_hidden;

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

/// Prints a piece of a text that a model made. On a terminal, of what would act on it only lines and tabs are left.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        return print(text);
    }
    let acts = |c: &char| is_hidden(*c) && !['\n', '\t'].contains(c);
    print(&text.chars().filter(|c| !acts(c)).collect::<String>())
}

/// Prints a line to standard error. Where nobody reads it, `eprintln!` would panic.
pub fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Escaped(line));
}

/// Prints notes to standard error.
pub fn notes(notes: &[String]) {
    for note in notes {
        warn(format_args!("note: {note}"));
    }
}

/// Where what Ctrl-C left unfinished of an output is written, which is said.
pub fn partial(output: &Path) -> PathBuf {
    let mut path = output.as_os_str().to_owned();
    path.push(".partial");
    let path = PathBuf::from(path);
    warn(format_args!(
        "note: interrupted; what was made is in {}",
        path.display()
    ));
    path
}

/// Prints `value` as indented JSON. Of what a terminal would act on, JSON itself escapes only a part.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        match c {
            '\n' => text.push(c),
            c if is_hidden(c) => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    print(&(text + "\n"))
}

/// Refuses, before the work, an output that cannot be written, or an existing file that the program reads.
pub fn check(output: &Path, is_read: impl FnOnce(&Path) -> bool) -> anyhow::Result<()> {
    let fail = |reason: &str| anyhow::bail!("{}: --output {reason}", output.display());
    match output.parent() {
        Some(folder) if folder != Path::new("") && !folder.is_dir() => {
            return fail("lies in a folder that does not exist; create it first");
        }
        _ => {}
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

/// [`check`] of an output beside the files of a checkpoint and `others`.
pub fn check_file<'p>(
    output: &Path,
    checkpoint: &'p Checkpoint,
    others: impl Iterator<Item = &'p Path>,
) -> anyhow::Result<()> {
    let directory = checkpoint.files().directory();
    let directory = Path::new(".").join(directory).canonicalize().ok();
    check(output, |existing| {
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

/// Refuses an output that is one of a checkpoint's files or of `others`, or a folder that has one.
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
        anyhow::bail!("{output}: --output has a file that is read; give another name");
    }
    Ok(())
}

/// Where a checkpoint's weights are, each path once.
fn weights(checkpoint: &Checkpoint) -> BTreeSet<&Path> {
    let files = checkpoint.files();
    let infos = files.names().filter_map(|name| files.info(name));
    let paths = infos.map(|info| info.path.as_path());
    paths.chain([files.path()]).collect()
}
