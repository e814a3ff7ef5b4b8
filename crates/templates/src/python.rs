//! Values as Python writes them.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};

use super::objects::{PythonGenerator, Range};

/// An entry in each namespace, which no template can name.
pub(super) const HIDDEN_ENTRY: &str = "\0";

/// Returns whether the value is a minijinja object whose type has this name.
pub(super) fn is_named(value: &Value, name: &str) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with(name))
}

/// Returns whether the value is a mapping in minijinja but not in Python.
pub(super) fn is_object(value: &Value) -> bool {
    ["::Namespace", "::Loop", "::Macro"]
        .iter()
        .any(|name| is_named(value, name))
}

/// Returns whether the value has items, but is not a list.
pub(super) fn is_own(value: &Value) -> bool {
    let is_view = value.downcast_object_ref::<DictView>().is_some();
    let is_generator = value.downcast_object_ref::<PythonGenerator>().is_some();
    is_view || is_generator || value.downcast_object_ref::<Range>().is_some()
}

/// Returns whether the value is a list or a tuple.
pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !is_own(value)
}

/// Returns the number if the value is a float, also if it is a whole number.
pub(super) fn is_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

/// Returns Python's `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_string(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// Returns Python's `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let items = |value: &Value| {
        value
            .try_iter()
            .into_iter()
            .flatten()
            .map(|item| repr(&item))
            .collect::<Vec<_>>()
    };
    match value.kind() {
        ValueKind::Undefined => "Undefined".to_string(),
        ValueKind::Number => is_float(value).map_or_else(|| value.to_string(), float),
        ValueKind::String if value.is_safe() => {
            format!("Markup({})", string(value.as_str().unwrap_or_default()))
        }
        ValueKind::String => string(value.as_str().unwrap_or_default()),
        _ if is_own(value) => value.to_string(),
        ValueKind::Seq if value.is_tuple() || is_named(value, "::GroupTuple") => {
            match items(value).as_slice() {
                [one] => format!("({one},)"),
                items => format!("({})", items.join(", ")),
            }
        }
        ValueKind::Seq | ValueKind::Iterable => format!("[{}]", items(value).join(", ")),
        ValueKind::Map if is_named(value, "::Loop") => {
            let of = |name: &str| text(&value.get_attr(name).unwrap_or_default());
            format!("<LoopContext {}/{}>", of("index"), of("length"))
        }
        ValueKind::Map if is_named(value, "::Macro") => {
            format!(
                "<Macro {}>",
                repr(&value.get_attr("name").unwrap_or_default())
            )
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let keys = keys.filter(|key| key.as_str() != Some(HIDDEN_ENTRY));
            let pair = |key: Value| {
                let value = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&value))
            };
            let pairs = format!("{{{}}}", keys.map(pair).collect::<Vec<_>>().join(", "));
            match is_named(value, "::Namespace") {
                true => format!("<Namespace {pairs}>"),
                false => pairs,
            }
        }
        _ => value.to_string(),
    }
}

/// The results of `keys()`, `values()` and `items()`: iterable, without indexing. [`repr`] writes them, and they their items.
#[derive(Debug)]
pub(super) struct DictView {
    pub name: &'static str,
    pub items: Vec<Value>,
}

impl DictView {
    /// Returns the items that are compared as a set: those of keys, and of pairs.
    pub fn set(&self) -> Option<&[Value]> {
        (self.name != "dict_values").then_some(&self.items[..])
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: Vec<String> = self.items.iter().map(repr).collect();
        write!(f, "{}([{}])", self.name, items.join(", "))
    }
}

/// Returns Python's `repr` for a float: the shortest digits that read back as this number, with an exponent beyond 16
/// digits.
pub(super) fn float(x: f64) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Returns Python's `repr` for a string.
fn string(text: &str) -> String {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match c as u32 {
                code @ ..0x100 => format!("\\x{code:02x}"),
                code @ ..0x10000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
    out
}

/// Returns Python's `str.isprintable`. Rust's own escapes leave the same characters unchanged.
pub(super) fn is_printable(c: char) -> bool {
    // After another character: at the start of a string, Rust escapes a combining character too.
    match c {
        '\'' | '"' | '\\' => true,
        c => c == ' ' || ['a', c].iter().collect::<String>().escape_debug().count() == 2,
    }
}
