//! Conversations are written as transformers writes them.

use std::{fs, path::Path};

use candle_blocks::text::{
    ChatTemplate, Conversation, ConversationEnd, Message, TemplateValue, Tokenizer,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::weights::{is_present, weights};

/// Returns a directory with a byte-level tokenizer and this configuration.
fn tokenizer_with(config: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = weights("tiny-gpt-text/tokenizer.json");
    fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let path = folder.path().join("tokenizer_config.json");
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn template(folder: &Path) -> candle_blocks::Result<ChatTemplate> {
    ChatTemplate::of(&Tokenizer::open(folder).unwrap())
}

#[test]
fn conversations_are_written_as_transformers_writes_them() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let bytes = fs::read(weights("reference/chat.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"].as_object().unwrap();
    let cases: Vec<(&String, Value)> = said
        .iter()
        .filter(|(name, case)| *name != "snippets" && case.as_str().unwrap().starts_with('{'))
        .map(|(name, case)| (name, serde_json::from_str(case.as_str().unwrap()).unwrap()))
        .collect();
    assert_eq!(cases.len(), 14);
    for (name, case) in cases {
        let token = |name: &str| json!({"content": case["tokens"][name], "special": true});
        let config = json!({
            "chat_template": [{"name": "default", "template": case["template"]}],
            "bos_token": token("bos_token"),
            "eos_token": case["tokens"]["eos_token"],
        });
        let folder = tokenizer_with(&config);
        let template = template(folder.path()).unwrap();
        let further = case["further"].as_object().unwrap();
        let prompts = further
            .get("add_generation_prompt")
            .is_some_and(|prompts| prompts == true);
        let ours = template.render_with(&case["messages"], prompts, further);
        match case["text"].as_str() {
            Some(text) => assert_eq!(ours.unwrap(), text, "{name}"),
            None => {
                let error = ours.unwrap_err().to_string();
                assert!(
                    error.contains(case["error"].as_str().unwrap()),
                    "{name}: {error}"
                );
            }
        }
    }
}

#[test]
fn a_file_of_its_own_goes_before_the_configuration() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = tokenizer_with(&json!({"chat_template": "old"}));
    let path = folder.path().join("chat_template.jinja");
    fs::write(path, "new {{ messages[0].content }}\n").unwrap();
    let messages = [Message::user("text")];
    let text = template(folder.path())
        .unwrap()
        .render(&messages, true)
        .unwrap();
    assert_eq!(text, "new text");
}

#[test]
fn the_template_of_a_processor_goes_before_the_tokenizers() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = tokenizer_with(&json!({"chat_template": "tokenizer"}));
    let steps = [
        ("tokenizer_config.json", None, "tokenizer"),
        ("chat_template.jinja", Some("file"), "file"),
        (
            "chat_template.json",
            Some(r#"{"chat_template": "legacy"}"#),
            "legacy",
        ),
        (
            "processor_config.json",
            Some(r#"{"chat_template": null}"#),
            "legacy",
        ),
        (
            "processor_config.json",
            Some(r#"{"chat_template": "processor"}"#),
            "processor",
        ),
    ];
    for (name, text, expected) in steps {
        if let Some(text) = text {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let rendered = template(folder.path())
            .unwrap()
            .render(&[Message::user("")], true);
        assert_eq!(rendered.unwrap(), expected, "{name}");
    }
    fs::write(folder.path().join("processor_config.json"), "{}").unwrap();
    fs::write(
        folder.path().join("chat_template.json"),
        r#"{"chat_template": 1}"#,
    )
    .unwrap();
    let error = template(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("chat_template.json") && error.contains("a template"),
        "{error}"
    );
}

#[test]
fn constructs_of_jinja2_are_rendered_as_there_or_refused_by_name() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let bytes = fs::read(weights("reference/chat.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let snippets = header["__metadata__"]["snippets"].as_str().unwrap();
    let snippets: Value = serde_json::from_str(snippets).unwrap();
    let folder = tokenizer_with(&json!({}));
    let (mut n_equal, mut n_refused) = (0, 0);
    for case in snippets["cases"].as_array().unwrap() {
        let [source, expected] = [&case[0], &case[1]].map(|text| text.as_str());
        let source = source.unwrap();
        fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
        let messages = [Message::user("Hi"), Message::assistant("Yes")];
        let template = template(folder.path()).unwrap();
        match template.render_with(&messages, true, &snippets["variables"]) {
            Ok(text) => {
                assert_eq!(Some(text.as_str()), expected, "{source}");
                n_equal += 1;
            }
            Err(error) => {
                let error = error.to_string();
                let is_named =
                    ["not supported", "unable to calculate"].map(|words| error.contains(words));
                assert!(
                    is_named.contains(&true) || expected.is_none(),
                    "{source}: {error}"
                );
                n_refused += 1;
            }
        }
    }
    assert!(
        n_equal > 90 && n_refused > 60,
        "{n_equal} equal, {n_refused} refused"
    );
}

#[test]
fn a_missing_or_wrong_template_is_reported() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let refused = |config: Value| {
        let folder = tokenizer_with(&config);
        let said = match template(folder.path()) {
            Ok(template) => template.render(&[Message::user("a")], false).unwrap_err(),
            Err(error) => error,
        };
        said.to_string()
    };
    assert!(refused(json!({})).contains("chat_template.jinja"));
    assert!(refused(json!({"chat_template": "{% if %}"})).contains("line 1"));
    assert!(refused(json!({"chat_template": "\n{{ later() }}"})).contains("later"));
    assert!(
        refused(json!({"chat_template": [{"name": "other", "template": "a"}]})).contains("default")
    );
    let for_ever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert!(refused(json!({"chat_template": for_ever})).contains("fuel"));
}

/// The folder with these files beside its tokenizer.
fn folder_with(files: &[(&str, &str)]) -> TempDir {
    let folder = tokenizer_with(&json!({"chat_template": "of the configuration"}));
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn tools_select_the_template_for_tools_and_a_name_selects_any() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = folder_with(&[
        ("chat_template.jinja", "plain"),
        (
            "additional_chat_templates/tool_use.jinja",
            "{{ tools[0].name }}",
        ),
        (
            "additional_chat_templates/rag.jinja",
            "{{ documents[0].text }}",
        ),
    ]);
    let template = template(folder.path()).unwrap();
    let text = |conversation: &Conversation| template.text(conversation);
    let said = Conversation::new(&[Message::user("a")]);
    assert_eq!(text(&said).unwrap(), "plain");
    let tools = said.clone().with_tools(&json!([{"name": "weather"}]));
    assert_eq!(text(&tools).unwrap(), "weather");
    assert_eq!(text(&tools.with_template("default")).unwrap(), "plain");
    let documents = said.clone().with_documents(&json!([{"text": "t"}]));
    assert_eq!(text(&documents.with_template("rag")).unwrap(), "t");
    let error = text(&said.with_template("other")).unwrap_err().to_string();
    assert!(
        error.contains("other") && error.contains("default, rag, tool_use"),
        "{error}"
    );
}

/// Compares with transformers' `apply_chat_template` with `continue_final_message`, for a template that trims and one that does not.
#[test]
fn the_last_message_is_continued_where_it_ends() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "Once "}, {"type": "image"}]}
    ]);
    let plain = "{% for m in messages %}<{{ m.content if m.content is string else m.content[0].text }}>\n{% endfor %}";
    let trimmed = plain.replace("].text", "].text | trim");
    for (source, expected) in [(plain, "<Hi>\n<Once "), (&trimmed, "<Hi>\n<Once")] {
        let folder = folder_with(&[("chat_template.jinja", source)]);
        let conversation = Conversation::new(&messages);
        let text = template(folder.path())
            .unwrap()
            .text(&conversation.with_end(ConversationEnd::WithinLastMessage));
        assert_eq!(text.unwrap(), expected);
    }
}

#[test]
fn null_is_left_out_of_a_conversation_and_objects_keep_their_order() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let source = "{{ messages | tojson }}{{ z }}{{ add_generation_prompt }}";
    let folder = folder_with(&[("chat_template.jinja", source)]);
    let text = r#"[{"role": "assistant", "content": null, "calls": [{"z": 1, "a": null}]}]"#;
    let messages = TemplateValue::from_json(text).unwrap();
    let conversation = Conversation::new(&messages)
        .with_variable("z", &[1.0, 1e16])
        .with_end(ConversationEnd::LastMessage);
    let text = template(folder.path()).unwrap().text(&conversation);
    let expected = r#"[{"role": "assistant", "calls": [{"z": 1, "a": null}]}][1.0, 1e+16]False"#;
    assert_eq!(text.unwrap(), expected);
}

#[test]
fn a_conversation_of_nothing_or_of_other_values_is_refused() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = folder_with(&[]);
    let template = template(folder.path()).unwrap();
    for messages in [json!([]), json!("a"), json!(["a"]), json!({"role": "user"})] {
        let error = template.text(&Conversation::new(&messages)).unwrap_err();
        assert!(error.to_string().starts_with("messages: "), "{error}");
    }
    // Python's json module takes half of a pair, and fails when the text is encoded.
    let half = TemplateValue::from_json(r#"[{"role": "user", "content": "\ud83e"}]"#);
    let said = half.map(drop).unwrap_err().to_string();
    assert!(said.contains("half of a surrogate pair"), "{said}");
    let whole = r#"[{"role": "user", "content": "\ud83e\udd14"}]"#;
    assert!(TemplateValue::from_json(whole).is_ok());
    assert!(
        TemplateValue::from_json("{")
            .unwrap_err()
            .to_string()
            .contains("not JSON")
    );
}
