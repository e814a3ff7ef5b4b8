//! The tables of all files, and those for a model type.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::FILES;
use super::text_side::{self, TextSide};
use crate::checkpoint::scheme::Family;

/// Returns every known family.
pub(in crate::checkpoint) fn all() -> impl Iterator<Item = &'static Family> {
    static ALL: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let mut all: Vec<Family> = FILES.iter().flat_map(|tables| tables()).collect();
        let around = |side: &TextSide| {
            let text = all.iter().find(|text| text.name == side.text_type)?;
            Some(side.around(text))
        };
        let sides: Vec<Family> = text_side::all().filter_map(around).collect();
        all.extend(sides);
        all
    });
    ALL.iter()
}

/// Returns the families for `model_type`: several if its model has several stacks. Only their own files' tables take memory.
pub(in crate::checkpoint) fn of_type(model_type: &str) -> Vec<Family> {
    let own = of_files(model_type);
    let side = TextSide::of(model_type).and_then(|side| {
        let text = of_files(side.text_type);
        let text = text.iter().find(|text| text.name == side.text_type)?;
        Some(side.around(text))
    });
    own.into_iter().chain(side).collect()
}

fn of_files(model_type: &str) -> Vec<Family> {
    /// The places in `FILES` of each model type.
    static PLACES: LazyLock<BTreeMap<String, Vec<usize>>> = LazyLock::new(|| {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, tables) in FILES.iter().enumerate() {
            for model_type in tables().into_iter().flat_map(|family| family.model_types) {
                places.entry(model_type).or_default().push(place);
            }
        }
        places.values_mut().for_each(Vec::dedup);
        places
    });
    let places = PLACES.get(model_type).into_iter().flatten();
    let mut families: Vec<Family> = places.flat_map(|&place| FILES[place]()).collect();
    families.retain(|family| family.model_types.iter().any(|name| name == model_type));
    families
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    /// Adds the model types in a folder's configurations, those of their parts included.
    fn add_committed(folder: &Path, types: &mut BTreeSet<String>) {
        fn add(value: &Value, types: &mut BTreeSet<String>) {
            let Some(keys) = value.as_object() else {
                return;
            };
            types.extend(
                keys.get("model_type")
                    .and_then(Value::as_str)
                    .map(str::to_string),
            );
            keys.values().for_each(|value| add(value, types));
        }
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_committed(&path, types);
            } else if path.ends_with("config.json") {
                add(
                    &serde_json::from_slice(&fs::read(path).unwrap()).unwrap(),
                    types,
                );
            }
        }
    }

    /// The files whose families are compared with transformers by weights/sweep/config.py alone. It only falls.
    const WITHOUT_CHECKPOINT: usize = 14;

    #[test]
    fn a_new_file_of_families_has_a_committed_checkpoint() {
        let mut types = BTreeSet::new();
        let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("weights");
        add_committed(&weights, &mut types);
        let missing: Vec<String> = FILES
            .iter()
            .map(|file| {
                file()
                    .into_iter()
                    .flat_map(|family| family.model_types)
                    .collect()
            })
            .filter(|of_file: &Vec<String>| !of_file.iter().any(|name| types.contains(name)))
            .map(|of_file| of_file.join(", "))
            .collect();
        assert!(
            missing.len() <= WITHOUT_CHECKPOINT,
            "no config.json in weights has one of {missing:#?}"
        );
    }
}
