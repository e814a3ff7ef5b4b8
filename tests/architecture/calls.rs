//! Calls in the sentences of README and docs: each is in a source or a program of the pages, which are compiled.

use std::fs;

use crate::{is_published, package::package, sources};

/// Pages whose programs are compiled with the tests of the documentation.
const COMPILED: [&str; 7] = [
    "README.md",
    "docs/embeddings.md",
    "docs/fine-tuning.md",
    "docs/generation.md",
    "docs/inputs.md",
    "docs/own-block.md",
    "docs/tasks.md",
];

/// Pages about others' code.
const OTHERS: [&str; 2] = ["docs/hf-hub-etag.md", "docs/choices.md"];

/// Beginnings of Python's and candle's calls.
const FOREIGN: [&str; 5] = [
    "torch.",
    "model.generate(**",
    "loss.backward",
    "merge_and_unload",
    "getattr(",
];

/// Returns the code spans in a page's sentences that call something: a path or method, with its arguments.
fn calls(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let outside = page.split("```").step_by(2);
    for (i, span) in outside.flat_map(|prose| prose.split('`').enumerate()) {
        let is_call = i % 2 == 1
            && span.ends_with([')', '?'])
            && span.starts_with(|c: char| c.is_ascii_alphabetic())
            && span.split('(').next().is_some_and(|path| {
                path.contains(['.', ':'])
                    && path
                        .chars()
                        .all(|c| c.is_alphanumeric() || "_.:".contains(c))
            });
        if is_call && !FOREIGN.iter().any(|start| span.starts_with(start)) {
            found.push(span.to_string());
        }
    }
    found
}

fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Returns true if code has a call; `..` stands for any arguments, and a type's method may be called on a value.
fn is_in(code: &str, call: &str) -> bool {
    let call = without_blanks(call);
    let method = call
        .split_once("::")
        .map(|(_, method)| format!(".{method}"));
    [Some(call), method].into_iter().flatten().any(|call| {
        let mut parts = call.split("..");
        parts.all(|part| code.contains(part))
    })
}

#[test]
fn calls_in_sentences_are_compiled() {
    if is_published() {
        return assert!(package("Cargo.toml.orig").exists()); // docs are in the repository alone
    }
    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "examples", "benches"] {
        sources(&package(folder), &mut files);
    }
    files.retain(|file| !file.ends_with("calls.rs") || file.ends_with("inline_calls.rs"));
    let mut code = String::new();
    for file in files {
        code += &without_blanks(&fs::read_to_string(file).unwrap());
    }
    for page in COMPILED {
        let text = fs::read_to_string(package(page)).unwrap();
        text.split("```")
            .skip(1)
            .step_by(2)
            .for_each(|program| code += &without_blanks(program));
    }
    let mut pages = vec![package("README.md")];
    for entry in fs::read_dir(package("docs")).unwrap() {
        let path = entry.unwrap().path();
        let is_ours = !OTHERS.iter().any(|page| path.ends_with(page));
        pages.extend(
            Some(path).filter(|path| is_ours && path.extension().is_some_and(|e| e == "md")),
        );
    }
    let (mut n, mut wrong) = (0, Vec::new());
    for page in pages {
        for call in calls(&fs::read_to_string(&page).unwrap()) {
            n += 1;
            if !is_in(&code, &call) {
                wrong.push(format!("{}: `{call}`", page.display()));
            }
        }
    }
    assert!(n > 20, "only {n} calls are found");
    let cure = "is in no source: write it in tests/text/inline_calls.rs, where it compiles or shows its error";
    assert!(wrong.is_empty(), "{cure}\n{}", wrong.join("\n"));
}

#[test]
fn calls_are_found_in_a_page() {
    let page = "`a.b(c)?` and `A::b(..)`, no `word`, `f(x)` or `x + y(z)`\n```rust\n`a.c(d)`\n```\n`torch.save(x)` `e.f(g)`";
    assert_eq!(calls(page), ["a.b(c)?", "A::b(..)", "e.f(g)"]);
    assert!(is_in("x.a.b(c)?;", "a.b(c)?") && is_in("d.b(1,2)", "A::b(..)"));
    assert!(!is_in("a.b(d)", "a.b(c)"));
}
