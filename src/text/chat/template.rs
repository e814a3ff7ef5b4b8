//! Chat templates: convert a conversation's messages to the text format that a model was trained on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_blocks_templates::minijinja::value::{Serde, Value};
use candle_blocks_templates::minijinja::{self, Environment};
use serde::Serialize;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{is_named, read_limited};
use crate::error::{Error, Result};
use crate::text::Tokenizer;
use crate::text::chat::continued::{continued, marked};
use crate::text::chat::conversation::{Conversation, ConversationEnd};
use crate::text::jinja::{self, entries, python_value};

/// The size limit; even long templates are much smaller.
const MAX_BYTES: u64 = 10_000_000;

/// The keys for a model's reasoning in messages; most templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The template for conversations without tools, or for all.
const DEFAULT: &str = "default";

/// A checkpoint's chat templates, from the first source that has any: `processor_config.json` or `chat_template.json` under
/// the key `chat_template`, the files `chat_template.jinja` and `additional_chat_templates/*.jinja`, `tokenizer_config.json`
/// under `chat_template`, or a GGUF file.
///
/// Templates are rendered like transformers' `apply_chat_template` does, with the value semantics and string conversion of
/// Jinja2 and Python.
#[derive(Debug)]
pub struct ChatTemplate {
    sources: BTreeMap<String, TemplateSource>,
    /// The file that has no template, for messages.
    path: PathBuf,
    special_tokens: BTreeMap<String, String>,
}

/// A template's source.
#[derive(Debug)]
struct TemplateSource {
    path: PathBuf,
    text: String,
    /// The template, compiled when it is first rendered.
    compiled: OnceLock<Environment<'static>>,
}

impl TemplateSource {
    fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_path_buf(),
            text,
            compiled: OnceLock::new(),
        }
    }

    fn environment(&self) -> std::result::Result<&Environment<'static>, minijinja::Error> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(compiled);
        }
        let compiled = jinja::environment(DEFAULT, &self.text)?;
        Ok(self.compiled.get_or_init(|| compiled))
    }
}

impl ChatTemplate {
    /// Returns the templates beside a tokenizer.
    ///
    /// # Errors
    /// If there is none, or a file cannot be read.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let config = tokenizer.config();
        let (mut sources, mut path) = match tokenizer.folder() {
            Some(folder) => match of_processor(folder)? {
                Some(sources) => (sources, folder.join(OF_PROCESSOR[1])),
                None => (in_files(folder)?, folder.join("chat_template.jinja")),
            },
            None => (BTreeMap::new(), tokenizer.path().to_path_buf()),
        };
        if let Some(config) = config.filter(|_| sources.is_empty()) {
            path = config.path().to_path_buf();
            for (name, text) in config.templates("chat_template")?.unwrap_or_default() {
                sources.insert(name, TemplateSource::new(&path, text));
            }
        }
        if sources.is_empty() {
            let reason = match tokenizer.folder() {
                Some(_) => {
                    "missing; the model was not made for chats: give it a text to continue, or \
                     write its template into chat_template.jinja"
                }
                None => {
                    "has no tokenizer.chat_template; the model was not made for chats: give it a \
                     text to continue, or use the template from files beside it \
                     (`FilesBeside::First`)"
                }
            };
            return Err(malformed(&path, reason.to_string()));
        }
        Ok(Self {
            sources,
            path,
            special_tokens: tokenizer.named_tokens().clone(),
        })
    }

    /// Returns the templates' names; a single template is called `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// Returns the template's source, if there is only one.
    pub(crate) fn only_text(&self) -> Option<&str> {
        let only = self
            .sources
            .get(DEFAULT)
            .filter(|_| self.sources.len() == 1);
        only.map(|source| source.text.as_str())
    }

    /// Returns a conversation's text; with `add_generation_prompt`, followed by the beginning of the model's answer.
    /// Messages are [`Message`](crate::text::Message)s, or other objects with `role`, `content` and any other keys that the
    /// template reads.
    ///
    /// # Errors
    /// If the template is not valid Jinja, refuses the messages, or uses something that does not exist.
    pub fn render(&self, messages: &impl Serialize, add_generation_prompt: bool) -> Result<String> {
        self.render_with(messages, add_generation_prompt, &())
    }

    /// Like [`Self::render`], with more template variables, such as `tools`: the fields of `variables`.
    ///
    /// # Errors
    /// The errors of [`Self::render`].
    pub fn render_with(
        &self,
        messages: &impl Serialize,
        add_generation_prompt: bool,
        variables: &impl Serialize,
    ) -> Result<String> {
        let variables = Value::from(Serde(variables));
        let names = variables.try_iter().into_iter().flatten();
        let further: Vec<(String, Value)> = names
            .map(|name| {
                (
                    name.to_string(),
                    variables.get_item(&name).unwrap_or_default(),
                )
            })
            .collect();
        let has_tools = further
            .iter()
            .any(|(name, tools)| name == "tools" && !tools.is_none());
        let source = self.source(None, has_tools)?;
        let messages = Value::from(Serde(messages));
        self.run(source, messages, add_generation_prompt, further)
    }

    /// Returns a conversation's text as transformers' `apply_chat_template` does, which omits null keys in messages.
    ///
    /// # Errors
    /// The errors of [`Self::render`]; also if the messages, tools or documents are not objects, no template has the
    /// selected name, or the text does not contain the last message, which should be continued.
    pub fn text(&self, conversation: &Conversation) -> Result<String> {
        conversation.check()?;
        let source = self.source(
            conversation.template.as_deref(),
            conversation.tools.is_some(),
        )?;
        let all: Vec<Value> = messages(&conversation.messages)
            .map(without_nulls)
            .collect();
        let mut further = conversation.variables.clone();
        let lists = [
            ("tools", &conversation.tools),
            ("documents", &conversation.documents),
        ];
        for (name, list) in lists {
            further.extend(list.clone().map(|list| (name.to_string(), list)));
        }
        if conversation.end != ConversationEnd::WithinLastMessage {
            let adds = conversation.end == ConversationEnd::Answer;
            return self.run(source, Value::from(all), adds, further);
        }
        let fail = |reason: &str| malformed(&source.path, reason.to_string());
        let (all, last) = marked(all, &source.text).map_err(fail)?;
        let text = self.run(source, Value::from(all), false, further)?;
        continued(&text, &last).map_err(fail)
    }

    /// Returns the template with a name, or the one that transformers selects.
    fn source(&self, name: Option<&str>, has_tools: bool) -> Result<&TemplateSource> {
        let name = match name {
            Some(name) => name,
            None if has_tools && self.sources.contains_key("tool_use") => "tool_use",
            None => DEFAULT,
        };
        self.sources.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            let reason = format!(
                "there is no chat template {name:?}; choose one of {}",
                names.join(", ")
            );
            malformed(&self.path, reason)
        })
    }

    fn run(
        &self,
        source: &TemplateSource,
        all: Value,
        add_generation_prompt: bool,
        further: Vec<(String, Value)>,
    ) -> Result<String> {
        let fail = |error| malformed(&source.path, message(&error));
        let environment = source.environment().map_err(fail)?;
        let all: Vec<Value> = messages(&all).map(with_reasoning).collect();
        let mut variables: Vec<(String, Value)> =
            vec![("tools".into(), ().into()), ("documents".into(), ().into())];
        let special = self.special_tokens.iter();
        variables.extend(special.map(|(name, token)| (name.clone(), token.as_str().into())));
        variables.push(("add_generation_prompt".into(), add_generation_prompt.into()));
        variables.extend(further);
        variables.push(("messages".into(), Value::from(all)));
        let values = variables
            .into_iter()
            .map(|(name, value)| (name, python_value(value)));
        let template = environment.get_template(DEFAULT).map_err(fail)?;
        template.render(Value::from_pairs(values)).map_err(fail)
    }
}

/// Processor files that contain a chat template under `chat_template`. They take precedence over the tokenizer's, as in
/// transformers.
const OF_PROCESSOR: [&str; 2] = ["processor_config.json", "chat_template.json"];

/// Reads a processor's templates, if its files have any.
fn of_processor(directory: &Path) -> Result<Option<BTreeMap<String, TemplateSource>>> {
    let paths = OF_PROCESSOR.map(|name| directory.join(name));
    for path in paths.into_iter().filter(|path| is_named(path)) {
        let json = ConfigJson::open(&path)?;
        if let Some(templates) = json.templates("chat_template")? {
            let source = |(name, text)| (name, TemplateSource::new(&path, text));
            return Ok(Some(templates.into_iter().map(source).collect()));
        }
    }
    Ok(None)
}

/// Reads `chat_template.jinja` and the files in `additional_chat_templates/`.
fn in_files(directory: &Path) -> Result<BTreeMap<String, TemplateSource>> {
    let mut files = vec![(DEFAULT.to_string(), directory.join("chat_template.jinja"))];
    let additional = directory.join("additional_chat_templates");
    for entry in std::fs::read_dir(additional)
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = entry.path();
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .map(str::to_string);
        let is_template = path
            .extension()
            .is_some_and(|extension| extension == "jinja");
        files.extend(name.filter(|_| is_template).map(|name| (name, path)));
    }
    let mut sources = BTreeMap::new();
    for (name, path) in files.into_iter().filter(|(_, path)| is_named(path)) {
        let text = String::from_utf8(read_limited(&path, MAX_BYTES, "chat_template.jinja")?);
        let text = text.map_err(|_| malformed(&path, "is not UTF-8".to_string()))?;
        sources.insert(name, TemplateSource::new(&path, text));
    }
    Ok(sources)
}

fn messages(all: &Value) -> impl Iterator<Item = Value> {
    all.try_iter().into_iter().flatten()
}

fn without_nulls(message: Value) -> Value {
    Value::from_pairs(entries(&message).filter(|(_, value)| !value.is_none()))
}

/// Adds a message's reasoning under the keys that templates read, as transformers does.
fn with_reasoning(message: Value) -> Value {
    let of = |name: &str| {
        message
            .get_attr(name)
            .ok()
            .filter(|value| !value.is_none() && !value.is_undefined())
    };
    let Some(reasoning) = REASONING.into_iter().find_map(of) else {
        return message;
    };
    let mut all: Vec<(Value, Value)> = entries(&message).collect();
    match all
        .iter_mut()
        .find(|(key, _)| key.as_str() == Some(REASONING[0]))
    {
        Some(entry) => entry.1 = reasoning.clone(),
        None => all.push((REASONING[0].into(), reasoning.clone())),
    }
    if !all
        .iter()
        .any(|(key, _)| key.as_str() == Some(REASONING[1]))
    {
        all.insert(0, (REASONING[1].into(), reasoning));
    }
    Value::from_pairs(all)
}

/// Returns a template error in one line.
fn message(error: &minijinja::Error) -> String {
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
