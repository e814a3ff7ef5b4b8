//! Jinja2's filters and tests that minijinja lacks, or that differ there.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, filters};

use super::arguments::Arguments;
use super::json::{Style, json};
use super::markup::escaped;
use super::objects::Range;
use super::operators::{self, integer};
use super::pprint::pprint;
use super::python::{self, is_float, is_named, is_object, is_own, text};
use super::strings::{is_space, lines, string_method};
use super::{failed, has, long, markup, unsupported};

/// A filter: its value, and the arguments in parentheses.
type Filter = fn(&Value, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 26] = [
    ("abs", |value, args| match value.kind() {
        ValueKind::Bool if args.is_empty() => Ok(i64::from(value.is_true()).into()),
        _ if args.is_empty() => filters::abs(value.clone()),
        _ => Err(ErrorKind::TooManyArguments.into()),
    }),
    ("attr", attr),
    ("center", |value, args| match args {
        [] => string_method(&text(value), "center", &[80.into()]),
        args => string_method(&text(value), "center", args),
    }),
    ("default", default),
    ("d", default),
    ("e", escape),
    ("escape", escape),
    ("filesizeformat", filesizeformat),
    ("float", float),
    ("forceescape", |value, _| {
        Ok(Value::from_safe_string(escaped(&text(value))))
    }),
    ("format", long::format),
    ("indent", indent),
    ("int", int),
    ("join", join),
    ("pprint", |value, args| {
        Arguments::new("pprint", args, &[])?;
        Ok(pprint(value)?.into())
    }),
    ("replace", replace),
    ("string", |value, _| {
        Ok(if value.is_safe() {
            value.clone()
        } else {
            text(value).into()
        })
    }),
    ("striptags", markup::striptags),
    ("title", |value, _| Ok(titled(&text(value)).into())),
    ("tojson", tojson),
    ("trim", |value, args| {
        string_method(&text(value), "strip", args)
    }),
    ("truncate", long::truncate),
    ("urlencode", markup::urlencode),
    ("wordcount", |value, _| {
        Ok(text(value)
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
            .count()
            .into())
    }),
    ("wordwrap", long::wordwrap),
    ("xmlattr", markup::xmlattr),
];

/// Jinja2's filters that this crate does not support, and filters that only minijinja has.
const UNSUPPORTED: &str = "random urlize bool chain lines split zip";

/// Jinja2's filters, for its test `filter`.
const FILTER_NAMES: &str = "abs attr batch capitalize center count d default dictsort e escape filesizeformat first float \
    forceescape format groupby indent int items join last length list lower map max min pprint \
    random reject rejectattr replace reverse round safe select selectattr slice sort string \
    striptags sum title tojson trim truncate unique upper urlencode urlize wordcount wordwrap \
    xmlattr";
/// Jinja2's tests, for its test `test`.
const TEST_NAMES: &str = "!= < <= == > >= boolean callable defined divisibleby eq equalto escaped even false filter float \
    ge greaterthan gt in integer iterable le lessthan lower lt mapping ne none number odd sameas \
    sequence string test true undefined upper";

/// Returns the text with a capital after each space, hyphen and opening bracket; the other letters are lowered.
fn titled(text: &str) -> String {
    let is_between = |c: char| is_space(c) || "-({[<".contains(c);
    let words = text.split_inclusive(is_between);
    let capital = |word: &str| match word.chars().next() {
        Some(first) => {
            let rest = &word[first.len_utf8()..];
            first.to_uppercase().collect::<String>() + &rest.to_lowercase()
        }
        None => String::new(),
    };
    words.map(capital).collect()
}

/// Adds the filters and tests to an environment.
pub(super) fn add(environment: &mut Environment) {
    for (name, filter) in FILTERS {
        environment.add_filter(name, move |value: &Value, args: Rest<ValueOrKwargs>| {
            let result = filter(value, &args.into_values())?;
            Ok::<_, Error>(
                match value.is_safe() && ["center", "indent", "trim"].contains(&name) {
                    true => Value::from_safe_string(text(&result)),
                    false => result,
                },
            )
        });
    }
    for name in UNSUPPORTED.split(' ') {
        environment.add_filter(name, move |_: &Value, _: Rest<ValueOrKwargs>| {
            Err::<Value, _>(unsupported(format!("the filter {name}")))
        });
    }
    for (name, names) in [("filter", FILTER_NAMES), ("test", TEST_NAMES)] {
        environment.add_test(name, move |value: &Value| {
            match operators::is_hashable(value) {
                true => Ok(value.as_str().is_some_and(|name| has(names, name))),
                false => Err(failed(format!(
                    "the test {name} of a value that is not hashable"
                ))),
            }
        });
    }
    let round = |value: Value, n: Option<i32>, method: Option<&str>, named: Kwargs| {
        let Some(whole) = integer(&value) else {
            return filters::round(value, n, method, named);
        };
        let name = method.map_or_else(
            || named.get::<Option<&str>>("method"),
            |name| Ok(Some(name)),
        );
        let by: fn(f64) -> f64 = match name? {
            None | Some("common") => {
                return filters::round(Value::from(whole), n, method, named);
            }
            Some("ceil") => f64::ceil,
            Some("floor") => f64::floor,
            Some(_) => return Err(failed("round() is by common, ceil or floor")),
        };
        let n = n.or(named.get::<Option<i32>>("precision")?).unwrap_or(0);
        let scale = 10f64.powi(n.min(0));
        Ok(Value::from(by(whole as f64 * scale) / scale))
    };
    environment.add_filter("round", round);
    environment.add_test("iterable", |value: &Value| {
        let is_loop = is_named(value, "::Loop");
        is_loop
            || (!value.is_none()
                && !is_object(value)
                && (is_own(value) || value.try_iter().is_ok()))
    });
    environment.add_test("mapping", |value: &Value| {
        value.kind() == ValueKind::Map && !is_object(value)
    });
    environment.add_test("sequence", |value: &Value| match value.kind() {
        _ if is_object(value) => false,
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => !is_own(value) || value.downcast_object_ref::<Range>().is_some(),
        _ => false,
    });
    environment.add_test("callable", |value: &Value| {
        let is_plain = matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined);
        is_plain || is_named(value, "::Macro")
    });
    for (name, method) in [("lower", "islower"), ("upper", "isupper")] {
        environment.add_test(name, move |value: &Value| {
            string_method(&text(value), method, &[])
        });
    }
    for (name, rest) in [("even", 0), ("odd", 1)] {
        environment.add_test(name, move |value: &Value| match integer(value) {
            Some(n) => Ok(n.rem_euclid(2) == rest),
            None if is_float(value).is_some() => {
                Ok(is_float(value).map(|x| x.rem_euclid(2.0)) == Some(rest as f64))
            }
            None => Err(unsupported(format!(
                "the test {name} of a {}",
                value.kind()
            ))),
        });
    }
}

fn tojson(value: &Value, args: &[Value]) -> Result<Value, Error> {
    const NAMES: &[&str] = &["ensure_ascii", "indent", "separators", "sort_keys"];
    let arguments = Arguments::new("tojson", args, NAMES)?;
    let indent = match arguments.value(1, "indent") {
        Some(indent) if indent.as_str().is_some() => Some(text(&indent)),
        Some(_) => arguments
            .integer(1, "indent")?
            .map(|n| " ".repeat(n.clamp(0, 1000) as usize)),
        None => None,
    };
    let separators: Vec<Value> = match arguments.value(2, "separators") {
        Some(separators) => separators.try_iter()?.collect(),
        None => [if indent.is_some() { "," } else { ", " }, ": "]
            .map(Value::from)
            .to_vec(),
    };
    let [between_items, after_key] = separators.as_slice() else {
        let reason = "tojson(): separators are two strings";
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    };
    let style = Style {
        escapes_beyond_ascii: arguments.is_true(0, "ensure_ascii"),
        indent,
        between_items: text(between_items),
        after_key: text(after_key),
        sorts_keys: arguments.is_true(3, "sort_keys"),
    };
    Ok(json(value, &style)?.into())
}

fn default(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("default", args, &["default_value", "boolean"])?;
    let is_missing = value.is_undefined() || (arguments.is_true(1, "boolean") && !value.is_true());
    let given = match args.first() {
        Some(first) if first.is_none() => Some(first.clone()), // a value here
        _ => arguments.value(0, "default_value"),
    };
    Ok(match is_missing {
        true => given.unwrap_or_else(|| Value::from("")),
        false => value.clone(),
    })
}

fn replace(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("replace", args, &["old", "new", "count"])?;
    let part = |place, name| match arguments.given(place, name) {
        Some(value) => Ok(Value::from(text(&value))),
        None => Err(failed(format!("replace(): argument {name} is missing"))),
    };
    let count = arguments.integer(2, "count")?.unwrap_or(-1);
    let args = [part(0, "old")?, part(1, "new")?, count.into()];
    string_method(&text(value), "replace", &args)
}

/// Returns an attribute that is no entry of a mapping.
fn attr(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let name = Arguments::new("attr", args, &["name"])?.required_text(0, "name")?;
    operators::own_attribute(value, &name)
}

/// Writes a number of bytes with a unit.
fn filesizeformat(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("filesizeformat", args, &["binary"])?;
    let (base, unit) = match arguments.is_true(0, "binary") {
        true => (1024u128, "iB"),
        false => (1000, "B"),
    };
    check_defined(value, "filesizeformat")?;
    let Some(bytes) = real(value)? else {
        return Err(failed("filesizeformat() of a value that is no number"));
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base as f64 {
        return match bytes.is_finite() {
            true => Ok(format!("{} Bytes", bytes as i128).into()),
            false => Err(failed("filesizeformat() of an infinity")),
        };
    }
    let k = if base == 1000 { "k" } else { "K" };
    let prefixes = [k, "M", "G", "T", "P", "E", "Z", "Y"];
    let above = |index: usize| base.pow(index as u32 + 2) as f64;
    let index = (0..8).find(|&index| bytes < above(index)).unwrap_or(7);
    let number = base as f64 * bytes / above(index);
    Ok(format!("{number:.1} {}{unit}", prefixes[index]).into())
}

fn escape(value: &Value, _: &[Value]) -> Result<Value, Error> {
    Ok(match value.is_safe() {
        true => value.clone(),
        false => Value::from_safe_string(escaped(&text(value))),
    })
}

fn indent(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("indent", args, &["width", "first", "blank"])?;
    if value.as_str().is_none() {
        return Err(failed("indent() of a value that is no string"));
    }
    let indention = match arguments.value(0, "width") {
        Some(width) if width.as_str().is_some() => text(&width),
        Some(_) => {
            " ".repeat(arguments.integer(0, "width")?.unwrap_or(4).clamp(0, 10_000) as usize)
        }
        None => " ".repeat(4),
    };
    let text = text(value) + "\n";
    let lines = lines(&text, false);
    let blank = arguments.is_true(2, "blank");
    let line = |(index, line): (usize, &&str)| match index > 0 && (blank || !line.is_empty()) {
        true => format!("{indention}{line}"),
        false => line.to_string(),
    };
    let lines: Vec<String> = lines.iter().enumerate().map(line).collect();
    let indented = lines.join("\n");
    Ok(match arguments.is_true(1, "first") {
        true => (indention + &indented).into(),
        false => indented.into(),
    })
}

fn join(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("join", args, &["d", "attribute"])?;
    let attribute = arguments.text(1, "attribute")?;
    let item = |item: Value| {
        let names = attribute.as_deref().map(|path| path.split('.'));
        let found = names
            .into_iter()
            .flatten()
            .try_fold(item, |item, name| item.get_attr(name));
        found.map(|item| text(&item))
    };
    let items = value.try_iter()?.map(item).collect::<Result<Vec<_>, _>>()?;
    let between = match args.first() {
        Some(first) if first.is_none() => text(first),
        _ => text(&arguments.value(0, "d").unwrap_or_default()),
    };
    Ok(items.join(&between).into())
}

/// Returns whether Python accepts a character in a number that Rust does not.
fn is_other(c: char) -> bool {
    c == '_' || (!c.is_ascii() && c.is_numeric())
}

fn check_defined(value: &Value, filter: &str) -> Result<(), Error> {
    match value.is_undefined() {
        true => Err(failed(format!("{filter}() of an undefined value"))),
        false => Ok(()),
    }
}

/// Returns the integer that Python's `int` makes from a value, or the default.
fn int(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("int", args, &["default", "base"])?;
    check_defined(value, "int")?;
    let default = || Ok(arguments.given(0, "default").unwrap_or_else(|| 0.into()));
    if let Some(x) = python::is_float(value) {
        return match x.is_finite() {
            true => Ok(Value::from(x as i128)),
            false => default(),
        };
    }
    let Some(text) = value.as_str() else {
        return match value.kind() {
            ValueKind::Number => Ok(value.clone()),
            ValueKind::Bool => Ok(i64::from(value.is_true()).into()),
            _ => default(),
        };
    };
    let base = arguments.integer(1, "base")?.unwrap_or(10);
    if !(2..=36).contains(&base) || text.contains(is_other) {
        return Err(unsupported("int() of such digits, or of this base,"));
    }
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixes = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["", ""],
    };
    let digits = prefixes
        .iter()
        .find_map(|prefix| digits.strip_prefix(prefix))
        .unwrap_or(digits);
    let base = u32::try_from(base).unwrap_or(10);
    let is_number = !digits.starts_with(['+', '-']);
    match i128::from_str_radix(digits, base)
        .ok()
        .filter(|_| is_number)
    {
        Some(n) => Ok(Value::from(sign * n)),
        // Jinja2 does this for "42.23".
        None => match text.parse::<f64>().ok().filter(|x| x.is_finite()) {
            Some(x) => Ok(Value::from(x as i128)),
            None => default(),
        },
    }
}

/// Returns the number that Python's `float` makes from a value, if it does.
fn real(value: &Value) -> Result<Option<f64>, Error> {
    Ok(match (value.as_str(), value.kind()) {
        (Some(text), _) if text.contains(is_other) => {
            return Err(unsupported("a number with such digits"));
        }
        (Some(text), _) => text.trim().parse().ok(),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        (None, ValueKind::Bool) => Some(if value.is_true() { 1.0 } else { 0.0 }),
        _ => None,
    })
}

fn float(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new("float", args, &["default"])?;
    check_defined(value, "float")?;
    let default = || arguments.given(0, "default").unwrap_or_else(|| 0.0.into());
    Ok(real(value)?.map_or_else(default, Value::from))
}
