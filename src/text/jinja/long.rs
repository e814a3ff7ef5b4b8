//! Jinja2's filters that cut and fill long texts: `format`, `truncate`, `wordwrap` and `xmlattr`.

use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

use super::arguments::Arguments;
use super::filters::escaped;
use super::operators::percent;
use super::python::{is_object, text};
use super::strings::{is_space, lines};
use super::{failed, unsupported};

/// Formats like Python's `%`, with arguments by position or by name.
pub(super) fn format(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = match args {
        [named] if named.is_kwargs() => {
            let names: Vec<Value> = named.try_iter()?.collect();
            let item = |name: Value| Ok((name.clone(), named.get_item(&name)?));
            let pairs = names.into_iter().map(item);
            Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        [.., last] if last.is_kwargs() => {
            return Err(failed(
                "format() takes arguments by position or by name, not both",
            ));
        }
        args => Value::from(Tuple::from(args.to_vec())),
    };
    percent(&plain(value, "format")?.into(), &arguments)
}

/// Cuts a text that is longer than a length, at a word's end unless `killwords` is set.
pub(super) fn truncate(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("truncate", args, &["length", "killwords", "end", "leeway"])?;
    let whole = plain(value, "truncate")?;
    let length = arguments.integer(0, "length")?.unwrap_or(255);
    let end = arguments
        .text(2, "end")?
        .unwrap_or_else(|| "...".to_string());
    let leeway = arguments.integer(3, "leeway")?.unwrap_or(5);
    let n_kept = usize::try_from(length)
        .ok()
        .and_then(|n| n.checked_sub(end.chars().count()));
    let (Some(n_kept), 0..) = (n_kept, leeway) else {
        return Err(failed(
            "truncate() needs a length from that of the end, and a leeway from 0",
        ));
    };
    if whole.chars().count() as i128 <= i128::from(length) + i128::from(leeway) {
        return Ok(value.clone());
    }
    let kept: String = whole.chars().take(n_kept).collect();
    let kept = match arguments.is_true(1, "killwords") {
        true => &kept[..],
        false => kept.rsplit_once(' ').map_or(&kept[..], |(words, _)| words),
    };
    Ok(format!("{kept}{end}").into())
}

/// Breaks lines at a width: Python's `textwrap.wrap` for each line.
pub(super) fn wordwrap(value: &Value, args: &[Value]) -> Result<Value, Error> {
    const NAMES: [&str; 4] = [
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ];
    let arguments = Arguments::new("wordwrap", args, &NAMES)?;
    let whole = plain(value, "wordwrap")?;
    let width = arguments.integer(0, "width")?.unwrap_or(79);
    let Some(width) = usize::try_from(width).ok().filter(|&width| width > 0) else {
        return Err(failed(format!("invalid width {width} (must be > 0)")));
    };
    let breaks_words = arguments.is_not_false(1, "break_long_words");
    if arguments.is_not_false(3, "break_on_hyphens") && whole.contains('-') {
        return Err(unsupported(
            "wordwrap() of a text with hyphens, unless break_on_hyphens is false,",
        ));
    }
    let between = arguments
        .text(2, "wrapstring")?
        .unwrap_or_else(|| "\n".to_string());
    let lines = lines(&whole, false).into_iter();
    let wrapped = lines.map(|line| wrap(line, width, breaks_words).join(&between));
    Ok(wrapped.collect::<Vec<_>>().join(&between).into())
}

fn wrap(line: &str, width: usize, breaks_words: bool) -> Vec<String> {
    let is_between = |c: char| "\t\n\u{b}\u{c}\r ".contains(c);
    let is_blank = |piece: &[char]| piece.iter().all(|&c| is_space(c));
    let letters: Vec<char> = line.chars().collect();
    let pieces = letters.chunk_by(|&a, &b| is_between(a) == is_between(b));
    let mut pieces: Vec<&[char]> = pieces.collect();
    pieces.reverse();
    let mut lines: Vec<String> = Vec::new();
    while !pieces.is_empty() {
        if !lines.is_empty() {
            pieces.pop_if(|piece| is_blank(piece));
        }
        let mut now: Vec<&[char]> = Vec::new();
        let mut length = 0;
        while let Some(piece) = pieces.pop_if(|piece| length + piece.len() <= width) {
            length += piece.len();
            now.push(piece);
        }
        if let Some(piece) = pieces.last_mut().filter(|piece| piece.len() > width) {
            if breaks_words {
                let (first, rest) = piece.split_at(width - length);
                now.push(first);
                *piece = rest;
            } else if now.is_empty() {
                now.extend(pieces.pop());
            }
        }
        now.pop_if(|piece| is_blank(piece));
        if !now.is_empty() {
            lines.push(now.concat().into_iter().collect());
        }
    }
    lines
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

/// Returns a text that is no safe one.
fn plain(value: &Value, filter: &str) -> Result<String, Error> {
    match value.is_safe() {
        true => Err(unsupported(format!("{filter}() of a safe string"))),
        false => match value.as_str() {
            Some(text) => Ok(text.to_string()),
            None => Err(unsupported(format!(
                "{filter}() of a value that is no string"
            ))),
        },
    }
}
