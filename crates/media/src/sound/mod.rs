//! Audio: samples from a file's bytes, and the spectrograms that a model reads.
//!
//! [`Audio`] decodes and resamples. [`LogMel`] computes Whisper's spectrograms, and [`WaveformSettings`] normalizes samples for
//! wav2vec 2.0 and its relatives.

mod decoder;
mod edit_list;
mod log_mel;
mod mel_filters;
mod resampler;
mod waveform;
mod zero_rate;

pub use log_mel::{LogMel, LogMelSettings, Spectrogram};
#[doc(hidden)]
pub use resampler::Resampler;
pub use waveform::{Normalization, WaveformSettings};

use std::path::Path;

use candle_blocks_base::{Error, Result};

/// The longest clip that is read, in hours. At 16,000 samples a second its samples take 0.9 GB, and Whisper's spectrogram
/// 0.5 GB.
pub const MAX_HOURS: u64 = 4;

/// A clip with one channel, at the sampling rate that a model expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// The samples, from -1 to 1; a lossy format may exceed this range slightly.
    pub samples: Vec<f32>,
    /// Samples in a second.
    pub rate: u32,
}

impl Audio {
    /// Reads a WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC) file, at `rate` samples a second.
    ///
    /// The channels are mixed as transformers' `ffmpeg_read` does (ffmpeg's `-ac 1 -f f32le`): a stereo clip becomes √½
    /// times both channels' sum, and surround channels are weighted by their places. A clip at another rate is resampled by
    /// rubato's `FftFixedIn`: a band limit by a windowed sinc filter with at least 4,096 taps. In a test, tones below 0.9 times the
    /// new Nyquist frequency keep their samples within 1e-3, and tones above that frequency are attenuated by 60 dB. Samples from
    /// ffmpeg's resampler differ by about as much.
    ///
    /// # Errors
    /// The error names the file if it cannot be read, is not audio in these formats, is damaged, ends before the length in
    /// its header, contains no samples or a sample that is not finite, or is longer than [`MAX_HOURS`].
    pub fn read(path: &Path, rate: u32) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|cause| Error::io(path, "open", cause))?;
        if !metadata.is_file() {
            return Err(fault(path, "it is not a regular file, expected audio"));
        }
        if metadata.len() == 0 {
            return Err(fault(path, "it is empty, expected audio"));
        }
        let file = std::fs::File::open(path).map_err(|cause| Error::io(path, "open", cause))?;
        decoder::decode(Box::new(file), path, rate)
    }

    /// Reads such a file's contents; `name` is its name in errors.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn from_bytes(bytes: Vec<u8>, name: &Path, rate: u32) -> Result<Self> {
        if bytes.is_empty() {
            return Err(fault(name, "it is empty, expected audio"));
        }
        decoder::decode(Box::new(std::io::Cursor::new(bytes)), name, rate)
    }

    /// Returns the length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Makes the error for an audio file's fault.
fn fault(path: &Path, reason: impl Into<String>) -> Error {
    Error::input(path.display().to_string(), reason)
}
