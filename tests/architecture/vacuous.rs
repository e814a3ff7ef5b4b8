//! Tests that cannot fail: assertions in a branch that no input may reach, a silent early return, an assertion that is always
//! true.
//!
//! The reader below knows rustfmt's layout and no Rust: a block is a line that ends with a brace, and the deeper lines after
//! it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{package::package, sources};

/// Folders with tests.
const FOLDERS: [&str; 4] = ["tests", "crates", "src", "fuzz"];

/// Calls and texts that say what is left out. The kernels' tests print it, and `left_out` does past the harness.
const SAYING: [&str; 4] = ["is_present", "has_f64(", "left_out(", "left out: "];

/// Lists that are never empty, each with the reason.
const NEVER_EMPTY: &[(&str, &str)] = &[
    ("Isa::levels()", "every CPU has the portable level"),
    ("of_ranks(", "a result for each rank"),
    ("formats()", "all combinations of sizes and scales"),
    ("Activation::all()", "the variants of an enum"),
    (".blocks", "a stack without blocks is refused"),
    (
        "library()",
        "the sources of this crate, which `arrows_point_one_way` counts",
    ),
    (
        "listed()",
        "lines of a committed file, which has some when its functions compile",
    ),
    ("lines()", "the same"),
];

/// Tests that the reader takes for such that cannot fail, each with the reason that it can, or need not.
const EXCEPT: &[(&str, &str)] = &[
    (
        "a_device_chooses_experts_itself",
        "`rehearsal_of_all` runs it in rehearsals, which count operations",
    ),
    (
        "a_layer_issues_few_operations_and_waits_for_nothing",
        "`rehearsal_of_all` runs it in rehearsals, which count operations",
    ),
    (
        "any_number_of_rows_without_elements_takes_no_time",
        "it ends",
    ),
    (
        "in_any_order_each_task_is_done_once_and_within_its_step",
        "the steps assert, in each order",
    ),
    ("rows_one_by_one", "benches/gpu/run.py runs it, in shards"),
];

/// A function in a source file.
struct Function {
    file: PathBuf,
    line: usize,
    name: String,
    is_test: bool,
    /// The function is not a test, and is in the code of tests.
    is_helper: bool,
    /// The test is expected to panic.
    panics: bool,
    /// The attribute, if the test is ignored.
    ignored: Option<String>,
    /// The lines from the signature to the last brace.
    lines: Vec<String>,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the name if a line begins a function.
fn named(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &rest[..end])
}

/// Returns the type whose `impl` block a function is in.
fn implemented<'t>(before: &[(usize, &'t str)], start: &str) -> Option<&'t str> {
    let is_outside = |line: &&str| !line.is_empty() && indent(line) < indent(start);
    let mut before = before.iter().rev().map(|(_, line)| *line);
    let block = before.find(is_outside)?.trim_start().strip_prefix("impl")?;
    block.trim_end_matches(" {").rsplit(' ').next()
}

/// Returns a file's functions, without comments.
fn functions(file: &Path, text: &str) -> Vec<Function> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .filter(|(_, l)| is_code(l))
        .collect();
    let local = file
        .strip_prefix(package(""))
        .unwrap_or(file)
        .display()
        .to_string();
    let is_of_tests = ["tests", "reference"]
        .iter()
        .any(|folder| local.contains(folder));
    let tests_begin = lines.iter().position(|(_, line)| *line == "#[cfg(test)]");
    let tests_begin = tests_begin.unwrap_or(lines.len());
    let mut found = Vec::new();
    for (at, (line, start)) in lines.iter().enumerate() {
        let Some(name) = named(start) else { continue };
        let end = format!("{}}}", " ".repeat(indent(start)));
        let body = lines[at..].iter().map(|(_, line)| line.to_string());
        let n = match start.ends_with('}') || start.ends_with(';') {
            true => 1,
            false => 1 + body.clone().take_while(|line| *line != end).count(),
        };
        let attributes = lines[..at].iter().rev().map(|(_, line)| line.trim());
        let attributes: Vec<&str> = attributes
            .take_while(|line| line.starts_with("#["))
            .collect();
        let ignored = attributes.iter().find(|a| a.starts_with("#[ignore"));
        found.push(Function {
            file: file.to_path_buf(),
            line: line + 1,
            name: match implemented(&lines[..at], start) {
                Some(of) => format!("{of}::{name}"),
                None => name.to_string(),
            },
            is_test: attributes.contains(&"#[test]"),
            is_helper: !attributes.contains(&"#[test]") && (is_of_tests || at > tests_begin),
            panics: attributes.iter().any(|a| a.starts_with("#[should_panic")),
            ignored: ignored.map(|a| a.to_string()),
            lines: body.take(n).collect(),
        });
    }
    found
}

/// Returns the called functions in a text: `name`, or `Type::name`. Leaves out methods, many of which have the same name.
fn calls(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('(').filter_map(|(at, _)| {
        let before = &text[..at];
        let is_path = |c: char| c.is_alphanumeric() || "_:.".contains(c);
        let start = before.rfind(|c: char| !is_path(c));
        let path = &before[start.map_or(0, |start| start + 1)..];
        let is_of_type = path.starts_with(char::is_uppercase);
        let name = if is_of_type {
            path
        } else {
            path.rsplit(':').next()?
        };
        (!path.contains('.') && !name.is_empty()).then_some(name)
    })
}

/// Stands for any method whose name says that it asserts.
const CHECK: &str = ".check";

/// Returns the name of the function if a line begins with a call whose result is not kept.
fn statement(line: &str) -> Option<&str> {
    let (call, _) = line.split_once('(')?;
    let call = call.split("::<").next()?.trim();
    let is_path = |c: char| c.is_alphanumeric() || "_:.&".contains(c);
    if call.is_empty() || !call.chars().all(is_path) {
        return None;
    }
    // Methods of other types have the same names.
    let is_check = |name: &str| {
        ["assert", "check", "judge", "enter"]
            .iter()
            .any(|w| name.starts_with(w))
    };
    match call.rsplit_once('.') {
        Some((_, method)) => is_check(method).then_some(CHECK),
        None => call.rsplit(':').next(),
    }
}

/// The facts about functions that several tests use.
#[derive(Default)]
struct Known {
    /// Functions that assert something.
    asserting: BTreeSet<String>,
    /// Functions whose result is never empty, because they assert a count, or return another's that do.
    counted: BTreeSet<String>,
    /// Functions and methods that return an array.
    arrays: BTreeSet<String>,
    /// Functions that say what they leave out.
    saying: BTreeSet<String>,
    /// Names in string literals: tests that another test starts as a process.
    quoted: BTreeSet<String>,
}

const ASSERTING: [&str; 3] = ["assert", "unwrap_err(", "expect_err("];

/// Types of lists, as they are written in a signature.
const LISTS: [&str; 6] = ["Vec<", "[", "Iterator", "Map<", "Set<", "Parameters"];

fn asserts(line: &str) -> bool {
    ASSERTING.iter().any(|word| line.contains(word))
}

/// Returns whether an assertion is about a count, or about a list that must not be empty.
fn counts(text: &str) -> bool {
    let is_count = |assertion: &str| {
        let assertion = &assertion[..assertion.find(';').unwrap_or(assertion.len())];
        let count = [" > ", " >= ", "is_empty()", "len()", "_eq!(n", "count"];
        count.iter().any(|sign| assertion.contains(sign))
    };
    text.split("assert").skip(1).any(is_count)
}

impl Known {
    fn of(functions: &[Function]) -> Self {
        let mut known = Self::default();
        for line in functions.iter().flat_map(|function| &function.lines) {
            let words = line.split('"').skip(1).step_by(2);
            let words =
                words.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
            known.quoted.extend(words.map(str::to_string));
        }
        loop {
            let before = known.asserting.len() + known.counted.len();
            for function in functions.iter().filter(|function| function.is_helper) {
                let body = function.lines[1..].join("\n");
                let calls_one = |of: &BTreeSet<String>| calls(&body).any(|name| of.contains(name));
                if asserts(&body) || calls_one(&known.asserting) {
                    known.asserting.insert(function.name.clone());
                }
                let signature = body
                    .split_once("{\n")
                    .map_or("", |(signature, _)| signature);
                let signature = format!("{}{signature}", function.lines[0]);
                let returned = signature
                    .split_once("-> ")
                    .map_or("", |(_, returned)| returned);
                if returned.starts_with('[') {
                    let name = function.name.rsplit(':').next().unwrap_or_default();
                    known.arrays.insert(name.to_string());
                }
                let is_full = NEVER_EMPTY.iter().any(|(full, _)| body.contains(full));
                let is_list = LISTS.iter().any(|list| returned.contains(list));
                let is_counted =
                    returned.starts_with('[') || body.contains("vec![") || counts(&body);
                if is_list && (is_counted || is_full || calls_one(&known.counted)) {
                    known.counted.insert(function.name.clone());
                }
                let looks_up = body.contains(".find(") && body.contains('?');
                if SAYING.iter().any(|word| body.contains(word)) && !looks_up {
                    known.saying.insert(function.name.clone());
                }
            }
            if known.asserting.len() + known.counted.len() == before {
                return known;
            }
        }
    }

    /// Returns whether a branch says what it leaves out.
    fn says(&self, text: &str) -> bool {
        SAYING.iter().any(|word| text.contains(word))
            || calls(text).any(|name| self.saying.contains(name))
    }
}

impl Function {
    /// Returns the lines that open the block around a line, from its keyword on, as one text, with the first one's index.
    fn header(&self, at: usize) -> (usize, String) {
        let depth = indent(&self.lines[at]);
        let is_outside = |i: &usize| {
            let line = &self.lines[*i];
            !line.trim().is_empty() && indent(line) < depth
        };
        let last = (0..at).rev().find(is_outside).unwrap_or(0);
        let depth = indent(&self.lines[last]);
        let begins = |i: &usize| {
            let line = self.lines[*i].trim_start();
            let words = [
                "if ", "for ", "while ", "let ", "match ", "} else", "fn ", "pub ", "loop",
            ];
            indent(&self.lines[*i]) == depth && words.iter().any(|word| line.starts_with(word))
        };
        let is_short = !begins(&last)
            && !self.lines[last]
                .trim_start()
                .starts_with([')', '{', '}', ']']);
        let first = match is_short {
            true => last,
            false => (0..=last).rev().find(begins).unwrap_or(last),
        };
        (first, self.lines[first..=last].join(" "))
    }

    /// Returns the headers of all blocks around a line, inside out, with the index of each one's first line.
    fn headers(&self, mut at: usize) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        while at > 0 {
            let (first, header) = self.header(at);
            if first == 0 {
                break;
            }
            found.push((first, header));
            at = first;
        }
        found
    }

    /// Returns whether the block that begins in a line has an `else`.
    fn has_else(&self, first: usize) -> bool {
        let depth = indent(&self.lines[first]);
        let closes = |line: &&String| indent(line) == depth && line.trim_start().starts_with('}');
        let end = self.lines[first + 1..].iter().find(closes);
        end.is_some_and(|line| line.trim_start().starts_with("} else"))
    }

    /// Returns whether a loop's list cannot be empty: it is written out, a constant or a range, or comes from a function that
    /// counts what it returns.
    fn is_full(&self, list: &str, known: &Known) -> bool {
        let list = list.trim().trim_start_matches(['&', '*', '(']);
        let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
        let path = list.split(['.', '(', ' ']).next().unwrap_or_default();
        let name = path.rsplit(':').next().unwrap_or_default();
        let name: String = name.chars().take_while(is_word).collect();
        let is_constant = !name.is_empty() && !name.chars().any(char::is_lowercase);
        let is_counted =
            |text: &str| known.says(text) || calls(text).any(|name| known.counted.contains(name));
        let is_local = |line: &String| {
            let pattern = line.trim_start().strip_prefix("let ");
            let pattern = pattern.and_then(|rest| rest.split(['=', ':']).next());
            let words = |text: &str| -> Vec<String> {
                text.split(|c| !is_word(&c)).map(str::to_string).collect()
            };
            !name.is_empty() && pattern.is_some_and(|pattern| words(pattern).contains(&name))
        };
        // `[first, others @ ..]` of an array.
        let rest = format!("{name} @ ..");
        let is_rest = self.lines.iter().any(|line| line.contains(&rest));
        let given = self.lines.iter().position(is_local).map(|at| {
            let statement = self.lines[at..].join(" ");
            let (_, value) = statement.split_once(" =").unwrap_or_default();
            let end = value.find("; ").unwrap_or(value.len());
            value[..end].trim().to_string()
        });
        let is_array = |text: &str| {
            let mut methods = text
                .split('.')
                .skip(1)
                .filter_map(|part| part.split('(').next());
            methods.any(|method| known.arrays.contains(method))
        };
        let is_given = given.is_some_and(|value| {
            let is_written = value.starts_with(['[', '&']) || value.contains("vec![");
            let is_range = value.starts_with("(0..") || value.starts_with("(1..");
            let is_other = value.len() < list.len() + 200 && !value.starts_with(&name);
            is_written || is_range || is_counted(&value) || is_other && self.is_full(&value, known)
        });
        let is_known = NEVER_EMPTY.iter().any(|(full, _)| list.contains(full));
        is_known
            || is_array(list)
            || list.starts_with('[')
            || list.contains("..")
            || is_constant
            || is_rest
            || is_given
            || is_counted(list)
    }

    /// Returns the reason why a line may not be reached, if there is one.
    fn may_be_missed(&self, at: usize, known: &Known) -> Option<String> {
        let headers = self.headers(at);
        for (first, header) in &headers {
            let header = header.trim();
            let is_branch = ["if ", "while "]
                .iter()
                .any(|word| header.starts_with(word));
            if is_branch && !self.has_else(*first) && !known.says(header) {
                return Some(format!("in `{header}`"));
            }
            if let Some((_, list)) = header
                .strip_prefix("for ")
                .and_then(|h| h.split_once(" in "))
                && !self.is_full(list, known)
            {
                return Some(format!("in `{header}`"));
            }
        }
        // An earlier way out of a block around the line.
        let around: Vec<usize> = headers.iter().map(|(first, _)| *first).chain([0]).collect();
        for exit in 1..at {
            let line = self.lines[exit].trim();
            let is_exit = ["return;", "continue;", "{ continue }", "{ return }"];
            if !is_exit.iter().any(|way| line.contains(way)) {
                continue;
            }
            let one_line = line.contains("else {") || line.starts_with("if ");
            let (first, header) = match one_line {
                true => (exit, line.to_string()),
                false => self.header(exit),
            };
            let parent = self.headers(first).first().map_or(0, |(first, _)| *first);
            let block = self.lines[first..=exit].join(" ");
            if around.contains(&parent) && !known.says(&block) {
                return Some(format!("after `{}`", header.trim()));
            }
        }
        None
    }

    /// Returns the reason why a test cannot fail, or may pass without asserting anything.
    fn fault(&self, known: &Known) -> Option<String> {
        let body = self.lines[1..].join("\n");
        for line in self.lines.iter().map(|line| line.trim()) {
            let compared = line
                .strip_prefix("assert_eq!(")
                .and_then(|l| l.strip_suffix(");"));
            let sides = compared.and_then(|compared| compared.split_once(", "));
            // A call may return something else the next time.
            let is_same = sides.is_some_and(|(a, b)| a == b && !a.contains('('));
            if is_same || line.starts_with("assert!(true") {
                return Some(format!("`{line}` is always true"));
            }
        }
        if let Some(ignored) = &self.ignored {
            // A process of its own for another test, or something that takes minutes.
            let is_run = known.quoted.contains(&self.name);
            let is_long = ["a measurement", "minutes"]
                .iter()
                .any(|why| ignored.contains(why));
            return (!is_run && !is_long).then(|| format!("{ignored}: nobody runs it"));
        }
        let is_asserting = |name: &str| known.asserting.contains(name);
        let is_site = |line: &String| {
            let called = statement(line);
            let in_closure =
                called.is_some() && line.contains("(||") && calls(line).any(is_asserting);
            asserts(line)
                || in_closure
                || called.is_some_and(|name| name == CHECK || is_asserting(name))
        };
        let sites = (1..self.lines.len()).filter(|&i| is_site(&self.lines[i]));
        let mut reasons = Vec::new();
        for site in sites {
            match self.may_be_missed(site, known) {
                None => return None,
                Some(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() && self.panics {
            return None;
        }
        if reasons.is_empty() {
            return match body.contains("unwrap()") || body.contains("expect(") {
                true => None,
                false => Some("it asserts nothing".to_string()),
            };
        }
        reasons.dedup();
        Some(format!(
            "all assertions may be missed: {}",
            reasons.join("; ")
        ))
    }
}

/// Returns every function in the folders of tests.
fn all() -> Vec<Function> {
    let mut files = Vec::new();
    for folder in FOLDERS
        .map(package)
        .into_iter()
        .filter(|folder| folder.exists())
    {
        sources(&folder, &mut files);
    }
    let read = |file: &PathBuf| functions(file, &fs::read_to_string(file).unwrap());
    files.iter().flat_map(read).collect()
}

#[test]
fn every_test_can_fail() {
    let functions = all();
    let known = Known::of(&functions);
    let tests: Vec<&Function> = functions
        .iter()
        .filter(|function| function.is_test)
        .collect();
    assert!(
        tests.len() > 800,
        "only {} tests: they are not read",
        tests.len()
    );
    let mut wrong = Vec::new();
    let mut excused = BTreeSet::new();
    for test in &tests {
        let Some(fault) = test.fault(&known) else {
            continue;
        };
        match EXCEPT.iter().find(|(name, _)| *name == test.name) {
            Some((name, _)) => drop(excused.insert(*name)),
            None => wrong.push(format!(
                "{}:{}: {}: {fault}",
                test.file.display(),
                test.line,
                test.name
            )),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} tests:\n{}",
        wrong.len(),
        tests.len(),
        wrong.join("\n")
    );
    let unneeded: Vec<&str> = EXCEPT
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !excused.contains(name))
        .collect();
    // The package leaves the other crates out.
    let is_whole = package("crates").exists();
    assert!(
        unneeded.is_empty() || !is_whole,
        "these exceptions are not needed: {unneeded:?}"
    );
}

/// The reader finds what it looks for.
#[test]
fn planted_tests_that_cannot_fail_are_found() {
    // A bar stands for the end of a line.
    let helpers = [
        "fn opened(name: &str) -> Option<File> {|    let found = files().into_iter().find(|f| f.name == name)?;|    Some(found)|}",
        "fn counted() -> Vec<File> {|    let files = files();|    assert!(files.len() > 3);|    files|}",
        "fn check(file: &File) {|    assert!(file.passed());|}",
    ];
    let helpers = helpers.join("||").replace("|f|", "").replace('|', "\n");
    let fault = |attribute: &str, body: &str| {
        let body = body.replace('|', "\n    ");
        let text = format!("{helpers}\n{attribute}#[test]\nfn planted() {{\n    {body}\n}}\n");
        let functions = functions(Path::new("tests/planted.rs"), &text);
        let known = Known::of(&functions);
        functions.iter().find(|f| f.is_test).unwrap().fault(&known)
    };
    for faulty in [
        "if let Some(file) = opened(\"a\") {|    assert!(file.passed());|}",
        "for name in [\"a\"] {|    if let Some(file) = opened(name) {|        check(&file);|    }|}",
        "let Some(file) = opened(\"a\") else { return };|assert!(file.passed());",
        "let Some(file) = opened(\"a\") else {|    return;|};|check(&file);",
        "for file in files() {|    assert!(file.passed());|}",
        "for file in counted() {|    if file.is_odd() {|        continue;|    }|    check(&file);|}",
        "let n = 3;",
        "assert!(true);",
        "assert_eq!(n, n);",
    ] {
        assert!(fault("", faulty).is_some(), "{faulty}");
    }
    for right in [
        "if let Some(file) = opened(\"a\") {|    check(&file);|} else {|    assert!(is_package());|}",
        "if !is_present(\"a\") {|    return;|}|check(&file(\"a\"));",
        "for file in counted() {|    assert!(file.passed());|}",
        "let files = [a, b];|for file in &files {|    check(file);|}",
        "let mut n = 0;|for file in files() {|    check(&file);|    n += 1;|}|assert!(n > 3);",
        "opened(\"a\").unwrap();",
    ] {
        assert_eq!(fault("", right), None, "{right}");
    }
    let measured = "#[ignore = \"a measurement\"]\n";
    assert_eq!(fault(measured, "let n = 3;"), None);
    assert!(fault("#[ignore]\n", "check(&file);").is_some());
}
