//! A window's segments: the tokens from transformers' `WhisperGenerationMixin._retrieve_segment`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/generation_whisper.py>

use std::ops::Range;

/// Spectrogram frames for each timestamp step: the encoder's strides.
pub(super) const INPUT_STRIDE: usize = 2;

/// The kept part in a window's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The segments that are kept, which follow each other from the first token on.
    pub segments: Vec<Range<usize>>,
    /// How many frames there are from this window's beginning to the next one's.
    pub n_frames: usize,
}

impl Kept {
    /// Returns the tokens that are kept, as a range.
    pub fn tokens(&self) -> Range<usize> {
        0..self.segments.last().map_or(0, |last| last.end)
    }
}

/// Returns the segments that are kept in a window with `n_frames` frames. If the window ends with an unfinished segment, its tokens
/// are left out, and the next window begins at its beginning.
pub(super) fn kept(tokens: &[u32], first_timestamp: u32, n_frames: usize) -> Kept {
    let is_time = |token: u32| token >= first_timestamp;
    // Each segment begins with the second of two times.
    let begins = (1..tokens.len()).filter(|&i| is_time(tokens[i - 1]) && is_time(tokens[i]));
    let mut ends: Vec<usize> = begins.collect();
    let ends_with_one_time = match tokens {
        [.., before, last] => !is_time(*before) && is_time(*last),
        _ => false,
    };
    let mut seconds = 0;
    match ends.last_mut() {
        Some(end) if !ends_with_one_time => {
            seconds = (tokens[*end - 1] - first_timestamp) as usize * INPUT_STRIDE;
            *end += 1;
        }
        _ => ends.push(tokens.len()),
    }
    let begins = std::iter::once(0).chain(ends.iter().copied());
    Kept {
        segments: begins.zip(&ends).map(|(from, &to)| from..to).collect(),
        // transformers would read the same window again and again.
        n_frames: if seconds == 0 { n_frames } else { seconds },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_segment_is_left_to_the_next_window() {
        let first = 100;
        for (tokens, n_kept, n_frames) in [
            (vec![], 0, 3000),
            (vec![1, 2], 2, 3000),
            (vec![100, 1, 110], 3, 3000),
            (vec![100, 1, 110, 110, 2, 3], 4, 20),
            (vec![100, 1, 110, 110, 2, 120], 6, 3000),
            (vec![100, 1, 110, 110, 2, 120, 121], 7, 40),
            (vec![100, 1, 110, 110], 4, 20),
            (vec![100, 100, 4], 2, 3000),
        ] {
            let found = kept(&tokens, first, 3000);
            let expected = (0..n_kept, n_frames);
            assert_eq!((found.tokens(), found.n_frames), expected, "{tokens:?}");
        }
    }
}
