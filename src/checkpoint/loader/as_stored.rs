//! Matrices that `Precision::AsStored` does not pack as the files store them.

use std::fmt;

use serde::Serialize;

use crate::checkpoint::files::{StoredForm, TensorFiles};
use crate::checkpoint::plan::Plan;
use crate::checkpoint::plan::source::WORD_EMBEDDINGS;

/// Matrices of one type that [`Precision::AsStored`](crate::Precision::AsStored) does not pack as the files store them.
/// `Display` prints a sentence about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NotAsStored {
    /// The type in the files, such as `IQ3_S` or `F16`.
    pub tensor_type: String,
    /// The form that the matrices have instead.
    pub instead: InsteadOfStored,
    /// The matrices' names. Each expert in a mixture has its own.
    pub matrices: Vec<String>,
}

/// The form of a matrix that is not packed as it is stored.
/// It is in [`NotAsStored::instead`](crate::checkpoint::NotAsStored::instead).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InsteadOfStored {
    /// The matrix is packed in the first of bf16, f16 and f32 that represents all its elements exactly.
    Elements,
    /// The quantized values, which have no packed form, are dequantized. The elements are packed as for [`Self::Elements`].
    Dequantized,
    /// The quantized values are dequantized to f32, which the matrix has in any precision: embeddings that no head shares, and
    /// an expert router.
    F32,
    /// The quantized values are packed with this many bits each, more than in the file.
    MoreBits(usize),
}

impl fmt::Display for NotAsStored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ELEMENTS: &str =
            "the first of bf16, f16 and f32 that represents all elements exactly";
        let (n, of) = (self.matrices.len(), &self.tensor_type);
        let (matrices, have, are, them) = match n {
            1 => ("matrix", "has", "is", "it"),
            _ => ("matrices", "have", "are", "them"),
        };
        write!(f, "{n} {matrices} of {of} ")?;
        let dequantized = format!("{have} no packed form: as-stored dequantizes {them}");
        match self.instead {
            InsteadOfStored::Elements => write!(
                f,
                "{are} not quantized: as-stored packs {them} in {ELEMENTS}"
            ),
            InsteadOfStored::Dequantized => {
                write!(f, "{dequantized}, and packs {them} in {ELEMENTS}")
            }
            InsteadOfStored::F32 => write!(
                f,
                "{are} f32 in every precision: as-stored dequantizes {them}"
            ),
            InsteadOfStored::MoreBits(bits) => write!(
                f,
                "{have} no packed form: as-stored packs each value in {bits} bits"
            ),
        }
    }
}

/// The end of a mixture's router role.
const ROUTER: &str = ".router.weight";

/// Finds the matrices of a plan that are not packed as they are stored; none if the files have no quantized matrix.
pub(crate) fn not_as_stored(plan: &Plan, files: &TensorFiles) -> Vec<NotAsStored> {
    let mut found: Vec<NotAsStored> = Vec::new();
    let mut has_quantized = false;
    for source in plan.sources.iter().filter(|source| source.is_multiplied()) {
        let Some(form) = files.stored_form(&source.name) else {
            continue;
        };
        let is_f32 = match source.role.ends_with(WORD_EMBEDDINGS) {
            true => !plan.is_shared(&source.role) && !matches!(form, StoredForm::Values { .. }),
            false => source.role.ends_with(ROUTER),
        };
        let (name, instead) = match form {
            StoredForm::Elements(_) if is_f32 => continue,
            StoredForm::Elements(name) => (name, Some(InsteadOfStored::Elements)),
            StoredForm::Refused(name) => (name, None),
            StoredForm::Unpackable(name) => (name, Some(InsteadOfStored::Dequantized)),
            StoredForm::Values { name, bits, packed } => (
                name,
                (packed > bits).then_some(InsteadOfStored::MoreBits(packed)),
            ),
        };
        has_quantized |= instead != Some(InsteadOfStored::Elements);
        let instead = if is_f32 {
            Some(InsteadOfStored::F32)
        } else {
            instead
        };
        let Some(instead) = instead else { continue };
        let alike =
            |other: &&mut NotAsStored| (&other.tensor_type, other.instead) == (&name, instead);
        match found.iter_mut().find(alike) {
            Some(alike) if alike.matrices.contains(&source.name) => {}
            Some(alike) => alike.matrices.push(source.name.clone()),
            None => found.push(NotAsStored {
                tensor_type: name,
                instead,
                matrices: vec![source.name.clone()],
            }),
        }
    }
    found.retain(|_| has_quantized);
    found
}
