//! Jinja2's filters that divide, turn and join items as Python's lists do, and slices.

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, filters};

use super::arguments::Arguments;
use super::objects::{PythonGenerator, Range};
use super::operators::integer;
use super::python::{is_own, text};
use super::{failed, unsupported};

/// Adds the filters and functions to an environment.
pub(super) fn add(environment: &mut Environment) {
    environment.add_filter("batch", |value: Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let arguments = Arguments::new("batch", &args, &["linecount", "fill_with"])?;
        let n = count(&arguments, "linecount")?;
        let fill = arguments.value(1, "fill_with");
        let mut groups: Vec<Vec<Value>> = Vec::new();
        let mut group = Vec::new();
        for item in value.try_iter()? {
            // Jinja2 begins with an empty group where the count is 0.
            if group.len() as i64 == n {
                groups.push(std::mem::take(&mut group));
            }
            group.push(item);
        }
        if let Some(fill) = fill.filter(|_| !group.is_empty()) {
            let n = usize::try_from(n).unwrap_or(0);
            group.resize(n.max(group.len()), fill);
        }
        groups.extend((!group.is_empty()).then_some(group));
        Ok::<_, Error>(groups.into_iter().map(Value::from).collect::<Value>())
    });
    environment.add_filter("slice", |value: Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let arguments = Arguments::new("slice", &args, &["slices", "fill_with"])?;
        let all: Vec<Value> = value.try_iter()?.collect();
        let n = usize::try_from(count(&arguments, "slices")?).unwrap_or(0);
        if n == 0 {
            return Err(failed("slice() into no slices"));
        }
        let (each, n_longer) = (all.len() / n, all.len() % n);
        let fill = arguments.value(1, "fill_with");
        let slice = |i: usize| {
            let (start, end) = (
                i * each + i.min(n_longer),
                (i + 1) * each + (i + 1).min(n_longer),
            );
            let further = fill.iter().filter(|_| i >= n_longer);
            let items = all[start..end].iter().chain(further);
            Value::from(items.cloned().collect::<Vec<Value>>())
        };
        Ok((0..n).map(slice).collect::<Value>())
    });
    environment.add_filter("reverse", |value: Value| {
        if let Some(text) = value.as_str() {
            return Ok(text.chars().rev().collect::<String>().into());
        }
        let is_generator = value.downcast_object_ref::<PythonGenerator>().is_some();
        let mut items: Vec<Value> = value.try_iter()?.collect();
        items.reverse();
        // Python cannot iterate a generator backward, so that Jinja2 makes a list of it.
        Ok::<Value, Error>(match is_generator {
            true => items.into(),
            false => PythonGenerator::value(items),
        })
    });
    environment.add_filter(
        "groupby",
        |value: Value, attribute: Option<Value>, named: Kwargs| {
            let attribute = attribute.or(named.get::<Option<Value>>("attribute")?);
            let attribute = attribute.ok_or_else(|| failed("groupby() without an attribute"))?;
            let attribute = match attribute.kind() {
                ValueKind::Bool => Value::from(i64::from(attribute.is_true())), // an index, as in Python
                _ => attribute,
            };
            let kept = |name: &&str| *name != "attribute" && named.has(name);
            let others = ["default", "case_sensitive"].into_iter().filter(kept);
            let others = others.map(|name| (name, named.get::<Value>(name).unwrap_or_default()));
            let named: Kwargs = others.collect();
            let is_sensitive = named
                .get::<Option<bool>>("case_sensitive")?
                .unwrap_or(false);
            let groups = filters::groupby(value, Some(&text(&attribute)), named)?;
            // minijinja compares other letters with their case.
            let is_odd = |group: &Value| {
                let of = group.get_item_by_index(0).unwrap_or_default();
                of.as_str().is_some_and(|text| !text.is_ascii())
            };
            match !is_sensitive && groups.try_iter()?.any(|group| is_odd(&group)) {
                true => Err(unsupported(
                    "groupby() by texts beyond ASCII, unless case_sensitive is true,",
                )),
                false => Ok(groups),
            }
        },
    );
    environment.add_function("dict", |args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (value, named): (Option<Value>, Kwargs) = from_args(&args)?;
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        for item in value.iter().flat_map(|value| value.try_iter()).flatten() {
            pairs.push(
                match value
                    .as_ref()
                    .filter(|value| value.kind() == ValueKind::Map)
                {
                    Some(map) => (item.clone(), map.get_item(&item)?),
                    None => match &item.try_iter()?.collect::<Vec<_>>()[..] {
                        [key, value] => (key.clone(), value.clone()),
                        _ => return Err(failed("dict() of items that are no pairs")),
                    },
                },
            );
        }
        for name in named.args() {
            pairs.push((name.into(), named.get(name)?));
        }
        Ok(Value::from_pairs(pairs))
    });
    environment.add_function("python_slice", slice);
}

fn count(arguments: &Arguments, name: &str) -> Result<i64, Error> {
    let found = arguments.integer(0, name)?;
    found.ok_or_else(|| failed(format!("the argument {name} is missing")))
}

/// Returns `value[start:stop:step]`. A value that has no slices, and an index that is no integer, give an undefined value.
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let indices = [&start, &stop, &step];
    if value.is_undefined() {
        return Err(failed("a slice of an undefined value"));
    }
    if value.is_safe() {
        return Err(unsupported("a slice of a safe string"));
    }
    let range = value.downcast_object_ref::<Range>();
    let is_sliced = match value.kind() {
        ValueKind::String | ValueKind::Seq => true,
        ValueKind::Iterable => !is_own(&value) || range.is_some(),
        _ => false,
    };
    if !is_sliced
        || indices
            .iter()
            .any(|at| !at.is_none() && integer(at).is_none())
    {
        return Ok(Value::UNDEFINED);
    }
    let items: Vec<Value> = match value.as_str() {
        Some(text) => text.chars().map(|c| c.to_string().into()).collect(),
        None => value.try_iter()?.collect(),
    };
    let n = items.len() as i128;
    let step = integer(&step).unwrap_or(1);
    if step == 0 {
        return Err(failed("slice step cannot be zero"));
    }
    // As Python's `slice.indices`.
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let place = |at: &Value, default: i128| match integer(at) {
        None => default,
        Some(at) if at < 0 => (at.saturating_add(n)).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let ends = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (place(&start, ends.0), place(&stop, ends.1));
    if let Some(range) = range {
        return Ok(range.part(start, stop, step));
    }
    let mut kept = Vec::new();
    let mut at = start;
    while if step > 0 { at < stop } else { at > stop } {
        kept.extend(
            usize::try_from(at)
                .ok()
                .and_then(|at| items.get(at).cloned()),
        );
        at = at.saturating_add(step);
    }
    Ok(match value.kind() {
        ValueKind::String => kept.iter().map(text).collect::<String>().into(),
        _ if value.is_tuple() => Tuple::from(kept).into(),
        _ => kept.into(),
    })
}
