//! Parses JSON as Python writes it, with `NaN`, `Infinity` and `-Infinity`, and optionally with a byte-order mark.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The key of the object that transformers writes for a non-finite number: `{"__float__": "Infinity"}`.
const TAG: &str = "__float__";
/// The longest first.
const NOT_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF_16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// Parses `text`. A non-finite number becomes the object that transformers writes for it, which [`not_finite`] recognizes.
///
/// # Errors
/// The reason why it cannot be parsed.
#[doc(hidden)]
pub fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let text = after_mark(text)?;
    serde_json::from_slice(text).or_else(|error| match tagged(text) {
        Cow::Borrowed(_) => Err(error.to_string()),
        Cow::Owned(tagged) => serde_json::from_slice(&tagged).map_err(|error| error.to_string()),
    })
}

/// Returns the text after a byte-order mark, if there is one.
///
/// # Errors
/// If the mark belongs to another encoding than UTF-8.
#[doc(hidden)]
pub fn after_mark(text: &[u8]) -> Result<&[u8], String> {
    if UTF_16_MARKS.iter().any(|mark| text.starts_with(mark)) {
        let reason = "begins with the byte-order mark of UTF-16, expected UTF-8; save it as UTF-8";
        return Err(reason.to_string());
    }
    Ok(text.strip_prefix(UTF_8_MARK).unwrap_or(text))
}

/// Returns the non-finite number that a value represents.
pub(crate) fn not_finite(value: &Value) -> Option<&'static str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let found = object.get(TAG)?.as_str()?;
    NOT_FINITE.into_iter().find(|name| *name == found)
}

/// Returns the text with an object for each non-finite number; strings are unchanged.
fn tagged(text: &[u8]) -> Cow<'_, [u8]> {
    let mut changed = Vec::new();
    let (mut copied, mut at) = (0, 0);
    let mut in_string = false;
    while at < text.len() {
        let number = NOT_FINITE
            .into_iter()
            .find(|name| !in_string && text[at..].starts_with(name.as_bytes()));
        match (text[at], number) {
            (_, Some(name)) => {
                changed.extend(&text[copied..at]);
                changed.extend(json!({ TAG: name }).to_string().into_bytes());
                at += name.len();
                copied = at;
            }
            (b'\\', None) if in_string => at += 2,
            (byte, None) => {
                in_string ^= byte == b'"';
                at += 1;
            }
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    changed.extend(&text[copied..]);
    Cow::Owned(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts from Python's `json.dumps`.
    #[test]
    fn non_finite_values_are_read_and_strings_are_unchanged() {
        let text =
            r#"{"a": NaN, "b": [0.0, Infinity, -Infinity], "NaN": "Infinity \" NaN", "c\\": NaN}"#;
        let value: Value = parsed(text.as_bytes()).unwrap();
        let found = ["/a", "/b/1", "/b/2", "/c\\"].map(|at| not_finite(value.pointer(at).unwrap()));
        assert_eq!(
            found,
            ["NaN", "Infinity", "-Infinity", "NaN"].map(Some),
            "{value}"
        );
        assert_eq!(value["NaN"], "Infinity \" NaN");
        assert_eq!(value["b"][0], 0.0);
    }

    #[test]
    fn a_number_in_transformers_own_form_is_the_same() {
        let (own, python) = (r#"{"a": {"__float__": "NaN"}}"#, r#"{"a": NaN}"#);
        assert_eq!(parsed::<Value>(own.as_bytes()), parsed(python.as_bytes()));
    }

    #[test]
    fn a_byte_order_mark_is_read_over_or_named() {
        assert_eq!(parsed(b"\xef\xbb\xbf{}"), Ok(json!({})));
        let reason = parsed::<Value>(b"\xff\xfe{\0}\0").unwrap_err();
        assert!(reason.contains("UTF-16"), "{reason}");
    }

    #[test]
    fn invalid_json_is_an_error_at_its_place() {
        for text in ["{\"a\": nan}", "{\"a\": Nan}", "NaNs", "{\"a\": \"\\"] {
            let error = serde_json::from_str::<Value>(text).unwrap_err();
            let found = parsed::<Value>(text.as_bytes()).unwrap_err();
            assert!(
                text == "NaNs" || found == error.to_string(),
                "{text}: {found}"
            );
        }
    }
}
