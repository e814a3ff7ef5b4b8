//! A conversation whose last message the model continues: transformers' `continue_final_message`.

use candle_blocks_templates::entries;
use candle_blocks_templates::minijinja::value::{Value, ValueKind};

/// Text after the last message, which marks its end in the prompt. Templates may trim the space.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the last message. Returns the messages, and the last one's text.
///
/// # Errors
/// If the last message has no text, or the template does not read it.
pub(crate) fn marked(
    mut messages: Vec<Value>,
    template: &str,
) -> Result<(Vec<Value>, String), &'static str> {
    const NONE: &str = "the last message, which is to be continued, has no text in its content";
    let last = messages.pop().ok_or(NONE)?;
    let content = last.get_attr("content").unwrap_or_default();
    if !template.contains("content") {
        return Err(
            "the chat template does not read the content of messages, so the last one cannot be continued",
        );
    }
    let (content, text) = match content.as_str() {
        Some(text) => (Value::from(format!("{text}{MARK}")), text.to_string()),
        None if content.kind() == ValueKind::Seq => {
            let mut parts: Vec<Value> = content.try_iter().into_iter().flatten().collect();
            let text = |part: &Value| {
                part.get_attr("text")
                    .ok()
                    .and_then(|text| text.as_str().map(str::to_string))
            };
            let at = parts
                .iter()
                .rposition(|part| text(part).is_some())
                .ok_or(NONE)?;
            let text = text(&parts[at]).unwrap_or_default();
            parts[at] = with_entry(&parts[at], "text", format!("{text}{MARK}").into());
            (Value::from(parts), text)
        }
        None => return Err(NONE),
    };
    messages.push(with_entry(&last, "content", content));
    Ok((messages, text))
}

/// Cuts a text after the last message.
///
/// # Errors
/// If the text does not contain the message.
pub(crate) fn continued(text: &str, last: &str) -> Result<String, &'static str> {
    let at = text
        .rfind(MARK.trim_end())
        .filter(|_| text.contains(last.trim()));
    let at = at.ok_or("the chat template changes the last message, so it cannot be continued")?;
    Ok(match text[at..].starts_with(MARK) {
        true => text[..at].to_string(),
        false => text[..at].trim_end().to_string(), // the template trims messages
    })
}

fn with_entry(object: &Value, name: &str, value: Value) -> Value {
    let entry = |(key, old): (Value, Value)| match key.as_str() == Some(name) {
        true => (key, value.clone()),
        false => (key, old),
    };
    Value::from_pairs(entries(object).map(entry))
}
