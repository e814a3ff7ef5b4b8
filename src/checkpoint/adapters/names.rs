//! Where on disk a class of transformers finds what it calls a module: PEFT's files go by the class.

use std::collections::HashMap;

use super::experts::ExpertMatrix;
use super::modules::InClass;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::scheme::{Family, Features};
use crate::checkpoint::source::Source;

/// Where a parameter of a class is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The tensor on disk.
    pub name: String,
    /// Its part of the tensor, if it is a module of its own in the class alone.
    pub features: Option<Features>,
}

impl Place {
    fn whole(name: String) -> Self {
        Self {
            name,
            features: None,
        }
    }
}

/// The names that may stand for one another.
pub(super) struct Names<'p> {
    /// What may stand before the names of the base model.
    prefixes: Vec<String>,
    by_class: HashMap<String, &'p Source>,
    /// Whether a class has a part of a tensor for itself.
    split: HashMap<&'p str, bool>,
    /// The matrices that the class stacks in a parameter.
    stacks: HashMap<String, Vec<ExpertMatrix<'p>>>,
}

impl<'p> Names<'p> {
    /// Those of a family's files.
    pub fn new(family: &Family, siblings: &[&Family], plan: &'p Plan) -> Self {
        let mut prefixes: Vec<String> = vec![String::new(), "model.".to_string()];
        let of_siblings = siblings.iter().flat_map(|family| &family.prefixes);
        for prefix in family.prefixes.iter().chain(of_siblings) {
            if !prefixes.contains(prefix) {
                prefixes.push(prefix.clone());
            }
        }
        let (mut by_class, mut split) = (HashMap::new(), HashMap::new());
        for source in plan.sources.iter().filter(|source| source.item.is_none()) {
            let mut prefixes = family.prefixes.iter().map(String::as_str);
            let own = prefixes.find(|prefix| source.name.starts_with(prefix));
            let in_class = InClass::new(family, own.unwrap_or(""), source);
            split.insert(source.role.as_str(), in_class.is_split);
            by_class.entry(in_class.name).or_insert(source);
        }
        let mut stacks: HashMap<_, Vec<_>> = HashMap::new();
        for source in plan.of_blocks() {
            if let Some(matrix) = ExpertMatrix::of(family, source) {
                let name = format!("{}.{}", matrix.module, matrix.parameter());
                stacks.entry(name).or_default().push(matrix);
            }
        }
        Self {
            prefixes,
            by_class,
            split,
            stacks,
        }
    }

    /// Where the parameter is that the class calls by this name, which is nowhere if the files lack it.
    pub fn find(&self, files: &TensorFiles, name: &str) -> Option<Place> {
        for spelled in spellings(name) {
            let forms = self.forms(&spelled);
            if let Some(found) = forms.iter().find(|form| files.contains(form)) {
                return Some(Place::whole(found.clone()));
            }
            if let Some(source) = forms.iter().find_map(|form| self.by_class.get(form)) {
                let is_split = self.split.get(source.role.as_str()) == Some(&true);
                return Some(Place {
                    name: source.name.clone(),
                    features: source.features.clone().filter(|_| is_split),
                });
            }
        }
        None
    }

    /// Returns the matrices that the class stacks in a parameter of this name.
    pub fn stack(&self, name: &str) -> Option<&[ExpertMatrix<'p>]> {
        let forms = self.forms(name);
        let found = forms.iter().find_map(|form| self.stacks.get(form))?;
        Some(found)
    }

    /// Whether a tensor is one of an expert's that the class joins with those of others.
    pub fn is_stacked(&self, on_disk: &str) -> bool {
        let mut matrices = self.stacks.values().flatten();
        matrices.any(|matrix| matrix.source.name == on_disk)
    }

    /// Whether two names may stand for the same parameter.
    pub fn are_one(&self, name: &str, other: &str) -> bool {
        self.forms(name).iter().any(|form| form == other)
    }

    /// A name with each prefix in the place of the one it has.
    fn forms(&self, name: &str) -> Vec<String> {
        let bare = self
            .prefixes
            .iter()
            .filter_map(|p| name.strip_prefix(p.as_str()));
        let bare: Vec<&str> = bare.collect();
        let mut forms = vec![name.to_string()];
        for prefix in &self.prefixes {
            for name in &bare {
                let form = format!("{prefix}{name}");
                if !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        forms
    }
}

/// A name and what old files, written from TensorFlow's, have in its place.
fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.to_string()];
    for (new, old) in [(".weight", ".gamma"), (".bias", ".beta")] {
        if let Some(stem) = name.strip_suffix(new) {
            all.push(format!("{stem}{old}"));
        }
    }
    all
}
