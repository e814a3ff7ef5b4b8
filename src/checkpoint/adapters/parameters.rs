//! Adapters for parameters that are not modules (`target_parameters`):
//! <https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/tuners_utils.py>.
//!
//! PEFT wraps a module once for each targeted parameter, the first one innermost, and names the factors after the wrappers:
//! `experts.base_layer.lora_A` belongs to `gate_up_proj`, and `experts.lora_A` to `down_proj`.

use super::apply::Application;
use super::config::AdapterConfig;
use super::experts::{self, ExpertMatrix, SingleExperts};
use super::merged::{Change, Placed};
use super::product_layout::ProductLayout;
use super::stacked::ExpertFactors;
use super::tensors::Low;
use crate::checkpoint::files::{StoredTensor, TensorFiles};
use crate::error::Result;

/// The parameters that a module may have, in the class's order.
const PARAMETERS: [&str; 5] = [
    "gate_up_proj",
    "gate_up_proj_bias",
    "down_proj",
    "down_proj_bias",
    "weight",
];
/// The name of a wrapper's inner module.
const WRAPPED: &str = ".base_layer";

/// The parameter that an adapter changes.
#[derive(Debug)]
pub(super) struct AdapterTarget {
    /// The module's name in the class.
    pub module: String,
    /// The parameter's name.
    pub weight: String,
    /// `target_parameters` selects the parameter; otherwise `target_modules` selects the module.
    pub is_bare: bool,
}

impl AdapterTarget {
    /// Returns the name by which PEFT looks up rank and alpha.
    pub fn key(&self) -> &str {
        match self.is_bare {
            true => &self.weight,
            false => &self.module,
        }
    }
}

impl Application<'_> {
    /// Returns the parameter that the factors with this module name change.
    ///
    /// # Errors
    /// If the name has more wrappers than `target_parameters` selects parameters in the module.
    pub(super) fn target(
        &self,
        wrapped: &str,
        first: &StoredTensor,
        config: &AdapterConfig,
        files: &TensorFiles,
    ) -> Result<AdapterTarget> {
        let module = wrapped.trim_end_matches(WRAPPED);
        let depth = (wrapped.len() - module.len()) / WRAPPED.len();
        let names = PARAMETERS.map(|parameter| format!("{module}.{parameter}"));
        let is_targeted = |name: &&String| {
            config.targets_parameter(name)
                && (self.names.stack(name).is_some() || self.find(files, name).is_some())
        };
        let targeted: Vec<&String> = names.iter().filter(is_targeted).collect();
        if targeted.is_empty() && depth == 0 {
            return Ok(AdapterTarget {
                module: module.to_string(),
                weight: format!("{module}.weight"),
                is_bare: false,
            });
        }
        let Some(weight) = targeted.iter().rev().nth(depth) else {
            return Err(first.error(format!(
                "it belongs to one of {} parameters of {module}, but target_parameters in {} \
                 selects {}; correct one of the two files",
                depth + 1,
                config.json.path().display(),
                targeted.len()
            )));
        };
        Ok(AdapterTarget {
            module: module.to_string(),
            weight: weight.to_string(),
            is_bare: true,
        })
    }

    /// Checks that PEFT applies an adapter for a module of transformers 4, a single expert or a module beside experts, to
    /// the intended weights.
    ///
    /// # Errors
    /// If PEFT would not.
    pub(super) fn check_single(
        &self,
        module: &str,
        on_disk: &str,
        config: &AdapterConfig,
    ) -> Result<()> {
        let Some(single) = experts::single(self.base.family) else {
            return Ok(());
        };
        let is_expert = self.names.is_stacked(on_disk);
        let changed = match single {
            SingleExperts::Joined(_) if is_expert => config.changes_when_joined(module)?,
            SingleExperts::Ignored if is_expert => Some("target_modules"),
            SingleExperts::Joined(names) if names.iter().any(|name| module.ends_with(name)) => {
                Some("target_modules")
            }
            _ => None,
        };
        let Some(key) = changed else { return Ok(()) };
        let reason = format!(
            "transformers 5 stacks experts, so PEFT applies the adapter for {module} differently \
             than it was trained; merge it in Python, with transformers 4, by \
             `merge_and_unload()`"
        );
        Err(config.json.error(&[key], reason))
    }

    /// Checks that `"all-linear"` alone determines the layers with an adapter.
    ///
    /// # Errors
    /// If PEFT adds experts to these layers, or looks for other layers' biases elsewhere.
    pub(super) fn check_all_linear(&self, config: &AdapterConfig) -> Result<()> {
        let has_more = config.has_biases || experts::single(self.base.family).is_some();
        if !(config.takes_all_linear() && has_more) {
            return Ok(());
        }
        let reason = "with experts or biases, \"all-linear\" selects more layers in PEFT than the \
         adapter has tensors for; list the adapter's modules, as PEFT's `save_pretrained` does";
        Err(config.json.error(&["target_modules"], reason))
    }

    /// Adds the adapter for a parameter that stacks all experts' matrices.
    pub(super) fn add_stacked(
        &mut self,
        target: &AdapterTarget,
        low: Low,
        config: &AdapterConfig,
        names: &mut Vec<String>,
    ) -> Result<()> {
        let parameter = target.weight.as_str();
        let (a, b) = match low {
            Low {
                a: Some(a),
                b: Some(b),
                bias: None,
                lengths: None,
                rows: None,
                is_table: false,
            } if !config.is_dora => (a, b),
            other => {
                let Some(part) = other.first() else {
                    return Ok(());
                };
                let reason = format!(
                    "{parameter} stacks experts; for these PEFT only supports lora_A and lora_B, \
                     without use_dora and lora_bias"
                );
                return Err(part.error(reason));
            }
        };
        let matrices: Vec<ExpertMatrix> =
            (self.names.stack(parameter)).map_or(vec![], <[_]>::to_vec);
        let Some(one) = matrices.first() else {
            return Ok(());
        };
        let rank = config.rank(parameter)?;
        let factors = ExpertFactors {
            n_experts: matrices.iter().map(|m| m.expert + 1).max().unwrap_or(0),
            rank,
            scale: config.scale(parameter, rank)?,
            reading: one.reading,
            a,
            b,
        };
        let d_in = one.source.shape.get(1).copied().unwrap_or(0);
        factors.check(one.outputs().1, d_in, parameter)?;
        for matrix in &matrices {
            let source = matrix.source;
            let is_new = !names.contains(&source.name);
            let change = match source.item {
                // The files store the parameter as the class has it.
                Some(_) if is_new => Change::Experts {
                    factors: factors.clone(),
                    layout: match source.is_transposed() {
                        true => ProductLayout::InOut,
                        false => ProductLayout::OutIn,
                    },
                },
                Some(_) => continue,
                None if source.is_transposed() => {
                    let reason = format!("{parameter} is transposed in {}", source.name);
                    return Err(factors.a.error(reason));
                }
                None => Change::Expert {
                    factors: factors.clone(),
                    expert: matrix.expert,
                    first_output: matrix.outputs().0.first().map_or(0, |rows| rows.start),
                },
            };
            let features = source.features.clone().filter(|_| source.item.is_none());
            let changes = self.changes.entry(source.name.clone()).or_default();
            changes.push(Placed { change, features });
            if is_new {
                names.push(source.name.clone());
            }
        }
        Ok(())
    }
}
