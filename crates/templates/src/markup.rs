//! Jinja2's filters for web pages, `striptags`, `urlencode` and `xmlattr`, and the escapes that all markup takes.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::arguments::Arguments;
use super::python::{is_object, text};
use super::strings::is_space;
use super::{failed, unsupported};

/// The character references that are resolved, besides those by number.
const REFERENCES: [(&str, char); 8] = [
    ("amp;", '&'),
    ("lt;", '<'),
    ("gt;", '>'),
    ("quot;", '"'),
    ("apos;", '\''),
    ("nbsp;", '\u{a0}'),
    ("copy;", '©'),
    ("hellip;", '…'),
];

/// Removes tags and comments, and writes one space for each run of white space.
pub(super) fn striptags(value: &Value, args: &[Value]) -> Result<Value, Error> {
    Arguments::new("striptags", args, &[])?;
    let whole = text(value);
    let (mut kept, mut rest) = (String::new(), &whole[..]);
    while let Some((before, tag)) = rest.split_once('<') {
        let found = match tag.strip_prefix("!--") {
            Some(comment) => comment.split_once("-->"),
            None => tag.split_once('>'),
        };
        let Some((_, after)) = found else { break };
        kept += before;
        rest = after;
    }
    kept += rest;
    let words = kept.split(is_space).filter(|word| !word.is_empty());
    Ok(resolved(&words.collect::<Vec<_>>().join(" "))?.into())
}

/// Resolves character references.
fn resolved(text: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out += before;
        let ends = |c: char| "\t\n\x0c <&#;".contains(c);
        let known = |(name, c): &(&str, char)| Some((*c, after.strip_prefix(name)?));
        if let Some((c, after)) = REFERENCES.iter().find_map(known) {
            out.push(c);
            rest = after;
        } else if after.starts_with('#') || after.find(ends).unwrap_or(after.len()) > 1 {
            let name: String = after.chars().take(8).collect();
            return Err(unsupported(format!(
                "striptags() of the character reference at \"&{name}\""
            )));
        } else {
            out.push('&');
            rest = after;
        }
    }
    Ok(out + rest)
}

/// Quotes a text for an address, or pairs for its query.
pub(super) fn urlencode(value: &Value, args: &[Value]) -> Result<Value, Error> {
    Arguments::new("urlencode", args, &[])?;
    let quoted = |value: &Value| quoted(&text(value), "").replace("%20", "+");
    let pairs: Vec<(Value, Value)> = match value.kind() {
        _ if is_object(value) => {
            return Err(unsupported("urlencode() of a namespace, a loop or a macro"));
        }
        ValueKind::Map => value
            .try_iter()?
            .map(|key| Ok((key.clone(), value.get_item(&key)?)))
            .collect::<Result<_, Error>>()?,
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Undefined => value
            .try_iter()?
            .map(|pair| match &pair.try_iter()?.collect::<Vec<_>>()[..] {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(failed("urlencode() of items that are no pairs")),
            })
            .collect::<Result<_, Error>>()?,
        _ => return Ok(self::quoted(&text(value), "/").into()),
    };
    let pairs = pairs.iter();
    let pairs: Vec<String> = pairs
        .map(|(key, value)| format!("{}={}", quoted(key), quoted(value)))
        .collect();
    Ok(pairs.join("&").into())
}

fn quoted(text: &str, safe: &str) -> String {
    let mut out = String::new();
    for &byte in text.as_bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            true => out.push(c),
            false => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Writes a mapping as attributes of XML, without those that are none or undefined.
pub(super) fn xmlattr(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("xmlattr", args, &["autospace"])?;
    if value.kind() != ValueKind::Map || is_object(value) {
        return Err(failed("xmlattr() of a value that is no mapping"));
    }
    let written = |value: &Value| match value.is_safe() {
        true => text(value),
        false => escaped(&text(value)),
    };
    let mut all = String::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = key
            .as_str()
            .ok_or_else(|| failed("xmlattr() of a key that is no string"))?;
        if name.contains(|c: char| "/>= \t\n\r\u{b}\u{c}".contains(c)) {
            return Err(failed(format!(
                "Invalid character in attribute name: {name:?}"
            )));
        }
        all += &format!(" {}=\"{}\"", written(&key), written(&item));
    }
    match arguments.is_not_false(0, "autospace") {
        true => Ok(all.into()),
        false => Ok(all.trim_start_matches(' ').into()),
    }
}

/// Escapes as MarkupSafe does.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}
