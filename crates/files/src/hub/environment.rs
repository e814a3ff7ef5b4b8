//! Environment variables that `huggingface_hub` reads and the HTTP client does not, or reads differently. It expands `~` and
//! `$NAME` in paths, because no shell does so in service files, and removes the line end from a token in a secret file.
//!
//! Source: `huggingface_hub/constants.py` and `huggingface_hub/utils/_auth.py`.

use std::path::PathBuf;

/// The variable with the user's own directory.
const HOME: &str = if cfg!(windows) { "USERPROFILE" } else { "HOME" };

/// A function that looks up environment variables, so that tests can have their own.
pub(super) struct Environment<F>(pub F);

impl<F: Fn(&str) -> Option<String>> Environment<F> {
    /// Returns the cache directory: `HF_HUB_CACHE`, its old name, or `hub` in the Hub's directory.
    pub(super) fn cache_dir(&self) -> PathBuf {
        match self.path("HF_HUB_CACHE") {
            Some(path) => path,
            None => self
                .path("HUGGINGFACE_HUB_CACHE")
                .unwrap_or_else(|| self.home().join("hub")),
        }
    }

    /// Returns the token from the environment, or from the file that `hf auth login` writes.
    pub(super) fn token(&self) -> Option<String> {
        let get = |name: &str| self.0(name);
        if get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
            return None;
        }
        let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
        let named = named
            .iter()
            .find_map(|name| get(name).filter(|token| !token.is_empty()));
        named.and_then(|token| cleaned(&token)).or_else(|| {
            let file = self.path("HF_TOKEN_PATH");
            let file = file.unwrap_or_else(|| self.home().join("token"));
            cleaned(&std::fs::read_to_string(file).ok()?)
        })
    }

    /// Returns the Hub's directory.
    fn home(&self) -> PathBuf {
        self.path("HF_HOME").unwrap_or_else(|| {
            let cache = self.path("XDG_CACHE_HOME");
            cache
                .unwrap_or_else(|| self.expanded("~/.cache"))
                .join("huggingface")
        })
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.expanded(&self.0(name)?))
    }

    /// Returns `os.path.expandvars(os.path.expanduser(path))`, except that `~somebody` stays as it is.
    fn expanded(&self, path: &str) -> PathBuf {
        let home = || self.0(HOME);
        let expanded = shellexpand::full_with_context_no_errors(path, home, &self.0);
        PathBuf::from(&*expanded)
    }
}

/// Returns this process's environment.
pub(super) fn of_process() -> Environment<impl Fn(&str) -> Option<String>> {
    Environment(|name: &str| std::env::var(name).ok())
}

/// Returns whether `huggingface_hub` reads a value as true.
pub(super) fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// Returns a token without line ends and surrounding space; `None` if nothing is left.
fn cleaned(token: &str) -> Option<String> {
    let token = token.replace(['\r', '\n'], "");
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Names and values.
    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn with<'a>(
        variables: Variables<'a>,
    ) -> Environment<impl Fn(&str) -> Option<String> + use<'a>> {
        Environment(|name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    // Python prints these for `constants.HF_HUB_CACHE` with these variables.
    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        let cases: [(Variables, &str); 9] = [
            (&[], "/home/me/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "~/models")], "/home/me/models/hub"),
            (
                &[("HF_HOME", "$ME/models"), ("ME", "/home/me")],
                "/home/me/models/hub",
            ),
            (&[("HF_HUB_CACHE", "${DATA}/hub"), ("DATA", "/d")], "/d/hub"),
            (&[("HF_HUB_CACHE", "/x/$UNSET/y")], "/x/$UNSET/y"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (
                &[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "~")],
                "/home/me",
            ),
        ];
        for (variables, expected) in cases {
            let all = [variables, &[(HOME, "/home/me")]].concat();
            assert_eq!(with(&all).cache_dir(), Path::new(expected), "{variables:?}");
        }
    }

    #[test]
    fn the_token_is_the_one_that_huggingface_hub_sends() {
        let home = tempfile::tempdir().unwrap();
        let stored = home.path().join("token");
        std::fs::write(&stored, "hf_stored\n").unwrap();
        let (home, stored) = (home.path().to_str().unwrap(), stored.to_str().unwrap());
        let cases: [(Variables, Option<&str>); 7] = [
            (&[("HF_TOKEN", "hf_secret\n")], Some("hf_secret")),
            (&[("HUGGING_FACE_HUB_TOKEN", " hf_old\r\n")], Some("hf_old")),
            (&[("HF_HOME", home)], Some("hf_stored")),
            (
                &[("HF_TOKEN", ""), ("HF_TOKEN_PATH", stored)],
                Some("hf_stored"),
            ),
            (&[("HF_TOKEN", " \n"), ("HF_HOME", home)], Some("hf_stored")),
            (
                &[("HF_TOKEN", "a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")],
                Some("a"),
            ),
            (
                &[("HF_TOKEN", "a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")],
                None,
            ),
        ];
        for (variables, expected) in cases {
            assert_eq!(
                with(variables).token().as_deref(),
                expected,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn the_values_for_offline_are_those_of_huggingface_hub() {
        assert!(["1", "on", "Yes", "TRUE"].into_iter().all(is_true));
        assert!(
            ["0", "off", "no", "2", ""]
                .into_iter()
                .all(|value| !is_true(value))
        );
    }
}
