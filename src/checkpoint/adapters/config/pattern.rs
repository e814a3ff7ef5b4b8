//! PEFT's patterns that select modules: Python regular expressions over module names.

use fancy_regex::Regex;

/// Returns whether a key of `rank_pattern` or `alpha_pattern` matches a module, as PEFT's `get_pattern_key` does.
pub(crate) fn ends_in(pattern: &str, module: &str) -> Result<bool, String> {
    is_match(&format!(r"^(.*\.)?({pattern})$"), pattern, module)
}

/// Returns whether a pattern matches a module's whole name (`re.fullmatch`).
pub(crate) fn is_whole(pattern: &str, module: &str) -> Result<bool, String> {
    is_match(&format!("^(?:{pattern})$"), pattern, module)
}

/// Returns whether an entry of `modules_to_save` is a module or one of its parents.
pub(crate) fn is_in(pattern: &str, module: &str) -> Result<bool, String> {
    is_match(&format!(r"^(^|.*\.){pattern}($|\..*)"), pattern, module)
}

/// Returns the index for the layer that contains a module: the number after one of these names, or if there are no names, the
/// number after any name inside another.
pub(crate) fn layer_of(names: &[String], module: &str) -> Result<Option<usize>, String> {
    let any = [r"[^.]*\.[^.]*".to_string()];
    let names = if names.is_empty() { &any[..] } else { names };
    for name in names {
        let regex = compiled(&format!(r"^(?:|.*?\.){name}\.(\d+)\."), name)?;
        let found = regex.captures(module).map_err(|e| unusable(name, &e))?;
        if let Some(number) = found.and_then(|found| found.get(1)) {
            return Ok(number.as_str().parse().ok());
        }
    }
    Ok(None)
}

fn is_match(whole: &str, pattern: &str, module: &str) -> Result<bool, String> {
    let found = compiled(whole, pattern)?.is_match(module);
    found.map_err(|error| unusable(pattern, &error))
}

fn compiled(whole: &str, pattern: &str) -> Result<Regex, String> {
    Regex::new(whole).map_err(|error| unusable(pattern, &error))
}

fn unusable(pattern: &str, error: &fancy_regex::Error) -> String {
    format!("{pattern:?} is not a supported regular expression: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_as_in_pythons_re() {
        let module = "model.layers.10.self_attn.q_proj";
        for (pattern, expected) in [
            ("q_proj", true),
            ("self_attn.q_proj", true),
            (r"layers\.1\..*q_proj", false),
            (r"layers\.(0|10)\.self_attn\.q_proj", true),
            ("^model.layers.10.self_attn.q_proj", true),
            ("proj", false),
            ("attn.q_proj", false),
        ] {
            assert_eq!(ends_in(pattern, module), Ok(expected), "{pattern}");
        }
        assert_eq!(is_whole(r"(?!.*\.1\.).*\.[qv]_proj", module), Ok(true));
        assert_eq!(is_whole("q_proj", module), Ok(false));
        assert_eq!(is_in("self_attn", module), Ok(true));
        assert_eq!(is_in("attn", module), Ok(false));
        assert_eq!(layer_of(&[], module), Ok(Some(10)));
        assert_eq!(layer_of(&["h".to_string()], module), Ok(None));
        let of_base = "h.3.attn.c_attn";
        assert_eq!(layer_of(&["h".to_string()], of_base), Ok(Some(3)));
        assert_eq!(layer_of(&[], of_base), Ok(None));
        assert!(ends_in("(", module).is_err());
    }
}
