//! The text stack of models that also read images or audio: a decoder of another family, described under `text_config`. The
//! other parts are not loaded. `text_sides.txt` lists these models.
//!
//! transformers' `LlavaModel` and `Mistral3Model`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llava/modeling_llava.py>

use super::beside::{beside, inside, with_output};
use super::class_sizes::class_sizes;
use super::prelude::*;

/// Words of the table that are no keys.
const WORDS: [&str; 5] = ["only", "whole", "tied", "tied_inside", "own_head"];

/// One line of the table, with the names above it.
#[derive(Clone, Copy)]
pub(in crate::checkpoint) struct TextSide {
    /// The larger model's type.
    model_type: &'static str,
    /// The default model type of its text.
    pub(in crate::checkpoint) text_type: &'static str,
    prefixes: &'static str,
    output: &'static str,
    words: &'static str,
}

impl TextSide {
    /// Returns the entry for a larger model's type.
    pub(in crate::checkpoint) fn of(model_type: &str) -> Option<Self> {
        all().find(|side| side.model_type == model_type)
    }

    /// Returns the model type of the text that a file describes.
    ///
    /// # Errors
    /// If that key is not a string.
    pub(in crate::checkpoint) fn text_type_of(&self, json: &ConfigJson) -> Result<String> {
        let text = json.section(&[self.section()])?;
        let named = text.map(|text| text.text(&["model_type"])).transpose()?;
        let named = named.flatten().filter(|_| !self.says("only"));
        Ok(named.unwrap_or_else(|| self.text_type.to_string()))
    }

    /// Returns the name of the section that describes the text.
    pub(in crate::checkpoint) fn section(&self) -> &'static str {
        self.own_section().unwrap_or("text_config")
    }

    fn own_section(&self) -> Option<&'static str> {
        let mut words = self.words.split_whitespace();
        words.find_map(|word| word.strip_prefix('@'))
    }

    /// Returns the table for a decoder in this model.
    pub(in crate::checkpoint) fn around(&self, text: &Family) -> Family {
        let mut family = class_sizes(&text.name)
            .fold(text.clone(), |family, (key, size)| {
                family.default_of(key, size)
            })
            .named(self.model_type);
        family.prefixes = (self.prefixes.split(' '))
            .map(|prefix| prefix.trim_start_matches('-').to_string())
            .collect();
        let mut family = with_output(beside(family, self.says("whole")), self.output);
        family.keys.ties = match (self.says("tied_inside"), self.says("tied")) {
            (true, true) => Ties::Either,
            (true, false) => Ties::Inside,
            _ => Ties::Outside,
        };
        if let Some(section) = self.own_section() {
            family.prefixes = text.prefixes.clone();
            family = inside(family, section);
        }
        if family.keys.ties != Ties::Inside {
            family = family.default_of("tie_word_embeddings", self.says("tied"));
        }
        if !self.says("own_head") {
            family = family.head(HeadTask::CausalLm, causal_lm);
        }
        let words = self.words.split_whitespace();
        let keys = words.filter(|key| !WORDS.contains(key) && !key.starts_with('@'));
        keys.fold(family, |family, key| match key.split_once('=') {
            Some((key, value)) => match value.parse::<Value>() {
                Ok(value) => family.default_of(key, value),
                Err(_) => family, // a test reads every line
            },
            None => family.handed_on(key),
        })
    }

    fn says(&self, word: &str) -> bool {
        self.words.split_whitespace().any(|own| own == word)
    }
}

/// Returns every entry of the table.
pub(super) fn all() -> impl Iterator<Item = TextSide> {
    let mut names = ("", "");
    include_str!("text_sides.txt")
        .lines()
        .filter_map(move |line| {
            let Some(entry) = line.strip_prefix("    ") else {
                names = line.split_once(" | ").unwrap_or(names);
                return None;
            };
            let (model_type, rest) = entry.split_once(" = ")?;
            let (text_type, words) = rest.split_once(' ').unwrap_or((rest, ""));
            Some(TextSide {
                model_type,
                text_type,
                prefixes: names.0,
                output: names.1,
                words,
            })
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn every_line_of_the_table_is_a_family() {
        let known = |name: &str| families::all().any(|family| family.name == name);
        for side in all() {
            assert!(
                known(side.text_type),
                "{}: {}",
                side.model_type,
                side.text_type
            );
            assert!(known(side.model_type), "{}", side.model_type);
            for word in side.words.split_whitespace() {
                let value = word
                    .split_once('=')
                    .map(|(_, value)| value.parse::<Value>());
                assert!(value.is_none_or(|value| value.is_ok()), "{word}");
            }
        }
        let n_lines = include_str!("text_sides.txt").lines();
        let n_lines = n_lines.filter(|line| line.starts_with("    ")).count();
        assert_eq!(all().count(), n_lines);
    }

    /// By the classes that have `_tied_weights_keys`, and the defaults of their configurations.
    #[test]
    fn the_output_layer_is_tied_by_the_configurations_whose_classes_tie() {
        type Tied = fn(Option<bool>, Option<bool>) -> bool;
        let cases: [(&str, Tied); 7] = [
            ("llava", |outside, inside| {
                outside == Some(true) || inside == Some(true)
            }),
            ("mistral3", |outside, inside| {
                outside != Some(false) || inside == Some(true)
            }),
            ("llama4", |_, inside| inside == Some(true)),
            ("blip-2", |_, inside| inside != Some(false)),
            ("kosmos-2.5", |_, inside| inside != Some(false)),
            ("kosmos-2", |outside, inside| {
                outside != Some(false) || inside != Some(false)
            }),
            ("encoder-decoder", |_, inside| inside != Some(false)),
        ];
        let all = [None, Some(false), Some(true)];
        for (model_type, expected) in cases {
            let family = families::all().find(|family| family.name == model_type);
            let keys = &family.unwrap().keys;
            for (outside, inside) in all
                .into_iter()
                .flat_map(|one| all.map(|other| (one, other)))
            {
                let said = |tie: Option<bool>| {
                    let entries = tie.map(|tie| ("tie_word_embeddings".to_string(), json!(tie)));
                    entries.into_iter().collect::<serde_json::Map<_, _>>()
                };
                let mut contents = said(outside);
                let section = TextSide::of(model_type).unwrap().section();
                contents.insert(section.to_string(), said(inside).into());
                let json = ConfigJson::given(Path::new("config.json"), contents.into());
                let seen = keys.seen(&json).unwrap();
                let is_tied = seen.flag(&["tie_word_embeddings"], true).unwrap();
                let expected = expected(outside, inside);
                assert_eq!(is_tied, expected, "{model_type} {outside:?} {inside:?}");
            }
        }
    }
}
