//! Triangular filters on Slaney's mel scale, normalized by area: `mel_filter_bank(norm="slaney", mel_scale="slaney")` in transformers.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/audio_utils.py>

/// Above 1,000 Hz, which are 15 mel, the scale is logarithmic: 27 mel for each factor 6.4.
const LINEAR_TO: (f64, f64) = (1000.0, 15.0);

/// A filter's weights for neighboring frequency bins; all other weights are zero.
#[derive(Clone, Debug)]
pub(super) struct MelFilter {
    pub first_bin: usize,
    pub weights: Vec<f64>,
}

impl MelFilter {
    /// Returns `n_mels` filters from 0 to `highest` Hz for a spectrum with `n_bins` frequencies from 0 to half the sampling rate.
    pub fn bank(n_mels: usize, n_bins: usize, highest: f64, rate: u32) -> Vec<Self> {
        let corners = linspace(0.0, mel_of(highest), n_mels + 2);
        let corners: Vec<f64> = corners.into_iter().map(hertz_of).collect();
        // transformers divides the rate as an integer.
        let bins = linspace(0.0, f64::from(rate / 2), n_bins);
        let filter = |corners: &[f64]| {
            let (low, center, high) = (corners[0], corners[1], corners[2]);
            let area = 2.0 / (high - low);
            let weight = |bin: f64| {
                let (up, down) = ((bin - low) / (center - low), (high - bin) / (high - center));
                up.min(down).max(0.0) * area
            };
            let all: Vec<f64> = bins.iter().map(|&bin| weight(bin)).collect();
            let first = all.iter().position(|&w| w > 0.0).unwrap_or(0);
            let end = all
                .iter()
                .rposition(|&w| w > 0.0)
                .map_or(0, |last| last + 1);
            Self {
                first_bin: first,
                weights: all[first..end.max(first)].to_vec(),
            }
        };
        corners.windows(3).map(filter).collect()
    }
}

/// NumPy's `linspace`.
fn linspace(from: f64, to: f64, n: usize) -> Vec<f64> {
    let step = (to - from) / (n - 1) as f64;
    let mut values: Vec<f64> = (0..n).map(|i| from + i as f64 * step).collect();
    values[n - 1] = to;
    values
}

fn mel_of(hertz: f64) -> f64 {
    match hertz >= LINEAR_TO.0 {
        true => LINEAR_TO.1 + (hertz / LINEAR_TO.0).ln() * 27.0 / 6.4f64.ln(),
        false => 3.0 * hertz / 200.0,
    }
}

fn hertz_of(mel: f64) -> f64 {
    match mel >= LINEAR_TO.1 {
        true => LINEAR_TO.0 * ((mel - LINEAR_TO.1) * 6.4f64.ln() / 27.0).exp(),
        false => 200.0 * mel / 3.0,
    }
}
