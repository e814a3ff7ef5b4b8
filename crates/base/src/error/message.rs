//! Error messages.

use std::path::{Component, Path};
use std::{fmt, io};

use super::{Error, escape::Escaped};

/// Messages may contain text from files, such as tensor names and key values, so it is escaped.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped(PlainMessage(self)))
    }
}

struct PlainMessage<'e>(&'e Error);

impl fmt::Display for PlainMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Io {
                path,
                action,
                cause,
            } => {
                write!(f, "{}: cannot {action}: {cause}", path.display())?;
                let is_missing = cause.kind() == io::ErrorKind::NotFound;
                match is_missing.then(|| repository(path)).flatten() {
                    Some(owner) => write!(
                        f,
                        "; `Checkpoint::from_hub` downloads a model of the Hugging Face Hub (feature hub), as does `hf \
                         download {owner}{0} --local-dir DIR`",
                        path.display()
                    ),
                    None if is_missing && path.ends_with("preprocessor_config.json") => {
                        f.write_str("; copy it from the model's repository")
                    }
                    None => Ok(()),
                }
            }
            Error::OutOfMemory {
                path,
                needed,
                allowed,
                limit,
            } => {
                if !path.as_os_str().is_empty() {
                    write!(f, "{}: ", path.display())?;
                }
                write!(
                    f,
                    "{needed} bytes of memory are needed, and {limit} allows "
                )?;
                match allowed {
                    Some(allowed) => write!(f, "{allowed}")?,
                    None => f.write_str("less")?,
                }
                f.write_str("; raise the limit, ")?;
                if path.as_os_str().is_empty() {
                    f.write_str("give fewer or shorter sequences, ")?;
                }
                f.write_str("or load in a narrower type: bf16, or packed in Int8 or Int4")
            }
            Error::NoWeights { path, reason }
            | Error::UnexpectedJson { path, reason }
            | Error::BadIndex { path, reason }
            | Error::Tokenizer { path, reason } => {
                write!(f, "{}: {reason}", path.display())
            }
            Error::NotSafetensors { path, reason } => write!(
                f,
                "{}: not a valid safetensors file: {reason}",
                path.display()
            ),
            Error::UnreadableWeights {
                path,
                format,
                reason,
            } => write!(
                f,
                "{}: {format} that cannot be read: {reason}",
                path.display()
            ),
            Error::NotGguf { path, reason } => {
                write!(
                    f,
                    "{}: a GGUF file that cannot be read: {reason}",
                    path.display()
                )
            }
            Error::MalformedJson { path, reason } => {
                write!(f, "{}: malformed JSON: {reason}", path.display())
            }
            Error::MissingConfig { path } => write!(
                f,
                "{}: no config.json found; put the checkpoint's config.json beside the weights, name it with \
                 `CheckpointOptions::config`, or read a plain feed-forward file with `PlainFile`",
                path.display()
            ),
            Error::ConfigKey { path, key, reason } => {
                write!(f, "{}: key {key}: {reason}", path.display())
            }
            Error::UnknownFamily {
                path,
                model_type,
                lacks: Some(lacks),
                nearest,
            } => write!(
                f,
                "{}: model_type {model_type:?} {}{}",
                path.display(),
                // The list is that of the documents, which name the program's option.
                lacks.replace("`--family FILE`", "`CheckpointOptions::family_file`"),
                listed("nearest:", nearest)
            ),
            Error::UnknownFamily {
                path,
                model_type,
                lacks: None,
                nearest,
            } => write!(
                f,
                "{}: model_type {model_type:?} is not a known family{}; \
                 give a table of your own in code with `CheckpointOptions::family`, or in a file with \
                 `CheckpointOptions::family_file` (`Family::from_json_file` says how)",
                path.display(),
                listed("nearest:", nearest)
            ),
            Error::UnknownActivation { name, known } => {
                write!(
                    f,
                    "activation {name:?} is not known{}",
                    listed("known:", known)
                )
            }
            Error::Text { index, reason } => write!(f, "text {index} (counted from 0): {reason}"),
            Error::InvalidConfig(reason) => write!(f, "invalid configuration: {reason}"),
            Error::MissingTensor {
                path,
                role,
                tried,
                similar,
            } => write!(
                f,
                "{}: no tensor for {role}{}{}; {}",
                path.display(),
                listed("tried", tried),
                listed("the file holds the similar", similar),
                wrapped(tried, similar).unwrap_or("rename it, or check that the file is complete")
            ),
            Error::ShapeMismatch {
                path,
                tensor,
                expected,
                found,
            } => write!(
                f,
                "{}: tensor {tensor} has shape {found:?}, expected {expected:?}; \
                 check that the configuration is that of these weights",
                path.display()
            ),
            Error::FileKeys { error, keys } => write!(
                f,
                "{}; the file's own keys here are {}",
                PlainMessage(error),
                keys.join(", ")
            ),
            Error::UnsupportedDType {
                path,
                tensor,
                found,
            } => write!(
                f,
                "{}: tensor {tensor} is stored as {found}; supported: F32, F16, BF16, F64; convert it",
                path.display()
            ),
            Error::AmbiguousOrientation {
                path,
                tensor,
                shape,
            } => write!(
                f,
                "{}: the layout of weight {tensor} {shape:?} cannot be told from its shape; say \
                 `Orientation::OutIn` (PyTorch, y = x·Wᵀ) or `Orientation::InOut` (NumPy, y = x·W) \
                 with `PlainFile::with_orientation`",
                path.display()
            ),
            Error::UnusedTensors {
                path,
                family,
                names,
            } => write!(
                f,
                "{}: {} tensor(s) that {family} does not know: {}; load with `Strictness::AllowUnused` to leave them out",
                path.display(),
                names.len(),
                abbreviated(names)
            ),
            Error::InvalidInput { input, reason } => write!(f, "{input}: {reason}"),
            Error::InvalidFixture {
                path,
                tensor,
                reason,
            } => {
                write!(f, "{}: tensor {tensor} {reason}", path.display())
            }
            Error::Hub { repo, reason } => write!(f, "{repo}: {reason}"),
            Error::Candle(error) => f.write_str(&without_backtrace(error)),
        }
    }
}

/// Returns a clause that lists `names`; an empty string if there are none.
pub fn listed(what: &str, names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("; {what} {}", names.join(", ")),
    }
}

/// Returns what completes a missing path to a repository's name, if it looks like one: nothing for two names, of which the
/// first is no folder, and the owner for one. The last name is that of no file.
fn repository(path: &Path) -> Option<&'static str> {
    const FILES: [&str; 9] = [
        "bin",
        "gguf",
        "json",
        "npy",
        "npz",
        "pt",
        "pth",
        "safetensors",
        "txt",
    ];
    let names: Vec<Component> = path.components().collect();
    let owner = match names[..] {
        [Component::Normal(owner), Component::Normal(_)] if !Path::new(owner).exists() => "",
        [Component::Normal(_)] => "OWNER/",
        _ => return None,
    };
    let is_file = path
        .extension()
        .is_some_and(|e| FILES.iter().any(|file| e == *file));
    (!is_file).then_some(owner)
}

/// Returns candle's message without the backtrace that it carries if `RUST_BACKTRACE` is set.
fn without_backtrace(error: &candle_core::Error) -> String {
    use candle_core::Error as Candle;
    match error {
        Candle::WithBacktrace { inner, .. } => without_backtrace(inner),
        Candle::WithPath { inner, path } => {
            format!("{}: {}", path.display(), without_backtrace(inner))
        }
        Candle::Context { inner, context } => format!("{context}: {}", without_backtrace(inner)),
        other => other.to_string(),
    }
}

/// Returns the first eight names, and how many others there are.
pub fn abbreviated(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(", and {} more", names.len() - SHOWN));
    }
    text
}

/// Returns the cure for tensors of a model that PyTorch wrapped in another module.
fn wrapped(tried: &[String], similar: &[String]) -> Option<&'static str> {
    const WRAPPERS: [(&str, &str); 2] = [
        (
            "module.",
            "torch.nn.DataParallel put \"module.\" in front of the names: save `model.module.state_dict()`, or remove it from them",
        ),
        (
            "_orig_mod.",
            "torch.compile put \"_orig_mod.\" in front of the names: save `model._orig_mod.state_dict()`, or remove it from them",
        ),
    ];
    let is_wrapped = |wrapper: &str| {
        let bare = similar.iter().filter_map(|name| name.strip_prefix(wrapper));
        bare.into_iter()
            .any(|name| tried.iter().any(|tried| tried == name))
    };
    let found = WRAPPERS.iter().find(|(wrapper, _)| is_wrapped(wrapper));
    found.map(|(_, cure)| *cure)
}
