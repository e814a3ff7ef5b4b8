//! Modules depend on each other one way, and files do not in circles: read from every path that begins with `crate`
//! or `super`.
//!
//! A `mod.rs` (and `lib.rs`) is its module's facade. It declares files, re-exports their public names, and contains
//! no code. A path through it resolves to the file that defines the name. Tests may use anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Each module, and the modules that it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("vectors", &[]),
    ("threads", &[]),
    ("memory", &["vectors"]),
    ("cpu", &["threads", "vectors"]),
    ("rows", &["cpu", "memory", "threads", "vectors"]),
    ("recurrence", &["cpu", "memory", "threads", "vectors"]),
    ("products", &["rows", "cpu", "memory", "threads", "vectors"]),
    (
        "attention",
        &["products", "rows", "cpu", "memory", "threads", "vectors"],
    ),
    ("storage", &["products"]),
];

/// Each module's text by path: `["products", "formats", "bf16"]`.
struct Crate(BTreeMap<Vec<String>, String>);

/// The modules that each module's paths resolve to.
type Arrows = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

impl Crate {
    /// Creates a crate from files by their paths within `src`, without comments and tests.
    fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let without_comments = |text: String| {
            let lines = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or(""));
            lines.collect::<Vec<_>>().join("\n")
        };
        let module = |file: &str| -> Vec<String> {
            let parts = file.trim_end_matches(".rs").split('/');
            parts
                .filter(|part| !["mod", "lib"].contains(part))
                .map(String::from)
                .collect()
        };
        let files = files.into_iter();
        let mut modules: BTreeMap<_, _> = files
            .map(|(file, text)| (module(&file), without_comments(text)))
            .collect();
        // Modules declared under `#[cfg(test)]` with all their submodules, and tests within a file.
        let mut tests = Vec::new();
        for (module, text) in &mut modules {
            for declared in text.split("#[cfg(test)]\n").skip(1) {
                if let Some((_, name)) = declared.split_once("mod ") {
                    tests.push([&module[..], &[word(name).to_string()]].concat());
                }
            }
            if let Some(start) = text.find("#[cfg(test)]\nmod tests {") {
                text.truncate(start);
            }
        }
        modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(modules)
    }

    fn read() -> Self {
        fn add(folder: &Path, root: &Path, files: &mut Vec<(String, String)>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    add(&path, root, files);
                } else {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                    files.push((name.to_string(), fs::read_to_string(&path).unwrap()));
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        add(&root, &root, &mut files);
        Self::new(files)
    }

    fn arrows(&self) -> Arrows {
        let code = self.0.iter().filter(|(module, _)| !self.is_facade(module));
        code.map(|(module, text)| {
            let targets = paths(text, &["crate", "super"]).into_iter();
            let targets = targets.map(|path| self.resolved(module, &path));
            (module.clone(), targets.filter(|to| to != module).collect())
        })
        .collect()
    }

    fn is_facade(&self, module: &[String]) -> bool {
        let mut below = self.0.keys().filter(|other| other.starts_with(module));
        let has_code = self.0[module].contains("fn ");
        !has_code && below.any(|other| other.len() > module.len())
    }

    /// Resolves a path within `module` to the module that it names.
    fn resolved(&self, module: &[String], path: &[String]) -> Vec<String> {
        let mut from = match path[0].as_str() {
            "crate" => Vec::new(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            _ => [module, &path[..1]].concat(),
        };
        let mut rest = &path[1..];
        while let [name, others @ ..] = rest {
            let below = [&from[..], std::slice::from_ref(name)].concat();
            if name == "super" {
                from.pop();
            } else if self.0.contains_key(&below) {
                from = below;
            } else {
                break;
            }
            rest = others;
        }
        let (Some(name), true) = (rest.first(), self.is_facade(&from)) else {
            return from;
        };
        let children: Vec<&str> = self
            .0
            .keys()
            .filter_map(|m| Some(m.last()?.as_str()))
            .collect();
        let exported = paths(&self.0[&from], &children);
        let path = exported.iter().find(|path| path.last() == Some(name));
        match path {
            Some(path) if path.len() > 1 => self.resolved(&from, path),
            _ => panic!("{}::{name} comes from nowhere", from.join("::")),
        }
    }
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Returns every path in the code that begins with one of these words, with braces expanded.
fn paths(code: &str, first: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(length) = code[at..].find("::") {
        let end = at + length;
        let start = code[..end].rfind(|c: char| !c.is_alphanumeric() && c != '_');
        let start = start.map_or(0, |before| before + 1);
        at = end + 2;
        if first.contains(&&code[start..end]) && !code[..start].ends_with("::") {
            let mut rest = &code[start..];
            open(&mut rest, &[], &mut found);
        }
    }
    found
}

/// Reads one path, with all its branches.
fn open(rest: &mut &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = before.to_vec();
    loop {
        let name = word(rest);
        path.extend((!name.is_empty()).then(|| name.to_string()));
        *rest = &rest[name.len()..];
        match rest.strip_prefix("::") {
            Some(after) if after.starts_with('{') => {
                *rest = &after[1..];
                while !rest.trim_start().starts_with('}') {
                    *rest = rest.trim_start();
                    open(rest, &path, found);
                    let end = rest.find([',', '}']).unwrap();
                    *rest = rest[end..].trim_start_matches(',');
                }
                *rest = &rest.trim_start()[1..];
                return;
            }
            Some(after) if !word(after).is_empty() => *rest = after,
            _ => return found.push(path),
        }
    }
}

/// Returns arrows between modules that [`ROOMS`] does not allow.
fn wrong_ways(arrows: &Arrows) -> Vec<String> {
    let mut wrong = Vec::new();
    for (module, targets) in arrows {
        let (_, allowed) = ROOMS
            .iter()
            .find(|(room, _)| *room == module[0])
            .unwrap_or_else(|| panic!("{} is in no room", module[0]));
        for target in targets.iter().filter(|target| target[0] != module[0]) {
            if !allowed.contains(&target[0].as_str()) {
                wrong.push(format!("{} -> {}", module.join("::"), target.join("::")));
            }
        }
    }
    wrong
}

/// Returns the circles of files that use each other, each as a list of files.
fn circles(arrows: &Arrows) -> BTreeSet<Vec<String>> {
    let reached = |from: &Vec<String>| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            let targets = arrows.get(module).into_iter().flatten();
            next.extend(targets.filter(|&target| reached.insert(target.clone())));
        }
        reached
    };
    let all: BTreeMap<_, _> = arrows
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let in_circles = all
        .iter()
        .filter(|(module, reached)| reached.contains(**module));
    in_circles
        .map(|(module, reached)| {
            let is_back =
                |other: &&Vec<String>| all.get(other).is_some_and(|of| of.contains(*module));
            let back = reached.iter().filter(is_back);
            back.map(|other| other.join("::")).collect()
        })
        .collect()
}

#[test]
fn modules_depend_one_way() {
    let arrows = Crate::read().arrows();
    let n_arrows: usize = arrows.values().map(BTreeSet::len).sum();
    assert!(
        n_arrows > 300,
        "only {n_arrows} arrows: the reader of paths is broken"
    );
    assert_eq!(wrong_ways(&arrows), [""; 0]);
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let circles = circles(&Crate::read().arrows());
    assert!(circles.is_empty(), "{circles:#?}");
}

/// Creates a small crate with planted faults.
fn planted(files: &[(&str, &str)]) -> Arrows {
    let own = |&(file, text): &(&str, &str)| (file.to_string(), text.to_string());
    Crate::new(files.iter().map(own)).arrows()
}

#[test]
fn a_planted_circle_is_found_also_through_a_facade() {
    let arrows = planted(&[
        ("lib.rs", "mod rows;\nmod vectors;\n"),
        (
            "rows/mod.rs",
            "mod norm;\nmod source;\npub use source::{Given, Source};\n",
        ),
        (
            "rows/norm.rs",
            "use crate::{\n    rows::{Given},\n    vectors::lanes,\n};\nfn f() {}",
        ),
        ("rows/source.rs", "fn f() { super::norm::f() }"),
        (
            "vectors/mod.rs",
            "pub mod lanes;\n#[cfg(test)]\nmod tests;\n",
        ),
        (
            "vectors/lanes.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::rows::Source;\n}",
        ),
        ("vectors/tests.rs", "use crate::rows::norm;"),
    ]);
    assert_eq!(wrong_ways(&arrows), [""; 0]);
    let circle = ["rows::norm", "rows::source"].map(String::from).to_vec();
    assert_eq!(circles(&arrows), BTreeSet::from([circle]));
}

#[test]
fn a_planted_arrow_upwards_is_found() {
    let arrows = planted(&[
        ("lib.rs", "mod rows;\nmod vectors;\n"),
        ("rows/mod.rs", "pub mod norm;\n"),
        (
            "rows/norm.rs",
            "use super::super::vectors::lanes::sum;\nfn f() {}",
        ),
        ("vectors/mod.rs", "pub mod lanes;\n"),
        (
            "vectors/lanes.rs",
            "// use crate::rows;\nfn f() { $crate::rows::norm::f::<u8>() }",
        ),
    ]);
    assert_eq!(wrong_ways(&arrows), ["vectors::lanes -> rows::norm"]);
    assert_eq!(circles(&arrows).len(), 1);
}
