//! Plain words in names: those of public items and tests are split into words, and held to the rule of prose.

use std::{fs, path::PathBuf};

use crate::package::package;
use crate::prose::{PRIVATE, Private, first_word, private, spelling};
use crate::sources;

/// Folders with tests.
const FOLDERS: [&str; 4] = ["src", "crates", "tests", "fuzz"];

/// Words that prose explains and a name cannot.
const PRIVATE_IN_NAMES: &[Private] = &[
    ("asks", &[], "requests or needs"),
    ("asked", &[], "requested"),
    ("lies", &[], "is"),
    ("sound", &[], "audio"),
    ("stands", &[], "is"),
    ("turn", &[], "rotate"),
    ("turns", &[], "rotates"),
    ("watched", &[], "observed"),
];

/// Returns the words in an identifier, in lower case: `MeanAfter` and `mean_after` have two.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' || was_lower && c.is_uppercase() {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c != '_' {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns a name's faults. The name of a test is a sentence, which does not begin with a pointing word.
fn faults(name: &str, is_test: bool) -> Vec<String> {
    let words = words(name);
    let mut faults = private(&words, PRIVATE);
    faults.extend(private(&words, PRIVATE_IN_NAMES));
    faults.extend(spelling(&words));
    if is_test {
        faults.extend(first_word(&words));
    }
    faults
}

/// Returns the names of the tests in a file.
fn tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines() {
        is_test |= line.trim() == "#[test]";
        if let (true, Some((_, rest))) = (is_test, line.split_once("fn ")) {
            found.extend(rest.split(['(', '<']).next());
            is_test = false;
        }
    }
    found
}

#[test]
fn names_of_public_items_and_tests_are_plain() {
    let mut wrong = Vec::new();
    let mut counts = [0, 0];
    let mut check = |place: String, name: &str, is_test: bool| {
        counts[usize::from(is_test)] += 1;
        let faults = faults(name, is_test).into_iter();
        wrong.extend(faults.map(|fault| format!("{place}: {name}: {fault}")));
    };
    let items = fs::read_to_string(package("tests/api.txt")).unwrap();
    for (n, line) in items.lines().enumerate() {
        let identifiers = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        for name in identifiers.filter(|name| !name.is_empty()) {
            check(format!("tests/api.txt:{}", n + 1), name, false);
        }
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in FOLDERS.map(package).iter().filter(|path| path.exists()) {
        sources(folder, &mut paths);
    }
    for path in paths {
        for name in tests(&fs::read_to_string(&path).unwrap()) {
            check(path.display().to_string(), name, true);
        }
    }
    assert!(
        counts[0] > 5_000 && counts[1] > 500,
        "only {counts:?} names"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_faults_in_names_are_found() {
    assert_eq!(words("MeanAfter_rows2"), ["mean", "after", "rows2"]);
    assert_eq!(
        tests("#[test]\n#[ignore]\nfn a_name() {\nfn b() {"),
        ["a_name"]
    );
    let n = |name: &str, is_test: bool| faults(name, is_test).len();
    assert_eq!(n("MeanBehind", false), 1);
    assert_eq!(n("rows_asked_for", false), 2);
    assert_eq!(n("as_tensor", false), 0);
    assert_eq!(n("what_is_left_is_normalised", true), 2);
    assert_eq!(n("a_row_is_normalized", true), 0);
}
