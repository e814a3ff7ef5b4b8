//! Python's dictionaries: an attribute of a mapping is first a method, then a key.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{
    DynObject, Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind, from_args,
};
use minijinja::{Error, ErrorKind, State};

use super::python::{DictView, repr};

/// Dictionary methods that a template may call: its environment is immutable.
pub(super) const METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
/// Methods that Jinja2's sandbox hides.
const HIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// Returns the value with every mapping in it as a dictionary of Python.
pub fn python_value(value: Value) -> Value {
    let items = |value: &Value| value.try_iter().into_iter().flatten().collect::<Vec<_>>();
    match value.kind() {
        ValueKind::Map => {
            let pair = |key: Value| {
                let item = value.get_item(&key).unwrap_or_default();
                (key, python_value(item))
            };
            Value::from_object(Dict(Value::from_pairs(items(&value).into_iter().map(pair))))
        }
        ValueKind::Seq => items(&value).into_iter().map(python_value).collect(),
        _ => value,
    }
}

/// Returns an object's entries.
pub fn entries(object: &Value) -> impl Iterator<Item = (Value, Value)> {
    let keys = object.try_iter().into_iter().flatten();
    keys.map(|key| {
        let value = object.get_item(&key).unwrap_or_default();
        (key, value)
    })
}

/// A mapping in the conversation. In Jinja2, `schema.items` is the method even if the mapping has a key with this name.
#[derive(Debug)]
struct Dict(Value);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if METHODS.contains(&key) {
            let (of, name) = (
                Value::from_dyn_object(DynObject::new(self.clone())),
                key.to_string(),
            );
            return Some(Value::from_object(DictMethod { of, name }));
        }
        match HIDDEN.contains(&key) {
            true => None,
            false => self.0.as_object()?.get_value_by_str(key),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.try_iter().into_iter().flatten().collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&self.0))
    }
}

/// A method that was not called.
#[derive(Debug)]
struct DictMethod {
    of: Value,
    name: String,
}

impl Object for DictMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// Calls a dictionary's method.
pub(super) fn method(dict: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(object) = dict.as_object() else {
        return Err(ErrorKind::UnknownMethod.into());
    };
    let keys = || object.try_iter().into_iter().flatten();
    let value = |key: &Value| object.get_value(key).unwrap_or_default();
    let view = |name, items: Vec<Value>| Value::from_object(DictView { name, items });
    match name {
        "get" => {
            let (key, _): (&Value, Option<Value>) = from_args(args)?;
            // An undefined default is one.
            let default = || args.get(1).cloned().unwrap_or_else(|| Value::from(()));
            return Ok(object.get_value(key).unwrap_or_else(default));
        }
        "items" | "keys" | "values" | "copy" => from_args::<()>(args)?,
        name if HIDDEN.contains(&name) => {
            let reason = format!("access to attribute '{name}' of 'dict' object is unsafe.");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        "fromkeys" => return Err(super::unsupported("the method fromkeys")),
        _ => return Err(ErrorKind::UnknownMethod.into()),
    }
    Ok(match name {
        "keys" => view("dict_keys", keys().collect()),
        "values" => view("dict_values", keys().map(|key| value(&key)).collect()),
        "copy" => dict.clone(),
        _ => {
            let pair = |key: Value| Value::from(Tuple::from([key.clone(), value(&key)]));
            view("dict_items", keys().map(pair).collect())
        }
    })
}
