//! Tensors in an adapter's file, by the modules that they change.

use std::collections::BTreeMap;

use crate::checkpoint::files::StoredTensor;
use crate::error::Result;

/// The prefix that PEFT adds to every module's name.
pub(crate) const PREFIX: &str = "base_model.model.";

/// An adapter's tensors for one module.
#[derive(Debug, Default)]
pub(super) struct Low {
    pub a: Option<StoredTensor>,
    pub b: Option<StoredTensor>,
    /// The module is an embedding.
    pub is_table: bool,
    /// A bias that is added to the output of `B`.
    pub bias: Option<StoredTensor>,
    /// DoRA's magnitudes.
    pub lengths: Option<StoredTensor>,
    /// Replaced rows of an embedding.
    pub rows: Option<StoredTensor>,
}

impl Low {
    /// Returns the first tensor that is present.
    pub fn first(&self) -> Option<&StoredTensor> {
        let Self {
            a,
            b,
            bias,
            lengths,
            rows,
            ..
        } = self;
        [a, b, bias, lengths, rows].into_iter().flatten().next()
    }
}

/// Returns the field of [`Low`] that holds a tensor.
type PlaceOf = fn(&mut Low) -> &mut Option<StoredTensor>;

/// An adapter's tensors.
#[derive(Debug, Default)]
pub(super) struct AdapterTensors {
    /// By the module's name in the class.
    pub low: BTreeMap<String, Low>,
    /// Whole tensors, by their names in the class.
    pub whole: Vec<(String, StoredTensor)>,
}

impl AdapterTensors {
    /// # Errors
    /// If a tensor is not one that LoRA has.
    pub fn sorted(parts: Vec<StoredTensor>) -> Result<Self> {
        let mut sorted = Self::default();
        for part in parts {
            let name = part
                .name
                .strip_prefix(PREFIX)
                .unwrap_or(&part.name)
                .to_string();
            let ends: [(&str, bool, PlaceOf); 8] = [
                (".lora_A.weight", false, |low| &mut low.a),
                (".lora_B.weight", false, |low| &mut low.b),
                (".lora_B.bias", false, |low| &mut low.bias),
                (".lora_embedding_A", true, |low| &mut low.a),
                (".lora_embedding_B", true, |low| &mut low.b),
                (".lora_magnitude_vector", false, |low| &mut low.lengths),
                (".lora_magnitude_vector.weight", false, |low| {
                    &mut low.lengths
                }),
                (".token_adapter.trainable_tokens_delta", false, |low| {
                    &mut low.rows
                }),
            ];
            let mut known = ends.iter();
            let found = known.find_map(|(end, is_table, place)| {
                Some((name.strip_suffix(end)?, *is_table, place))
            });
            if let Some((module, is_table, place)) = found {
                let low = sorted.low.entry(module.to_string()).or_default();
                low.is_table |= is_table;
                *place(low) = Some(part);
                continue;
            }
            if name.contains("lora_") || name.contains("trainable_tokens") {
                return Err(part.error(
                    "LoRA has no tensor with this name; give the output of PEFT's `save_pretrained`",
                ));
            }
            // The original module, which a wrapper saves beside the trained one.
            if name.contains(".original_module.") {
                continue;
            }
            let inside = [".token_adapter", ".base_layer", ".modules_to_save"];
            let name = inside.iter().fold(name, |name, wrapper| {
                name.replace(&format!("{wrapper}."), ".")
            });
            sorted.whole.push((name, part));
        }
        Ok(sorted)
    }
}
