//! Lists the families in `src/checkpoint/families`, where each file is a module, and has a table or several: a family is found by its file.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "src/checkpoint/families";

fn main() {
    println!("cargo::rerun-if-changed={FOLDER}");
    let folder = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join(FOLDER);
    let list = listed(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let path = Path::new(&env::var_os("OUT_DIR").unwrap()).join("families.rs");
    fs::write(&path, list).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Returns a `mod` for each file, and the function `family` or `families` of those that have one.
fn listed(folder: &Path) -> std::io::Result<String> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "rs"));
    paths.sort();
    let (mut modules, mut tables) = (String::new(), String::new());
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name == "mod" {
            continue;
        }
        writeln!(modules, "#[path = {path:?}]\nmod {name};").unwrap();
        let code = fs::read_to_string(&path)?;
        if code.contains("\npub(super) fn families() -> ") {
            writeln!(tables, "    {name}::families,").unwrap();
        } else if code.contains("\npub(super) fn family() -> ") {
            writeln!(tables, "    || vec![{name}::family()],").unwrap();
        }
    }
    Ok(format!(
        "{modules}\n/// The tables of each file.\nconst FILES: &[fn() -> Vec<crate::checkpoint::scheme::Family>] = &[\n{tables}];\n"
    ))
}
