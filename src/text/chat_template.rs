//! Chat templates: the messages of a conversation as the text that a model was trained on.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};

use super::Tokenizer;
use super::python_json::python_json;
use crate::checkpoint::files::read_limited;
use crate::error::{Error, Result};

/// A template of many pages is shorter by far.
const MAX_BYTES: u64 = 10_000_000;

/// The special tokens that `tokenizer_config.json` names, and that templates use.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message in this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// What is said before all else.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }
}

/// The chat template of a checkpoint: Jinja in `chat_template.jinja`, or in `tokenizer_config.json` under `chat_template`.
///
/// Templates are run as transformers' `apply_chat_template` runs them, with `raise_exception`, `tojson` and the methods of
/// Python's strings, lists and dictionaries, but without `strftime_now`: a template that does not test whether it is there fails.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    special_tokens: Vec<(&'static str, String)>,
}

const NAME: &str = "chat_template";
/// A template that loops for ever ends with an error after a second; real ones take some hundred steps a message.
const MOST_STEPS: u64 = 10_000_000;

impl ChatTemplate {
    /// The template beside a tokenizer.
    ///
    /// # Errors
    /// If there is none, or it is not valid Jinja.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let directory = tokenizer.path().parent().unwrap_or(Path::new(""));
        let path = directory.join("chat_template.jinja");
        let config = tokenizer.config();
        let (path, source) = match (path.exists(), config) {
            (true, _) => {
                let bytes = read_limited(&path, MAX_BYTES, "chat_template.jinja")?;
                let source = String::from_utf8(bytes);
                let source = source.map_err(|_| malformed(&path, "is not UTF-8".to_string()))?;
                (path, Some(source))
            }
            (false, Some(config)) => (config.path().to_path_buf(), config.template(NAME)?),
            (false, None) => (path, None),
        };
        let Some(source) = source else {
            let reason = "missing; the model was not made for chats: give it a text to continue, or write its template into \
                          chat_template.jinja";
            return Err(malformed(&path, reason.to_string()));
        };
        let special = |name: &'static str| Some((name, config?.special_token(name).ok()??));
        Self::new(
            &path,
            source,
            SPECIAL_TOKENS.into_iter().filter_map(special).collect(),
        )
    }

    fn new(
        path: &Path,
        source: String,
        special_tokens: Vec<(&'static str, String)>,
    ) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_syntax(as_transformers().map_err(|error| malformed(path, jinja(&error)))?);
        environment.set_fuel(Some(MOST_STEPS));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_filter("tojson", |value: Value, kwargs: Kwargs| {
            let indent = kwargs.get::<Option<usize>>("indent")?;
            // Characters beyond ASCII stay as they are.
            let _ = kwargs.get::<Option<bool>>("ensure_ascii")?;
            kwargs.assert_all_used()?;
            python_json(&value, indent).map_err(|error| {
                minijinja::Error::new(ErrorKind::BadSerialization, error.to_string())
            })
        });
        let parsed = environment.add_template_owned(NAME, source);
        parsed.map_err(|error| malformed(path, jinja(&error)))?;
        Ok(Self {
            environment,
            path: path.to_path_buf(),
            special_tokens,
        })
    }

    /// The text of a conversation; with `add_generation_prompt`, followed by what the model's answer begins with. Messages are
    /// [`Message`]s or whatever else the template reads, as objects with `role` and `content`.
    ///
    /// # Errors
    /// If the template refuses the messages, or asks for something that is not there.
    pub fn render(&self, messages: &impl Serialize, add_generation_prompt: bool) -> Result<String> {
        self.render_with(messages, add_generation_prompt, &())
    }

    /// As [`Self::render`], with further variables of the template, such as `tools`: the fields of `variables`.
    ///
    /// # Errors
    /// As for [`Self::render`].
    pub fn render_with(
        &self,
        messages: &impl Serialize,
        add_generation_prompt: bool,
        variables: &impl Serialize,
    ) -> Result<String> {
        let mut all: Vec<(String, Value)> = vec![
            ("messages".into(), Value::from(Serde(messages))),
            ("add_generation_prompt".into(), add_generation_prompt.into()),
            ("tools".into(), ().into()),
            ("documents".into(), ().into()),
        ];
        let special = self.special_tokens.iter();
        all.extend(special.map(|(name, token)| (name.to_string(), token.as_str().into())));
        let variables = Value::from(Serde(variables));
        for name in variables.try_iter().into_iter().flatten() {
            all.push((
                name.to_string(),
                variables.get_item(&name).unwrap_or_default(),
            ));
        }
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from_pairs(all)));
        rendered.map_err(|error| malformed(&self.path, jinja(&error)))
    }
}

/// How transformers compiles templates.
fn as_transformers() -> std::result::Result<SyntaxConfig, minijinja::Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// What a template's error says, in one line.
fn jinja(error: &minijinja::Error) -> String {
    let line = error
        .line()
        .map_or(String::new(), |line| format!(" (line {line})"));
    let what = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_string);
    format!("the chat template fails{line}: {what}")
}

fn malformed(path: &Path, reason: String) -> Error {
    Error::Tokenizer {
        path: path.to_path_buf(),
        reason,
    }
}
