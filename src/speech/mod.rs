//! Speech to text: transcripts for audio files, with or without times.
//!
//! A [`Transcriber`] opens Whisper, or a model with a CTC head such as wav2vec 2.0, with its tokenizer and the settings beside it.
//! Transcripts equal transformers' pipeline for speech (`automatic-speech-recognition`).
//!
//! ```no_run
//! use candle_blocks::speech::{SpeechOptions, TimestampKind};
//! let options = SpeechOptions::default().timestamps(TimestampKind::Segment);
//! let transcriber = options.transcriber("whisper-tiny")?;
//! let transcript = transcriber.transcribe_file("talk.mp3")?;
//! println!("{}", transcript.text);
//! for chunk in &transcript.chunks {
//!     println!("{:?}: {}", chunk.timestamp, chunk.text);
//! }
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod alignment;
mod chunks;
mod context;
mod ctc;
mod ctc_vocabulary;
mod dynamic_time_warping;
mod fallback;
mod options;
mod outer_tensors;
mod processor_config;
mod segments;
mod transcriber;
mod transcript;
mod waveform_encoder;
mod whisper;
mod windows;
mod words;

pub use candle_blocks_media::sound::Audio;
pub use context::PromptCondition;
pub use options::{SpeechOptions, TimestampKind};
pub use transcriber::Transcriber;
pub use transcript::{Chunk, Transcript};
