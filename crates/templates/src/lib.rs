//! Chat templates: Jinja2 as transformers sets it up, on [minijinja].
//!
//! minijinja reads almost all of Jinja2. This package adds transformers' extensions (`raise_exception`, `strftime_now`, the blocks
//! `generation`), and replaces the parts that Python computes differently: the text of values, integers of any size, methods of
//! strings, lists and dictionaries.
//!
//! ```
//! use candle_blocks_templates::environment;
//! use candle_blocks_templates::minijinja::context;
//!
//! let source = "{% for m in messages %}<{{ m.role }}>{{ m.content.strip() }}</s>{% endfor %}";
//! let chat = environment("chat", source)?;
//! let messages = vec![context! { role => "user", content => " Hi! " }];
//! let text = chat.get_template("chat")?.render(context! { messages })?;
//! assert_eq!(text, "<user>Hi!</s>");
//! # Ok::<(), candle_blocks_templates::minijinja::Error>(())
//! ```
#![deny(missing_docs)]

mod arguments;
mod clock;
mod dict;
mod filters;
mod json;
mod lists;
mod long;
mod markup;
mod objects;
mod operators;
mod pprint;
mod python;
mod rewrite;
mod selections;
mod source;
mod strings;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

pub use dict::{entries, python_value};
pub use minijinja;
pub use strings::is_space;

/// The step limit: a template that loops for ever ends with an error after a second. Real templates take some hundred steps
/// for each message.
const MOST_STEPS: u64 = 10_000_000;

/// Returns an environment that holds one template under `name`.
///
/// # Errors
/// If the source is not valid Jinja.
pub fn environment(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(rewrite::syntax()?);
    environment.set_fuel(Some(MOST_STEPS));
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python::text(value))?));
    environment.set_unknown_method_callback(method);
    environment.remove_global("debug");
    environment.add_function("raise_exception", |reason: &Value| {
        Err::<Value, _>(failed(python::text(reason)))
    });
    environment.add_function("strftime_now", |format: &str| clock::strftime_now(format));
    filters::add(&mut environment);
    operators::add(&mut environment);
    selections::add(&mut environment);
    lists::add(&mut environment);
    let source =
        source::rewritten(source).map_err(|reason| Error::new(ErrorKind::SyntaxError, reason))?;
    environment.add_template_owned(name, rewrite::rewritten(&source)?)?;
    Ok(environment)
}

/// Calls a method on a value of a Python type.
fn method(_: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // Only these of a string's methods take an undefined value.
    let is_text = value.kind() == ValueKind::String && !has("format join", name);
    if is_text && args.iter().any(objects::is_given) {
        return Err(failed(format!("{name}() of an undefined value")));
    }
    let args: &[Value] = &args.iter().cloned().map(objects::taken).collect::<Vec<_>>();
    match value.kind() {
        ValueKind::String if value.is_safe() => {
            Err(unsupported(format!("the method {name} of a safe string")))
        }
        ValueKind::String => strings::string_method(value.as_str().unwrap_or_default(), name, args),
        ValueKind::Number | ValueKind::Bool if has(operators::ATTRIBUTES, name) => {
            Err(unsupported(format!("the method {name} of a number")))
        }
        ValueKind::Map => dict::method(value, name, args),
        ValueKind::Seq | ValueKind::Iterable => strings::list_method(value, name, args),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Refuses a construct that Jinja2 renders and this module does not.
fn unsupported(construct: impl std::fmt::Display) -> Error {
    failed(format!("{construct} is not supported"))
}

/// Returns whether a word is in a space-separated list.
fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}
