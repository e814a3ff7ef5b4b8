//! Changes a clip's sampling rate, piece by piece.

use rubato::{FftFixedIn, Resampler as _};

/// How many samples are resampled at once, at least; also the filter's length.
const AT_ONCE: usize = 4096;

/// A clip in progress at its new rate.
pub(super) struct Resampler {
    fft: Option<FftFixedIn<f32>>,
    rates: (u32, u32),
    /// Samples that do not fill a step yet.
    pending: Vec<f32>,
    n_read: u64,
    /// How many output samples to drop: the filter's delay.
    n_delayed: usize,
    output: Vec<f32>,
}

impl Resampler {
    /// # Errors
    /// If rubato refuses the rates.
    pub fn new(from: u32, to: u32) -> Result<Self, String> {
        let fft = match from == to {
            true => None,
            false => {
                // An even number of periods: the filter's delay is then a whole number of samples.
                let step = 2 * (from / greatest_common_divisor(from, to)) as usize;
                let at_once = AT_ONCE.next_multiple_of(step);
                let fft = FftFixedIn::new(from as usize, to as usize, at_once, 1, 1);
                Some(fft.map_err(|error| error.to_string())?)
            }
        };
        Ok(Self {
            n_delayed: fft.as_ref().map_or(0, |fft| fft.output_delay()),
            fft,
            rates: (from, to),
            pending: Vec::new(),
            n_read: 0,
            output: Vec::new(),
        })
    }

    /// Adds samples at the old rate.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), String> {
        self.n_read += samples.len() as u64;
        if self.fft.is_none() {
            self.output.extend_from_slice(samples);
            return Ok(());
        }
        self.pending.extend_from_slice(samples);
        self.resample()
    }

    /// Resamples the pending samples, except the last that do not fill a step.
    fn resample(&mut self) -> Result<(), String> {
        let Some(fft) = &mut self.fft else {
            return Ok(());
        };
        let mut done = 0;
        while self.pending.len() - done >= fft.input_frames_next() {
            let step = &self.pending[done..done + fft.input_frames_next()];
            let made = fft
                .process(&[step], None)
                .map_err(|error| error.to_string())?;
            let dropped = self.n_delayed.min(made[0].len());
            self.n_delayed -= dropped;
            self.output.extend_from_slice(&made[0][dropped..]);
            done += step.len();
        }
        self.pending.drain(..done);
        Ok(())
    }

    /// Returns all samples at the new rate: as many as the old ones times the rates' ratio, rounded up.
    pub fn finish(mut self) -> Result<Vec<f32>, String> {
        let n = (self.n_read * u64::from(self.rates.1)).div_ceil(u64::from(self.rates.0)) as usize;
        while self.output.len() < n {
            let Some(fft) = &self.fft else {
                break;
            };
            // Silence after the end moves the last samples through the filter.
            let filled = self
                .pending
                .len()
                .max(1)
                .next_multiple_of(fft.input_frames_next());
            self.pending.resize(filled, 0.0);
            self.resample()?;
        }
        self.output.truncate(n);
        Ok(self.output)
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(frequency: f64, rate: u32, n: usize) -> Vec<f32> {
        let angle = |i: usize| i as f64 * frequency * std::f64::consts::TAU / f64::from(rate);
        (0..n).map(|i| (0.5 * angle(i).sin()) as f32).collect()
    }

    /// Returns a resampled tone, one second long, pushed in uneven pieces.
    fn resampled(frequency: f64, from: u32, to: u32) -> Vec<f32> {
        let mut resampler = Resampler::new(from, to).unwrap();
        for piece in tone(frequency, from, from as usize).chunks(1153) {
            resampler.push(piece).unwrap();
        }
        resampler.finish().unwrap()
    }

    #[test]
    fn tones_below_the_band_limit_keep_their_samples() {
        for from in [8000, 11025, 22050, 32000, 44100, 48000, 96000, 44101] {
            let to = 16000;
            let limit = 0.9 * f64::from(from.min(to)) / 2.0;
            for frequency in [50.0, 440.0, 1234.5, limit] {
                let (made, expected) = (
                    resampled(frequency, from, to),
                    tone(frequency, to, to as usize),
                );
                assert_eq!(made.len(), expected.len(), "{from}");
                // The filter reads silence before the beginning and after the end.
                let inner = 3000..13000;
                let pairs = made[inner.clone()].iter().zip(&expected[inner]);
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-3, "{frequency} Hz from {from}: {worst}");
            }
        }
    }

    #[test]
    fn tones_above_the_band_limit_are_attenuated_by_60_db() {
        for (frequency, from) in [(8200.0, 22050), (10000.0, 44100), (20000.0, 48000)] {
            let made = resampled(frequency, from, 16000);
            let loudest = made[3000..13000].iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!(loudest < 0.5e-3, "{frequency} Hz from {from}: {loudest}");
        }
    }

    #[test]
    fn audio_has_the_length_that_the_ratio_gives() {
        for n in [0, 1, 2, 440, 441, 442, 4095, 4096, 4097, 100_003] {
            let mut resampler = Resampler::new(44100, 16000).unwrap();
            resampler.push(&vec![0.25; n]).unwrap();
            let expected = (n * 16000).div_ceil(44100);
            assert_eq!(resampler.finish().unwrap().len(), expected, "{n}");
        }
    }
}
