//! Changes a clip's sampling rate, piece by piece.

use rubato::{FftFixedIn, Resampler as _};

/// How many samples are resampled at once, at least; also the filter's length.
const AT_ONCE: usize = 4096;

/// A clip in progress at its new rate.
pub struct Resampler {
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
    /// Starts a clip.
    ///
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
