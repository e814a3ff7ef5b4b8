//! Escapes text from a file for a terminal: characters that could hide, forge or reverse a line.

use std::fmt::{self, Display, Write};

/// Displays a value with `\n`, `\u{1b}` and the like in place of such characters.
pub struct Escaped<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0; // where the text begins that is not yet written
        for (at, c) in text.char_indices().filter(|&(_, c)| is_hidden(c)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", c.escape_default())?;
            plain = at + c.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

/// Returns whether a terminal would act on a character instead of showing it: control characters, Unicode's line and
/// paragraph separators, and its directional formatting characters.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
