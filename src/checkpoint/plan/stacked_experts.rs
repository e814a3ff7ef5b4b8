//! Experts as mlx-lm stores them: stacked in one tensor for each projection, under a module of its own. Each expert gets a
//! tensor under the name that transformers gives it.
//!
//! `SwitchGLU`: <https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/models/switch_layers.py>

use std::collections::HashMap;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::{Family, Stacking};
use crate::config::StackConfig;
use crate::error::{Error, Result};

/// The names of mlx-lm's module for stacked experts, and whether other programs stack experts under the same name.
const MODULES: [(&str, bool); 3] = [
    ("switch_mlp", false),
    ("switch_glu", false),
    ("experts", true),
];
/// A feed-forward's parts, and mlx-lm's names for them.
const PARTS: [(&str, &str); 3] = [
    ("gate_proj", "gate"),
    ("up_proj", "up"),
    ("down_proj", "down"),
];
/// A linear layer's tensors, quantized or not.
const TENSORS: [&str; 4] = ["weight", "scales", "biases", "bias"];

/// Splits stacked experts, and returns the modules of the experts with the module of their stack.
///
/// # Errors
/// If a stack has another number of experts than `config`, or the family has no name for a single expert.
pub(crate) fn split(
    files: &mut TensorFiles,
    family: &Family,
    config: &StackConfig,
) -> Result<HashMap<String, String>> {
    let is_split = |name: &&str| name.ends_with(".self_attn.embed_q.weight");
    if let Some(name) = files.names().find(is_split) {
        let reason = "mlx-lm computed it from kv_b_proj, which is not read from it; use the checkpoint that mlx-lm converted, or a file of \
                      an earlier mlx-lm, which has kv_b_proj";
        return Err(error(files, name, reason));
    }
    let stacks: Vec<Stack> = files.names().filter_map(Stack::of).collect();
    let experts = config.blocks.iter();
    let n_experts = experts.filter_map(|block| block.feed_forward.experts.as_ref());
    let n_experts = n_experts.map(|experts| experts.n_experts).max();
    let mut modules = HashMap::new();
    for stack in stacks {
        let Some(own) = stack.own_name(family) else {
            if stack.is_shared || stack.is_named_by(family) {
                continue;
            }
            let reason = format!(
                "it stacks experts as mlx-lm does, and the family {} has no names for these; use the checkpoint that mlx-lm \
                 converted",
                family.name
            );
            return Err(error(files, &stack.name(), &reason));
        };
        let name = stack.name();
        let Some(stacked) = files.take(&name) else {
            continue;
        };
        let n_found = stacked.info.shape.first().copied().unwrap_or(0);
        if Some(n_found) != n_experts || stacked.info.n_bytes == 0 {
            let n_experts = n_experts.unwrap_or(0);
            return Err(stacked.error(format!(
                "it has shape {:?}, expected {n_experts} experts in its first dimension",
                stacked.info.shape
            )));
        }
        for e in 0..n_found {
            let module = own.replace("{e}", &e.to_string());
            let info = stacked.nth(e)?.info;
            files.put(format!("{module}.{}", stack.tensor), info);
            modules.insert(module, stack.module.clone());
        }
    }
    Ok(modules)
}

/// Makes an error about a tensor, which names its file.
fn error(files: &TensorFiles, name: &str, reason: &str) -> Error {
    match files.as_part(name) {
        Some(tensor) => tensor.error(reason),
        None => Error::input(name, reason),
    }
}

/// A stacked tensor's name.
struct Stack {
    /// The name without the tensor's own.
    module: String,
    /// The block's prefix.
    block: String,
    /// The feed-forward's part.
    part: &'static str,
    tensor: &'static str,
    /// Other programs use the same name for experts.
    is_shared: bool,
}

impl Stack {
    fn of(name: &str) -> Option<Self> {
        let (module, tensor) = name.rsplit_once('.')?;
        let (stem, projection) = module.rsplit_once('.')?;
        let (feed_forward, switch) = stem.rsplit_once('.')?;
        let (_, is_shared) = MODULES.iter().find(|(name, _)| *name == switch)?;
        let (_, part) = PARTS.iter().find(|(name, _)| *name == projection)?;
        let tensor = TENSORS.into_iter().find(|name| *name == tensor)?;
        let block = feed_forward.rsplit_once('.').map_or("", |(block, _)| block);
        Some(Self {
            module: module.to_string(),
            block: block.to_string(),
            part,
            tensor,
            is_shared: *is_shared,
        })
    }

    fn name(&self) -> String {
        format!("{}.{}", self.module, self.tensor)
    }

    /// Returns the name that the family has for the module of expert `{e}`, unless it has one for the stack.
    fn own_name(&self, family: &Family) -> Option<String> {
        if self.is_named_by(family) {
            return None;
        }
        let role = format!("feed_forward.experts.{{e}}.{}", self.part);
        let mut rules = family.block_rules.iter();
        let rule = rules.find(|rule| rule.role == role && rule.stacking == Stacking::Apart)?;
        let module = rule.weight.first()?.strip_suffix(".weight")?;
        Some(match self.block.is_empty() {
            true => module.to_string(),
            false => format!("{}.{module}", self.block),
        })
    }

    /// Returns whether the family has a rule for the stack itself.
    fn is_named_by(&self, family: &Family) -> bool {
        let weight = format!(".{}.weight", self.module);
        let mut names = family.block_rules.iter().flat_map(|rule| &rule.weight);
        names.any(|known| weight.ends_with(&format!(".{known}")))
    }
}
