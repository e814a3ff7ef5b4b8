//! The model types of transformers that are not built in, and the feature that each would need.

/// The explanation for a model type that is not built in.
pub(crate) struct Lacking {
    /// The model's feature, to follow its name in a sentence.
    pub what: &'static str,
    /// Only a table is missing, so a similar family may help.
    pub is_table: bool,
}

/// Returns the explanation for a model type of transformers that is not built in; `None` for all other names.
pub(crate) fn lacking(model_type: &str) -> Option<Lacking> {
    listed()
        .find(|(name, _)| *name == model_type)
        .map(|(_, lacking)| lacking)
}

/// Returns every such model type. In the list, each explanation precedes the types that it applies to.
fn listed() -> impl Iterator<Item = (&'static str, Lacking)> {
    let mut reason = "";
    include_str!("lacking.txt").lines().flat_map(move |line| {
        let model_types = line.strip_prefix("    ");
        if model_types.is_none() {
            reason = line;
        }
        let (what, is_table) = match reason.strip_prefix("+ ") {
            Some(what) => (what, true),
            None => (reason, false),
        };
        let model_types = model_types.unwrap_or_default().split(' ');
        let named = model_types.filter(|name| !name.is_empty());
        named.map(move |name| (name, Lacking { what, is_table }))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn the_model_types_that_lack_but_a_table_are_marked() {
        for (name, lacking) in listed() {
            let says_so = lacking.what.ends_with("; `--family FILE` takes one");
            assert_eq!(lacking.is_table, says_so, "{name}: {}", lacking.what);
        }
    }

    #[test]
    fn no_model_type_is_listed_twice_or_built_in() {
        let mut names: BTreeSet<String> = families::all()
            .flat_map(|family| family.model_types.clone())
            .collect();
        for (name, lacking) in listed() {
            assert!(names.insert(name.to_string()), "{name}");
            assert!(!lacking.what.is_empty(), "{name}");
        }
    }
}
