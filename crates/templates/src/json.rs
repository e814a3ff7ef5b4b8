//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python::{float, is_float, is_object};

/// The arguments to `json.dumps`.
#[derive(Debug)]
pub(super) struct Style {
    pub escapes_beyond_ascii: bool,
    /// The text for each level of indentation; `None` writes one line.
    pub indent: Option<String>,
    pub between_items: String,
    pub after_key: String,
    pub sorts_keys: bool,
}

/// The nesting limit: Python's recursion limit does not let `json.dumps` write deeper values.
const MOST_LEVELS: usize = 900;

/// Returns a value as JSON.
///
/// # Errors
/// If a value has no JSON, such as an undefined one, or keys cannot be sorted.
pub(super) fn json(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value, style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &Style, level: usize) -> Result<(), Error> {
    if level > MOST_LEVELS {
        return Err(failed("a value is nested too deeply for JSON"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter()?.collect();
            group(out, ['[', ']'], &items, style, level, |out, item| {
                write(out, item, style, level + 1)
            })?;
        }
        ValueKind::Map if !is_object(value) => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorts_keys {
                keys.sort();
            }
            group(out, ['{', '}'], &keys, style, level, |out, key| {
                string(out, &key_text(key)?, style);
                out.push_str(&style.after_key);
                write(out, &value.get_item(key)?, style, level + 1)
            })?;
        }
        ValueKind::Undefined => {
            return Err(failed("Object of type Undefined is not JSON serializable"));
        }
        kind => {
            return Err(failed(format!(
                "Object of type {kind} is not JSON serializable"
            )));
        }
    }
    Ok(())
}

/// Writes a list's or an object's items between its brackets.
fn group(
    out: &mut String,
    [open, close]: [char; 2],
    items: &[Value],
    style: &Style,
    level: usize,
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, level: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.between_items);
        }
        line(out, level + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        line(out, level);
    }
    out.push(close);
    Ok(())
}

fn number(value: &Value) -> String {
    match is_float(value) {
        Some(x) if x.is_nan() => "NaN".to_string(),
        Some(x) if x.is_infinite() => (if x > 0.0 { "Infinity" } else { "-Infinity" }).to_string(),
        Some(x) => float(x),
        None => value.to_string(),
    }
}

/// Returns a key's text: `json.dumps` writes numeric keys, booleans and `None` as strings.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None => Ok("null".to_string()),
        ValueKind::Bool => Ok(key.to_string().to_lowercase()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(failed(format!(
            "keys must be str, int, float, bool or None, not {kind}"
        ))),
    }
}

fn string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || (!(' '..='~').contains(&c) && style.escapes_beyond_ascii) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadSerialization, reason.into())
}
