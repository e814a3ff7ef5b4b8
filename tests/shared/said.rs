//! Words in errors.

use std::fmt::Display;

/// Asserts that a text contains all these words.
#[track_caller]
pub fn assert_says(text: impl Display, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}
