//! The rules for timestamp tokens in Whisper's transcripts: transformers' `WhisperTimeStampLogitsProcessor`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/generation/logits_process.py>

/// The tokens of a speech model that mean times. All tokens from [`Self::first`](TimestampRules::first) on are timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampRules {
    /// `no_timestamps_token_id`, which is never selected; the next token is the first timestamp.
    pub no_timestamps: u32,
    /// The token that ends a sequence. Tokens below it are text.
    pub end: u32,
    /// `max_initial_timestamp_index`: the highest first timestamp, counted from the first one.
    pub max_initial: Option<usize>,
}

impl TimestampRules {
    /// Returns the token for 0 seconds.
    pub fn first(&self) -> u32 {
        self.no_timestamps + 1
    }

    /// Changes the logits of the next token after `new`, the tokens of the transcript so far: timestamps come first, in pairs
    /// between segments, and never decrease. If all timestamps together are more likely than any other token, one of them is
    /// next.
    pub(super) fn apply(&self, new: &[u32], logits: &mut [f32]) {
        let n_tokens = logits.len();
        let first = (self.first() as usize).min(n_tokens);
        let is_time = |token: u32| token >= self.first();
        let mut forbid = |from: usize, to: usize| {
            logits[from.min(n_tokens)..to.min(n_tokens).max(from.min(n_tokens))]
                .fill(f32::NEG_INFINITY);
        };
        forbid(self.no_timestamps as usize, first);
        let last_is_time = new.last().is_some_and(|&token| is_time(token));
        let before_is_time = new.len() < 2 || is_time(new[new.len() - 2]);
        match (last_is_time, before_is_time) {
            (true, true) => forbid(first, n_tokens),
            (true, false) => forbid(0, self.end as usize),
            (false, _) => {}
        }
        if let Some(&last) = new.iter().rev().find(|&&token| is_time(token)) {
            // A segment may begin where the last one ended, but not end where it began.
            let may_repeat = last_is_time && !before_is_time;
            forbid(first, last as usize + usize::from(!may_repeat));
        }
        if new.is_empty() {
            forbid(0, first);
            if let Some(most) = self.max_initial {
                forbid(first.saturating_add(most).saturating_add(1), n_tokens);
            }
        }
        let (texts, times) = logits.split_at_mut(first);
        let largest = |of: &[f32]| of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let most_likely_time = largest(times);
        if most_likely_time == f32::NEG_INFINITY {
            return;
        }
        let sum: f32 = times.iter().map(|x| (x - most_likely_time).exp()).sum();
        if most_likely_time + sum.ln() > largest(texts) {
            texts.fill(f32::NEG_INFINITY);
        }
    }
}
