//! Normalized samples for wav2vec 2.0, HuBERT and data2vec, as transformers' `Wav2Vec2FeatureExtractor` computes them.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/wav2vec2/feature_extraction_wav2vec2.py>

/// The keys of `preprocessor_config.json` for samples, with transformers' defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaveformSettings {
    /// `sampling_rate`: samples in a second.
    pub rate: u32,
    /// `do_normalize`.
    pub normalization: Normalization,
}

/// The values that a model reads for a clip's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalization {
    /// The samples themselves.
    None,
    /// Zero mean and unit variance: `(x - mean) / sqrt(variance + 1e-7)`.
    ZeroMeanUnitVariance,
}

impl Default for WaveformSettings {
    fn default() -> Self {
        Self {
            rate: 16_000,
            normalization: Normalization::ZeroMeanUnitVariance,
        }
    }
}

impl WaveformSettings {
    /// Returns the model's input for a clip's samples. Mean and variance are computed in f64.
    pub fn input(&self, samples: &[f32]) -> Vec<f32> {
        if self.normalization == Normalization::None || samples.is_empty() {
            return samples.to_vec();
        }
        let n = samples.len() as f64;
        let mean = samples.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let squares = samples.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / n + 1e-7).sqrt();
        let normalized = |&x: &f32| ((f64::from(x) - mean) / deviation) as f32;
        samples.iter().map(normalized).collect()
    }
}
