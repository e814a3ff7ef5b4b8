//! The house as ARCHITECTURE.md describes it: packages, modules and files, read from the manifests and the sources' own `use` lines.

#[path = "architecture/arrows.rs"]
mod arrows;
#[path = "architecture/calls.rs"]
mod calls;
#[path = "architecture/facts.rs"]
mod facts;
#[path = "architecture/identifiers.rs"]
mod identifiers;
#[path = "architecture/kinds.rs"]
mod kinds;
#[path = "shared/package.rs"]
mod package;
#[path = "architecture/pages.rs"]
mod pages;
#[path = "architecture/prose.rs"]
mod prose;
#[path = "architecture/said.rs"]
mod said;
#[path = "architecture/vacuous.rs"]
mod vacuous;

use std::{
    fs,
    path::{Path, PathBuf},
};

use package::package;

/// Returns the Rust files in a folder and below.
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

/// Returns true in a published package, which leaves the others out.
fn is_published() -> bool {
    !package("crates").exists()
}

/// Returns the folders with the sources of each package.
fn source_folders() -> Vec<PathBuf> {
    let mut folders = vec![package("src")];
    if let Ok(packages) = fs::read_dir(package("crates")) {
        folders.extend(packages.map(|entry| entry.unwrap().path().join("src")));
    }
    folders
}

/// Returns the sources of all packages but the kernels: paths in the repository, and texts.
fn library() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    let folders = source_folders();
    for folder in folders
        .iter()
        .filter(|folder| !folder.ends_with("kernels/src"))
    {
        sources(folder, &mut paths);
    }
    let root = package("");
    let local = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_path_buf();
    let read = |path: PathBuf| (local(&path), fs::read_to_string(&path).unwrap());
    paths.into_iter().map(read).collect()
}

/// A cached pass has no gradient: it would keep the graph of every step. The padding's embedding has none in PyTorch.
const WITHOUT_GRAPH: [&str; 2] = ["layers/state/mod.rs", "layers/embeddings/tokens.rs"];

/// The folder of the layers.
const LAYERS: &str = "crates/layers/src/layers";

#[test]
fn no_operation_cuts_the_graph() {
    let mut n_lines = 0;
    for (path, text) in library() {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for (n, line) in code.enumerate() {
            n_lines += 1;
            assert!(!line.contains("_no_bwd"), "{}:{n}: {line}", path.display());
            let has_graph = !WITHOUT_GRAPH.iter().any(|file| path.ends_with(file));
            // A packed form has no gradient: a folder `packed`, or a file beside the layer.
            let is_packed = path.with_extension("").iter().any(|name| name == "packed");
            if path.starts_with(LAYERS) && has_graph && !is_packed {
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
    let folders = [
        "",
        "docs",
        "benches",
        "weights",
        "crates/kernels",
        "crates/layers",
    ];
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
    for (path, text) in library() {
        if path.parent() != Some(Path::new("src/checkpoint/families")) {
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
    for (path, text) in library() {
        let has_unsafe = text.lines().any(|line| line.contains("unsafe {"));
        assert!(!has_unsafe, "{}", path.display());
    }
}

/// Everything else speaks of ranks, through the trait `Communicator`. A published package leaves these files out.
const NAME_MPI: [&str; 2] = ["parallel/mod.rs", "parallel/mpi.rs"];

#[test]
fn one_folder_names_mpi() {
    let names_mpi = |(_, text): &(PathBuf, String)| {
        text.lines().any(|line| {
            let code = line.split("//").next().unwrap();
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.any(|word| word.eq_ignore_ascii_case("mpi"))
        })
    };
    let found = library().into_iter().filter(names_mpi);
    let mut found: Vec<PathBuf> = found.map(|(path, _)| path).collect();
    found.sort();
    let listed = NAME_MPI.map(|file| Path::new("crates/layers/src/ops").join(file));
    let expected = if is_published() { &[] } else { &listed[..] };
    assert_eq!(found, expected);
}

/// The documentation's programs are tests of the repository and of the published package, which leaves folders out.
#[test]
fn the_documentation_opens_files_of_the_package() {
    let manifest = fs::read_to_string(package("Cargo.toml")).unwrap();
    let excluded = manifest.split("exclude = [").nth(1).unwrap();
    let excluded = excluded.split(']').next().unwrap();
    let excluded: Vec<&str> = excluded.split('"').skip(1).step_by(2).collect();
    let mut n_files = 0;
    for (path, text) in library() {
        if !path.starts_with("src") {
            continue; // the other packages have no such files
        }
        let documentation = text.lines().filter(|line| {
            let line = line.trim_start();
            line.starts_with("///") || line.starts_with("//!")
        });
        for literal in documentation.flat_map(|line| line.split('"').skip(1).step_by(2)) {
            if !literal.starts_with("weights/") && !literal.starts_with("examples/") {
                continue;
            }
            n_files += 1;
            let is_excluded = |folder: &&str| {
                let folder = folder.trim_start_matches('/');
                Path::new(literal).starts_with(folder)
            };
            let folder = excluded.iter().copied().find(is_excluded);
            let place = path.display();
            assert_eq!(folder, None, "{place} opens {literal}");
            assert!(package(literal).exists(), "{place} opens {literal}");
        }
    }
    assert!(n_files > 5, "only {n_files} files");
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
    let left_out = |link: &str| {
        is_published()
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
