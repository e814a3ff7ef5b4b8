//! `candle-blocks chat` answers each line after the conversation so far.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::conversation::{folder, generate};
use crate::scratch::{answer_to, program};

fn chat(folder: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = program();
    command.current_dir(folder).args(["chat", "--model", "."]);
    command.args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

#[test]
fn each_answer_is_that_of_generate_on_the_messages_so_far() {
    let Some(folder) = folder() else { return };
    let options = ["-n", "8", "--template-var", "thinks=false"];
    let answer = |messages: serde_json::Value| {
        fs::write(folder.path().join("so-far.json"), messages.to_string()).unwrap();
        let messages = ["--messages", "so-far.json", "--system", "Brief."];
        let said = generate(folder.path(), &[&messages[..], &options].concat());
        said.assert_status(0);
        said.stdout
    };
    let hi = json!({"role": "user", "content": "Hi"});
    let first = answer(json!([hi]));
    let own = json!({"role": "assistant", "content": first.strip_suffix('\n').unwrap()});
    let and = json!({"role": "user", "content": "And?"});
    let second = answer(json!([hi, own, and]));
    assert_ne!(first, second);

    let mut command = chat(folder.path(), &["--system", "Brief."]);
    let all = answer_to(
        "Hi\n\nAnd?\n/reset\n Hi \n/exit\nAnd?\n",
        command.args(options),
    );
    all.assert_status(0);
    assert_eq!(all.stdout, format!("{first}{second}{first}"));
    let without_end = answer_to(
        "Hi",
        chat(folder.path(), &["--system", "Brief."]).args(options),
    );
    assert_eq!(without_end.stdout, first);
}

#[test]
fn several_answers_and_a_broken_template_are_refused() {
    let Some(folder) = folder() else { return };
    let several = ["--num-beams", "2", "--num-return-sequences", "2"];
    answer_to("", &mut chat(folder.path(), &several)).assert_refused(&["--num-return-sequences"]);
    fs::write(
        folder.path().join("chat_template.jinja"),
        "{{ raise_exception('no users') }}",
    )
    .unwrap();
    answer_to("Hi\n", &mut chat(folder.path(), &[])).assert_refused(&["no users"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_not_the_program() {
    use std::time::Duration;
    let Some(folder) = folder() else { return };
    let config = folder.path().join("config.json");
    let keys = fs::read_to_string(&config).unwrap();
    fs::write(&config, keys.replacen('{', "{\"own_key\": 1,", 1)).unwrap();
    // Enough beams that the answer takes longer than the pause below.
    let slow = ["--num-beams", "6000", "-n", "100"];
    let mut child = chat(folder.path(), &slow).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"Hi\n").unwrap();
    // The note on the key is printed right before the model is loaded.
    let mut note = String::new();
    let mut notes = BufReader::new(child.stderr.take().unwrap());
    notes.read_line(&mut note).unwrap();
    assert!(note.contains("own_key"), "{note}");
    std::thread::sleep(Duration::from_millis(700));
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    input.write_all(b"/exit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{:?}", output.status);
    assert_eq!(output.stdout, b"\n");
}
