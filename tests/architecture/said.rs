//! The program's notes, and its advice that leads to another program, each with the test that shows it. A sentence that is in no
//! table fails here, so that no note appears without a test, and no advice that nobody carried out.

use std::{fs, path::PathBuf};

use crate::package::package;

#[path = "said/advice.rs"]
mod advice;
#[path = "said/notes.rs"]
mod notes;

use self::advice::{ADVICE, Carried};
use self::notes::{NOTES, PASSED_ON};

/// Words of advice that leads to another program.
const OUTSIDE: &[&str] = &[
    "python ",
    "Python",
    "pip install",
    "save_pretrained",
    "merge_and_unload",
    "torch.save",
    "numpy.save",
    "state_dict()",
    "git lfs",
    "llama-quantize",
    "llama-gguf-split",
    "iconv",
    "hf download",
    "_to_hf.py",
    "auto-round export",
    "output_hidden_states",
];

/// Words in the documentation of functions that return notes.
const RETURNS_NOTES: [&str; 3] = ["Returns a note", "Returns the note", "Returns notes"];

/// A string literal in a source file, with the code around it.
struct Literal {
    place: String,
    text: String,
    /// The code before each bracket around the literal, and before the literal itself.
    around: Vec<String>,
}

impl Literal {
    /// Returns true for the text of a note: a literal that begins with "note: ", in a call or a function whose name has `note`, or in
    /// a function whose documentation says that it returns one.
    fn is_note(&self) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_note = |code: &String| {
            if code.contains(RETURNS_NOTES[0]) {
                return true;
            }
            // A function's own name tells, not its parameters'.
            let code = match code.split_once("fn ") {
                Some((_, named)) => named.split(['(', '<']).next().unwrap_or_default(),
                None => code,
            };
            let mut words = code.split(|c| !is_word(c));
            words.any(|word| {
                word.split('_')
                    .any(|part| part == "note" || part == "notes")
            })
        };
        // The compiler says what is deprecated.
        let is_deprecation = self
            .around
            .iter()
            .any(|code| code.ends_with("#[deprecated"));
        !is_deprecation && (self.text.starts_with("note: ") || self.around.iter().any(is_note))
    }

    /// Returns true for a text that says something itself, besides the values in it.
    fn has_words(&self) -> bool {
        let outside = self.text.split('{').enumerate().map(|(i, part)| match i {
            0 => part,
            _ => part.split_once('}').map_or(part, |(_, rest)| rest),
        });
        let outside: Vec<&str> = outside.collect();
        let words = outside.join(" ");
        let words = words.split_whitespace();
        let is_word = |word: &&str| word.chars().filter(|c| c.is_alphabetic()).count() > 1;
        words
            .filter(|word| *word != "note:")
            .filter(is_word)
            .count()
            > 2
    }
}

/// Returns the sources' string literals, without unit tests and raw strings.
fn literals() -> Vec<Literal> {
    let mut paths = Vec::new();
    for folder in crate::source_folders() {
        crate::sources(&folder, &mut paths);
    }
    let mut found = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let local = path
            .strip_prefix(package(""))
            .unwrap()
            .display()
            .to_string();
        read(&local, code, &mut found);
    }
    found
}

fn read(path: &str, code: &str, found: &mut Vec<Literal>) {
    let bytes = code.as_bytes();
    let (mut around, mut at): (Vec<String>, usize) = (Vec::new(), 0);
    let mut before = String::new();
    while at < bytes.len() {
        let rest = &code[at..];
        let length = match bytes[at] {
            b'/' if rest.starts_with("//") => {
                let length = rest.find('\n').unwrap_or(rest.len());
                if RETURNS_NOTES
                    .iter()
                    .any(|words| rest[..length].contains(words))
                {
                    before.push_str(RETURNS_NOTES[0]);
                }
                length
            }
            b'r' if rest[1..].trim_start_matches('#').starts_with('"') => {
                let n_hashes = rest[1..].find('"').unwrap();
                let close = format!("\"{}", "#".repeat(n_hashes));
                let open = n_hashes + 2;
                open + rest[open..].find(&close).unwrap() + close.len()
            }
            b'\'' => match rest.chars().nth(1) {
                Some('\\') => 2 + rest[3..].find('\'').unwrap_or(0) + 2,
                Some(c) if rest[1 + c.len_utf8()..].starts_with('\'') => 2 + c.len_utf8(),
                _ => 1,
            },
            b'"' => {
                let mut end = at + 1;
                while bytes[end] != b'"' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                let lines = code[at + 1..end].split("\\\n").map(str::trim_start);
                let text: String = lines.collect();
                let place = format!("{path}:{}", 1 + code[..at].matches('\n').count());
                let around = around.iter().chain([&before]).cloned().collect();
                found.push(Literal {
                    place,
                    text,
                    around,
                });
                end + 1 - at
            }
            b'(' | b'[' | b'{' => {
                around.push(before.clone());
                before.push(bytes[at].into());
                if bytes[at] == b'{' {
                    before.clear();
                }
                1
            }
            b')' | b']' | b'}' => {
                around.pop();
                before.push(bytes[at].into());
                if bytes[at] == b'}' {
                    before.clear();
                }
                1
            }
            b';' => {
                before.clear();
                1
            }
            _ => {
                let c = rest.chars().next().unwrap();
                before.push(c);
                c.len_utf8()
            }
        };
        at += length;
    }
    assert!(around.is_empty(), "{path} was not read to its end");
}

/// Returns the bodies of all test functions with this name, and of helpers.
fn bodies(name: &str) -> Vec<String> {
    let mut paths: Vec<PathBuf> = Vec::new();
    // A published package leaves the others out.
    let folders = ["tests", "src", "crates"].map(package);
    for folder in folders.iter().filter(|folder| folder.exists()) {
        crate::sources(folder, &mut paths);
    }
    let head = format!("fn {name}(");
    let mut found = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path).unwrap();
        for (at, _) in text.match_indices(&head) {
            let line = text[..at].rfind('\n').map_or(0, |line| line + 1);
            let end = format!("\n{}}}\n", &text[line..at]);
            let end = text[at..].find(&end).map_or(text.len(), |end| at + end);
            found.push(text[at..end].to_string());
        }
    }
    found
}

#[test]
fn every_note_has_a_model_that_gets_it_and_one_that_does_not() {
    if crate::is_published() {
        return assert!(package("Cargo.toml.orig").exists()); // most notes and tests are in other packages
    }
    let all = literals();
    let notes: Vec<&Literal> = all.iter().filter(|literal| literal.is_note()).collect();
    let mut wrong = Vec::new();
    for note in &notes {
        let (place, text) = (&note.place, &note.text);
        let is_listed = match note.has_words() {
            true => {
                let mut words = NOTES.iter().map(|listed| listed.words);
                words.any(|words| text.contains(words))
            }
            false => {
                let passes_on = text.starts_with("note: ") || text.contains("{note");
                !passes_on || PASSED_ON.contains(&text.as_str())
            }
        };
        if !is_listed {
            wrong.push(format!(
                "{place}: the note {text:?} has no test. Add a line to NOTES in tests/architecture/said/notes.rs: words of the \
                 note, the test in which a model gets the note, and the test in which a similar model does not (it may be the \
                 same). Both tests must quote these words. A text that only passes a note on goes into PASSED_ON."
            ));
        }
    }
    for listed in NOTES {
        let words = listed.words;
        if !notes.iter().any(|note| note.text.contains(words)) {
            wrong.push(format!("no note says {words:?}: correct its line in NOTES"));
        }
        let quotes = |name: &str, also: &[&str]| {
            let all = bodies(name);
            all.iter().any(|body| {
                let mut quoted = [words].into_iter().chain(also.iter().copied());
                quoted.any(|words| body.contains(words))
            })
        };
        if !quotes(listed.given, &[]) {
            wrong.push(format!("no test `{}` quotes {words:?}", listed.given));
        }
        if !quotes(listed.without, &["stderr, \"\"", "\"note: \""]) {
            let without = listed.without;
            wrong.push(format!(
                "no test `{without}` quotes {words:?} or expects no note"
            ));
        }
    }
    assert!(notes.len() > 30, "only {} notes are found", notes.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_advice_to_use_another_program_was_carried_out() {
    if crate::is_published() {
        return assert!(package("Cargo.toml.orig").exists()); // most advice is in other packages
    }
    let all = literals();
    let is_advice = |literal: &&Literal| {
        let text = &literal.text;
        literal.has_words() && OUTSIDE.iter().any(|word| text.contains(word))
    };
    let advice: Vec<&Literal> = all.iter().filter(is_advice).collect();
    let mut wrong = Vec::new();
    for literal in &advice {
        let (place, text) = (&literal.place, &literal.text);
        if !ADVICE.iter().any(|(words, _)| text.contains(words)) {
            wrong.push(format!(
                "{place}: nobody carried out the advice {text:?}. Do what it says, and add a line to ADVICE in \
                 tests/architecture/said/advice.rs: words of it, and the test that does the same, or the versions with which \
                 you did it by hand and what came of it."
            ));
        }
    }
    for (words, carried) in ADVICE {
        if !advice.iter().any(|literal| literal.text.contains(words)) {
            wrong.push(format!(
                "no advice says {words:?}: correct its line in ADVICE"
            ));
        }
        let problem = match carried {
            Carried::ByTest(name) if bodies(name).is_empty() => Some(format!("no test `{name}`")),
            Carried::ByHand(record) if !record.contains(char::is_numeric) => {
                Some(format!("{record:?} names no version"))
            }
            _ => None,
        };
        wrong.extend(problem.map(|problem| format!("{words:?}: {problem}")));
    }
    assert!(advice.len() > 20, "only {} are found", advice.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Literals are told by the code around them.
#[test]
fn notes_are_found_in_a_source() {
    let code = "fn open(notes: &mut Vec<String>) { // a \"comment\"\n if c == '\"' { fail(\"it is no note at all\") }\n \
                notes.push(format!(\"{} is \\\n    left out\", x)); }\nfn class_note() -> &str { \"it may produce others\" }";
    let mut found = Vec::new();
    read("a.rs", code, &mut found);
    let notes = found.iter().filter(|literal| literal.is_note());
    let notes: Vec<&str> = notes.map(|note| note.text.as_str()).collect();
    assert_eq!(notes, ["{} is left out", "it may produce others"]);
}
