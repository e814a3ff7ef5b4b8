//! The arguments of a Python method or a filter, by position or by name.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};

/// The arguments in one call.
#[derive(Debug)]
pub(super) struct Arguments<'a> {
    of: &'a str,
    placed: &'a [Value],
    named: Kwargs,
}

impl<'a> Arguments<'a> {
    /// Reads the arguments for the function `of`, whose parameters have these names.
    ///
    /// # Errors
    /// If there are too many arguments, or one has an unknown name.
    pub fn new(of: &'a str, args: &'a [Value], names: &[&str]) -> Result<Self, Error> {
        let (placed, named) = match args.split_last() {
            Some((last, placed)) if last.is_kwargs() => (
                placed,
                from_args::<(Kwargs,)>(std::slice::from_ref(last))?.0,
            ),
            _ => (args, std::iter::empty::<(String, Value)>().collect()),
        };
        if placed.len() > names.len() {
            return Err(ErrorKind::TooManyArguments.into());
        }
        if let Some(other) = named.args().find(|name| !names.contains(name)) {
            let reason = format!("{of}() got an unexpected keyword argument '{other}'");
            return Err(Error::new(ErrorKind::TooManyArguments, reason));
        }
        Ok(Self { of, placed, named })
    }

    /// Returns the argument at a position, or with a name; `None` if it is not given or Python's `None`.
    pub fn value(&self, place: usize, name: &str) -> Option<Value> {
        let value = self.given(place, name);
        value.filter(|value| !value.is_none() && !value.is_undefined())
    }

    /// Returns the argument at a position, or with a name, also if it is Python's `None` or undefined.
    pub fn given(&self, place: usize, name: &str) -> Option<Value> {
        let named = || self.named.peek::<Value>(name).ok();
        self.placed.get(place).cloned().or_else(named)
    }

    pub fn text(&self, place: usize, name: &str) -> Result<Option<String>, Error> {
        self.parsed(place, name, "a string", |value| {
            value.as_str().map(str::to_string)
        })
    }

    pub fn integer(&self, place: usize, name: &str) -> Result<Option<i64>, Error> {
        self.parsed(place, name, "an integer", |value| {
            i64::try_from(value.clone()).ok()
        })
    }

    pub fn required_text(&self, place: usize, name: &str) -> Result<String, Error> {
        self.text(place, name)?
            .ok_or_else(|| self.wrong(name, "a string", None))
    }

    pub fn is_true(&self, place: usize, name: &str) -> bool {
        self.value(place, name).is_some_and(|value| value.is_true())
    }

    /// Returns whether an argument is true, which it is by default.
    pub fn is_not_false(&self, place: usize, name: &str) -> bool {
        self.value(place, name).is_none_or(|value| value.is_true())
    }

    fn parsed<T>(
        &self,
        place: usize,
        name: &str,
        kind: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let value = self.value(place, name);
        let parsed = value
            .map(|value| parse(&value).ok_or_else(|| self.wrong(name, kind, Some(value.kind()))));
        parsed.transpose()
    }

    fn wrong(&self, name: &str, kind: &str, found: Option<ValueKind>) -> Error {
        let found = found.map_or("missing".to_string(), |found| format!("of type {found}"));
        let reason = format!("{}(): argument {name} is {found}, expected {kind}", self.of);
        Error::new(ErrorKind::InvalidOperation, reason)
    }
}
