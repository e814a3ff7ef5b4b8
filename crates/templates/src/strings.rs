//! Methods of Python's strings and lists, and its formats of strings.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, filters};

use super::arguments::Arguments;
use super::python::{is_own, is_printable, text};
use super::{failed, has, unsupported};

/// The limit for padded strings; a longer one is an attack.
const MOST_CHARACTERS: usize = 1_000_000;

/// Returns Python's `str.isspace`.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Calls a method on a list, a tuple or a range.
pub(super) fn list_method(list: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let items = || list.try_iter();
    let arguments = |names| Arguments::new(name, args, names);
    let wanted = || Ok::<_, Error>(args.first().cloned().unwrap_or_default());
    Ok(match name {
        "count" => {
            arguments(&["value"])?;
            let wanted = wanted()?;
            Value::from(items()?.filter(|item| *item == wanted).count())
        }
        "index" => {
            let arguments = arguments(&["value", "start", "stop"])?;
            let wanted = wanted()?;
            let all: Vec<Value> = items()?.collect();
            let place = |at: i64| match usize::try_from(at) {
                Ok(at) => at,
                Err(_) => all.len().saturating_sub(at.unsigned_abs() as usize),
            };
            let start = arguments.integer(1, "start")?.map_or(0, place);
            let stop = arguments.integer(2, "stop")?.map_or(all.len(), place);
            let mut places = start..stop.min(all.len());
            let at = places.find(|&at| all[at] == wanted);
            Value::from(at.ok_or_else(|| failed(format!("{wanted} is not in list")))?)
        }
        "copy" => items()?.collect(),
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => {
            return Err(failed(format!(
                "access to attribute '{name}' of 'list' object is unsafe."
            )));
        }
        _ => return Err(ErrorKind::UnknownMethod.into()),
    })
}

/// Calls a method on a string.
pub(super) fn string_method(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let with = |names: &'static [&'static str]| Arguments::new(name, args, names);
    let all = |holds: fn(char) -> bool| !s.is_empty() && s.chars().all(holds);
    let cased = |is: fn(char) -> bool, is_not: fn(char) -> bool| {
        s.chars().any(is) && !s.chars().any(is_not)
    };
    let window = |names: &'static [&'static str]| -> Result<_, Error> {
        let arguments = with(names)?;
        let (from, text) = window(
            s,
            arguments.integer(1, "start")?,
            arguments.integer(2, "end")?,
        );
        Ok((arguments, from, text))
    };
    const WINDOW: &[&str] = &["sub", "start", "end"];
    let none = || with(&[]).map(drop);
    if let Some(c) = s
        .chars()
        .find(|c| has(BY_CHARACTER, name) && !is_common(*c))
    {
        return Err(unsupported(format!("{name}() of the character {c:?}")));
    }
    Ok(match name {
        "upper" => none().map(|()| s.to_uppercase())?.into(),
        "lower" => none().map(|()| s.to_lowercase())?.into(),
        "casefold" => none().map(|()| s.to_lowercase())?.into(),
        "swapcase" => none()
            .map(|()| s.chars().map(swapped).collect::<String>())?
            .into(),
        "title" => none().map(|()| title(s))?.into(),
        "capitalize" => none().and_then(|()| capitalized(s))?,
        "isalpha" => none().map(|()| all(char::is_alphabetic))?.into(),
        "isalnum" => none().map(|()| all(char::is_alphanumeric))?.into(),
        "isdigit" | "isnumeric" | "isdecimal" => {
            none().map(|()| all(|c| c.is_ascii_digit()))?.into()
        }
        "isspace" => none().map(|()| all(is_space))?.into(),
        "isascii" => none().map(|()| s.is_ascii())?.into(),
        "isprintable" => none().map(|()| s.chars().all(is_printable))?.into(),
        "istitle" => none()
            .map(|()| title(s) == s && s.chars().any(char::is_alphabetic))?
            .into(),
        "islower" => none()
            .map(|()| cased(char::is_lowercase, char::is_uppercase))?
            .into(),
        "isupper" => none()
            .map(|()| cased(char::is_uppercase, char::is_lowercase))?
            .into(),
        "strip" => stripped(s, &with(&["chars"])?, true, true)?.into(),
        "lstrip" => stripped(s, &with(&["chars"])?, true, false)?.into(),
        "rstrip" => stripped(s, &with(&["chars"])?, false, true)?.into(),
        "removeprefix" => {
            let prefix = with(&["prefix"])?.required_text(0, "prefix")?;
            s.strip_prefix(prefix.as_str()).unwrap_or(s).into()
        }
        "removesuffix" => {
            let suffix = with(&["suffix"])?.required_text(0, "suffix")?;
            s.strip_suffix(suffix.as_str()).unwrap_or(s).into()
        }
        "replace" => {
            let arguments = with(&["old", "new", "count"])?;
            let (old, new) = (
                arguments.required_text(0, "old")?,
                arguments.required_text(1, "new")?,
            );
            match arguments.integer(2, "count")? {
                Some(n @ 0..) => s.replacen(&old, &new, n as usize).into(),
                _ => s.replace(&old, &new).into(),
            }
        }
        "split" => split(s, &with(&["sep", "maxsplit"])?)?,
        "rsplit" => rsplit(s, &with(&["sep", "maxsplit"])?)?,
        "splitlines" => lines(s, with(&["keepends"])?.is_true(0, "keepends"))
            .into_iter()
            .collect(),
        "partition" => {
            let sep = separator(&with(&["sep"])?)?;
            let (a, b, c) = s
                .split_once(sep.as_str())
                .map_or((s, "", ""), |(a, c)| (a, sep.as_str(), c));
            Value::from(Tuple::from([a, b, c].map(Value::from)))
        }
        "rpartition" => {
            let sep = separator(&with(&["sep"])?)?;
            let (a, b, c) = s
                .rsplit_once(sep.as_str())
                .map_or(("", "", s), |(a, c)| (a, sep.as_str(), c));
            Value::from(Tuple::from([a, b, c].map(Value::from)))
        }
        "find" | "index" | "rfind" | "rindex" => {
            let (arguments, from, text) = window(WINDOW)?;
            let sub = arguments.required_text(0, "sub")?;
            let at = if name.starts_with('r') {
                text.rfind(&sub)
            } else {
                text.find(&sub)
            };
            match at {
                Some(at) => (from + text[..at].chars().count()).into(),
                None if name.ends_with("find") => (-1).into(),
                None => return Err(failed("substring not found")),
            }
        }
        "count" => {
            let (arguments, _, text) = window(WINDOW)?;
            text.matches(&arguments.required_text(0, "sub")?)
                .count()
                .into()
        }
        "startswith" => affixed(&window(WINDOW)?, |text, affix| text.starts_with(affix))?.into(),
        "endswith" => affixed(&window(WINDOW)?, |text, affix| text.ends_with(affix))?.into(),
        "join" => {
            with(&["iterable"])?;
            let items = args.first().cloned().unwrap_or_default();
            let texts = items.try_iter()?.map(|item| match item.as_str() {
                Some(text) => Ok(text.to_string()),
                None => Err(failed(format!(
                    "join() expects strings, found {}",
                    item.kind()
                ))),
            });
            texts.collect::<Result<Vec<_>, _>>()?.join(s).into()
        }
        "format" => formatted(FormatStyle::StrFormat, s, args.to_vec())?,
        "ljust" | "rjust" | "center" => {
            let arguments = with(&["width", "fillchar"])?;
            let width = arguments.integer(0, "width")?.unwrap_or_default();
            let fill = arguments
                .text(1, "fillchar")?
                .and_then(|fill| fill.chars().next())
                .unwrap_or(' ');
            let n = missing(s, width)?;
            let left = match name {
                "ljust" => 0,
                "rjust" => n,
                _ => n / 2 + (n & width.max(0) as usize & 1),
            };
            padded(s, left, n - left, fill).into()
        }
        "zfill" => {
            let n = missing(
                s,
                with(&["width"])?.integer(0, "width")?.unwrap_or_default(),
            )?;
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
            (sign.to_string() + &padded(digits, n, 0, '0')).into()
        }
        "expandtabs" => {
            let size = with(&["tabsize"])?.integer(0, "tabsize")?.unwrap_or(8);
            expanded(s, usize::try_from(size).unwrap_or(0).min(MOST_CHARACTERS)).into()
        }
        "isidentifier" => none().map(|()| is_identifier(s))?.into(),
        _ if has("encode format_map maketrans translate", name) => {
            return Err(unsupported(format!("the method {name}")));
        }
        _ => return Err(ErrorKind::UnknownMethod.into()),
    })
}

/// Returns the part of a string between two positions, in characters as in a slice, and the first position.
fn window(s: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    if start.is_none() && end.is_none() {
        return (0, s);
    }
    let n = s.chars().count();
    let place = |at: i64| match at {
        0.. => usize::try_from(at).unwrap_or(n).min(n),
        _ => n.saturating_sub(at.unsigned_abs() as usize),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(n, place));
    let byte = |at: usize| s.char_indices().nth(at).map_or(s.len(), |(byte, _)| byte);
    (start, s.get(byte(start)..byte(end)).unwrap_or_default())
}

/// Returns whether the string begins or ends with the first argument, or if it is a tuple, with one of its items.
fn affixed(
    (arguments, _, text): &(Arguments, usize, &str),
    has: impl Fn(&str, &str) -> bool,
) -> Result<bool, Error> {
    let affix = arguments.value(0, "sub").unwrap_or_default();
    if let Some(affix) = affix.as_str() {
        return Ok(has(text, affix));
    }
    let affixes: Vec<Value> = affix.try_iter()?.collect();
    match affix.is_undefined() {
        true => Err(failed("expected a string or a tuple of strings")),
        false => Ok(affixes
            .iter()
            .any(|affix| affix.as_str().is_some_and(|affix| has(text, affix)))),
    }
}

fn stripped<'s>(
    s: &'s str,
    arguments: &Arguments,
    left: bool,
    right: bool,
) -> Result<&'s str, Error> {
    let chars = arguments.text(0, "chars")?;
    let strips = |c: char| {
        chars
            .as_ref()
            .map_or_else(|| is_space(c), |chars| chars.contains(c))
    };
    let s = if left {
        s.trim_start_matches(strips)
    } else {
        s
    };
    Ok(if right { s.trim_end_matches(strips) } else { s })
}

fn separator(arguments: &Arguments) -> Result<String, Error> {
    let sep = arguments.required_text(0, "sep")?;
    match sep.is_empty() {
        true => Err(failed("empty separator")),
        false => Ok(sep),
    }
}

/// Returns the maximum number of parts for `split` and `rsplit`.
fn most_parts(arguments: &Arguments) -> Result<usize, Error> {
    let maxsplit = arguments
        .integer(1, "maxsplit")?
        .and_then(|n| usize::try_from(n).ok());
    Ok(maxsplit.map_or(usize::MAX, |n| n.saturating_add(1)))
}

fn split(s: &str, arguments: &Arguments) -> Result<Value, Error> {
    let most = most_parts(arguments)?;
    if arguments.value(0, "sep").is_some() {
        return Ok(s
            .splitn(most, separator(arguments)?.as_str())
            .map(Value::from)
            .collect());
    }
    let mut parts = Vec::new();
    let mut rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if parts.len() + 1 == most {
            None
        } else {
            rest.find(is_space)
        };
        parts.push(Value::from(&rest[..end.unwrap_or(rest.len())]));
        rest = rest[end.unwrap_or(rest.len())..].trim_start_matches(is_space);
    }
    Ok(Value::from(parts))
}

fn rsplit(s: &str, arguments: &Arguments) -> Result<Value, Error> {
    let most = most_parts(arguments)?;
    let mut parts: Vec<Value> = Vec::new();
    if arguments.value(0, "sep").is_some() {
        parts = s
            .rsplitn(most, separator(arguments)?.as_str())
            .map(Value::from)
            .collect();
    } else {
        let mut rest = s.trim_end_matches(is_space);
        while !rest.is_empty() {
            let after = |at: usize| at + rest[at..].chars().next().map_or(0, char::len_utf8);
            let start = if parts.len() + 1 == most {
                0
            } else {
                rest.rfind(is_space).map_or(0, after)
            };
            parts.push(Value::from(&rest[start..]));
            rest = rest[..start].trim_end_matches(is_space);
        }
    }
    parts.reverse();
    Ok(Value::from(parts))
}

/// Returns a text's lines, with or without their ends.
pub(super) fn lines(s: &str, keeps_ends: bool) -> Vec<&str> {
    const ENDS: [char; 10] = [
        '\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let at = rest.find(ENDS).unwrap_or(rest.len());
        let length = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    lines
}

fn swapped(c: char) -> String {
    match c.is_uppercase() {
        true => c.to_lowercase().collect(),
        false => c.to_uppercase().collect(),
    }
}

/// Returns the string with its first letter in title case, as minijinja's filter does.
fn capitalized(s: &str) -> Result<Value, Error> {
    Ok(filters::capitalize(from_args::<(_,)>(&[s.into()])?.0))
}

/// Methods that depend on each character's properties, for which Python's and Rust's tables differ.
const BY_CHARACTER: &str =
    "casefold isalnum isalpha isdecimal isdigit isidentifier isnumeric istitle swapcase title";

/// Returns whether the tables agree on a character. They differ on digits beyond ASCII, ligatures, and letters whose other
/// case has two letters.
pub(super) fn is_common(c: char) -> bool {
    let is_plain = c.to_uppercase().len() == 1
        && !matches!(c, 'ı' | 'ſ' | 'ς' | 'Σ' | 'µ' | 'Ǆ'..='ǌ' | 'Ǳ'..='ǳ');
    let is_known = matches!(c, '\0'..='ɏ' | 'Ά'..='ώ' | 'Ѐ'..='ҁ' | 'ぁ'..='ゖ' | '가'..='힣');
    let has_property = c.is_alphabetic() || c.is_numeric();
    c.is_ascii() || !has_property || (is_plain && is_known && !c.is_numeric())
}

/// Returns the text with a capital at the start of each run of letters.
fn title(s: &str) -> String {
    let mut is_inside = false;
    let mut out = String::new();
    for c in s.chars() {
        match is_inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        is_inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn is_identifier(s: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    s.chars().all(is_part) && s.starts_with(|c: char| is_part(c) && !c.is_numeric())
}

fn missing(s: &str, width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    match width > MOST_CHARACTERS {
        true => Err(failed(format!(
            "a width of {width} characters is too large"
        ))),
        false => Ok(width.saturating_sub(s.chars().count())),
    }
}

fn padded(s: &str, left: usize, right: usize, fill: char) -> String {
    let fill = |n| std::iter::repeat_n(fill, n);
    fill(left).chain(s.chars()).chain(fill(right)).collect()
}

fn expanded(s: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    out
}

/// Formats values. minijinja writes floats as Python does from 0.0001 up to 1e16.
pub(super) fn formatted(
    style: FormatStyle,
    template: &str,
    mut values: Vec<Value>,
) -> Result<Value, Error> {
    let plain = template.replace("%%", "");
    let has_only_texts = match style {
        FormatStyle::Printf => plain.matches('%').count() == plain.matches("%s").count(),
        FormatStyle::StrFormat => !template.contains(['[', ':', '.', '!']),
    };
    // minijinja pads by bytes, and writes floats with other exponents.
    let is_odd = |value: &Value| {
        let has_exponent = |text: &str| text.contains("e+") || text.contains("e-");
        match (value.kind(), text(value)) {
            (ValueKind::Bool, _) => matches!(style, FormatStyle::StrFormat),
            (ValueKind::Number | ValueKind::Map, text) => has_exponent(&text) || !text.is_ascii(),
            (_, text) => !text.is_ascii() || is_own(value),
        }
    };
    if let FormatStyle::Printf = style {
        as_texts(template, &mut values);
    }
    for value in &mut values {
        match has_only_texts && !value.is_kwargs() {
            true => *value = text(value).into(),
            false if is_odd(value) && !has_only_texts => {
                return Err(unsupported(format!(
                    "the format {template:?} of this value"
                )));
            }
            false => {}
        }
    }
    let reason = |error: Error| unsupported(format!("the format {template:?} ({error})"));
    Ok(format(style, template, &values).map_err(reason)?.into())
}

/// Writes the values for `%s`, whose precision is for texts.
fn as_texts(template: &str, values: &mut [Value]) {
    let plain = template.replace("%%", "");
    let mut values = values.iter_mut();
    for field in plain.split('%').skip(1) {
        // Other widths and names are not by position.
        match field
            .trim_start_matches(|c: char| "-+ #0123456789.".contains(c))
            .chars()
            .next()
        {
            Some('(' | '*') | None => return,
            Some(kind) => {
                if let Some(value) = values
                    .next()
                    .filter(|value| kind == 's' && !value.is_kwargs())
                {
                    *value = text(value).into();
                }
            }
        }
    }
}
