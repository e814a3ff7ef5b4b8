//! A clip in windows that overlap, for models with a CTC head: transformers' `chunk_iter` and `rescale_stride`
//! (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/automatic_speech_recognition.py>).

use std::ops::Range;

use crate::error::{Error, Result};

/// The length of windows in seconds, and how much of a window is context before and after what it transcribes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WindowOptions {
    pub length: Option<f64>,
    pub context: Option<[f64; 2]>,
}

/// Windows in samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    length: usize,
    context: [usize; 2],
    samples_per_position: usize,
}

/// A window, and the positions of its output that are kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Window {
    pub samples: Range<usize>,
    pub kept: Range<usize>,
}

impl Windows {
    /// Returns the windows for clips of this rate; `None` if clips are read whole.
    ///
    /// # Errors
    /// If there is a context and no length, or a window has nothing but context.
    pub fn of(
        options: &WindowOptions,
        rate: u32,
        samples_per_position: usize,
    ) -> Result<Option<Self>> {
        let refused = |option: &str, reason: String| Err(Error::input(option, reason));
        let Some(seconds) = options.length else {
            return match options.context {
                None => Ok(None),
                Some(_) => refused(
                    "stride_length_s",
                    "clips are read whole; give chunk_length_s too".to_string(),
                ),
            };
        };
        let positions = |seconds: f64| {
            let positions = seconds * f64::from(rate) / samples_per_position as f64;
            positions.round_ties_even() as usize
        };
        let context = options.context.unwrap_or([seconds / 6.0; 2]);
        let all = [seconds, context[0], context[1]];
        let are_times = all.iter().all(|seconds| (0.0..1e6).contains(seconds));
        let [length, before, after] = all.map(positions);
        if !are_times || length <= before + after {
            return refused(
                "chunk_length_s",
                format!(
                    "windows of {seconds} s with contexts of {} and {} s, expected longer windows than both contexts",
                    context[0], context[1]
                ),
            );
        }
        Ok(Some(Self {
            length: length * samples_per_position,
            context: [before, after].map(|n| n * samples_per_position),
            samples_per_position,
        }))
    }

    /// Returns the windows in a clip with `n` samples.
    pub fn in_clip(self, n: usize) -> impl Iterator<Item = Window> {
        let [before, after] = self.context;
        let step = self.length - before - after;
        let n_windows = n.saturating_sub(self.length).div_ceil(step) + 1;
        (0..n_windows).filter_map(move |i| {
            let start = i * step;
            let samples = start..(start + self.length).min(n);
            let before = if i == 0 { 0 } else { before };
            let after = if i + 1 == n_windows { 0 } else { after };
            (samples.len() > before).then(|| Window {
                kept: self.kept(samples.len(), [before, after]),
                samples,
            })
        })
    }

    fn kept(self, n: usize, context: [usize; 2]) -> Range<usize> {
        let rounded = |x: f64| x.round_ties_even() as usize;
        let positions = rounded(n as f64 * (1.0 / self.samples_per_position as f64));
        let of_context = |part: usize| rounded(part as f64 / n as f64 * positions as f64);
        let [before, after] = context.map(of_context);
        before..positions.saturating_sub(after).max(before)
    }
}
