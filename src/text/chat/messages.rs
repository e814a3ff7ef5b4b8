//! Texts as conversations, for models that were trained with a chat template.

use std::path::Path;

use serde::Serialize;

use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};
use crate::text::encoder::reading::{ChatReading, CutEnd, MessageContent, TextInput};
use crate::text::{ChatTemplate, TokenizedText, Tokenizer};

/// The model types whose templates read message content as text, whatever else they contain.
const FLAT: [&str; 4] = ["apertus", "deepseek_v3", "gpt_oss", "seed_oss"];
/// Expressions in templates that read content as a list.
const STRUCTURED: [&str; 6] = [
    "content[0]",
    ".type",
    "'type'",
    "\"type\"",
    "item.type",
    "message.content[",
];
/// The roles for the two texts of a pair.
const PAIR: [&str; 2] = ["query", "document"];

/// A message; templates may print it with its keys in this order.
#[derive(Serialize)]
struct TemplateMessage<'t> {
    role: &'t str,
    content: Text<'t>,
}

/// A message's content.
#[derive(Serialize)]
#[serde(untagged)]
enum Text<'t> {
    Flat(&'t str),
    Structured([ContentPart<'t>; 1]),
}

/// A part of a message's content.
#[derive(Serialize)]
struct ContentPart<'t> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'t str,
}

/// A chat template with the conversations that texts become, as in sentence-transformers' `InputFormatter`.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    template: std::sync::Arc<ChatTemplate>,
    reading: ChatReading,
    is_flat: bool,
}

impl Messages {
    /// Returns the template beside a tokenizer, for the model in this `config.json`.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::of`].
    pub fn new(
        tokenizer: &Tokenizer,
        reading: ChatReading,
        config: Option<&ConfigJson>,
    ) -> Result<Self> {
        let template = ChatTemplate::of(tokenizer)?;
        let model_type = config.map(|json| json.text(&["model_type"])).transpose()?;
        let is_flat = match reading.content {
            MessageContent::Flat => true,
            MessageContent::Structured => false,
            MessageContent::ByTemplate => {
                let model_type = model_type.flatten().unwrap_or_default();
                let has_lists = |text: &str| STRUCTURED.iter().any(|part| text.contains(part));
                FLAT.contains(&model_type.as_str())
                    || template.only_text().is_some_and(|text| !has_lists(text))
            }
        };
        Ok(Self {
            template: template.into(),
            reading,
            is_flat,
        })
    }

    /// Tokenizes texts or pairs with a prompt, which becomes the system message. The tokenizer adds no special tokens.
    ///
    /// # Errors
    /// If the template fails, or omits a text in a pair.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        inputs: &[TextInput],
        prompt: &str,
        max_length: Option<usize>,
    ) -> Result<Vec<TokenizedText>> {
        if inputs
            .iter()
            .any(|input| matches!(input, TextInput::Pair(..)))
        {
            self.check_pairs(tokenizer.path())?;
        }
        let texts = inputs.iter().map(|input| self.render(input, prompt));
        let texts = texts.collect::<Result<Vec<String>>>()?;
        let mut encoded = tokenizer.encode_all(texts)?;
        let Some(max_length) = max_length.filter(|_| self.reading.cut == CutEnd::Restored) else {
            return Ok(encoded);
        };
        for (text, input) in encoded.iter_mut().zip(inputs) {
            if text.ids.len() >= max_length {
                let end = self.end(tokenizer, input, prompt)?;
                let n_kept = end.len().min(text.ids.len());
                let begin = text.ids.len() - n_kept;
                text.ids[begin..].copy_from_slice(&end[end.len() - n_kept..]);
            }
        }
        Ok(encoded)
    }

    fn render(&self, input: &TextInput, prompt: &str) -> Result<String> {
        let message = |role, text| TemplateMessage {
            role,
            content: match self.is_flat {
                true => Text::Flat(text),
                false => Text::Structured([ContentPart { kind: "text", text }]),
            },
        };
        let mut messages = Vec::new();
        if !prompt.is_empty() {
            messages.push(message("system", prompt));
        }
        match input {
            TextInput::One(text) => messages.push(message("user", text)),
            TextInput::Pair(a, b) => messages.extend([message(PAIR[0], a), message(PAIR[1], b)]),
        }
        let ChatReading {
            variables,
            add_generation_prompt,
            ..
        } = &self.reading;
        self.template
            .render_with(&messages, *add_generation_prompt, variables)
    }

    /// Returns the tokens that the template puts after every text of this kind: the common suffix for two texts without a
    /// token in common.
    fn end(&self, tokenizer: &Tokenizer, input: &TextInput, prompt: &str) -> Result<Vec<u32>> {
        let with = |filler: &'static str| -> Result<Vec<u32>> {
            let input = match input {
                TextInput::One(_) => TextInput::One(filler),
                TextInput::Pair(..) => TextInput::Pair(filler, filler),
            };
            tokenizer.encode_whole(&self.render(&input, prompt)?)
        };
        let (first, second) = (with("0")?, with("1 2 3 4")?);
        let pairs = first.iter().rev().zip(second.iter().rev());
        let n_shared = pairs.take_while(|(a, b)| a == b).count();
        Ok(match n_shared < first.len().min(second.len()) {
            true => first[first.len() - n_shared..].to_vec(),
            false => Vec::new(),
        })
    }

    /// Refuses a template that omits a text in a pair.
    fn check_pairs(&self, path: &Path) -> Result<()> {
        let render = |a, b| self.render(&TextInput::Pair(a, b), "");
        let base = render("alpha", "bravo")?;
        let others = [render("charlie", "bravo")?, render("alpha", "foxtrot")?];
        for (role, other) in PAIR.iter().zip(others) {
            if other == base {
                return Err(Error::Tokenizer {
                    path: path.to_path_buf(),
                    reason: format!(
                        "the chat template beside it omits messages with the role {role:?}, so it \
                         cannot write pairs; use a template that writes the roles \"query\" \
                         and \"document\""
                    ),
                });
            }
        }
        Ok(())
    }
}
