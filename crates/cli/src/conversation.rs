//! The chat options of `generate` and `chat`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_blocks::text::{Conversation, ConversationEnd, Message, TemplateValue};

use crate::input;

/// The largest JSON file that is read.
const MAX_BYTES: u64 = 100_000_000;

/// A conversation, from which the checkpoint's chat template makes a prompt.
#[derive(clap::Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationArgs {
    /// Answer --prompt as a user's message, with the checkpoint's chat template.
    #[arg(long, requires = "prompt")]
    chat: bool,
    /// A JSON file (`-` is standard input) with a list of messages, as objects with role and content, for the chat template. A --prompt is appended as
    /// the user's next message.
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// Continue the last message instead of answering it.
    #[arg(long)]
    continue_final_message: bool,
    /// Print the rendered prompt, and stop.
    #[arg(long)]
    pub print_prompt: bool,
    #[command(flatten)]
    template: TemplateArgs,
}

/// Values for the chat template besides the messages of user and assistant.
#[derive(clap::Args)]
#[command(next_help_heading = "Conversation")]
pub struct TemplateArgs {
    /// The system message; it comes first.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A JSON file with a list of tools that the model may call, for the chat template.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// A JSON file with a list of documents, for the chat template.
    #[arg(long, value_name = "FILE")]
    documents: Option<PathBuf>,
    /// A variable for the chat template, such as enable_thinking=false or add_generation_prompt=false; may be given several
    /// times.
    #[arg(long, value_name = "NAME=JSON")]
    template_var: Vec<String>,
    /// The chat template to use, if the checkpoint has several. [default: tool_use if there are tools, otherwise default]
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
}

impl ConversationArgs {
    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [
            &self.messages,
            &self.template.tools,
            &self.template.documents,
        ];
        files.into_iter().flatten().map(PathBuf::as_path)
    }

    /// Returns the conversation; `None` if the prompt is a text to continue.
    pub fn conversation(&self, prompt: Option<&str>) -> Result<Option<Conversation>> {
        if !self.chat && self.messages.is_none() {
            self.refuse_further()?;
            return Ok(None);
        }
        let mut messages = Vec::new();
        messages.extend(
            (self.template.system.as_deref()).map(|text| TemplateValue::of(&Message::system(text))),
        );
        if let Some(path) = &self.messages {
            let read = json(path)?.items();
            messages.extend(
                read.with_context(|| format!("{}: expected a list of messages", path.display()))?,
            );
        }
        messages.extend(prompt.map(|text| TemplateValue::of(&Message::user(text))));
        let end = match self.continue_final_message {
            true => ConversationEnd::WithinLastMessage,
            false => ConversationEnd::Answer,
        };
        let conversation = Conversation::new(&messages).with_end(end);
        Ok(Some(self.template.over(conversation)?))
    }

    /// Refuses options that need a conversation.
    fn refuse_further(&self) -> Result<()> {
        let template = &self.template;
        let given = [
            ("--system", template.system.is_some()),
            ("--tools", template.tools.is_some()),
            ("--documents", template.documents.is_some()),
            ("--template-var", !template.template_var.is_empty()),
            ("--template", template.template.is_some()),
            ("--continue-final-message", self.continue_final_message),
            ("--print-prompt", self.print_prompt),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => {
                bail!("{name} is for a conversation; add --chat, or give --messages FILE")
            }
            None => Ok(()),
        }
    }
}

impl TemplateArgs {
    /// Adds tools, documents and variables to a conversation.
    pub fn over(&self, mut conversation: Conversation) -> Result<Conversation> {
        if let Some(path) = &self.tools {
            conversation = conversation.with_tools(&json(path)?);
        }
        if let Some(path) = &self.documents {
            conversation = conversation.with_documents(&json(path)?);
        }
        if let Some(name) = &self.template {
            conversation = conversation.with_template(name);
        }
        for variable in &self.template_var {
            let Some((name, value)) = variable.split_once('=') else {
                bail!(
                    "--template-var {variable}: expected NAME=JSON, such as enable_thinking=false"
                );
            };
            let value = TemplateValue::from_json(value).with_context(|| {
                format!(
                    "--template-var {variable}: a text is written in quotes, {name}='\"{value}\"'"
                )
            })?;
            conversation = conversation.with_variable(name, &value);
        }
        Ok(conversation)
    }
}

/// Reads a JSON file, or standard input; its objects keep the order of their keys.
fn json(path: &Path) -> Result<TemplateValue> {
    let context = || input::name(path);
    if !input::is_standard(path) {
        let size = std::fs::metadata(path).with_context(context)?.len();
        if size > MAX_BYTES {
            bail!(
                "{}: {size} bytes are too many for a conversation",
                path.display()
            );
        }
    }
    let text = String::from_utf8(input::bytes(path)?).with_context(context)?;
    TemplateValue::from_json(&text).with_context(context)
}
