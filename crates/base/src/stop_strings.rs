//! Strings that end a sequence.

use std::{fmt, sync::Arc};

/// Returns a token's text as bytes; several tokens may make one character.
type TokenText = dyn Fn(u32) -> Vec<u8> + Send + Sync;

/// Strings that end a sequence, as transformers' `stop_strings`: the token that completes one of them is the last, even if
/// its text continues. A string may begin in the prompt.
/// Pass them to `Generator::with_stop_strings`.
#[derive(Clone)]
pub struct StopStrings {
    strings: Vec<Vec<u8>>,
    token: Arc<TokenText>,
}

impl StopStrings {
    /// Takes strings, and a function that returns a token's text within a text.
    pub fn new(strings: &[String], token: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            strings: strings.map(|string| string.as_bytes().to_vec()).collect(),
            token: Arc::new(token),
        }
    }

    /// Returns whether the last of these tokens completes one of the strings.
    pub fn are_completed(&self, tokens: &[u32]) -> bool {
        let Some((&last, before)) = tokens.split_last() else {
            return false;
        };
        let last = (self.token)(last);
        let longest = self.strings.iter().map(Vec::len).max().unwrap_or(0);
        // The end of the text, reversed.
        let mut end: Vec<u8> = last.iter().rev().copied().collect();
        // As in transformers, at most this number of tokens, although some may have no text.
        for &token in before.iter().rev().take(longest.saturating_sub(1)) {
            if end.len() >= last.len() + longest {
                break;
            }
            end.extend((self.token)(token).iter().rev());
        }
        end.reverse();
        let n_last = last.len();
        self.strings.iter().any(|string| {
            let ends = |at: usize| at + string.len() > end.len() - n_last;
            end.windows(string.len())
                .enumerate()
                .any(|(at, part)| part == &string[..] && ends(at))
        })
    }
}

impl fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let strings = self.strings.iter();
        let strings: Vec<_> = strings.map(|s| String::from_utf8_lossy(s)).collect();
        f.debug_struct("StopStrings")
            .field("strings", &strings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_completed_by_the_token_that_it_ends_in() {
        let texts = [
            "st", "op", "stop", "opera", "las", "topper", "", "sto", "pped", "at",
        ];
        let stop = StopStrings::new(&["stop".to_string()], move |token| {
            texts[token as usize].as_bytes().to_vec()
        });
        for completed in [
            &[0, 1][..],
            &[2],
            &[0, 3],
            &[4, 5],
            &[7, 8],
            &[9, 2],
            &[0, 6, 1],
        ] {
            assert!(stop.are_completed(completed), "{completed:?}");
        }
        for not in [&[][..], &[0], &[2, 9], &[0, 3, 9], &[1, 0], &[0, 1, 6]] {
            assert!(!stop.are_completed(not), "{not:?}");
        }
    }
}
