//! Transcribes audio.

use std::path::Path;

use candle_blocks_media::sound::Audio;

use super::ctc::Ctc;
use super::whisper::Whisper;
use super::{SpeechOptions, Transcript};
use crate::error::{Error, Result};

/// Transcribes clips with Whisper, or with a CTC head on wav2vec 2.0, HuBERT, WavLM or data2vec. It owns its model and tokenizer, and can
/// be shared among threads.
#[derive(Clone, Debug)]
pub struct Transcriber {
    model: SpeechModel,
}

#[derive(Clone, Debug)]
enum SpeechModel {
    Whisper(Box<Whisper>),
    Ctc(Box<Ctc>),
}

impl Transcriber {
    /// Opens a folder, packed in f32 for inference on the CPU. [`SpeechOptions`] has more options.
    ///
    /// # Errors
    /// The errors from [`SpeechOptions::transcriber`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        SpeechOptions::default().transcriber(path)
    }

    pub(super) fn with_options(path: &Path, options: &SpeechOptions) -> Result<Self> {
        let opened = options.checkpoint.clone().whole();
        let checkpoint = opened.clone().open(path)?;
        let model = match Ctc::fits(&checkpoint)? {
            true => {
                let language = Ctc::language(&checkpoint, options)?;
                let checkpoint = match language {
                    Some(language) => opened.adapter(language).open(path)?,
                    None => checkpoint,
                };
                SpeechModel::Ctc(Box::new(Ctc::open(&checkpoint, language, options)?))
            }
            false => SpeechModel::Whisper(Box::new(Whisper::open(&checkpoint, options)?)),
        };
        Ok(Self { model })
    }

    /// Returns notes on settings in the files that nothing follows.
    pub fn notes(&self) -> Vec<String> {
        match &self.model {
            SpeechModel::Whisper(whisper) => whisper.notes(),
            SpeechModel::Ctc(_) => Vec::new(),
        }
    }

    /// Returns how many samples in a second the model reads.
    pub fn rate(&self) -> u32 {
        match &self.model {
            SpeechModel::Whisper(whisper) => whisper.rate(),
            SpeechModel::Ctc(ctc) => ctc.rate(),
        }
    }

    /// Reads an audio file ([`Audio::read`]) and returns its transcript.
    ///
    /// # Errors
    /// If the file cannot be read, or the errors of [`Self::transcribe`].
    pub fn transcribe_file(&self, path: impl AsRef<Path>) -> Result<Transcript> {
        self.transcribe(&Audio::read(path.as_ref(), self.rate())?)
    }

    /// Returns a clip's transcript. Whisper reads one that is longer than its window, 30 seconds, window by window, and each
    /// begins where the last finished segment ended. A model with a CTC head reads a clip as a whole.
    ///
    /// # Errors
    /// If the clip has another rate or no samples, or the model fails.
    pub fn transcribe(&self, audio: &Audio) -> Result<Transcript> {
        if audio.rate != self.rate() || audio.samples.is_empty() {
            let reason = format!(
                "has {} samples at {} samples a second, expected at least one at {}",
                audio.samples.len(),
                audio.rate,
                self.rate()
            );
            return Err(Error::input("audio", reason));
        }
        match &self.model {
            SpeechModel::Whisper(whisper) => whisper.transcribe(&audio.samples),
            SpeechModel::Ctc(ctc) => ctc.transcribe(&audio.samples),
        }
    }
}
