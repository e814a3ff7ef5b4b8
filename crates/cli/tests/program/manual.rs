//! `candle-blocks completions` and `candle-blocks man`.

use crate::scratch::{Answer, answer, program};

fn says(arguments: &[&str]) -> Answer {
    answer(program().args(arguments))
}

#[test]
fn scripts_for_shells_name_commands_and_options() {
    for (shell, words) in [
        ("bash", ["_candle__blocks()", "--max-new-tokens"]),
        ("zsh", ["#compdef candle-blocks", "--max-new-tokens"]),
        ("fish", ["complete -c candle-blocks", "max-new-tokens"]),
    ] {
        let said = says(&["completions", shell]);
        said.assert_status(0);
        for word in words.into_iter().chain(["transcribe", "as-stored"]) {
            assert!(said.stdout.contains(word), "{shell}: no {word}");
        }
    }
    assert_eq!(says(&["completions", "none"]).status, Some(2));
}

#[test]
fn manual_pages_have_each_commands_options_and_examples() {
    let page = says(&["man"]);
    page.assert_status(0);
    assert!(
        page.stdout.contains(".TH candle-blocks 1"),
        "{}",
        page.stdout
    );
    assert!(page.stdout.contains("embed"), "{}", page.stdout);
    let page = says(&["man", "generate"]);
    page.assert_status(0);
    for word in [
        ".TH candle-blocks-generate 1",
        "\\-\\-prompt",
        "Once upon a time",
    ] {
        assert!(page.stdout.contains(word), "no {word}: {}", page.stdout);
    }
    says(&["man", "nothing"]).assert_refused(&["nothing", "--help"]);
}
