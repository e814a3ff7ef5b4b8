//! The defaults of transformers' configuration classes. `python weights/export.py default-configs` writes the list.

use serde_json::{Map, Value};

use super::text_side::TextSide;
use crate::checkpoint::scheme::{ClassDefaults, Family};

impl ClassDefaults {
    /// Returns the defaults for this model type, which `family` reads. A type that transformers lacks has those of a similar
    /// class, if the family names one.
    pub fn of(model_type: &str, family: &Family) -> Self {
        let alike = family.keys.class_type.as_ref().unwrap_or(&family.name);
        let type_defaults = listed(model_type).or_else(|| listed(alike));
        let mut values = type_defaults.unwrap_or_default();
        if let Some(section) = &family.keys.section {
            values = match (values.remove(section), TextSide::of(model_type)) {
                (Some(Value::Object(inside)), _) => inside,
                (_, Some(side)) => listed(side.text_type).unwrap_or_default(),
                _ => Map::new(),
            };
        }
        Self {
            values,
            with_sizes: family.keys.section.is_some(),
        }
    }
}

fn listed(model_type: &str) -> Option<Map<String, Value>> {
    let mut lines = include_str!("class_defaults.json").lines();
    let values = lines.find_map(|line| {
        let (name, values) = line.strip_prefix('"')?.split_once("\": ")?;
        (name == model_type).then(|| values.trim_end_matches(','))
    })?;
    let mut values: Map<String, Value> = serde_json::from_str(values).ok()?; // a test reads every line
    for value in values.values_mut() {
        if let Some(own_type) = value.as_str().and_then(|text| text.strip_prefix('@')) {
            *value = Value::Object(listed(own_type).unwrap_or_default());
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the `config.json` that each class writes without arguments.
    fn written() -> Map<String, Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/default_configs.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn every_default_is_the_one_that_the_class_writes() {
        let list: Map<String, Value> =
            serde_json::from_str(include_str!("class_defaults.json")).unwrap();
        let written = written();
        let mut n_compared = 0;
        for (model_type, values) in &list {
            let config = &written[model_type];
            for (key, value) in values.as_object().unwrap() {
                let found = match value.as_str().and_then(|text| text.strip_prefix('@')) {
                    Some(own_type) => {
                        assert_eq!(config[key]["model_type"], own_type, "{model_type}: {key}");
                        continue;
                    }
                    None if ["rope_theta", "partial_rotary_factor"].contains(&&key[..]) => {
                        &config["rope_parameters"][key]
                    }
                    None => &config[key],
                };
                // A class does not write what all classes have.
                if !found.is_null() {
                    n_compared += 1;
                    assert_eq!(found, value, "{model_type}: {key}");
                }
            }
        }
        assert!(n_compared > 4000, "only {n_compared}");
    }

    #[test]
    fn every_class_that_loads_is_listed() {
        for (model_type, config) in written() {
            // A type that is refused by name has nothing else.
            let is_read = config.as_object().unwrap().len() > 1;
            assert_eq!(listed(&model_type).is_some(), is_read, "{model_type}");
        }
    }

    #[test]
    fn a_section_has_the_defaults_of_its_own_class() {
        let clip = listed("clip").unwrap();
        assert_eq!(clip["text_config"]["hidden_size"], 512);
        assert_eq!(clip["vision_config"]["hidden_size"], 768);
    }
}
