//! The crate's error type: every variant names the culprit (file, tensor, key), what was expected,
//! what was found, and how to fix it.
//!
//! Layers return [`candle_core::Result`] so that they fit into candle code; everything that touches
//! files or configurations returns [`Result`]. `?` converts in both directions.

use std::path::PathBuf;

/// A `Result` with this crate's [`enum@Error`].
///
/// Layers return [`candle_core::Result`] instead; `?` converts between the two in both directions.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong with a user's files, configuration or input. The message says what was expected,
/// what was found, and how to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a path.
    #[error("{}: cannot {action}: {cause}", path.display())]
    Io {
        /// The path concerned.
        path: PathBuf,
        /// What was attempted, as a verb: "open", "read", "write".
        action: &'static str,
        /// The system's own error. (Not called `source`: the message holds it, and would be followed by it.)
        cause: std::io::Error,
    },

    /// A directory contains no weights, or several files of which it is unclear which are meant.
    #[error("{}: {reason}", path.display())]
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// What is there instead, and how to fix it.
        reason: String,
    },

    /// A file is not a valid safetensors file.
    #[error("{}: not a valid safetensors file: {reason}; download or export it again", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A JSON file cannot be parsed or does not have the expected form.
    #[error("{}: malformed JSON: {reason}", path.display())]
    MalformedJson {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// No `config.json` was found beside the weights.
    #[error(
        "{}: no config.json found; put the checkpoint's config.json beside the weights, name it with \
         `CheckpointOptions::config` or `--config FILE`, or read a plain feed-forward file with `PlainFile`", path.display()
    )]
    MissingConfig {
        /// Where it was expected.
        path: PathBuf,
    },

    /// A key of `config.json` is missing or has an unusable value.
    #[error("{}: key {key}: {reason}", path.display())]
    ConfigKey {
        /// The configuration file.
        path: PathBuf,
        /// The key, or the aliases tried, as `"a" or "b"`.
        key: String,
        /// What is wrong, and what is expected.
        reason: String,
    },

    /// `model_type` names a family that the crate does not know.
    #[error(
        "{}: model_type {model_type:?} is not a known family; nearest: {}; \
         give a table of your own in code with `CheckpointOptions::family`, or in a file with \
         `CheckpointOptions::family_file` or `--family FILE` (`Family::from_json_file` says how)", path.display(), nearest.join(", ")
    )]
    UnknownFamily {
        /// The configuration file.
        path: PathBuf,
        /// The `model_type` found.
        model_type: String,
        /// The known names nearest to it.
        nearest: Vec<String>,
    },

    /// An activation name that the crate does not know.
    #[error("activation {name:?} is not known; known: {}", known.join(", "))]
    UnknownActivation {
        /// The name found.
        name: String,
        /// Every known name.
        known: Vec<String>,
    },

    /// A configuration from which no layer can be built.
    #[error("invalid configuration: {0}")]
    InvalidConfig(String),

    /// A tensor that the checkpoint must contain is missing.
    #[error(
        "{}: no tensor for {role}; tried {}{}; rename it, or check that the file is complete",
        path.display(), tried.join(", "),
        if similar.is_empty() { String::new() } else { format!("; the file holds the similar {}", similar.join(", ")) }
    )]
    MissingTensor {
        /// The file, or the directory of a sharded checkpoint.
        path: PathBuf,
        /// The role, such as `blocks.0.feed_forward.up.weight`.
        role: String,
        /// The names on disk that were tried.
        tried: Vec<String>,
        /// Similar names on disk.
        similar: Vec<String>,
    },

    /// A tensor has another shape than the configuration implies.
    #[error(
        "{}: tensor {tensor} has shape {found:?}, expected {expected:?}; \
         check that config.json belongs to these weights", path.display()
    )]
    ShapeMismatch {
        /// The file.
        path: PathBuf,
        /// The tensor's name on disk.
        tensor: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// A tensor is stored in a dtype that cannot be used as a weight.
    #[error("{}: tensor {tensor} is stored as {found}; supported: F32, F16, BF16, F64; convert it", path.display())]
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The tensor's name on disk.
        tensor: String,
        /// The dtype in the file.
        found: String,
    },

    /// The orientation of a weight is unknown: its shape fits both.
    #[error(
        "{}: the layout of weight {tensor} {shape:?} cannot be told from its shape; say \
         `Orientation::OutIn` (PyTorch, y = x·Wᵀ) or `Orientation::InOut` (NumPy, y = x·W)", path.display()
    )]
    AmbiguousOrientation {
        /// The file.
        path: PathBuf,
        /// The tensor's name on disk.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Strict loading found tensors that no rule of the family covers.
    #[error(
        "{}: {} tensor(s) that {family} does not know: {}; load with `Strictness::AllowUnused` to leave them out",
        path.display(), names.len(), abbreviated(names)
    )]
    UnusedTensors {
        /// The file, or the directory of a sharded checkpoint.
        path: PathBuf,
        /// The family whose rules were applied.
        family: String,
        /// The names on disk of these tensors.
        names: Vec<String>,
    },

    /// A sharded checkpoint's index is wrong, or a shard is missing.
    #[error("{}: {reason}", path.display())]
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// What is wrong with which shard, and how to fix it.
        reason: String,
    },

    /// An input does not fit the layer or the checkpoint.
    #[error("{input}: {reason}")]
    InvalidInput {
        /// The input's name, such as `attention_mask`.
        input: String,
        /// What is wrong: what was expected and what was found.
        reason: String,
    },

    /// A fixture contains an invalid tensor.
    #[error("{}: tensor {tensor} {reason}", path.display())]
    InvalidFixture {
        /// The fixture.
        path: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// What is wrong: what was expected and what was found.
        reason: String,
    },

    /// A download from the Hugging Face Hub failed.
    #[error("{repo}: {reason}")]
    Hub {
        /// The repository, as `owner/name@revision`.
        repo: String,
        /// What went wrong, and how to fix it.
        reason: String,
    },

    /// An error from candle itself.
    #[error("{}", without_backtrace(.0))]
    Candle(candle_core::Error),
}

impl Error {
    /// Wraps an I/O error with the path it belongs to.
    pub(crate) fn io(
        path: impl Into<PathBuf>,
        action: &'static str,
        source: std::io::Error,
    ) -> Self {
        Self::Io {
            path: path.into(),
            action,
            cause: source,
        }
    }

    /// For a path that is a directory, a device or a pipe where a safetensors file is expected.
    pub(crate) fn irregular(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        if path.is_dir() {
            return Self::io(path, "read", std::io::ErrorKind::IsADirectory.into());
        }
        Self::NotSafetensors {
            path,
            reason: "it is not a regular file".to_string(),
        }
    }

    /// An [`Error::InvalidInput`] for the named input.
    pub(crate) fn input(input: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidInput {
            input: input.into(),
            reason: reason.into(),
        }
    }
}

// By hand: `#[from]` would make candle's error the source of one whose message already holds it.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => candle_core::Error::wrap(other),
        }
    }
}

/// candle's message without the backtrace that it carries where `RUST_BACKTRACE` is set.
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

/// The first eight names, and how many more there are.
fn abbreviated(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(", and {} more", names.len() - SHOWN));
    }
    text
}
