//! Finds the tensor on disk for a module name of transformers' class. PEFT's files use the class's names.

use std::collections::HashMap;

use super::experts::ExpertMatrix;
use super::modules::InClass;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::scheme::{Family, Features};

/// The location of a class's parameter.
#[derive(Clone, Debug)]
pub(super) struct TensorSlice {
    /// The tensor on disk.
    pub name: String,
    /// The slice, if only the class has it as a separate module.
    pub features: Option<Features>,
}

impl TensorSlice {
    fn whole(name: String) -> Self {
        Self {
            name,
            features: None,
        }
    }
}

/// Names on disk and in the class for the same parameters.
pub(super) struct ClassNames<'p> {
    /// Prefixes that the base model's names may have.
    prefixes: Vec<String>,
    by_class: HashMap<String, &'p StoredParameter>,
    /// By role: whether the class has a slice as a separate module.
    split: HashMap<&'p str, bool>,
    /// The matrices that the class stacks, by parameter.
    stacks: HashMap<String, Vec<ExpertMatrix<'p>>>,
}

impl<'p> ClassNames<'p> {
    /// Collects the names for a family's files.
    pub fn new(family: &Family, siblings: &[&Family], plan: &'p Plan) -> Self {
        let mut prefixes: Vec<String> = vec![String::new(), "model.".to_string()];
        let sibling_prefixes = siblings.iter().flat_map(|family| &family.prefixes);
        for prefix in family.prefixes.iter().chain(sibling_prefixes) {
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
        for source in plan.in_blocks() {
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

    /// Returns the location of the parameter that the class calls `name`, or `None` if the files lack it.
    pub fn find(&self, files: &TensorFiles, name: &str) -> Option<TensorSlice> {
        for spelled in spellings(name) {
            let forms = self.forms(&spelled);
            if let Some(found) = forms.iter().find(|form| files.contains(form)) {
                return Some(TensorSlice::whole(found.clone()));
            }
            if let Some(source) = forms.iter().find_map(|form| self.by_class.get(form)) {
                let is_split = self.split.get(source.role.as_str()) == Some(&true);
                return Some(TensorSlice {
                    name: source.name.clone(),
                    features: source.features.clone().filter(|_| is_split),
                });
            }
        }
        None
    }

    /// Returns the matrices that the class stacks in the parameter `name`.
    pub fn stack(&self, name: &str) -> Option<&[ExpertMatrix<'p>]> {
        let forms = self.forms(name);
        let found = forms.iter().find_map(|form| self.stacks.get(form))?;
        Some(found)
    }

    /// Returns whether a tensor belongs to one expert and the class stacks it with the other experts'.
    pub fn is_stacked(&self, on_disk: &str) -> bool {
        let mut matrices = self.stacks.values().flatten();
        matrices.any(|matrix| matrix.source.name == on_disk)
    }

    /// Returns whether two names may mean the same parameter.
    pub fn are_one(&self, name: &str, other: &str) -> bool {
        self.forms(name).iter().any(|form| form == other)
    }

    /// Returns a name with every possible prefix.
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

/// Returns a name and its spelling in old files that were converted from TensorFlow.
fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.to_string()];
    for (new, old) in [(".weight", ".gamma"), (".bias", ".beta")] {
        if let Some(stem) = name.strip_suffix(new) {
            all.push(format!("{stem}{old}"));
        }
    }
    all
}
