//! The text stack of models that also read images or audio: a decoder of another family, described under `text_config`. The
//! other parts are not loaded. `text_sides.json` lists these models.
//!
//! transformers' `LlavaModel` and `Mistral3Model`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/llava/modeling_llava.py>

use std::sync::LazyLock;

use serde::Deserialize;

use super::beside::{beside, inside, with_output};
use super::prelude::*;
use crate::checkpoint::scheme::table::{Entries, Table, tables};

/// An entry of the table; an entry without a text's type is a base for others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::checkpoint) struct TextSide {
    /// The larger model's type.
    name: &'static str,
    /// The default model type of its text.
    #[serde(rename = "read_as")]
    pub(in crate::checkpoint) text_type: &'static str,
    like: Option<&'static str>,
    prefixes: Vec<&'static str>,
    output: &'static str,
    section: Option<&'static str>,
    only: bool,
    whole: bool,
    tied: bool,
    tied_inside: bool,
    own_head: bool,
    defaults: Entries<&'static str, Value>,
    handed_on: Vec<&'static str>,
}

impl TextSide {
    /// Returns the entry for a larger model's type.
    pub(in crate::checkpoint) fn of(model_type: &str) -> Option<&'static Self> {
        all().find(|side| side.name == model_type)
    }

    /// Returns the model type of the text that a file describes.
    ///
    /// # Errors
    /// If that key is not a string.
    pub(in crate::checkpoint) fn text_type_of(&self, json: &ConfigJson) -> Result<String> {
        let text = json.section(&[self.section()])?;
        let named = text.map(|text| text.text(&["model_type"])).transpose()?;
        let named = named.flatten().filter(|_| !self.only);
        Ok(named.unwrap_or_else(|| self.text_type.to_string()))
    }

    /// Returns the name of the section that describes the text.
    pub(in crate::checkpoint) fn section(&self) -> &'static str {
        self.section.unwrap_or("text_config")
    }

    /// Returns the table for a decoder in this model.
    pub(in crate::checkpoint) fn around(&self, text: &Family) -> Family {
        let mut family = text.clone().named(self.name).prefixes(&self.prefixes);
        family.keys.class.with_sizes = true;
        let mut family = with_output(beside(family, self.whole), self.output);
        family.keys.ties = match (self.tied_inside, self.tied) {
            (true, true) => Ties::Either,
            (true, false) => Ties::Inside,
            _ => Ties::Outside,
        };
        if let Some(section) = self.section {
            family.prefixes = text.prefixes.clone();
            family = inside(family, section);
        }
        if family.keys.ties != Ties::Inside {
            family = family.default_of("tie_word_embeddings", self.tied);
        }
        if !self.own_head {
            family = family.head(HeadTask::CausalLm, causal_lm);
        }
        let keys = self.handed_on.iter();
        let family = keys.fold(family, |family, key| family.handed_on(key));
        let defaults = self.defaults.iter();
        defaults.fold(family, |family, (key, value)| {
            family.default_of(key, value.clone())
        })
    }
}

impl Table for TextSide {
    fn names(&self) -> (&'static str, Option<&'static str>) {
        (self.name, self.like)
    }

    fn add(&mut self, base: &Self) {
        if self.prefixes.is_empty() {
            self.prefixes = base.prefixes.clone();
        }
        if self.output.is_empty() {
            self.output = base.output;
        }
        self.section = self.section.or(base.section);
        self.only |= base.only;
        self.whole |= base.whole;
        self.tied |= base.tied;
        self.tied_inside |= base.tied_inside;
        self.own_head |= base.own_head;
        self.defaults.add(&base.defaults, |_| false);
        self.handed_on.extend(&base.handed_on);
    }
}

/// Returns every entry of the table that is no base.
pub(super) fn all() -> impl Iterator<Item = &'static TextSide> {
    static ALL: LazyLock<Vec<TextSide>> = LazyLock::new(|| {
        // A test reads every entry.
        tables(&[include_str!("text_sides.json")]).unwrap_or_default()
    });
    ALL.iter().filter(|side| !side.text_type.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn every_entry_of_the_table_is_a_family() {
        let entries: Vec<TextSide> = tables(&[include_str!("text_sides.json")]).unwrap();
        let known = |name: &str| families::all().any(|family| family.name == name);
        let sides = entries.iter().filter(|side| !side.text_type.is_empty());
        assert!(sides.clone().count() > 70);
        for side in sides {
            assert!(known(side.text_type), "{}: {}", side.name, side.text_type);
            assert!(known(side.name), "{}", side.name);
        }
    }
}
