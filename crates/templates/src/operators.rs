//! Operators that compute differently in Python and in minijinja, as functions: [`rewrite`](super::rewrite) calls them.

use std::cmp::Ordering;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, functions};

use super::dict::METHODS;
use super::markup::escaped;
use super::objects::{Cycler, Joiner, PythonGenerator, Range, given, taken};
use super::python::{DictView, HIDDEN_ENTRY, is_float, is_list, is_named, is_object, is_own, text};
use super::strings::formatted;
use super::{failed, has, unsupported};

/// Attributes of Python's strings, lists, numeric types and ranges that a template may read without a call.
pub(super) const ATTRIBUTES: &str = "append as_integer_ratio bit_count bit_length capitalize casefold center clear conjugate copy \
    count denominator encode endswith expandtabs extend find format format_map from_bytes fromhex hex imag index insert is_integer \
    isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower \
    lstrip maketrans numerator partition pop real remove removeprefix removesuffix replace reverse rfind rindex rjust rpartition \
    rsplit rstrip sort split splitlines start startswith step stop strip swapcase title to_bytes translate upper zfill";

/// Adds the operators, and functions that differ in Jinja2, to an environment.
pub(super) fn add(environment: &mut Environment) {
    environment.add_function("python_added", added);
    environment.add_function("python_joined", |a: &Value, b: &Value| text(a) + &text(b));
    environment.add_function("python_percent", percent);
    environment.add_function(
        "python_compare",
        |left: Value, operator: &str, right: Value| compare(&left, operator, &right),
    );
    environment.add_filter("python_text", |value: Value| match value.as_str() {
        Some(_) => value,
        None => text(&value).into(),
    });
    environment.add_filter("python_items", |value: Value| match value.is_none() {
        true => Err(failed("'NoneType' object is not iterable")),
        false => Ok(value),
    });
    environment.add_filter("python_items_if_true", |value: Value| {
        match value.is_true() {
            true => value,
            false => Value::from(Vec::<Value>::new()),
        }
    });
    environment.add_filter("python_generator", |value: Value| match value.as_str() {
        Some(_) => Ok(value), // a reversed string
        None => Ok::<_, Error>(PythonGenerator::value(value.try_iter()?.collect())),
    });
    environment.add_function("python_number", |value: Value| match value.kind() {
        ValueKind::Bool => i64::from(value.is_true()).into(),
        _ => value,
    });
    environment.add_function("python_term", |value: Value| match set(&value) {
        Some(_) => Err(unsupported("`-` of a mapping's keys or items")),
        None => Ok(value),
    });
    environment.add_function("python_factor", |value: Value| match value.kind() {
        _ if value.is_safe() => Err(unsupported("`*` with a safe string")),
        _ if is_own(&value) => Err(failed("unsupported operand type of `*`")),
        _ => Ok(value),
    });
    environment.add_function("python_real", |value: Value| match is_float(&value) {
        Some(x) if x.is_nan() => Err(unsupported("a complex number")),
        _ => Ok(value),
    });
    environment.add_function("python_attribute", attribute);
    environment.add_function("python_item", |value: &Value, key: &Value| {
        match key.as_str() {
            _ if value.is_safe() => Err(unsupported("an item of a safe string")),
            None if value.downcast_object_ref::<DictView>().is_some() => Ok(Value::UNDEFINED),
            Some(name) if has(ATTRIBUTES, name) => attribute(value, name),
            None if is_float(key).is_some() && value.kind() != ValueKind::Map => {
                Ok(Value::UNDEFINED)
            }
            _ => value.get_item(key),
        }
    });
    environment.add_function("python_key", |key: Value| match is_hashable(&key) {
        true => Ok(key),
        false => Err(failed(format!("unhashable type {}", key.kind()))),
    });
    for (names, operator) in [
        ("lt lessthan", "<"),
        ("le", "<="),
        ("gt greaterthan", ">"),
        ("ge", ">="),
    ] {
        for name in names.split(' ') {
            let test = move |a: &Value, b: &Value| compare(a, operator, b);
            environment.add_test(name, test);
        }
    }
    environment.add_function("python_given", given);
    environment.add_function("python_taken", taken);
    environment.add_function("python_iterated", iterated);
    environment.add_function("range", Range::value);
    environment.add_function("cycler", Cycler::value);
    environment.add_function("joiner", Joiner::value);
    // The entry makes a namespace true, like a Python object.
    environment.add_function("namespace", |args: Rest<ValueOrKwargs>| {
        let entry = Value::from_pairs([(HIDDEN_ENTRY, true)]);
        let all = args.into_values();
        if all.iter().any(|value| value.kind() != ValueKind::Map) {
            return Err(unsupported("namespace() of a value that is no mapping"));
        }
        let merged = minijinja::value::merge_maps(all.into_iter().chain([entry]));
        functions::namespace(Some(from_args::<(ValueOrKwargs,)>(&[merged])?.0))
    });
}

/// Returns a loop's items: generators and strings have a length there.
fn iterated(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().map(|c| c.to_string()).collect());
    }
    match value.downcast_object_ref::<PythonGenerator>() {
        Some(generator) => Ok(generator.iterated().into()),
        None if value.is_none() || is_named(&value, "::Namespace") => {
            Err(failed("None and namespaces are not iterable"))
        }
        None => Ok(value),
    }
}

fn unfit(operator: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (a.kind(), b.kind());
    failed(format!(
        "unsupported operand types for {operator}: {a} and {b}"
    ))
}

/// Returns the integer value of an integer or a boolean.
pub(super) fn integer(value: &Value) -> Option<i128> {
    let is_integer = value.is_integer() || value.kind() == ValueKind::Bool;
    is_integer
        .then(|| i128::try_from(value.clone()).ok())
        .flatten()
}

fn number(value: &Value) -> Option<f64> {
    integer(value).map(|n| n as f64).or_else(|| is_float(value))
}

/// Returns `a + b`.
fn added(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        let markup = |value: &Value, text: &str| match value.is_safe() {
            true => text.to_string(),
            false => escaped(text),
        };
        return Ok(match a.is_safe() || b.is_safe() {
            true => Value::from_safe_string(markup(a, x) + &markup(b, y)),
            false => Value::from([x, y].concat()),
        });
    }
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        let sum = a.checked_add(b).map(Value::from);
        return sum.ok_or_else(|| unsupported("so large an integer"));
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok((a + b).into());
    }
    let items = || Ok::<Vec<Value>, Error>(a.try_iter()?.chain(b.try_iter()?).collect());
    match (a.is_tuple(), b.is_tuple()) {
        (true, true) => Ok(Tuple::from(items()?).into()),
        (false, false) if is_list(a) && is_list(b) => Ok(items()?.into()),
        _ => Err(unfit("+", a, b)),
    }
}

/// Returns `a % b`: a formatted string, or the remainder with the divisor's sign.
pub(super) fn percent(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(template) = a.as_str() {
        let values = match b.is_tuple() {
            true => b.try_iter()?.collect(),
            false => vec![b.clone()],
        };
        let is_other = matches!(b.kind(), ValueKind::Map | ValueKind::Undefined);
        let has_items = is_other || b.downcast_object_ref::<Range>().is_some() || is_list(b);
        return match template.contains('%') {
            _ if a.is_safe() => Err(unsupported("`%` of a safe string")),
            true => formatted(FormatStyle::Printf, template, values),
            false if has_items && (!b.is_tuple() || values.is_empty()) => Ok(a.clone()),
            false => Err(failed(
                "not all arguments converted during string formatting",
            )),
        };
    }
    let (Some(x), Some(y)) = (number(a), number(b)) else {
        return Err(unfit("%", a, b));
    };
    if y == 0.0 {
        return Err(failed("modulo by zero"));
    }
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        let rest = a.wrapping_rem(b);
        return Ok((if rest != 0 && (rest < 0) != (b < 0) {
            rest + b
        } else {
            rest
        })
        .into());
    }
    let rest = x % y;
    Ok(match rest == 0.0 {
        true => 0.0f64.copysign(y).into(),
        false if (rest < 0.0) != (y < 0.0) => (rest + y).into(),
        false => rest.into(),
    })
}

/// Compares two values like Python, which cannot order values of different types.
fn compare(a: &Value, operator: &str, b: &Value) -> Result<bool, Error> {
    let is_values = |value: &Value| {
        let view = value.downcast_object_ref::<DictView>();
        view.is_some_and(|view| view.set().is_none())
    };
    if is_values(a) && is_values(b) && operator.len() == 2 && "==!=".contains(operator) {
        // They are equal if they are the same object.
        return Err(unsupported("`==` of the values() of mappings"));
    }
    let test: fn(Ordering) -> bool = match operator {
        "==" => return Ok(equal(a, b)),
        "!=" => return Ok(!equal(a, b)),
        "in" => return contains(b, a),
        "not in" => return contains(b, a).map(|is_in| !is_in),
        "<" => Ordering::is_lt,
        "<=" => Ordering::is_le,
        ">" => Ordering::is_gt,
        _ => Ordering::is_ge,
    };
    if let (Some(a), Some(b)) = (set(a), set(b)) {
        // A part is less than the whole.
        let (part, whole) = if operator.starts_with('<') {
            (a, b)
        } else {
            (b, a)
        };
        let may_be_equal = operator.ends_with('=');
        return Ok(is_part(part, whole) && (may_be_equal || part.len() < whole.len()));
    }
    Ok(ordering(a, b)
        .ok_or_else(|| unfit(operator, a, b))?
        .is_some_and(test))
}

/// Returns the items of a mapping's `keys()` or `items()`, which Python compares as sets.
fn set(value: &Value) -> Option<&[Value]> {
    value.downcast_object_ref::<DictView>()?.set()
}

fn is_part(part: &[Value], whole: &[Value]) -> bool {
    part.iter().all(|item| whole.contains(item))
}

pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (set(a), set(b)) {
        (Some(a), Some(b)) => a.len() == b.len() && is_part(a, b),
        _ => is_own(a) == is_own(b) && a == b,
    }
}

/// Returns the order of two values whose types Python can order; the inner value is `None` for a NaN.
pub(super) fn ordering(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Some(Some(a.cmp(b)).filter(|_| !x.is_nan() && !y.is_nan()));
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Some(Some(a.cmp(b)));
    }
    if !is_list(a) || !is_list(b) || a.is_tuple() != b.is_tuple() {
        return None;
    }
    let items = |value: &Value| value.try_iter().into_iter().flatten();
    match items(a).zip(items(b)).find(|(a, b)| a != b) {
        Some((a, b)) => ordering(&a, &b),
        None => Some(Some(a.len().cmp(&b.len()))),
    }
}

pub(super) fn is_hashable(value: &Value) -> bool {
    match value.is_tuple() {
        true => value
            .try_iter()
            .into_iter()
            .flatten()
            .all(|item| is_hashable(&item)),
        false => value.kind() != ValueKind::Map && !is_list(value),
    }
}

/// Returns Python's `value in container`.
fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match (container.kind(), value.as_str()) {
        (ValueKind::String, Some(part)) => {
            Ok(container.as_str().is_some_and(|text| text.contains(part)))
        }
        (ValueKind::Map, _) if is_hashable(value) => Ok(container
            .as_object()
            .is_some_and(|map| map.get_value(value).is_some())),
        (ValueKind::Undefined, _) => Ok(false),
        (ValueKind::Seq | ValueKind::Iterable, _) => {
            Ok(container.try_iter()?.any(|item| item == *value))
        }
        _ => Err(unfit("in", value, container)),
    }
}

/// Returns an attribute as Jinja2's filter `attr` does, which finds no entries of a mapping.
pub(super) fn own_attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Plain | ValueKind::Undefined => value.get_attr(name),
        ValueKind::Map if is_object(value) || METHODS.contains(&name) => value.get_attr(name),
        ValueKind::Map => Ok(Value::UNDEFINED),
        _ if has(ATTRIBUTES, name) => attribute(value, name),
        _ => Ok(Value::UNDEFINED),
    }
}

/// Returns an entry of a mapping, or an attribute of an object. Refuses attributes of all other types.
fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map | ValueKind::Plain | ValueKind::Undefined | ValueKind::None => {
            value.get_attr(name)
        }
        kind => Err(unsupported(format!(
            "the attribute {name} of a {kind}, which is not called,"
        ))),
    }
}
