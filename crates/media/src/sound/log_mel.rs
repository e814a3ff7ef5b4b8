//! Whisper's log-mel spectrogram, as transformers' `WhisperFeatureExtractor` computes it.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/feature_extraction_whisper.py>

use std::fmt;
use std::sync::Arc;

use candle_blocks_base::{Error, Result};
use realfft::{RealFftPlanner, RealToComplex};

use super::mel_filters::MelFilter;

/// The mel scale's upper end in Hz, the same for each sampling rate.
const HIGHEST: f64 = 8000.0;

/// The lowest power in a mel band.
const FLOOR: f64 = 1e-10;

/// Bounds for settings, so that a damaged file cannot ask for much memory.
const MAX_FFT: usize = 1 << 16;
const MAX_MELS: usize = 1 << 12;
const MAX_CHUNK: usize = 3600;

/// The keys of `preprocessor_config.json` for [`LogMel`], with transformers' defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMelSettings {
    /// `feature_size`: how many mel bands there are.
    pub n_mels: usize,
    /// `sampling_rate`: samples in a second.
    pub rate: u32,
    /// `hop_length`: samples from frame to frame.
    pub hop: usize,
    /// `chunk_length`: the seconds to which a short clip is padded.
    pub chunk_seconds: usize,
    /// `n_fft`: samples in a frame.
    pub n_fft: usize,
}

impl Default for LogMelSettings {
    fn default() -> Self {
        Self {
            n_mels: 80,
            rate: 16_000,
            hop: 160,
            chunk_seconds: 30,
            n_fft: 400,
        }
    }
}

impl LogMelSettings {
    /// Returns the length in samples to which a short clip is padded.
    pub fn chunk_samples(&self) -> usize {
        self.chunk_seconds * self.rate as usize
    }
}

/// Computes spectrograms: frames of `n_fft` samples, each a Hann window, an FFT, the power in mel bands and its logarithm.
///
/// All steps are computed in f64; the results equal transformers' NumPy implementation within 1e-6, as its own test
/// shows. transformers' PyTorch implementation computes in f32, and differs from both by up to 1e-4 in bands without sound.
#[derive(Clone)]
pub struct LogMel {
    settings: LogMelSettings,
    window: Vec<f64>,
    filters: Vec<MelFilter>,
    fft: Arc<dyn RealToComplex<f64>>,
}

impl fmt::Debug for LogMel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogMel")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A spectrogram `[n_mels, n_frames]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrogram {
    /// All values, the first band first.
    pub values: Vec<f32>,
    /// How many mel bands there are.
    pub n_mels: usize,
    /// How many frames there are.
    pub n_frames: usize,
}

impl LogMel {
    /// Prepares window, filters and FFT.
    ///
    /// # Errors
    /// If a setting is zero or beyond its bound.
    pub fn new(settings: LogMelSettings) -> Result<Self> {
        let LogMelSettings {
            n_mels,
            rate,
            hop,
            chunk_seconds,
            n_fft,
        } = settings;
        let checks = [
            ("feature_size", n_mels, 1, MAX_MELS),
            ("sampling_rate", rate as usize, 1000, 768_000),
            ("hop_length", hop, 1, MAX_FFT),
            ("chunk_length", chunk_seconds, 1, MAX_CHUNK),
            ("n_fft", n_fft, 2, MAX_FFT),
        ];
        for (key, found, least, most) in checks {
            if !(least..=most).contains(&found) {
                let reason = format!("{key} is {found}, expected {least} to {most}");
                return Err(Error::InvalidConfig(reason));
            }
        }
        let angle = |i: usize| std::f64::consts::TAU * i as f64 / n_fft as f64;
        Ok(Self {
            settings,
            window: (0..n_fft).map(|i| 0.5 - 0.5 * angle(i).cos()).collect(),
            filters: MelFilter::bank(n_mels, n_fft / 2 + 1, HIGHEST, rate),
            fft: RealFftPlanner::new().plan_fft_forward(n_fft),
        })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &LogMelSettings {
        &self.settings
    }

    /// Returns a clip's spectrogram. The clip is padded with silence to `chunk_seconds` if it is shorter. A longer clip has a
    /// longer spectrogram: `n_samples / hop` frames.
    ///
    /// # Errors
    /// If a chunk is too short for a frame.
    pub fn spectrogram(&self, samples: &[f32]) -> Result<Spectrogram> {
        let LogMelSettings { hop, n_fft, .. } = self.settings;
        let n_samples = samples.len().max(self.settings.chunk_samples());
        let half = n_fft / 2;
        if n_samples <= half {
            let reason = format!(
                "chunk_length times sampling_rate is {n_samples}, expected more samples than half of n_fft ({half})"
            );
            return Err(Error::InvalidConfig(reason));
        }
        let n_mels = self.filters.len();
        let n_frames = (n_samples + 2 * half - n_fft) / hop;
        let mut values = vec![0f32; n_mels * n_frames];
        let (mut frame, mut spectrum) = (self.fft.make_input_vec(), self.fft.make_output_vec());
        let mut scratch = self.fft.make_scratch_vec();
        let mut power = vec![0f64; spectrum.len()];
        for t in 0..n_frames {
            let from = t * hop;
            for ((value, weight), i) in frame.iter_mut().zip(&self.window).zip(from..) {
                let sample = samples.get(reflected(i, half, n_samples)).copied();
                *value = f64::from(sample.unwrap_or(0.0)) * weight;
            }
            (self.fft)
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch)
                .map_err(|error| Error::InvalidConfig(format!("n_fft is {n_fft}: {error}")))?;
            for (power, value) in power.iter_mut().zip(&spectrum) {
                *power = value.norm_sqr();
            }
            for (band, filter) in self.filters.iter().enumerate() {
                let powers = &power[filter.first_bin..];
                let pairs = filter.weights.iter().zip(powers);
                let sum: f64 = pairs.map(|(weight, power)| weight * power).sum();
                values[band * n_frames + t] = sum.max(FLOOR).log10() as f32;
            }
        }
        let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for value in &mut values {
            *value = (value.max(largest - 8.0) + 4.0) / 4.0;
        }
        Ok(Spectrogram {
            values,
            n_mels,
            n_frames,
        })
    }
}

/// Returns a sample's index, given its index after `half` reflected samples were put before the first and after the last.
fn reflected(i: usize, half: usize, n_samples: usize) -> usize {
    match i.checked_sub(half) {
        None => half - i,
        Some(at) if at < n_samples => at,
        Some(at) => 2 * (n_samples - 1) - at,
    }
}
