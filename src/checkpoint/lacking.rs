//! The model types of transformers that are not built in, and what each has that this crate lacks.

/// What is said of a model type that is not built in.
pub(super) struct Lacking {
    /// Behind its name: what it has.
    pub what: &'static str,
    /// Whether a table is all that it lacks, so that a family near it may help.
    pub is_table: bool,
}

/// Why there is no family for this model type of transformers; `None` if it is none of them.
pub(super) fn lacking(model_type: &str) -> Option<Lacking> {
    listed()
        .find(|(name, _)| *name == model_type)
        .map(|(_, lacking)| lacking)
}

/// Every such model type.
fn listed() -> impl Iterator<Item = (&'static str, Lacking)> {
    let mut said = ("", false);
    include_str!("lacking.txt").lines().filter_map(move |line| {
        match line.split_once(' ') {
            Some(("=", what)) => said = (what, false),
            Some(("+", what)) => said = (what, true),
            None if !line.is_empty() => {
                let (what, is_table) = said;
                return Some((line, Lacking { what, is_table }));
            }
            _ => {}
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn no_model_type_is_listed_twice_or_built_in() {
        let mut names: BTreeSet<String> = families::all()
            .iter()
            .flat_map(|family| family.model_types.clone())
            .collect();
        for (name, lacking) in listed() {
            assert!(names.insert(name.to_string()), "{name}");
            assert!(!lacking.what.is_empty(), "{name}");
        }
    }
}
