//! JSON as Python's `json.dumps` writes it.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The JSON of a value with a space behind each comma and colon, or indented.
pub(super) fn python_json(
    value: &impl Serialize,
    indent: Option<usize>,
) -> serde_json::Result<String> {
    let mut json = Vec::new();
    match indent {
        Some(n) => {
            let indent = " ".repeat(n);
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter))?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced))?,
    }
    Ok(String::from_utf8_lossy(&json).into_owned())
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}
