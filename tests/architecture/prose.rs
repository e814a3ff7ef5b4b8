//! Plain words in documentation comments and pages: every sentence names its subject, with the noun that PyTorch, candle or
//! transformers use. Counts cannot show that a page reads well, but they show early that it reads badly.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

use crate::package::package;

/// Pages, and folders of sources, whose prose is held to the rule. A folder joins this list once it has been rewritten.
const HELD: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "weights/README.md",
    "benches/README.md",
    "benches/gpu/layers.rs",
    "benches/parallel.rs",
    "benches/peers/candle/src",
    "benches/peers/ours.rs",
    "benches/peers/protocol.rs",
    "benches/peers/whole.rs",
    "fuzz/fuzz_targets",
    "fuzz/src",
    "examples",
    "crates",
    "src",
    "tests",
];

/// The maximum share of "of" in a page or module, for 100 words. rten has 3.3, memchr 2.6, candle-nn 2.0.
const MOST_OF: f64 = 3.5;

/// Pages and modules with fewer words are too short to count "of" in.
const FEWEST_WORDS: usize = 150;

/// The longest line of prose, in characters: an editor shows it beside another window.
const LONGEST: usize = 120;

/// Pages that tests write, and one that an example learns by heart.
const LONG: &[&str] = &[
    "weights/conformance.md",
    "weights/README.md",
    "benches/README.md",
];

/// First words that point at a noun instead of naming it.
const POINTING: &[&str] = &[
    "what", "those", "that", "which", "of", "as", "where", "whose", "whether", "such", "ones",
];

/// A word that means something only inside of this crate, the words after which it means what a dictionary says, and the word
/// that the field uses.
pub type Private = (&'static str, &'static [&'static str], &'static str);

/// Private words.
pub const PRIVATE: &[Private] = &[
    ("behind", &[], "after"),
    (
        "numbers",
        &["random", "whole", "version", "page"],
        "values or elements",
    ),
    ("codes", &["error", "exit", "status"], "quantized values"),
    ("head words", &[], "group scales"),
    ("room", &[], "module or memory"),
    ("asked for", &[], "requested"),
    ("is asked", &[], "is requested"),
    ("are asked", &[], "are requested"),
    ("so many", &[], "the number"),
    ("sounds", &[], "audio"),
    ("mend", &[], "fix"),
    ("mended", &[], "fixed"),
    ("by itself", &[], "alone"),
    ("by themselves", &[], "alone"),
];

/// How words begin in British spelling and not in American.
const BRITISH: &[&str] = &[
    "quantis",
    "dequantis",
    "normalis",
    "optimis",
    "initialis",
    "tokenis",
    "recognis",
    "serialis",
    "memoris",
    "parallelisa",
    "parallelise",
    "vectoris",
    "generalis",
    "summaris",
    "organis",
    "behaviour",
    "colour",
    "neighbour",
    "centre",
    "licence",
    "favour",
];

/// A paragraph in a page or a documentation comment.
struct Paragraph {
    line: usize,
    text: String,
}

/// Returns a file's paragraphs, without code, headings and tables.
fn paragraphs(path: &Path) -> Vec<Paragraph> {
    let is_page = path.extension().is_some_and(|e| e == "md");
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (n, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let comment = line.trim_start();
        let comment = comment.strip_prefix("///").or(comment.strip_prefix("//!"));
        let text = if is_page { Some(line) } else { comment };
        let Some(text) = text.map(|text| text.strip_prefix(' ').unwrap_or(text)) else {
            (is_code, is_open) = (false, false);
            continue;
        };
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        let is_other = ["#", "|", "    ", "!["]
            .iter()
            .any(|start| text.starts_with(start));
        if is_code || is_fence || is_other || text.trim().is_empty() {
            is_open = false;
            continue;
        }
        match found.last_mut() {
            Some(last) if is_open => last.text += &format!(" {}", text.trim()),
            _ => found.push(Paragraph {
                line: n + 1,
                text: text.trim().to_string(),
            }),
        }
        is_open = true;
    }
    found
}

/// Returns a paragraph's words in lower case. Code, link targets and addresses do not count.
fn words(text: &str) -> Vec<String> {
    let mut prose = String::new();
    for (i, part) in text.split('`').enumerate() {
        prose += if i % 2 == 0 { part } else { " x " };
    }
    let mut words = Vec::new();
    for part in prose.split("](") {
        let part = match words.is_empty() {
            true => part,
            false => part.split_once(')').map_or(part, |(_, rest)| rest),
        };
        let plain = part.split_whitespace().filter(|word| !word.contains("://"));
        for word in plain.flat_map(|word| word.split(|c: char| !c.is_alphabetic() && c != '\'')) {
            if !word.is_empty() {
                words.push(word.to_lowercase());
            }
        }
    }
    words
}

/// Returns a paragraph's faults.
fn faults(words: &[String]) -> Vec<String> {
    let mut faults = first_word(words);
    faults.extend(private(words, PRIVATE));
    faults.extend(spelling(words));
    faults
}

/// Returns the fault of a sentence that begins with a pointing word.
pub fn first_word(words: &[String]) -> Vec<String> {
    let first = words.first().filter(|word| POINTING.contains(&&word[..]));
    let fault = first.map(|first| format!("begins with \"{first}\": name the subject"));
    fault.into_iter().collect()
}

/// Returns a fault for each private word.
pub fn private(words: &[String], list: &[Private]) -> Vec<String> {
    let mut faults = Vec::new();
    for (private, after, instead) in list {
        let phrase: Vec<&str> = private.split(' ').collect();
        for (i, window) in words.windows(phrase.len()).enumerate() {
            let before = i.checked_sub(1).map_or("", |i| &words[i][..]);
            if window == phrase && !after.contains(&before) {
                faults.push(format!("\"{private}\": say {instead}"));
            }
        }
    }
    faults
}

/// Returns a fault for each word in British spelling.
pub fn spelling(words: &[String]) -> Vec<String> {
    let is_british = |word: &&String| BRITISH.iter().any(|start| word.starts_with(start));
    let british = words.iter().filter(is_british);
    let fault = |word| format!("\"{word}\": American spelling");
    british.map(fault).collect()
}

/// Held files, by the page or the module (a folder) that they belong to.
fn held() -> BTreeMap<PathBuf, Vec<PathBuf>> {
    let mut modules: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for name in HELD {
        let mut files = vec![package(name)];
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
                continue;
            }
            let is_page = path.extension().is_some_and(|e| e == "md");
            let is_source = path.extension().is_some_and(|e| e == "rs");
            let module = match is_page {
                true => path.clone(),
                false => path.parent().unwrap().to_path_buf(),
            };
            if (is_page || is_source) && path.exists() {
                modules.entry(module).or_default().push(path);
            }
        }
    }
    modules
}

#[test]
fn prose_is_in_plain_words() {
    let mut wrong = Vec::new();
    let (mut n_words, mut n_modules) = (0, 0);
    for (module, files) in held() {
        let (mut all, mut of) = (0, 0);
        for path in files {
            for paragraph in paragraphs(&path) {
                let words = words(&paragraph.text);
                all += words.len();
                of += words.iter().filter(|word| *word == "of").count();
                for fault in faults(&words) {
                    wrong.push(format!("{}:{}: {fault}", path.display(), paragraph.line));
                }
            }
        }
        let per_hundred = 100.0 * of as f64 / all.max(1) as f64;
        if all >= FEWEST_WORDS && per_hundred > MOST_OF {
            let module = module.display();
            wrong.push(format!(
                "{module}: {per_hundred:.1} \"of\" for 100 words, at most {MOST_OF}"
            ));
        }
        n_words += all;
        n_modules += 1;
    }
    assert!(
        n_words > 10_000,
        "only {n_words} words in {n_modules} modules: they are not read"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_of_pages_fit_in_an_editor() {
    let (mut wrong, mut n_lines) = (Vec::new(), 0);
    for path in crate::pages() {
        if LONG.iter().any(|page| path == package(page)) {
            continue;
        }
        let mut is_code = false;
        for (n, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            n_lines += 1;
            let is_table = line.trim_start().starts_with('|');
            let n_chars = line.chars().count();
            if !is_code && !is_table && n_chars > LONGEST {
                wrong.push(format!(
                    "{}:{}: {n_chars} characters",
                    path.display(),
                    n + 1
                ));
            }
        }
    }
    assert!(n_lines > 1000, "only {n_lines} lines are read");
    assert!(
        wrong.is_empty(),
        "wrap lines at {LONGEST}:\n{}",
        wrong.join("\n")
    );
}

/// The counts find what they look for.
#[test]
fn planted_faults_of_prose_are_found() {
    let found = |text: &str| faults(&words(text)).len();
    assert_eq!(
        found("Returns the padding token for the shorter sequences."),
        0
    );
    assert_eq!(found("What stands behind shorter texts."), 2);
    assert_eq!(found("Draws random numbers."), 0);
    assert_eq!(found("The numbers of a quantised file's codes."), 3);
    assert_eq!(found("See [the page](behind.md) and `numbers`."), 0);
    assert_eq!(found("Rows asked for."), 1);
}
