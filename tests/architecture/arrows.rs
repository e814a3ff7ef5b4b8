//! Arrows between packages, between the modules of a package, and between files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{is_published, package::package, sources};

/// Each package: its folder, and the packages of this repository that it may use. ARCHITECTURE.md draws the same.
const PACKAGES: &[(&str, &str, &[&str])] = &[
    ("kernels", "crates/kernels", &[]),
    ("base", "crates/base", &["kernels"]),
    ("layers", "crates/layers", &["base", "kernels"]),
    ("files", "crates/files", &["base", "kernels"]),
    ("media", "crates/media", &["base"]),
    ("templates", "crates/templates", &[]),
    (
        "tokenizers",
        "crates/tokenizers",
        &["base", "files", "templates"],
    ),
    (
        "candle-blocks",
        "",
        &[
            "base",
            "files",
            "kernels",
            "layers",
            "media",
            "templates",
            "tokenizers",
        ],
    ),
    ("cli", "crates/cli", &["base", "candle-blocks"]),
];

/// The most arrows between packages.
const MOST_ARROWS: usize = 22;

/// A name, and the names that it may use.
type Arrows = (&'static str, &'static [&'static str]);

/// The modules of a package, each with those of the same package that it may use.
const MODULES: &[(&str, &[Arrows])] = &[
    (
        "crates/layers",
        &[
            ("config", &[]),
            ("device", &[]),
            ("ops", &["config", "device"]),
            ("layers", &["ops", "config"]),
            ("verify", &[]),
        ],
    ),
    (
        "",
        &[
            ("checkpoint", &[]),
            ("train", &["checkpoint"]),
            ("model", &["train", "checkpoint"]),
            ("generate", &["model", "checkpoint"]),
            ("compat", &["checkpoint"]),
            ("text", &["generate", "model", "checkpoint"]),
            ("pictures", &["text", "model", "checkpoint"]),
            ("speech", &["text", "generate", "model", "checkpoint"]),
            ("trace", &["model", "checkpoint"]),
            ("advanced", &["generate", "checkpoint"]),
        ],
    ),
];

/// Folders of many files that are one list: a family is found by its file.
const LISTS: [&str; 1] = ["src/checkpoint/families"];

/// The most files at each level in `checkpoint`, `text` and `tokenizers`.
const MOST_FILES: usize = 12;

/// A file of a package: its module path, and the modules that it imports from.
struct SourceFile {
    module: Vec<String>,
    path: PathBuf,
    imports: BTreeSet<Vec<String>>,
}

/// Returns a package's files, with the modules of the same package that each imports from.
fn files_of(folder: &str) -> Vec<SourceFile> {
    let root = package(folder).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let module = |path: &Path| -> Vec<String> {
        let local = path.strip_prefix(&root).unwrap().with_extension("");
        let mut names: Vec<String> = local
            .iter()
            .map(|name| name.to_str().unwrap().to_string())
            .collect();
        if names
            .last()
            .is_some_and(|last| ["mod", "lib", "main"].contains(&&last[..]))
        {
            names.pop();
        }
        names
    };
    let modules: BTreeSet<Vec<String>> = paths.iter().map(|path| module(path)).collect();
    let file = |path: PathBuf| {
        let own = module(&path);
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let mut imports = BTreeSet::new();
        for (is_passed_on, import) in imported(code) {
            let Some(mut target) = resolved(&own, &import) else {
                continue;
            };
            // The face of a module, or a prelude, names items of others and uses none.
            if is_passed_on {
                continue;
            }
            while !modules.contains(&target) {
                target.pop();
            }
            imports.insert(target);
        }
        imports.remove(&own);
        SourceFile {
            module: own,
            path,
            imports,
        }
    };
    paths.iter().cloned().map(file).collect()
}

/// Returns the paths in `use` declarations, with braces expanded, and the other paths that begin with `crate::`. True stands beside a
/// path that the file only passes on.
fn imported(code: &str) -> Vec<(bool, Vec<String>)> {
    let lines = code.lines().map(str::trim_start);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let code = lines.join("\n");
    let mut found = Vec::new();
    for statement in code.split(';') {
        let declared = [
            "\nuse ",
            "\npub use ",
            "\npub(crate) use ",
            "\npub(super) use ",
        ];
        let text = format!("\n{statement}");
        let at = declared
            .iter()
            .filter_map(|word| Some((text.rfind(word)? + word.len(), word.contains("pub"))))
            .max();
        if let Some((at, is_passed_on)) = at {
            let mut paths = Vec::new();
            expand(text[at..].trim(), &mut Vec::new(), &mut paths);
            found.extend(paths.into_iter().map(|path| (is_passed_on, path)));
        }
    }
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|c| !c.is_alphanumeric() && c != '_') {
            let is_path = |c: &char| c.is_alphanumeric() || *c == '_' || *c == ':';
            let path: String = code[at..].chars().take_while(is_path).collect();
            found.push((false, path.split("::").map(str::to_string).collect()));
        }
    }
    found
}

/// Expands `a::{b, c::{d, e}}` to `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let (path, group) = match tree.find('{') {
        Some(at) => (&tree[..at], tree[at + 1..].trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let path = path.split(" as ").next().unwrap();
    let n_before = before.len();
    let names = path
        .split("::")
        .map(str::trim)
        .filter(|name| !name.is_empty());
    before.extend(names.map(str::to_string));
    match group {
        None => found.push(before.clone()),
        Some(group) => {
            let (mut depth, mut start) = (0, 0);
            for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        let part = group[start..at].trim();
                        if !part.is_empty() {
                            expand(part, before, found);
                        }
                        start = at + 1;
                    }
                    _ => {}
                }
            }
        }
    }
    before.truncate(n_before);
}

/// Returns the absolute path in the package; `None` if it leads out of it.
fn resolved(own: &[String], path: &[String]) -> Option<Vec<String>> {
    let (first, mut rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => Vec::new(),
        "self" => own.to_vec(),
        "super" => own.split_last()?.1.to_vec(),
        _ => return None,
    };
    while let Some(("super", next)) = rest.split_first().map(|(name, next)| (&name[..], next)) {
        at.pop();
        rest = next;
    }
    at.extend(rest.iter().cloned());
    Some(at)
}

/// Returns the files of a circle, if there is one. An arrow from a file to a module that it lies in does not count: `mod.rs` names
/// the parts, and the parts share its helpers.
fn circle(files: &[SourceFile]) -> Option<Vec<String>> {
    let arrows: BTreeMap<&[String], Vec<&[String]>> = files
        .iter()
        .map(|file| {
            let targets = file.imports.iter().map(Vec::as_slice);
            let outside = targets.filter(|target| !file.module.starts_with(target));
            (file.module.as_slice(), outside.collect())
        })
        .collect();
    let mut done = BTreeSet::new();
    for start in arrows.keys() {
        let mut path = Vec::new();
        if let Some(found) = follow(start, &arrows, &mut path, &mut done) {
            return Some(found);
        }
    }
    None
}

fn follow<'a>(
    at: &'a [String],
    arrows: &BTreeMap<&'a [String], Vec<&'a [String]>>,
    path: &mut Vec<&'a [String]>,
    done: &mut BTreeSet<&'a [String]>,
) -> Option<Vec<String>> {
    if let Some(begin) = path.iter().position(|before| *before == at) {
        return Some(
            path[begin..]
                .iter()
                .map(|module| module.join("::"))
                .collect(),
        );
    }
    if done.contains(at) {
        return None;
    }
    path.push(at);
    for target in arrows.get(at).into_iter().flatten() {
        if let Some(found) = follow(target, arrows, path, done) {
            return Some(found);
        }
    }
    path.pop();
    done.insert(at);
    None
}

#[test]
fn packages_use_those_of_the_table() {
    let mut n_arrows = 0;
    for (place, (name, folder, uses)) in PACKAGES.iter().enumerate() {
        if !folder.is_empty() && is_published() {
            continue;
        }
        // Cargo writes a published manifest anew, in other forms.
        let own = match is_published() {
            true => "Cargo.toml.orig",
            false => "Cargo.toml",
        };
        let manifest = fs::read_to_string(package(folder).join(own)).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let of_line = |line: &str| {
            let end = line.find(|c: char| !c.is_alphanumeric() && c != '-')?;
            let own = line[..end].strip_prefix("candle-blocks")?;
            Some(own.strip_prefix('-').unwrap_or("candle-blocks").to_string())
        };
        let mut found: Vec<String> = dependencies.lines().filter_map(of_line).collect();
        found.sort();
        assert_eq!(found, *uses, "{name}");
        for used in *uses {
            let below = PACKAGES[..place].iter().any(|(name, ..)| name == used);
            assert!(below, "{name} uses {used}, which stands above it");
        }
        n_arrows += uses.len();
    }
    assert!(n_arrows <= MOST_ARROWS, "{n_arrows} arrows");
    if let Ok(packages) = fs::read_dir(package("crates")) {
        assert_eq!(
            packages.count() + 1,
            PACKAGES.len(),
            "a package has no line"
        );
        let kernels = fs::read_to_string(package("crates/kernels/Cargo.toml")).unwrap();
        assert!(!kernels.contains("candle-core"), "kernels know no candle");
    }
}

#[test]
fn arrows_between_modules_point_one_way() {
    let (mut wrong, mut n_arrows) = (Vec::new(), 0);
    for (folder, table) in MODULES
        .iter()
        .filter(|(folder, _)| folder.is_empty() || !is_published())
    {
        for file in files_of(folder) {
            let Some((own, _)) = file.module.split_first() else {
                continue; // lib.rs
            };
            let line = table.iter().find(|(name, _)| name == own);
            let (_, uses) =
                line.unwrap_or_else(|| panic!("{folder}: {own} has no line in MODULES"));
            for target in file.imports.iter().filter_map(|target| target.first()) {
                n_arrows += 1;
                if target != own && !uses.contains(&&target[..]) {
                    wrong.push(format!("{} uses {target}", file.path.display()));
                }
            }
        }
    }
    assert!(n_arrows > 20, "only {n_arrows} arrows are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut n_arrows = 0;
    for (name, folder, _) in PACKAGES
        .iter()
        .filter(|(_, folder, _)| folder.is_empty() || !is_published())
    {
        let files = files_of(folder);
        n_arrows += files.iter().map(|file| file.imports.len()).sum::<usize>();
        if let Some(circle) = circle(&files) {
            panic!("{name}: {} -> {}", circle.join(" -> "), circle[0]);
        }
    }
    assert!(n_arrows > 300, "only {n_arrows} imports are found");
}

#[test]
fn folders_of_checkpoint_and_text_have_few_files() {
    let mut n_folders = 0;
    let mut open = vec![
        package("src/checkpoint"),
        package("src/text"),
        package("crates/tokenizers/src"),
    ];
    open.retain(|folder| folder.exists()); // the published package has its own alone
    assert!(open.len() >= 2);
    while let Some(folder) = open.pop() {
        if LISTS.iter().any(|list| folder == package(list)) {
            continue;
        }
        n_folders += 1;
        let entries: Vec<PathBuf> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|e| e == "rs");
        let n_files = entries.iter().filter(is_source).count();
        assert!(
            n_files <= MOST_FILES,
            "{}: {n_files} files",
            folder.display()
        );
        open.extend(entries.into_iter().filter(|path| path.is_dir()));
    }
    assert!(n_folders > 10, "only {n_folders} folders");
}

/// The reader of `use` lines finds what it looks for.
#[test]
fn planted_circles_are_found() {
    let file = |module: &str, code: &str| {
        let own: Vec<String> = module.split("::").map(str::to_string).collect();
        let targets = imported(code)
            .into_iter()
            .filter_map(|(_, path)| resolved(&own, &path));
        let imports = targets
            .map(|path| path[..path.len() - 1].to_vec())
            .collect();
        SourceFile {
            module: own,
            path: PathBuf::new(),
            imports,
        }
    };
    let above = file("a", "use crate::{b::{self as other, c::D}, e::F};\n");
    assert_eq!(above.imports.len(), 4); // with that of the statement read as a path
    let beside = file("b::c", "pub(crate) use super::super::a::{A,\n    B};\n");
    assert_eq!(beside.imports, [vec!["a".to_string()]].into());
    assert_eq!(circle(&[above, beside]).unwrap(), ["a", "b::c"]);
    let parent = file("a", "use self::b::C;");
    let child = file("a::b", "use super::helper;");
    assert!(circle(&[parent, child]).is_none());
}
