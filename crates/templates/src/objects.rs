//! Python objects that minijinja lacks.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{
    Enumerator, Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueOrKwargs, from_args,
};
use minijinja::{Error, ErrorKind, State};

use super::arguments::Arguments;
use super::{failed, unsupported};

/// Items that can be read once. A generator is always true, and has no length.
#[derive(Debug)]
pub(super) struct PythonGenerator(Arc<Mutex<std::vec::IntoIter<Value>>>);

impl PythonGenerator {
    pub fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Arc::new(Mutex::new(items.into_iter()))))
    }

    /// Returns the items for a loop. It is unknown how many of them the loop leaves, so any later use is refused.
    pub fn iterated(&self) -> Vec<Value> {
        let mut items = locked(&self.0);
        let all: Vec<Value> = items.by_ref().collect();
        if !all.is_empty() {
            let refused = unsupported("reading a generator in or behind a loop over it");
            *items = vec![Value::from(refused)].into_iter();
        }
        all
    }
}

fn locked(items: &Mutex<std::vec::IntoIter<Value>>) -> MutexGuard<'_, std::vec::IntoIter<Value>> {
    items.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Object for PythonGenerator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED) // so that indexing does not read the items
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let items = self.0.clone();
        Enumerator::Iter(Box::new(std::iter::from_fn(move || locked(&items).next())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// Python's `range`.
#[derive(Debug)]
pub(super) struct Range([i64; 3]);

impl Range {
    /// Returns `range(start, stop, step)`, or `range(start)`.
    ///
    /// # Errors
    /// If the step is zero, or there are more items than Jinja2's sandbox allows.
    pub fn value(start: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
        let (start, stop) = stop.map_or((0, start), |stop| (start, stop));
        let range = Self([start, stop, step.unwrap_or(1)]);
        match step == Some(0) || range.len() > 100_000 {
            true => Err(failed("range() has a step of 0, or more than 100000 items")),
            false => Ok(Value::from_object(range)),
        }
    }

    /// Returns the range for some of its items, by their places.
    pub fn part(&self, start: i128, stop: i128, step: i128) -> Value {
        let [first, _, by] = self.0.map(i128::from);
        let of = [
            first + start * by,
            first + stop * by,
            step.saturating_mul(by),
        ];
        Value::from_object(Self(
            of.map(|n| n.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        ))
    }

    fn len(&self) -> i128 {
        let [start, stop, step] = self.0.map(i128::from);
        ((stop - start + step - step.signum()) / step).max(0)
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let [start, _, step] = self.0;
        let items = 0..self.len() as usize;
        Enumerator::RevIter(Box::new(
            items.map(move |n| Value::from(start + n as i64 * step)),
        ))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [start, stop, 1] => write!(f, "range({start}, {stop})"),
            [start, stop, step] => write!(f, "range({start}, {stop}, {step})"),
        }
    }
}

/// Jinja2's `cycler`: items in turn.
#[derive(Debug)]
pub(super) struct Cycler {
    items: Vec<Value>,
    place: AtomicUsize,
}

impl Cycler {
    /// Returns `cycler(*items)`.
    ///
    /// # Errors
    /// If there are no items.
    pub fn value(items: Rest<Value>) -> Result<Value, Error> {
        let (items, place) = (items.0, AtomicUsize::new(0));
        match items.is_empty() {
            true => Err(failed("cycler() without items")),
            false => Ok(Value::from_object(Self { items, place })),
        }
    }

    fn current(&self) -> Value {
        self.items[self.place.load(Relaxed)].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key {
            "current" => Some(self.current()),
            "pos" => Some(self.place.load(Relaxed).into()),
            "items" => Some(Tuple::from(self.items.clone()).into()),
            _ => None,
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let place = self.place.load(Relaxed);
        let (result, next) = match method {
            "next" => (self.current(), (place + 1) % self.items.len()),
            "reset" => (().into(), 0),
            _ => return Err(ErrorKind::UnknownMethod.into()),
        };
        from_args::<()>(args)?;
        self.place.store(next, Relaxed);
        Ok(result)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<jinja2.utils.Cycler object>")
    }
}

/// Jinja2's `joiner`: a text on every call but the first.
#[derive(Debug)]
pub(super) struct Joiner {
    between: Value,
    is_used: AtomicBool,
}

impl Joiner {
    /// Returns `joiner(sep)`.
    ///
    /// # Errors
    /// If there are more arguments.
    pub fn value(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
        let args = args.into_values();
        let arguments = Arguments::new("joiner", &args, &["sep"])?;
        let between = arguments.given(0, "sep").unwrap_or_else(|| ", ".into());
        let is_used = AtomicBool::new(false);
        Ok(Value::from_object(Self { between, is_used }))
    }
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        from_args::<()>(args)?;
        Ok(match self.is_used.swap(true, Relaxed) {
            true => self.between.clone(),
            false => "".into(),
        })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<jinja2.utils.Joiner object>")
    }
}

/// An undefined macro argument: the parameter's default does not replace it.
#[derive(Debug)]
struct Given;

impl Object for Given {}

/// Returns the argument that a macro is given.
pub(super) fn given(value: Value) -> Value {
    match value.is_undefined() {
        true => Value::from_object(Given),
        false => value,
    }
}

/// Returns the value of an argument that a macro or a method was [`given`], or of arguments with names.
pub(super) fn taken(value: Value) -> Value {
    if value.is_kwargs() {
        let names: Vec<Value> = value.try_iter().into_iter().flatten().collect();
        let pairs = names.into_iter().map(|name| {
            let argument = value.get_item(&name).unwrap_or_default();
            (name.to_string(), taken(argument))
        });
        return pairs.collect::<Kwargs>().into();
    }
    match is_given(&value) {
        true => Value::UNDEFINED,
        false => value,
    }
}

/// Returns whether a macro or a method is given an undefined value.
pub(super) fn is_given(value: &Value) -> bool {
    value.downcast_object_ref::<Given>().is_some()
}
