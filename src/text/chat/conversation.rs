//! A conversation as data: messages, and other variables for a chat template.

use candle_blocks_templates::minijinja::value::{Serde, Value, ValueKind};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::{Error, Result};

/// A message in a conversation. Pass it to [`TextGenerator::chat`](crate::text::TextGenerator::chat).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker's role: `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// Makes a message with this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }

    /// Makes a message by the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Makes a message by the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Makes a system message, which precedes all others.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }
}

/// A JSON value for a chat template. Its objects keep the order of their keys, because templates print them.
#[derive(Clone, Debug)]
pub struct TemplateValue(pub(crate) Value);

impl TemplateValue {
    /// Parses JSON.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is not JSON.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = serde_json::from_str(text.trim_start_matches('\u{feff}'));
        value.map(Self).map_err(|error| {
            let half = match error.to_string().contains("hex escape") {
                true => {
                    "; a string has half of a surrogate pair, which is no character: write both halves, as in \\ud83d\\ude00, \
                     or the character itself"
                }
                false => "",
            };
            Error::input(
                "a value for the chat template",
                format!("is not JSON: {error}{half}"),
            )
        })
    }

    /// Converts any serializable value.
    pub fn of(value: &impl Serialize) -> Self {
        Self(Value::from(Serde(value)))
    }

    /// Returns a list's items; `None` for any other value.
    pub fn items(&self) -> Option<Vec<TemplateValue>> {
        let is_list = self.0.kind() == ValueKind::Seq;
        is_list.then(|| self.0.try_iter().into_iter().flatten().map(Self).collect())
    }
}

impl Serialize for TemplateValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The end of a conversation's text. Pass it to [`Conversation::with_end`](crate::text::Conversation::with_end).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConversationEnd {
    /// The beginning of an answer: transformers' `add_generation_prompt`.
    #[default]
    Answer,
    /// The end of the last message.
    LastMessage,
    /// A place within the last message, which the model continues: transformers' `continue_final_message`.
    WithinLastMessage,
}

/// A conversation's messages, tools that the model may call, documents that it reads, and more variables for the chat
/// template. Messages are [`Message`]s, or objects with any keys that the template reads, such as `tool_calls`.
///
/// ```
/// use candle_blocks::text::{Conversation, Message};
/// let conversation = Conversation::new(&[Message::user("Why is the sky blue?")])
///     .with_variable("enable_thinking", &false);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Conversation {
    pub(crate) messages: Value,
    pub(crate) tools: Option<Value>,
    pub(crate) documents: Option<Value>,
    pub(crate) variables: Vec<(String, Value)>,
    pub(crate) template: Option<String>,
    pub(crate) end: ConversationEnd,
}

impl Conversation {
    /// Makes a conversation with these messages.
    pub fn new(messages: &impl Serialize) -> Self {
        Self {
            messages: Value::from(Serde(messages)),
            tools: None,
            documents: None,
            variables: Vec::new(),
            template: None,
            end: ConversationEnd::default(),
        }
    }

    /// Sets the tools: a list of JSON schemas. If there are several templates, this selects `tool_use`.
    pub fn with_tools(mut self, tools: &impl Serialize) -> Self {
        self.tools = Some(Value::from(Serde(tools)));
        self
    }

    /// Sets the documents: a list of objects.
    pub fn with_documents(mut self, documents: &impl Serialize) -> Self {
        self.documents = Some(Value::from(Serde(documents)));
        self
    }

    /// Sets another template variable.
    pub fn with_variable(mut self, name: impl Into<String>, value: &impl Serialize) -> Self {
        self.variables
            .push((name.into(), Value::from(Serde(value))));
        self
    }

    /// Selects one of several templates by its name.
    pub fn with_template(mut self, name: impl Into<String>) -> Self {
        self.template = Some(name.into());
        self
    }

    /// Sets the end of the text.
    pub fn with_end(mut self, end: ConversationEnd) -> Self {
        self.end = end;
        self
    }

    /// Checks arguments like transformers' `apply_chat_template`.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |input: &str, reason: String| Error::input(input, reason);
        let lists = [
            ("messages", Some(&self.messages)),
            ("tools", self.tools.as_ref()),
            ("documents", self.documents.as_ref()),
        ];
        for (name, list) in lists {
            let Some(list) = list else { continue };
            let is_list = list.kind() == ValueKind::Seq;
            let is_object = |item: Value| item.kind() == ValueKind::Map;
            if !is_list || !list.try_iter().is_ok_and(|mut items| items.all(is_object)) {
                return Err(fail(
                    name,
                    format!("expected a list of objects, found {}", shown(list)),
                ));
            }
        }
        match self.messages.len() {
            Some(0) => Err(fail(
                "messages",
                "there are none; give at least one".to_string(),
            )),
            _ => Ok(()),
        }
    }
}

/// Describes a value that is not a list of objects.
fn shown(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq => "a list with other items".to_string(),
        kind => format!("a value of type {kind}"),
    }
}
