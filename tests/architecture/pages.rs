//! The pages of docs: each ends with links to the pages before and after it, in the order of docs/README.md.

use std::fs;

use crate::{is_published, package::package};

fn text(page: &str) -> String {
    fs::read_to_string(package("docs").join(page)).unwrap()
}

/// Returns the pages of docs in a page's links, in their order, each once.
fn links(text: &str) -> Vec<&str> {
    let mut pages = Vec::new();
    for link in text.split("](").skip(1) {
        let (page, _) = link.split_once(')').unwrap();
        let is_page = page.ends_with(".md") && !page.contains('/');
        if is_page && !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages
}

#[test]
fn a_page_ends_with_links_to_the_pages_before_and_after_it() {
    if is_published() {
        return assert!(package("Cargo.toml.orig").exists()); // docs are in the repository alone
    }
    let index = text("README.md");
    let order = links(&index);
    assert!(order.len() > 20, "{order:?}");
    for entry in fs::read_dir(package("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_listed = !name.ends_with(".md") || name == "README.md" || order.contains(&&*name);
        assert!(is_listed, "docs/README.md does not list {name}");
    }
    for (i, page) in order.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| order[i]);
        let neighbors = [before, Some("README.md"), order.get(i + 1).copied()];
        let expected: Vec<&str> = neighbors.into_iter().flatten().collect();
        let text = text(page);
        let (_, end) = text.rsplit_once("\n\n").unwrap();
        assert_eq!(links(end), expected, "the links at the end of docs/{page}");
    }
}
