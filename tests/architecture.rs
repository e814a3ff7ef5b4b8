//! The dependency arrows of ARCHITECTURE.md, read from the sources' own `use crate::` lines.

#[path = "shared/package.rs"]
mod package;
#[path = "architecture/prose.rs"]
mod prose;
#[path = "architecture/said.rs"]
mod said;
#[path = "architecture/vacuous.rs"]
mod vacuous;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use package::package;

/// The crate of the kernels, as the sources name it.
const KERNELS: &str = "candle_blocks_kernels";

/// Each module and those it may use. `config`, `device` and `error` lie below all.
const ARROWS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("config", &["error"]),
    ("device", &["error"]),
    ("memory", &[KERNELS, "error"]),
    ("ops", &[KERNELS, "config", "device", "error"]),
    ("layers", &["ops", KERNELS, "config", "memory", "error"]),
    (
        "checkpoint",
        &[KERNELS, "layers", "config", "device", "memory", "error"],
    ),
    (
        "train",
        &["checkpoint", "layers", "ops", "config", "device", "error"],
    ),
    ("model", &["checkpoint", "layers", "config", "error"]),
    ("generate", &["model", "checkpoint", "config", "error"]),
    ("compat", &["checkpoint", "layers", "config", "error"]),
    (
        "text",
        &[
            "generate",
            "model",
            "checkpoint",
            "layers",
            "ops",
            "config",
            "error",
        ],
    ),
    (
        "trace",
        &["model", "checkpoint", "layers", "config", "error"],
    ),
    ("verify", &["error"]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The library's sources with their top-level module and text.
fn library() -> Vec<(PathBuf, String, String)> {
    let root = package("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    paths
        .into_iter()
        .filter_map(|path| {
            let local = path.strip_prefix(&root).unwrap();
            let module = local
                .iter()
                .next()?
                .to_str()?
                .trim_end_matches(".rs")
                .to_string();
            let is_library = module != "bin" && module != "lib";
            let text = fs::read_to_string(&path).unwrap();
            is_library.then(|| (local.to_path_buf(), module, text))
        })
        .collect()
}

/// Returns the first segment after `crate::` in every path, with braces expanded.
fn first_segments(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut segments = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue; // some_crate::
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => segments.push(word(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut expects_name = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => expects_name = true,
                        c if expects_name && !c.is_whitespace() => {
                            segments.push(word(&group[i..]));
                            expects_name = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    segments
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The module that each name re-exported by lib.rs comes from.
fn reexports() -> HashMap<String, String> {
    let text = fs::read_to_string(package("src/lib.rs")).unwrap();
    let mut owners = HashMap::new();
    for statement in text.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else {
            continue;
        };
        let module = word(path);
        for name in path.split(|c: char| !c.is_alphanumeric() && c != '_') {
            owners.insert(name.to_string(), module.clone());
        }
    }
    owners
}

#[test]
fn arrows_point_one_way() {
    let owners = reexports();
    let mut wrong = Vec::new();
    let mut n_arrows = 0;
    for (path, module, text) in library() {
        let (_, allowed) = ARROWS
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| {
                panic!("{module} has no line in ARROWS; add it, and ARCHITECTURE.md")
            });
        if text.contains(KERNELS) && !allowed.contains(&KERNELS) {
            wrong.push(format!("{} uses the kernels", path.display()));
        }
        for segment in first_segments(&text) {
            let is_module = ARROWS.iter().any(|(name, _)| *name == segment);
            let target = match (is_module, owners.get(&segment)) {
                (true, _) => segment.clone(),
                (false, Some(owner)) => owner.clone(),
                (false, None) => panic!("{}: crate::{segment} is unknown", path.display()),
            };
            n_arrows += 1;
            if target != module && !allowed.contains(&target.as_str()) {
                wrong.push(format!(
                    "{} uses {target} (crate::{segment})",
                    path.display()
                ));
            }
        }
    }
    assert!(
        n_arrows > 20,
        "only {n_arrows} arrows found: the reader of `use` lines is broken"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernels_know_no_candle() {
    let Ok(manifest) = fs::read_to_string(package("crates/kernels/Cargo.toml")) else {
        // In the published package they are a dependency.
        return assert!(package("Cargo.toml.orig").exists());
    };
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    assert!(!dependencies.contains("candle"), "{dependencies}");
}

/// A cached pass has no gradient: it would keep the graph of every step. The padding's embedding has none in PyTorch.
const WITHOUT_GRAPH: [&str; 2] = ["layers/kv_cache.rs", "layers/embeddings/tokens.rs"];

#[test]
fn no_operation_cuts_the_graph() {
    let mut n_lines = 0;
    for (path, module, text) in library() {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for (n, line) in code.enumerate() {
            n_lines += 1;
            assert!(!line.contains("_no_bwd"), "{}:{n}: {line}", path.display());
            let has_graph = !WITHOUT_GRAPH.iter().any(|file| path.ends_with(file));
            if module == "layers" && has_graph && !path.starts_with("layers/packed") {
                assert!(
                    !line.contains(".detach()"),
                    "{}:{n}: {line}",
                    path.display()
                );
            }
        }
    }
    assert!(n_lines > 10_000, "only {n_lines} lines are read");
}

/// Every page, wherever a reader may begin.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "benches", "weights", "crates/kernels"];
    let files = folders
        .iter()
        .filter_map(|folder| fs::read_dir(package(folder)).ok())
        .flatten()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect()
}

/// The documents' worked examples are files that are compiled and tested.
#[test]
fn examples_in_documents_are_the_files_that_are_tested() {
    let read = |local: &str| fs::read_to_string(package(local)).unwrap();
    let example = |document: &str, language: &str| {
        let text = read(document);
        let example = text.split(&format!("```{language}\n")).nth(1).unwrap();
        example.split("```").next().unwrap().to_string()
    };
    let rust = example("docs/new-family.md", "rust");
    assert!(rust.contains("fn config"), "{rust}");
    assert!(read("src/checkpoint/families/distilbert.rs").ends_with(&rust));
    let json = example("docs/new-family.md", "json");
    assert_eq!(json, read("examples/smollm3.json"));
    let python = example("docs/own-block.md", "python");
    assert_eq!(python, read("weights/own_module.py"));
}

/// A family is a table and a function that reads its configuration: sizes and names, no tensors.
#[test]
fn a_family_is_one_short_file_without_tensors() {
    const MAX_LINES: usize = 150;
    let mut n_families = 0;
    for (path, _, text) in library() {
        if path.parent() != Some(Path::new("checkpoint/families")) {
            continue;
        }
        n_families += 1;
        assert!(!text.contains("candle_"), "{}", path.display());
        assert!(!text.contains("Tensor"), "{}", path.display());
        let n_lines = text.lines().count();
        assert!(n_lines <= MAX_LINES, "{}: {n_lines} lines", path.display());
    }
    assert!(n_families > 25, "only {n_families} files of families");
}

#[test]
fn unsafe_code_stays_in_the_kernels() {
    for (path, _, text) in library() {
        let has_unsafe = text.lines().any(|line| line.contains("unsafe {"));
        assert!(!has_unsafe, "{}", path.display());
    }
}

#[test]
fn the_examples_of_whole_models_fit_on_a_screen() {
    for example in ["chat", "image_classification", "sentence_embeddings"] {
        let text = fs::read_to_string(package(&format!("examples/{example}.rs"))).unwrap();
        let n_lines = text.lines().count();
        assert!(n_lines < 40, "{example}: {n_lines} lines");
    }
}

#[test]
fn links_of_documents_lead_to_files() {
    // The published package leaves these out.
    let is_package = package("Cargo.toml.orig").exists();
    let left_out = |link: &str| {
        is_package
            && ["benches/record", "crates/"]
                .iter()
                .any(|out| link.contains(out))
    };
    let mut n_links = 0;
    let mut dead = Vec::new();
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.starts_with("http")) {
            n_links += 1;
            if !left_out(link) && !path.with_file_name(link).exists() {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(n_links > 60, "only {n_links} links found");
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}
