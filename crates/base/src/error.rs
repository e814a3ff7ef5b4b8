//! The crate's error type: every variant names the culprit (file, tensor, key), the expected value,
//! the value found, and the cure.
//!
//! Layers return [`candle_core::Result`], like other candle code; functions that read
//! files or configurations return [`Result`]. `?` converts in both directions.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

pub mod escape;
mod message;

pub use message::{abbreviated, listed};

/// A `Result` with this crate's [`enum@Error`].
///
/// Layers return [`candle_core::Result`] instead; `?` converts between the two in both directions.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors in a user's files, configuration or input. The message names the expected value, the value found, and the
/// cure.
///
/// `Debug` prints the same message, which `main() -> Result<()>` and `unwrap` show.
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a path.
    Io {
        /// The path concerned.
        path: PathBuf,
        /// The attempted operation, as a verb: "open", "read", "write".
        action: &'static str,
        /// The system's own error. (Not called `source`: the message holds it, and would be followed by it.)
        cause: std::io::Error,
    },

    /// There is not enough memory to load a file, or for a pass.
    OutOfMemory {
        /// The file, or the directory of a sharded checkpoint; empty for a pass, and if the data was in memory already.
        path: PathBuf,
        /// The number of bytes needed, for the whole load if that is known beforehand, or for a part.
        needed: u64,
        /// The number of bytes allowed, if known.
        allowed: Option<u64>,
        /// The limit that was reached.
        limit: String,
    },

    /// A directory contains no weights, or several files without a clear choice.
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// The contents found instead, and the cure.
        reason: String,
    },

    /// A file is not a valid safetensors file.
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// A file that PyTorch or NumPy wrote is damaged, or holds more than tensors.
    UnreadableWeights {
        /// The file.
        path: PathBuf,
        /// The format, such as "a PyTorch file".
        format: &'static str,
        /// The fault, and the cure.
        reason: String,
    },

    /// A GGUF file is damaged, is one of several parts that are not all there, or has contents that are not supported.
    NotGguf {
        /// The file.
        path: PathBuf,
        /// The fault, and the cure.
        reason: String,
    },

    /// A JSON file cannot be parsed.
    MalformedJson {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// A file that should be JSON of a certain form has another form, is too large, or is not a regular file.
    UnexpectedJson {
        /// The file.
        path: PathBuf,
        /// The expected form, and the cure.
        reason: String,
    },

    /// No `config.json` was found beside the weights.
    MissingConfig {
        /// The path at which it was expected.
        path: PathBuf,
    },

    /// A key of `config.json` is missing or has an unusable value.
    ConfigKey {
        /// The configuration file.
        path: PathBuf,
        /// The key, or the aliases tried, as `"a" or "b"`.
        key: String,
        /// The fault, and the expected value.
        reason: String,
    },

    /// `model_type` names a family that the crate does not know.
    UnknownFamily {
        /// The configuration file.
        path: PathBuf,
        /// The `model_type` found.
        model_type: String,
        /// The feature that this model type of transformers needs and the crate lacks, as in "has state-space layers .."; `None`
        /// if transformers does not have the type.
        lacks: Option<&'static str>,
        /// The known names nearest to it.
        nearest: Vec<String>,
    },

    /// An activation name that the crate does not know.
    UnknownActivation {
        /// The name found.
        name: String,
        /// Every known name.
        known: Vec<String>,
    },

    /// A tokenizer is missing, malformed, or another model's.
    Tokenizer {
        /// The `tokenizer.json`.
        path: PathBuf,
        /// The fault, and the cure.
        reason: String,
    },

    /// One of several texts cannot be read.
    Text {
        /// Its index.
        index: usize,
        /// The fault, and the cure.
        reason: String,
    },

    /// A configuration from which no layer can be built.
    InvalidConfig(String),

    /// A tensor that the checkpoint must contain is missing.
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

    /// A GGUF file's tensors do not fit its keys.
    FileKeys {
        /// The error about the tensors.
        error: Box<Error>,
        /// The keys that the tensors depend on, with their values.
        keys: Vec<String>,
    },

    /// A tensor is stored in a dtype that cannot be used as a weight.
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The tensor's name on disk.
        tensor: String,
        /// The dtype in the file.
        found: String,
    },

    /// The orientation of a weight is unknown: its shape fits both.
    AmbiguousOrientation {
        /// The file.
        path: PathBuf,
        /// The tensor's name on disk.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Strict loading found tensors that no rule of the family covers.
    UnusedTensors {
        /// The file, or the directory of a sharded checkpoint.
        path: PathBuf,
        /// The family whose rules were applied.
        family: String,
        /// The names on disk of these tensors.
        names: Vec<String>,
    },

    /// A sharded checkpoint's index is wrong, or a shard is missing.
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// The shard, its fault, and the cure.
        reason: String,
    },

    /// An input does not fit the layer or the checkpoint.
    InvalidInput {
        /// The input's name, such as `attention_mask`.
        input: String,
        /// The fault: the expected value and the value found.
        reason: String,
    },

    /// A fixture contains an invalid tensor.
    InvalidFixture {
        /// The fixture.
        path: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// The fault: the expected value and the value found.
        reason: String,
    },

    /// A download from the Hugging Face Hub failed.
    Hub {
        /// The repository, as `owner/name@revision`.
        repo: String,
        /// The fault, and the cure.
        reason: String,
    },

    /// An error from candle itself.
    Candle(candle_core::Error),
}

impl Error {
    /// Wraps an I/O error with the path it belongs to.
    #[doc(hidden)]
    pub fn io(path: impl Into<PathBuf>, action: &'static str, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            action,
            cause: source,
        }
    }

    /// Adds the file's path to a configuration error.
    #[doc(hidden)]
    pub fn located(self, path: &Path) -> Self {
        match self {
            Self::InvalidConfig(reason) => {
                Self::InvalidConfig(format!("{}: {reason}", path.display()))
            }
            other => other,
        }
    }

    /// Makes the error for a path that is a directory, a device or a pipe instead of a safetensors file.
    #[doc(hidden)]
    pub fn irregular(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        if path.is_dir() {
            return Self::io(path, "read", std::io::ErrorKind::IsADirectory.into());
        }
        Self::NotSafetensors {
            path,
            reason: "it is not a regular file".to_string(),
        }
    }

    /// Makes an [`Error::NotSafetensors`] for a damaged file.
    #[doc(hidden)]
    pub fn damaged(path: impl Into<PathBuf>, reason: impl Display) -> Self {
        Self::NotSafetensors {
            path: path.into(),
            reason: format!("{reason}; download or export it again"),
        }
    }

    /// Makes an [`Error::InvalidInput`] for the named input.
    #[doc(hidden)]
    pub fn input(input: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidInput {
            input: input.into(),
            reason: reason.into(),
        }
    }
}

// Without a source: the message holds it.
impl std::error::Error for Error {}

/// Takes out the error of this crate that `?` put into candle's; any other is [`Error::Candle`].
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match error {
            candle_core::Error::Io(carrier) => match carrier.downcast::<Self>() {
                Ok(own) => own,
                Err(carrier) => Self::Candle(candle_core::Error::Io(carrier)),
            },
            candle_core::Error::WithBacktrace { inner, backtrace } => match Self::from(*inner) {
                Self::Candle(inner) => Self::Candle(candle_core::Error::WithBacktrace {
                    inner: Box::new(inner),
                    backtrace,
                }),
                own => own,
            },
            other => Self::Candle(other),
        }
    }
}

/// Wraps the error in an [`io::Error`](std::io::Error), the only candle variant that returns it.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => std::io::Error::other(other).into(),
        }
    }
}
