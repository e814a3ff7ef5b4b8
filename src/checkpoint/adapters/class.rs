//! What stands before a base model's names in the class that transformers builds, which goes by `architectures`, not by the
//! names in the files.

use super::modules::InClass;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::scheme::{Family, StackPart};
use crate::error::Result;

/// The kinds of classes, by what they hold a stack in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A base model below a head.
    Headed,
    /// A base model.
    Base,
    /// One of two towers, or what sees images for a model of texts.
    Tower,
}

/// Classes with a head whose names end like a base model's.
const HEADED: &[&str] = &["LMHeadModel", "DoubleHeadsModel", "MTModel"];
/// Classes whose names do not tell that they hold what a base model does.
const BASES: &[&str] = &["BertGenerationEncoder", "WhisperForAudioClassification"];
const TOWERS: &[&str] = &["TextModel", "VisionModel", "TransformerPretrainedModel"];

impl Kind {
    fn of(class: &str) -> Self {
        let ends = |all: &[&str]| all.iter().any(|end| class.ends_with(end));
        match () {
            () if ends(TOWERS) => Self::Tower,
            () if ends(BASES) => Self::Base,
            () if class.ends_with("Model") && !ends(HEADED) => Self::Base,
            () => Self::Headed,
        }
    }
}

impl Checkpoint {
    /// The name that the class has for the weight of a role, and whether that is a module of its own there, although the files
    /// have it as a part of another tensor; `None` without such a weight.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub(crate) fn in_class(&self, role: &str) -> Result<Option<(String, bool)>> {
        let Some(source) = self.plan.source(role) else {
            return Ok(None);
        };
        let mut prefixes = self.family.prefixes.iter().map(String::as_str);
        let own = prefixes.find(|prefix| source.name.starts_with(prefix));
        let InClass { name, is_split } = InClass::new(&self.family, own.unwrap_or(""), source);
        Ok(Some((
            format!("{}{name}", self.prefix_in_class()?),
            is_split,
        )))
    }

    /// What stands before the names of this stack in the class that `config.json` names, or else in the one that its files fit.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub(super) fn prefix_in_class(&self) -> Result<&str> {
        let (mut class, mut names): (_, &[&str]) = (None, &[]);
        if let Some(json) = self.config_json()? {
            let classes = json.texts(&["architectures"])?.unwrap_or_default();
            class = classes.into_iter().next();
            names = (self.family.new_names)(&self.family.keys.seen(&json)?)?;
        }
        let has_head = matches!(&self.plan.model, Some(model) if model.head.is_some());
        // A class of texts alone, of which the files describe a larger model.
        let of_texts = "model.";
        let is_of_texts = class
            .as_ref()
            .is_some_and(|class| class.ends_with("ForCausalLM"));
        let mut prefixes = self.family.prefixes.iter();
        let has_several = self
            .family
            .prefixes
            .iter()
            .any(|p| p == "model.language_model.");
        if is_of_texts && has_several && prefixes.any(|prefix| prefix == of_texts) {
            return Ok(of_texts);
        }
        let kind = match (class, has_head) {
            (Some(class), _) => Kind::of(&class),
            (None, true) => Kind::Headed,
            (None, false) => Kind::Base,
        };
        Ok(prefix(&self.family, names, kind))
    }
}

/// What stands before the names of a family in a class of this kind; `names` are patterns of those that the class has.
fn prefix<'f>(family: &'f Family, names: &[&str], kind: Kind) -> &'f str {
    let all = || family.prefixes.iter().map(String::as_str);
    let has = |prefix: &str| all().any(|known| known == prefix);
    let is_named =
        |prefix: &&str| !prefix.is_empty() && names.iter().any(|name| name.starts_with(prefix));
    // What holds several stacks holds them in a base model, `model`.
    let of_several = |prefix: &&str| {
        let inside = prefix.strip_prefix("model.");
        inside.is_some_and(|inside| !inside.is_empty())
    };
    let found = all().find(is_named);
    let found = found.or_else(|| all().find(of_several));
    let headed = found.or_else(|| all().find(|prefix| !prefix.is_empty()));
    let headed = headed.unwrap_or_default();
    let of_base = headed.split_once('.').map_or("", |(_, inside)| inside);
    // A family of one of two towers, of which the other does not load, has no part.
    let is_tower = matches!(family.part, Some(StackPart::Text | StackPart::Vision))
        || ["text_model.", "vision_model."].contains(&headed);
    match kind {
        Kind::Tower if has("") => "",
        // Two towers are no base model of anything.
        Kind::Base if has(of_base) && !(is_tower && of_base.is_empty()) => {
            all().find(|known| *known == of_base).unwrap_or_default()
        }
        _ => headed,
    }
}
