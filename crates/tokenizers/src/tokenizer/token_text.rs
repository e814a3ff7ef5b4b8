//! The text of single tokens, as they appear within a text.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Decoder;

use crate::Tokenizer;
use candle_blocks_base::stop_strings::StopStrings;

/// A text before a token, so that the decoder does not treat the token as the first.
const IN_FRONT: &str = "abcdef";

/// How tokens represent bytes that are not characters.
#[derive(Clone, Debug)]
enum ByteTokens {
    /// By another character for each byte.
    Characters(HashMap<char, u8>),
    /// Like `<0xE2>`.
    Names,
    /// Not at all.
    None,
}

impl Tokenizer {
    /// Returns strings that end a sequence, with the texts of this tokenizer's tokens.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn stop_strings(&self, strings: &[String]) -> candle_blocks_base::Result<StopStrings> {
        Arc::new(self.clone()).ending_at(strings)
    }

    /// Returns strings like [`Self::stop_strings`], without a copy of the vocabulary.
    #[doc(hidden)]
    pub fn ending_at(
        self: Arc<Self>,
        strings: &[String],
    ) -> candle_blocks_base::Result<StopStrings> {
        if self.depends_on_next_token() {
            let reason = "the text of its tokens depends on the next one, so stop_strings is not supported; remove it";
            return Err(self.fail(reason));
        }
        let inner = self.inner();
        let bytes = bytes_of(inner);
        let front = inner.encode_fast(IN_FRONT, false);
        let front = front.map_err(|error| self.fail(error.to_string()))?;
        let front = front.get_ids().iter();
        let front: Vec<String> = front.filter_map(|&id| inner.id_to_token(id)).collect();
        Ok(StopStrings::new(strings, move |id| {
            let inner = self.inner();
            if let Some(bytes) = self.bytes_of(id) {
                return bytes;
            }
            let Some(token) = inner.id_to_token(id) else {
                return Vec::new();
            };
            named(&token, &bytes).unwrap_or_else(|| decoded(inner, &front, token))
        }))
    }
}

/// Returns the bytes that a token represents.
fn named(token: &str, bytes: &ByteTokens) -> Option<Vec<u8>> {
    match bytes {
        ByteTokens::Characters(of) => token.chars().map(|c| of.get(&c).copied()).collect(),
        ByteTokens::Names => {
            let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
            let byte = (hex.len() == 2).then(|| u8::from_str_radix(hex, 16));
            Some(vec![byte?.ok()?])
        }
        ByteTokens::None => None,
    }
}

/// Returns the decoder's text for a token after others.
fn decoded(inner: &tokenizers::Tokenizer, front: &[String], token: String) -> Vec<u8> {
    let Some(decoder) = inner.get_decoder() else {
        return format!(" {token}").into_bytes();
    };
    let mut tokens = front.to_vec();
    tokens.push(token.clone());
    let text = decoder.decode(tokens).unwrap_or(token);
    let text = match text.split_once(IN_FRONT) {
        Some((_, text)) => text.to_string(),
        None => text,
    };
    text.into_bytes()
}

fn bytes_of(inner: &tokenizers::Tokenizer) -> ByteTokens {
    let decoder = inner
        .get_decoder()
        .and_then(|of| serde_json::to_value(of).ok());
    let decoder = decoder.unwrap_or(Value::Null);
    let is_alone = decoder["type"] == "ByteLevel";
    match () {
        () if !is_alone && has_type(&decoder, "ByteFallback") => ByteTokens::Names,
        () if has_type(&decoder, "ByteLevel") => ByteTokens::Characters(characters()),
        () => ByteTokens::None,
    }
}

/// Returns whether a decoder, or a part of it, has this type.
fn has_type(decoder: &Value, name: &str) -> bool {
    match decoder {
        Value::Object(parts) => {
            decoder["type"] == name || parts.values().any(|part| has_type(part, name))
        }
        Value::Array(parts) => parts.iter().any(|part| has_type(part, name)),
        _ => false,
    }
}

/// Returns GPT-2's characters: visible bytes represent themselves, all others characters from 256 on.
fn characters() -> HashMap<char, u8> {
    let is_visible = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let visible = (0..=255)
        .filter(is_visible)
        .map(|byte| (char::from(byte), byte));
    let others = (0..=255).filter(|byte| !is_visible(byte));
    let others = (256..).filter_map(char::from_u32).zip(others);
    visible.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_represented_by_characters_or_hexadecimal_names() {
        let of = characters();
        assert_eq!(of.len(), 256);
        let named = |token| named(token, &ByteTokens::Characters(of.clone()));
        assert_eq!(named("Ġhi"), Some(b" hi".to_vec()));
        assert_eq!(named("Ã©"), Some("é".as_bytes().to_vec()));
        assert_eq!(named("漢"), None);
        let hex = |token| super::named(token, &ByteTokens::Names);
        assert_eq!(hex("<0xE2>"), Some(vec![0xe2]));
        assert_eq!((hex("<0x>"), hex("<s>"), hex("a")), (None, None, None));
    }
}
