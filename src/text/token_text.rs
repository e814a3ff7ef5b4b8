//! The text of single tokens, as they have it in the middle of a text.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Decoder;

use super::Tokenizer;
use crate::generate::StopStrings;

/// A text in front of a token, so that the decoder does not take it for the first.
const IN_FRONT: &str = "abcdef";

/// How tokens name bytes that are no characters.
#[derive(Clone, Debug)]
enum Bytes {
    /// By another character for each byte.
    Characters(HashMap<char, u8>),
    /// As `<0xE2>`.
    Names,
    /// Not at all.
    None,
}

impl Tokenizer {
    /// Strings that end a sequence, with the texts of this tokenizer's tokens.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn stop_strings(&self, strings: &[String]) -> crate::Result<StopStrings> {
        let inner = self.inner().clone();
        let bytes = bytes_of(&inner);
        let front = inner.encode_fast(IN_FRONT, false);
        let front = front.map_err(|error| self.fail(error.to_string()))?;
        let front = front.get_ids().iter();
        let front: Vec<String> = front.filter_map(|&id| inner.id_to_token(id)).collect();
        Ok(StopStrings::new(strings, move |id| {
            let Some(token) = inner.id_to_token(id) else {
                return Vec::new();
            };
            named(&token, &bytes).unwrap_or_else(|| decoded(&inner, &front, token))
        }))
    }
}

/// The bytes that a token names.
fn named(token: &str, bytes: &Bytes) -> Option<Vec<u8>> {
    match bytes {
        Bytes::Characters(of) => token.chars().map(|c| of.get(&c).copied()).collect(),
        Bytes::Names => {
            let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
            let byte = (hex.len() == 2).then(|| u8::from_str_radix(hex, 16));
            Some(vec![byte?.ok()?])
        }
        Bytes::None => None,
    }
}

/// The text that the decoder makes of a token behind others.
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

fn bytes_of(inner: &tokenizers::Tokenizer) -> Bytes {
    let decoder = inner
        .get_decoder()
        .and_then(|of| serde_json::to_value(of).ok());
    let decoder = decoder.unwrap_or(Value::Null);
    let is_alone = decoder["type"] == "ByteLevel";
    match () {
        () if !is_alone && has_type(&decoder, "ByteFallback") => Bytes::Names,
        () if has_type(&decoder, "ByteLevel") => Bytes::Characters(characters()),
        () => Bytes::None,
    }
}

/// Whether a decoder, or a part of it, is of this type.
fn has_type(decoder: &Value, name: &str) -> bool {
    match decoder {
        Value::Object(parts) => {
            decoder["type"] == name || parts.values().any(|part| has_type(part, name))
        }
        Value::Array(parts) => parts.iter().any(|part| has_type(part, name)),
        _ => false,
    }
}

/// GPT-2's characters: of a byte that is a visible one, itself, and of the others those from 256 on.
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
    fn bytes_are_named_by_characters_or_numbers() {
        let of = characters();
        assert_eq!(of.len(), 256);
        let named = |token| named(token, &Bytes::Characters(of.clone()));
        assert_eq!(named("Ġhi"), Some(b" hi".to_vec()));
        assert_eq!(named("Ã©"), Some("é".as_bytes().to_vec()));
        assert_eq!(named("漢"), None);
        let hex = |token| super::named(token, &Bytes::Names);
        assert_eq!(hex("<0xE2>"), Some(vec![0xe2]));
        assert_eq!((hex("<0x>"), hex("<s>"), hex("a")), (None, None, None));
    }
}
