//! Prefixes before a base model's names in the class that transformers builds. `architectures` selects the class; the names in
//! the files do not.

use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapters::modules::InClass;
use crate::checkpoint::scheme::{Family, StackPart};
use crate::error::Result;

/// Model classes, by how they contain a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassKind {
    /// A class with a head above a base model.
    Headed,
    /// A base model without a head.
    Base,
    /// A text or vision tower, or a language model's vision part.
    Tower,
}

/// Classes with a head whose names end like a base model's.
const HEADED: &[&str] = &["LMHeadModel", "DoubleHeadsModel", "MTModel"];
/// Base models whose class names do not end like one.
const BASES: &[&str] = &["BertGenerationEncoder", "WhisperForAudioClassification"];
const TOWERS: &[&str] = &["TextModel", "VisionModel", "TransformerPretrainedModel"];

impl ClassKind {
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
    /// Returns a weight's name in the class, given its role, and whether the class has it as a separate module although the
    /// files fuse it with others. Returns `None` if the role has no weight.
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

    /// Returns the prefix of this stack's names in the class that `config.json` names, or without one, in the class that
    /// fits the files.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub(crate) fn prefix_in_class(&self) -> Result<&str> {
        let (mut class, mut names): (_, &[&str]) = (None, &[]);
        if let Some(json) = self.config_json()? {
            let classes = json.texts(&["architectures"])?.unwrap_or_default();
            class = classes.into_iter().next();
            names = (self.family.new_names)(&self.family.keys.seen(&json)?)?;
        }
        let has_head = matches!(&self.plan.model, Some(model) if model.head.is_some());
        // A text-only class, although the files describe a larger model.
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
            (Some(class), _) => ClassKind::of(&class),
            (None, true) => ClassKind::Headed,
            (None, false) => ClassKind::Base,
        };
        Ok(prefix(&self.family, names, kind))
    }
}

/// Returns the prefix that a family's names have in a class of this kind; `names` are patterns for the names in that class.
fn prefix<'f>(family: &'f Family, names: &[&str], kind: ClassKind) -> &'f str {
    let all = || family.prefixes.iter().map(String::as_str);
    let has = |prefix: &str| all().any(|known| known == prefix);
    let is_named =
        |prefix: &&str| !prefix.is_empty() && names.iter().any(|name| name.starts_with(prefix));
    // A model with several stacks has them in a base model called `model`.
    let is_inside_model = |prefix: &&str| {
        let inside = prefix.strip_prefix("model.");
        inside.is_some_and(|inside| !inside.is_empty())
    };
    let found = all().find(is_named).or_else(|| all().find(is_inside_model));
    let headed = found.or_else(|| all().find(|prefix| !prefix.is_empty()));
    let headed = headed.unwrap_or_default();
    let of_base = headed.split_once('.').map_or("", |(_, inside)| inside);
    // If only one tower loads, its family has no `part`.
    let is_tower = matches!(family.part, Some(StackPart::Text | StackPart::Vision))
        || ["text_model.", "vision_model."].contains(&headed);
    match kind {
        ClassKind::Tower if has("") => "",
        // No class has a pair of towers as its base model.
        ClassKind::Base if has(of_base) && !(is_tower && of_base.is_empty()) => {
            all().find(|known| *known == of_base).unwrap_or_default()
        }
        _ => headed,
    }
}
