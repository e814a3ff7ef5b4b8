//! Ends a text before the first stop string.

/// Passes text on until a stop string occurs in it, and holds back text that may begin one.
#[derive(Clone, Debug, Default)]
pub(super) struct StopText {
    strings: Vec<String>,
    held: String,
    has_stopped: bool,
}

impl StopText {
    pub fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            strings: strings.cloned().collect(),
            ..Self::default()
        }
    }

    /// Returns whether a stop string has occurred.
    pub fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Returns the text that cannot be part of a stop string.
    pub fn push(&mut self, piece: &str) -> String {
        if self.has_stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let first = self
            .strings
            .iter()
            .filter_map(|string| self.held.find(string))
            .min();
        if let Some(at) = first {
            self.has_stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: &usize| {
            let rest = &self.held[*at..];
            self.strings.iter().any(|string| string.starts_with(rest))
        };
        let characters = self.held.char_indices().map(|(at, _)| at);
        let at = { characters }.find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the text that was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(strings: &[&str], pieces: &[&str]) -> (String, bool) {
        let strings: Vec<String> = strings.iter().map(|s| s.to_string()).collect();
        let mut stop = StopText::new(&strings);
        let mut passed: String = pieces.iter().map(|piece| stop.push(piece)).collect();
        passed.push_str(&stop.finish());
        (passed, stop.has_stopped())
    }

    #[test]
    fn text_ends_before_the_first_string_however_it_is_cut() {
        let text = "One. Two\n\nThrée";
        for strings in [["\n\n", "wo\n\n"], ["wo\n\n", "\n\n"]] {
            for size in 1..8 {
                let characters: Vec<char> = text.chars().collect();
                let pieces: Vec<String> = characters
                    .chunks(size)
                    .map(|piece| piece.iter().collect())
                    .collect();
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                let (passed, stopped) = passed(&strings, &pieces);
                assert!(
                    stopped && ["One. T", "One. Two"].contains(&passed.as_str()),
                    "{passed:?}"
                );
            }
        }
    }

    #[test]
    fn text_without_a_string_passes_whole() {
        assert_eq!(
            passed(&["aab", "é!"], &["aa", "a", "é", "?", "aa"]).0,
            "aaaé?aa"
        );
        assert_eq!(passed(&[], &["a", "b"]), ("ab".to_string(), false));
        assert_eq!(passed(&[""], &["a", "b"]), ("ab".to_string(), false));
    }
}
