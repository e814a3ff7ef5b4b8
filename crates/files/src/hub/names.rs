//! Checks names that are used in requests to the Hub and written below a directory.

use std::path::{Component, Path};

/// Applies the rule of `validate_repo_id` in `huggingface_hub`. A valid id is also safe as a directory's name.
pub(super) fn is_repo_id(repo: &str) -> bool {
    let sane = |part: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (1..=96).contains(&part.len())
            && part.starts_with(inner)
            && part.ends_with(inner)
            && part.chars().all(|c| inner(c) || c == '-' || c == '.')
            && !part.contains("--")
            && !part.contains("..")
    };
    match repo.split_once('/') {
        Some((owner, name)) => sane(owner) && sane(name),
        None => sane(repo),
    }
}

/// Returns whether a path with `/` separators stays below the directory that it is joined to, on any system.
pub(super) fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Returns whether a name from a server is a single path component on any system, like the hashes that it should be.
pub(super) fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+=~@".contains(c);
    (1..=128).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
}

/// Returns whether a revision is a full commit hash, whose files never change.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_names_follow_the_rule_of_huggingface_hub() {
        for good in ["gpt2", "openai-community/gpt2", "a/b.c_d-1", "_x/y_"] {
            assert!(is_repo_id(good), "{good}");
        }
        for bad in [
            "", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a--b/c", "a b", "-a/b", "a/b.", "é/b",
        ] {
            assert!(!is_repo_id(bad), "{bad}");
        }
    }

    #[test]
    fn only_a_plain_name_is_a_file_s_name() {
        for good in ["0123abcd", "5d41402abc4b2a76b9719d911017c592-16", "a.b_c"] {
            assert!(is_file_name(good), "{good}");
        }
        let long = "a".repeat(300);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "C:x",
            "a\0",
            "a b",
            ".hidden",
            "é",
            &long,
        ] {
            assert!(!is_file_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn paths_that_leave_their_directory_are_seen() {
        for good in ["model.safetensors", "1_Pooling/config.json", "refs/pr/1"] {
            assert!(stays_inside(good), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "..",
            ".",
            "a\\..\\x",
            "C:/x",
            "a\0b",
        ] {
            assert!(!stays_inside(bad), "{bad:?}");
        }
    }
}
