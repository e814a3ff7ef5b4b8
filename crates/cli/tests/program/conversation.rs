//! `candle-blocks generate` puts conversations with tools, documents and variables into the checkpoint's chat template.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::scratch::{Answer, answer, program};
use crate::weights::{is_present, weights};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.calls | tojson if m.calls }}\n{% endfor %}\
                        {{ tools | tojson }}{{ documents | tojson }}{{ thinks }}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Returns a copy of the byte-level model with a chat template, and files with a conversation.
pub fn folder() -> Option<TempDir> {
    if !is_present("tiny-gpt-text") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(weights("tiny-gpt-text")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("chat_template.jinja", TEMPLATE);
    let messages = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "calls": [{"z": 1, "a": 2.0}]}]"#;
    write("messages.json", messages);
    write("tools.json", r#"[{"name": "weather", "b": [], "a": {}}]"#);
    write("documents.json", r#"[{"text": "été"}]"#);
    Some(folder)
}

pub fn generate(folder: &Path, arguments: &[&str]) -> Answer {
    let mut command = program();
    command
        .current_dir(folder)
        .args(["generate", "--model", "."]);
    answer(command.args(arguments))
}

#[test]
fn a_conversation_from_files_is_printed_as_its_template_writes_it() {
    let Some(folder) = folder() else { return };
    let print = |arguments: &[&str]| {
        let said = generate(folder.path(), &[arguments, &["--print-prompt"]].concat());
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        said.stdout
    };
    let whole = print(&[
        "--messages",
        "messages.json",
        "--system",
        "Brief.",
        "--prompt",
        "And?",
        "--tools",
        "tools.json",
        "--documents",
        "documents.json",
        "--template-var",
        "thinks=false",
    ]);
    let expected = "<system>Brief.\n<user>Hi\n<assistant>[{\"z\": 1, \"a\": 2.0}]\n<user>And?\n\
                    [{\"name\": \"weather\", \"b\": [], \"a\": {}}][{\"text\": \"été\"}]False<assistant>";
    assert_eq!(whole, expected);
    assert_eq!(
        print(&["--chat", "--prompt", "a"]),
        "<user>a\nnullnull<assistant>"
    );
}

#[test]
fn the_last_message_is_continued_and_the_answer_generated() {
    let Some(folder) = folder() else { return };
    let messages = r#"[{"role": "assistant", "content": "Once upon "}]"#;
    fs::write(folder.path().join("messages.json"), messages).unwrap();
    let arguments = ["--messages", "messages.json", "--continue-final-message"];
    let printed = generate(
        folder.path(),
        &[&arguments[..], &["--print-prompt"]].concat(),
    );
    assert_eq!(printed.stdout, "<assistant>Once upon ");
    let more = ["--max-new-tokens", "8"];
    let said = generate(folder.path(), &[&arguments[..], &more].concat());
    let plain = generate(
        folder.path(),
        &[&["--prompt", "<assistant>Once upon "], &more[..]].concat(),
    );
    assert_eq!((said.status, said.stdout), (Some(0), plain.stdout));
}

#[test]
fn malformed_conversations_are_refused() {
    let Some(folder) = folder() else { return };
    let refused = |arguments: &[&str], words: &[&str]| {
        generate(folder.path(), arguments).assert_refused(words);
    };
    refused(
        &["--prompt", "a", "--tools", "tools.json"],
        &["--tools", "--chat", "--messages"],
    );
    let chat = ["--prompt", "a", "--chat"];
    let with = |more: &[&'static str]| [&chat[..], more].concat();
    refused(&with(&["--template-var", "a"]), &["NAME=JSON"]);
    refused(&with(&["--template-var", "a=yes"]), &["a=yes", "quotes"]);
    refused(&with(&["--template", "other"]), &["other", "default"]);
    refused(
        &["--messages", "chat_template.jinja"],
        &["chat_template.jinja", "not JSON"],
    );
    refused(&["--messages", "none.json"], &["none.json"]);
    fs::write(folder.path().join("messages.json"), "{}").unwrap();
    refused(
        &["--messages", "messages.json"],
        &["messages.json", "list of messages"],
    );
}
