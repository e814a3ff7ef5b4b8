//! Sound: samples from the bytes of a file, and the spectrograms that a model reads.
//!
//! [`Sound`] decodes and resamples. [`LogMel`] computes Whisper's spectrograms, and [`WaveformSettings`] normalizes samples for
//! wav2vec 2.0 and its relatives.

mod decoder;
mod edit_list;
mod log_mel;
mod mel_filters;
mod resampler;
mod waveform;

pub use log_mel::{LogMel, LogMelSettings, Spectrogram};
pub use waveform::{Normalization, WaveformSettings};

use std::path::Path;

use candle_blocks_base::{Error, Result};

/// The longest sound that is read, in hours. At 16,000 samples a second its samples take 0.9 GB, and Whisper's spectrogram
/// 0.5 GB.
pub const MAX_HOURS: u64 = 4;

/// A sound with one channel, at the sampling rate that a model expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Sound {
    /// The samples, from -1 to 1; a lossy format may exceed this range slightly.
    pub samples: Vec<f32>,
    /// The number of samples in a second.
    pub rate: u32,
}

impl Sound {
    /// Reads a WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC) file, at `rate` samples a second.
    ///
    /// The channels are mixed as transformers' `ffmpeg_read` does (ffmpeg's `-ac 1 -f f32le`): a stereo sound becomes the sum of both
    /// channels times √½, and surround sound is weighted by the places of its channels. A sound at another rate is resampled by
    /// rubato's `FftFixedIn`: a band limit by a windowed sinc filter with at least 4,096 taps. In a test, tones below 0.9 times the
    /// new Nyquist frequency keep their samples within 1e-3, and tones above that frequency are attenuated by 60 dB. Samples of
    /// ffmpeg's resampler differ in the order of these values.
    ///
    /// # Errors
    /// The error names the file if it cannot be read, is no sound in one of these formats, is damaged, ends before the number of
    /// samples in its header, contains no samples or a sample that is not finite, or is longer than [`MAX_HOURS`].
    pub fn read(path: &Path, rate: u32) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|cause| Error::io(path, "open", cause))?;
        if !metadata.is_file() {
            return Err(fault(path, "it is not a regular file, expected a sound"));
        }
        if metadata.len() == 0 {
            return Err(fault(path, "it is empty, expected a sound"));
        }
        let file = std::fs::File::open(path).map_err(|cause| Error::io(path, "open", cause))?;
        decoder::decode(Box::new(file), path, rate)
    }

    /// Reads the contents of such a file; `name` is its name in errors.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn from_bytes(bytes: Vec<u8>, name: &Path, rate: u32) -> Result<Self> {
        if bytes.is_empty() {
            return Err(fault(name, "it is empty, expected a sound"));
        }
        decoder::decode(Box::new(std::io::Cursor::new(bytes)), name, rate)
    }

    /// Returns the length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Makes the error for a fault of a sound file.
fn fault(path: &Path, reason: impl Into<String>) -> Error {
    Error::input(path.display().to_string(), reason)
}
