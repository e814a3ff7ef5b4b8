//! Options for opening a speech model.

use std::path::Path;

use candle_core::{DType, Device};

use super::windows::WindowOptions;
use super::{PromptCondition, Transcriber};
use crate::config::Precision;
use crate::error::{Result, from_name, setters};
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
    pub(super) decoding: DecodingOptions,
    pub(super) windows: WindowOptions,
}

/// The settings for decoding Whisper's windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DecodingOptions {
    pub(super) temperatures: Option<Vec<f64>>,
    pub(super) compression_ratio_threshold: Option<f64>,
    pub(super) logprob_threshold: Option<f64>,
    pub(super) no_speech_threshold: Option<f64>,
    pub(super) condition_on_prev_tokens: Option<bool>,
    pub(super) prompt: Option<String>,
    pub(super) prompt_condition: PromptCondition,
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

from_name!(TimestampKind, "timestamps",
    "none" => Self::None,
    "segment" => Self::Segment,
    "word" => Self::Word,
);

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
        /// Sets the temperatures for decoding a Whisper window: the first, and one after another while a threshold below is passed.
        /// At 0 the most likely tokens are searched, above it tokens are sampled, always the same for the same window. Without
        /// this, 0 alone: transformers' `temperature`, for which OpenAI takes 0, 0.2, 0.4, 0.6, 0.8 and 1.
        temperatures(temperatures: impl Into<Vec<f64>>) => decoding.temperatures = Some(temperatures.into());
        /// Decodes a window again whose tokens zlib makes smaller by more than this factor: `compression_ratio_threshold` in
        /// transformers (1.35), and by default in the files. Ratios above 1 are zlib's within 5 %.
        compression_ratio_threshold(ratio: f64) => decoding.compression_ratio_threshold = Some(ratio);
        /// Decodes a window again whose tokens' mean log probability is below this: `logprob_threshold` in transformers (-1), and by
        /// default in the files.
        logprob_threshold(mean: f64) => decoding.logprob_threshold = Some(mean);
        /// Leaves out a window below the threshold for log probabilities whose probability of silence is above this:
        /// `no_speech_threshold` in transformers (0.6), and by default in the files.
        no_speech_threshold(probability: f64) => decoding.no_speech_threshold = Some(probability);
        /// Lets each window of a long clip read the text of the windows before it, or not: `condition_on_prev_tokens` in
        /// transformers, and by default in the files. A window that was sampled at 0.5 or above is not read.
        condition_on_prev_tokens(reads: bool) => decoding.condition_on_prev_tokens = Some(reads);
        /// Sets a text that seems to precede the clip, such as names in it: `prompt_ids` in transformers.
        prompt(text: impl Into<String>) => decoding.prompt = Some(text.into());
        /// Divides clips into windows of this length for a model with a CTC head, so that memory does not grow with their length:
        /// `chunk_length_s` in transformers.
        chunk_length_s(seconds: f64) => windows.length = Some(seconds);
        /// Sets how many seconds at the beginning and the end of such a window are context for what is between, instead of a
        /// sixth of the window each: `stride_length_s` in transformers.
        stride_length_s(seconds: [f64; 2]) => windows.context = Some(seconds);
        /// Sets which windows the prompt precedes, if they read earlier text.
        prompt_condition(condition: PromptCondition) => decoding.prompt_condition = condition;
    }

    /// Sets the language that is spoken, by its name or code. Without it, Whisper detects one for each clip. For a model with an
    /// adapter for each language (MMS), this is an adapter's name, `target_lang` in transformers.
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

    /// Opens Whisper, or wav2vec 2.0, HuBERT, WavLM or data2vec with a CTC head.
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
