//! Adapters in the files of Hugging Face's PEFT library.

use std::{collections::HashMap, fs, path::Path};

use candle_core::Tensor;
use serde_json::json;

use crate::{
    Error, Result,
    checkpoint::{Checkpoint, Conversion, write::write_safetensors},
    train::Lora,
};

/// What PEFT puts in front of every module's name.
const PREFIX: &str = "base_model.model.";

impl Lora {
    /// Writes `adapter_model.safetensors` and `adapter_config.json` to a directory, as PEFT's `PeftModel.from_pretrained`
    /// reads them onto the model whose files `checkpoint` is of.
    ///
    /// # Errors
    /// If an adapted layer is a part of a fused tensor (GPT-2's query), for which PEFT has no adapter of its own, or a
    /// file cannot be written.
    pub fn save_peft(&self, checkpoint: &Checkpoint, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        let modules = modules(checkpoint);
        let (mut tensors, mut targets, mut is_transposed) = (Vec::new(), Vec::new(), false);
        for (name, variable) in self.parameters() {
            let (role, part) = match name.strip_suffix(".lora_a.weight") {
                Some(role) => (role, "lora_A"),
                None => (name.trim_end_matches(".lora_b.weight"), "lora_B"),
            };
            let Some((module, lies_transposed)) = modules.get(role) else {
                let reason = "its weight is a part of a larger tensor in the checkpoint, which PEFT cannot adapt in parts; \
                              use `Lora::save`, or merge";
                return Err(Error::input(role, reason));
            };
            if part == "lora_A" {
                targets.push(module.clone());
                // PEFT's word for `Conv1D`: a family has one kind of layers throughout.
                is_transposed |= *lies_transposed;
            }
            let tensor: Tensor = variable.as_detached_tensor();
            tensors.push((format!("{PREFIX}{module}.{part}.weight"), tensor));
        }
        let config = self.config();
        let config = json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "inference_mode": true,
            "r": config.rank,
            "lora_alpha": config.alpha,
            "lora_dropout": config.dropout,
            "target_modules": targets,
            "bias": "none",
            "fan_in_fan_out": is_transposed,
        });
        fs::create_dir_all(directory).map_err(|e| Error::io(directory, "create", e))?;
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        write_safetensors(
            directory.join("adapter_model.safetensors"),
            &tensors,
            Some(metadata),
        )?;
        let path = directory.join("adapter_config.json");
        let json = format!("{config:#}\n");
        fs::write(&path, json).map_err(|e| Error::io(&path, "write", e))
    }
}

/// The module on disk of every role that has one to itself, and whether its weight lies transposed there.
fn modules(checkpoint: &Checkpoint) -> HashMap<String, (String, bool)> {
    let mut modules = HashMap::new();
    for used in checkpoint.report().used {
        if let ([role], Some(module)) = (&used.roles[..], used.name.strip_suffix(".weight"))
            && let Some(role) = role.strip_suffix(".weight")
            && !used.conversions.contains(&Conversion::Split)
        {
            let is_transposed = used.conversions.contains(&Conversion::Transposed);
            modules.insert(role.to_string(), (module.to_string(), is_transposed));
        }
    }
    modules
}
