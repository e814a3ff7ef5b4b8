//! Patterns for names, where `*` stands for any text.

use crate::error::{Error, Result};

/// Refuses patterns if one matches none of the `roles`, since it would silently have no effect.
pub fn each_matches<'r>(
    patterns: &[impl AsRef<str>],
    roles: impl Iterator<Item = &'r str> + Clone,
) -> Result<()> {
    for pattern in patterns.iter().map(AsRef::as_ref) {
        if !roles.clone().any(|role| matches(pattern, role)) {
            let like: Vec<&str> = roles.clone().take(3).collect();
            let reason = format!(
                "the pattern matches none of {} parameters; their names are like {}",
                roles.count(),
                like.join(", ")
            );
            return Err(Error::input(pattern, reason));
        }
    }
    Ok(())
}

/// Tells whether `name` matches `pattern`, where `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*.attn.bias", "h.0.attn.bias", true),
            ("*.attn.bias", "h.0.attn.bias.x", false),
            ("*.attn.bias", "h.0.attn.c_attn.bias", false),
            ("pooler.*", "pooler.dense.weight", true),
            ("pooler.*", "the.pooler.dense.weight", false),
            ("wte.weight", "wte.weight", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
