//! Jinja2's filters that cut and fill long texts: `format`, `truncate` and `wordwrap`.

use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

use super::arguments::Arguments;
use super::operators::percent;
use super::python::text;
use super::strings::{is_common, is_space, lines};
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
    match value.as_str() {
        Some(_) => percent(&plain(value, "format")?.into(), &arguments),
        None => percent(&text(value).into(), &arguments),
    }
}

/// Cuts a text that is longer than a length, at a word's end unless `killwords` is set.
pub(super) fn truncate(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("truncate", args, &["length", "killwords", "end", "leeway"])?;
    if value.as_str().is_none() && value.kind() != ValueKind::Undefined && value.len().is_none() {
        return Err(failed("truncate() of a value without a length"));
    }
    let whole = match value.as_str() {
        Some(_) => plain(value, "truncate")?,
        None => "x".repeat(value.len().unwrap_or(0).min(100_000)),
    };
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
    if value.as_str().is_none() {
        return Err(failed("truncate() of a long value that is no string"));
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
    let breaks = Breaks {
        words: arguments.is_not_false(1, "break_long_words"),
        hyphens: arguments.is_not_false(3, "break_on_hyphens") && whole.contains('-'),
    };
    // Whether a hyphen is within a word depends on the characters around it.
    if let Some(c) = whole.chars().find(|c| breaks.hyphens && !is_common(*c)) {
        return Err(unsupported(format!(
            "wordwrap() of hyphens and the character {c:?}, unless break_on_hyphens is false,"
        )));
    }
    let between = arguments
        .text(2, "wrapstring")?
        .unwrap_or_else(|| "\n".to_string());
    let lines = lines(&whole, false).into_iter();
    let wrapped = lines.map(|line| wrap(line, width, breaks).join(&between));
    Ok(wrapped.collect::<Vec<_>>().join(&between).into())
}

/// The places at which a line may break, besides white space.
#[derive(Clone, Copy)]
struct Breaks {
    /// In words that are longer than the width.
    words: bool,
    /// After hyphens between letters, and around dashes.
    hyphens: bool,
}

fn is_between(c: char) -> bool {
    "\t\n\u{b}\u{c}\r ".contains(c)
}

fn wrap(line: &str, width: usize, breaks: Breaks) -> Vec<String> {
    let is_blank = |piece: &[char]| piece.iter().all(|&c| is_space(c));
    let letters: Vec<char> = line.chars().collect();
    let mut pieces: Vec<&[char]> = match breaks.hyphens {
        true => at_hyphens(&letters),
        false => letters
            .chunk_by(|&a, &b| is_between(a) == is_between(b))
            .collect(),
    };
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
            if breaks.words {
                let (first, rest) = piece.split_at(end_of_part(piece, width - length, breaks));
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

/// Returns how much of a long word fits into the rest of a line: up to the last hyphen, if there is one after a letter.
fn end_of_part(word: &[char], left: usize, breaks: Breaks) -> usize {
    let hyphen = word[..left].iter().rposition(|&c| c == '-');
    match hyphen.filter(|&at| breaks.hyphens && word[..at].iter().any(|&c| c != '-')) {
        Some(at) => at + 1,
        None => left,
    }
}

/// Splits a line as `textwrap` does: at white space, after hyphens between letters, and before and after dashes.
fn at_hyphens(line: &[char]) -> Vec<&[char]> {
    let at = |i: Option<usize>| i.and_then(|i| line.get(i).copied());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_letter = |i: Option<usize>| at(i).is_some_and(|c| is_word(c) && !c.is_numeric());
    let is_hyphen = |i: Option<usize>| at(i) == Some('-');
    // The end of the hyphens from here, if they are a dash between words.
    let dash = |from: usize| {
        let n = line[from..].iter().take_while(|&&c| c == '-').count();
        let before = at(from.checked_sub(1));
        let is_open = before.is_some_and(|c| is_word(c) || "!\"'&.,?".contains(c));
        (n >= 2 && is_open && at(Some(from + n)).is_some_and(is_word)).then_some(from + n)
    };
    let is_inside = |i: usize| {
        let before = |n: usize| i.checked_sub(n);
        let follows = is_letter(before(1))
            && (is_letter(before(2)) || is_hyphen(before(2)) && is_letter(before(3)));
        let next = if is_hyphen(Some(i + 2)) { i + 3 } else { i + 2 };
        is_hyphen(Some(i)) && follows && is_letter(Some(i + 1)) && is_letter(Some(next))
    };
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < line.len() {
        let end = if is_between(line[from]) {
            let n = line[from..].iter().take_while(|&&c| is_between(c)).count();
            from + n
        } else if let Some(end) = dash(from) {
            end
        } else {
            let mut end = from + 1;
            loop {
                if is_inside(end) {
                    break end + 1;
                }
                if at(Some(end)).is_none_or(is_between) || dash(end).is_some() {
                    break end;
                }
                end += 1;
            }
        };
        pieces.push(&line[from..end]);
        from = end;
    }
    pieces
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
