//! A Whisper transcript's words: transformers' `_combine_tokens_into_words`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/tokenization_whisper.py>

use crate::error::Result;
use crate::text::Tokenizer;

/// Languages that are written without spaces.
const WITHOUT_SPACES: [&str; 6] = ["chinese", "japanese", "thai", "lao", "myanmar", "cantonese"];

const BEFORE: &str = "\"'“¡¿([{-";
const AFTER: &str = "\"'.。,，!！?？:：”)]}、";
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// A word, and its tokens by their indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub text: String,
    pub tokens: Vec<usize>,
}

/// Returns the words that tokens `ids` write.
///
/// # Errors
/// If the tokenizer fails.
pub(super) fn words(tokenizer: &Tokenizer, ids: &[u32], language: &str) -> Result<Vec<Word>> {
    let parts = whole_characters(tokenizer, ids)?;
    let words = match WITHOUT_SPACES.contains(&language) {
        true => parts,
        false => joined(parts),
    };
    Ok(with_punctuation(words))
}

/// Returns the tokens in groups whose texts have whole characters.
fn whole_characters(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Vec<Word>> {
    const REPLACEMENT: char = '\u{fffd}';
    let whole: Vec<char> = tokenizer.decode(ids)?.chars().collect();
    let (mut parts, mut first, mut offset) = (Vec::new(), 0, 0);
    for i in 0..ids.len() {
        let text = tokenizer.decode(&ids[first..=i])?;
        let is_done = match text.chars().position(|c| c == REPLACEMENT) {
            None => true,
            Some(at) => whole.get(offset + at).is_none_or(|&c| c == REPLACEMENT),
        };
        if is_done {
            offset += text.chars().count();
            parts.push(Word {
                text,
                tokens: (first..=i).collect(),
            });
            first = i + 1;
        }
    }
    Ok(parts)
}

/// Joins parts that do not begin with a space.
fn joined(parts: Vec<Word>) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    for part in parts {
        // Python's `in` finds an empty string everywhere.
        let is_punctuation = PUNCTUATION.contains(part.text.trim());
        match words.last_mut() {
            Some(last) if !part.text.starts_with(' ') && !is_punctuation => {
                last.text.push_str(&part.text);
                last.tokens.extend(part.tokens);
            }
            _ => words.push(part),
        }
    }
    words
}

/// Joins punctuation to the word after or before it.
fn with_punctuation(mut words: Vec<Word>) -> Vec<Word> {
    let mut after = words.len().saturating_sub(1);
    for i in (0..after).rev() {
        if words[i].text.starts_with(' ') && BEFORE.contains(words[i].text.trim()) {
            let Word {
                mut text,
                mut tokens,
            } = std::mem::take(&mut words[i]);
            text.push_str(&words[after].text);
            tokens.append(&mut words[after].tokens);
            words[after] = Word { text, tokens };
        } else {
            after = i;
        }
    }
    let mut before = 0;
    for j in 1..words.len() {
        if !words[before].text.ends_with(' ') && AFTER.contains(&words[j].text) {
            let Word { text, tokens } = std::mem::take(&mut words[j]);
            words[before].text.push_str(&text);
            words[before].tokens.extend(tokens);
        } else {
            before = j;
        }
    }
    words.retain(|word| !word.tokens.is_empty());
    words
}
