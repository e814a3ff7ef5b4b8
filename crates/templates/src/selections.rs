//! Filters that order items, or compare them with each other, as Python does.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, filters};

use super::failed;
use super::operators::{equal, is_hashable, ordering};
use super::python::text;

type FilterArguments = Rest<ValueOrKwargs>;

/// Adds the filters to an environment.
pub(super) fn add(environment: &mut Environment) {
    environment.add_filter("unique", |value: Value, args: FilterArguments| {
        let keys = named(args, &["case_sensitive", "attribute"])?;
        let mut known: Vec<Value> = Vec::new();
        let mut kept = Vec::new();
        for item in value.try_iter()? {
            let key = key(&item, &keys)?;
            if !is_hashable(&key) {
                return Err(failed("unique() of values that are not hashable"));
            }
            if !known.contains(&key) {
                known.push(key);
                kept.push(item);
            }
        }
        Ok(Value::from(kept))
    });
    environment.add_filter("sort", |value: Value, args: FilterArguments| {
        let args = named(args, &["reverse", "case_sensitive", "attribute"])?;
        let order = direction(&args)?;
        // The keys are lists here, in which equal items need no order.
        sorted_by(value, &args, order, |a, b| match equal(a, b) {
            true => Some(Some(Ordering::Equal)),
            false => ordering(a, b),
        })
        .map(Value::from)
    });
    for (name, order) in [("min", Ordering::Less), ("max", Ordering::Greater)] {
        environment.add_filter(name, move |value: Value, args: FilterArguments| {
            let args = named(args, &["case_sensitive", "attribute"])?;
            Ok::<_, Error>(
                sorted(value, &args, order)?
                    .into_iter()
                    .next()
                    .unwrap_or_default(),
            )
        });
    }
    environment.add_filter("dictsort", |value: &Value, args: FilterArguments| {
        let args = named(args, &["case_sensitive", "by", "reverse"])?;
        let attribute = match args.get::<Option<&str>>("by")? {
            None | Some("key") => "0",
            Some("value") => "1",
            Some(_) => return Err(failed("dictsort() is by 'key' or 'value'")),
        };
        let case = args
            .get::<Option<Value>>("case_sensitive")?
            .unwrap_or_default();
        let keys = [
            ("attribute", Value::from(attribute)),
            ("case_sensitive", case),
        ];
        let order = direction(&args)?;
        sorted(filters::items(value)?, &keys.into_iter().collect(), order).map(Value::from)
    });
}

fn is_true(args: &Kwargs, name: &str) -> Result<bool, Error> {
    let found = args.get::<Option<Value>>(name)?;
    Ok(found.is_some_and(|value| value.is_true()))
}

fn direction(args: &Kwargs) -> Result<Ordering, Error> {
    Ok(match is_true(args, "reverse")? {
        true => Ordering::Greater,
        false => Ordering::Less,
    })
}

/// Returns the items in ascending order, or in descending order for [`Ordering::Greater`].
fn sorted(value: Value, keys: &Kwargs, order: Ordering) -> Result<Vec<Value>, Error> {
    sorted_by(value, keys, order, ordering)
}

fn sorted_by(
    value: Value,
    keys: &Kwargs,
    order: Ordering,
    ordering: fn(&Value, &Value) -> Option<Option<Ordering>>,
) -> Result<Vec<Value>, Error> {
    let keyed = value.try_iter()?.map(|item| Ok((key(&item, keys)?, item)));
    let mut keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    let mut has_order = true;
    keyed.sort_by(|(a, _), (b, _)| {
        has_order &= ordering(a, b).is_some();
        let found = ordering(a, b).flatten().unwrap_or(Ordering::Equal);
        if order.is_gt() {
            found.reverse()
        } else {
            found
        }
    });
    match has_order {
        true => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
        false => Err(failed("values of different types have no order")),
    }
}

/// Returns the value by which an item is compared: itself, or its attributes, in lower case unless the comparison is
/// case-sensitive.
fn key(item: &Value, keys: &Kwargs) -> Result<Value, Error> {
    let attributes = keys
        .get::<Option<Value>>("attribute")?
        .map(|names| text(&names));
    let is_sensitive = is_true(keys, "case_sensitive")?;
    let found = |path: &str| {
        let mut parts = path.split('.').filter(|part| !part.is_empty());
        let found = parts.try_fold(item.clone(), |item, part| match part.parse::<usize>() {
            Ok(index) => item.get_item(&index.into()),
            Err(_) => item.get_item(&part.into()),
        })?;
        Ok::<_, Error>(match found.as_str() {
            Some(text) if !is_sensitive => text.to_lowercase().into(),
            _ => found,
        })
    };
    let attributes = attributes.unwrap_or_default();
    match attributes.contains(',') {
        true => attributes.split(',').map(found).collect::<Result<_, _>>(),
        false => found(&attributes),
    }
}

/// Converts positional arguments to named ones.
fn named(args: FilterArguments, names: &[&'static str]) -> Result<Kwargs, Error> {
    let args = args.into_values();
    let (placed, named): (&[Value], Kwargs) = from_args(&args)?;
    if placed.len() > names.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let placed = names.iter().copied().zip(placed.iter().cloned());
    let mut all: Vec<(&str, Value)> = placed.collect();
    for name in named.args() {
        all.push((name, named.peek(name)?));
    }
    Ok(all.into_iter().collect())
}
