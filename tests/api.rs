//! `tests/api.txt` lists what the library's sources declare `pub`, so that a review sees what changes for users. (It also
//! has what a private module declares and no other re-exports.) `UPDATE_API=1 cargo test --test api` writes it anew.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rust's sources under a folder, in order, without tests and programs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        match path.file_stem().unwrap().to_str().unwrap() {
            "tests" | "bin" => {}
            _ if path.is_dir() => sources(&path, found),
            _ => found.push(path),
        }
    }
}

/// Returns a formatted file's declarations, each up to its body and on one line.
fn declarations(source: &str) -> String {
    let (mut all, mut one, mut in_enum) = (String::new(), String::new(), false);
    let mut table = "";
    for line in source.lines().take_while(|line| *line != "#[cfg(test)]") {
        let row;
        let code = match (line.trim(), table) {
            (code @ ("setters! {" | "getters! {"), _) => {
                table = code;
                continue;
            }
            ("}", _) => {
                table = "";
                "}"
            }
            (code, "") => code,
            // A row of a table is a method.
            (code, table) => {
                row = match (code.split_once(" => "), table) {
                    (None, _) => continue,
                    (Some((head, _)), "getters! {") => format!("pub fn {head} {{"),
                    (Some((head, _)), _) => {
                        format!("pub fn {} -> Self {{", head.replacen('(', "(mut self, ", 1))
                    }
                };
                &row
            }
        };
        let is_variant = in_enum && !code.starts_with(['/', '#', '}']);
        // Methods that a layer has by a macro are those of the macro's definition.
        let calls = ["packs!(", "packs_around!(", "per_row!("];
        let is_call = calls.iter().any(|call| line.starts_with(call));
        let begins = code.starts_with("pub ") || line.starts_with("impl") || is_variant || is_call;
        in_enum = line.starts_with("pub enum") || in_enum && line != "}";
        if one.is_empty() && !begins {
            continue;
        }
        one = format!("{one} {code}");
        let is_use = one.starts_with(" pub use");
        let is_open = one.matches('(').count() > one.matches(')').count();
        let ends = code.ends_with(['{', ';', '}']) || code.ends_with(',') && !is_open;
        if match is_use {
            true => code.ends_with(';'),
            false => ends && !is_open,
        } {
            let in_table = 4 * usize::from(!table.is_empty());
            let indent = " ".repeat(line.len() - line.trim_start().len() - in_table);
            all += &format!(
                "  {indent}{}\n",
                one.trim().trim_end_matches([' ', '{', ',', ';'])
            );
            one.clear();
        }
    }
    all
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = String::new();
    let mut paths = Vec::new();
    sources(&root.join("src"), &mut paths);
    for path in paths {
        let items = declarations(&fs::read_to_string(&path).unwrap());
        if items.contains("pub ") {
            let local = path.strip_prefix(root).unwrap();
            found += &format!("{}\n{items}\n", local.display());
        }
    }
    let list = root.join("tests/api.txt");
    if std::env::var_os("UPDATE_API").is_some() {
        fs::write(&list, &found).unwrap();
    }
    let listed = fs::read_to_string(&list).unwrap();
    for (found, listed) in found
        .lines()
        .zip(listed.lines().chain(std::iter::repeat("")))
    {
        assert_eq!(
            found, listed,
            "run `UPDATE_API=1 cargo test --test api`, and review tests/api.txt"
        );
    }
    assert_eq!(
        found.len(),
        listed.len(),
        "tests/api.txt has more than the sources"
    );
}

#[test]
fn the_root_has_at_most_65_names() {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let items = declarations(&fs::read_to_string(lib).unwrap());
    let names = items.lines().map(|item| match item.split_once('{') {
        Some((_, names)) => names
            .split(',')
            .filter(|name| name.contains(char::is_alphabetic))
            .count(),
        None => 1,
    });
    let n_names: usize = names.sum();
    assert!((50..=65).contains(&n_names), "{n_names} names:\n{items}");
}
