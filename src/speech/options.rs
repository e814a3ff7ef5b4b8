//! Options for opening a speech model.

use std::path::Path;
use std::str::FromStr;

use candle_core::{DType, Device};

use super::Transcriber;
use crate::config::Precision;
use crate::error::{Error, Result, setters};
use crate::generate::{SpeechRequest, SpeechTask};
use crate::text::WeightForm;
use crate::{Checkpoint, CheckpointOptions, Loader};

/// Options for opening a [`Transcriber`]. By default the files determine everything, transcripts have no times, and the model is
/// packed in f32 for inference on the CPU.
///
/// ```no_run
/// use candle_blocks::generate::SpeechTask;
/// use candle_blocks::speech::SpeechOptions;
/// let options = SpeechOptions::default().language("german").task(SpeechTask::Translate);
/// let transcriber = options.transcriber("whisper-small")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SpeechOptions {
    pub(super) checkpoint: CheckpointOptions,
    form: WeightForm,
    pub(super) request: SpeechRequest,
    pub(super) timestamps: TimestampKind,
    pub(super) beams: Option<usize>,
}

/// The transcript's parts that have times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampKind {
    /// No times.
    #[default]
    None,
    /// A beginning and an end for each segment that the model writes: `return_timestamps=True` in transformers. Only Whisper has
    /// segments.
    Segment,
    /// A beginning and an end for each word, by the model's cross-attention: `return_timestamps="word"` in transformers.
    Word,
}

impl FromStr for TimestampKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "segment" => Ok(Self::Segment),
            "word" => Ok(Self::Word),
            _ => {
                let reason = format!("found {name:?}, expected \"none\", \"segment\" or \"word\"");
                Err(Error::input("timestamps", reason))
            }
        }
    }
}

impl SpeechOptions {
    setters! {
        /// Sets the options for opening the checkpoint.
        checkpoint(options: CheckpointOptions) => checkpoint = options;
        /// Packs the weights for the CPU in this precision.
        precision(precision: Precision) => form = WeightForm::Packed(precision);
        /// Sets which parts in a transcript have times.
        timestamps(timestamps: TimestampKind) => timestamps = timestamps;
        /// Sets how many beams search. Without it, the files set one; if they do not, 5 as in transformers' pipeline.
        beams(beams: usize) => beams = Some(beams);
    }

    /// Sets the language that is spoken, by its name or code. Without it, Whisper detects one for each clip.
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.request = self.request.with_language(language);
        self
    }

    /// Sets the task. Without it, the files set one, and published models transcribe.
    pub fn task(mut self, task: SpeechTask) -> Self {
        self.request = self.request.with_task(task);
        self
    }

    /// Loads the weights unpacked, in this dtype and on this device.
    pub fn device(mut self, dtype: DType, device: &Device) -> Self {
        self.form = WeightForm::Plain(dtype, device.clone());
        self
    }

    /// Opens Whisper, or wav2vec 2.0, HuBERT or data2vec with a CTC head.
    ///
    /// # Errors
    /// If the checkpoint is no speech model with a known way to text, a file is missing or malformed, an option does not fit the
    /// model, or the tokenizer belongs to another model.
    pub fn transcriber(self, path: impl AsRef<Path>) -> Result<Transcriber> {
        Transcriber::with_options(path.as_ref(), &self)
    }

    /// Returns the type and the device in which layers compute.
    pub(super) fn computation(&self) -> (DType, Device) {
        (self.form.dtype(), self.form.device())
    }

    pub(super) fn loader<'c>(&self, checkpoint: &'c Checkpoint) -> Loader<'c> {
        checkpoint.load(self.form.weights())
    }
}
