//! Python's `pprint.pformat`: values in lines of at most 80 characters.

use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

use super::operators::ordering;
use super::python::{is_list, is_object, is_own, repr};
use super::strings::{is_space, lines};
use super::unsupported;

const WIDTH: usize = 80;

/// Returns the value as text, with a mapping's keys in order.
///
/// # Errors
/// If keys have different types, or a part is a generator or no plain value.
pub(super) fn pprint(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, &in_order(value)?, 0, 0, 1);
    Ok(out)
}

/// Returns the value with every mapping's keys in order.
fn in_order(value: &Value) -> Result<Value, Error> {
    Ok(match value.kind() {
        ValueKind::Map if !is_object(value) => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            let mut has_order = true;
            keys.sort_by(|a, b| {
                let found = ordering(a, b);
                has_order &= found.is_some();
                found.flatten().unwrap_or(std::cmp::Ordering::Equal)
            });
            if !has_order {
                return Err(unsupported("pprint() of keys of different types"));
            }
            let pair = |key: Value| Ok((key.clone(), in_order(&value.get_item(&key)?)?));
            let pairs = keys.into_iter().map(pair);
            Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        ValueKind::Seq | ValueKind::Iterable if is_list(value) => {
            let items = value.try_iter()?.map(|item| in_order(&item));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            match value.is_tuple() {
                true => Tuple::from(items).into(),
                false => items.into(),
            }
        }
        ValueKind::Map | ValueKind::Plain | ValueKind::Iterable | ValueKind::Seq
            if is_object(value) || is_own(value) =>
        {
            return Err(unsupported("pprint() of a range, a view or an object"));
        }
        _ => value.clone(),
    })
}

/// Writes a value from column `indent` on; `after` characters follow it, and `level` is 1 for the whole.
fn write(out: &mut String, value: &Value, indent: usize, after: usize, level: usize) {
    let whole = repr(value);
    if count(&whole) + indent + after <= WIDTH {
        *out += &whole;
        return;
    }
    let between = |out: &mut String, index: usize| {
        if index > 0 {
            *out += ",\n";
            out.extend(std::iter::repeat_n(' ', indent + 1));
        }
    };
    let items = || value.try_iter().into_iter().flatten().collect::<Vec<_>>();
    match value.kind() {
        ValueKind::Map => {
            let keys = items();
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                between(out, index);
                let name = repr(key);
                *out += &format!("{name}: ");
                let is_last = index + 1 == keys.len();
                let after = if is_last { after + 1 } else { 1 };
                let item = value.get_item(key).unwrap_or_default();
                write(out, &item, indent + 1 + count(&name) + 2, after, level + 1);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let items = items();
            let (open, close) = match (value.is_tuple(), items.len()) {
                (true, 1) => ("(", ",)"),
                (true, _) => ("(", ")"),
                (false, _) => ("[", "]"),
            };
            *out += open;
            for (index, item) in items.iter().enumerate() {
                between(out, index);
                let is_last = index + 1 == items.len();
                let after = if is_last { after + close.len() } else { 1 };
                write(out, item, indent + 1, after, level + 1);
            }
            *out += close;
        }
        ValueKind::String if !value.is_safe() => {
            let is_whole = level == 1;
            let (indent, after) = match is_whole {
                true => (indent + 1, after + 1),
                false => (indent, after),
            };
            let parts = parts(value.as_str().unwrap_or_default(), indent, after);
            let text = parts.join(&format!("\n{}", " ".repeat(indent)));
            match is_whole && parts.len() > 1 {
                true => *out += &format!("({text})"),
                false => *out += &text,
            }
        }
        _ => *out += &whole,
    }
}

/// Splits a string into literals that fit after `indent`, at the ends of lines and words.
fn parts(text: &str, indent: usize, after: usize) -> Vec<String> {
    let literal = |text: &str| repr(&Value::from(text));
    let fits = |text: &str, is_last: bool| {
        let after = if is_last { after } else { 0 };
        count(&literal(text)) + indent + after <= WIDTH
    };
    let mut parts = Vec::new();
    let all = lines(text, true);
    for (index, line) in all.iter().enumerate() {
        let is_last_line = index + 1 == all.len();
        if fits(line, is_last_line) {
            parts.push(literal(line));
            continue;
        }
        let mut now = String::new();
        let mut rest = *line;
        while !rest.is_empty() {
            let end = rest.find(is_space).unwrap_or(rest.len());
            let more = rest[end..].find(|c| !is_space(c));
            let end = more.map_or(rest.len(), |more| end + more);
            let longer = now.clone() + &rest[..end];
            let is_last = is_last_line && end == rest.len();
            if fits(&longer, is_last) {
                now = longer;
            } else {
                if !now.is_empty() {
                    parts.push(literal(&now));
                }
                now = rest[..end].to_string();
            }
            rest = &rest[end..];
        }
        if !now.is_empty() {
            parts.push(literal(&now));
        }
    }
    parts
}

fn count(text: &str) -> usize {
    text.chars().count()
}
