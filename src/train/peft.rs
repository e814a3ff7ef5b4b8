//! Saves adapters as files for Hugging Face's PEFT library.
//!
//! If a tensor on disk is one role's weight, the role's adapter is written unchanged. A part in a fused tensor (GPT-2's query)
//! is not a module in transformers, so the adapters for all parts become one adapter for the fused tensor: their `A` stacked,
//! and a `B` that is zero where an adapter's columns meet the features of other parts. The ranks add up; PEFT has a rank
//! and an alpha for each module, so `alpha / rank` stays the same.

use std::{collections::HashMap, fs, path::Path};

use candle_core::Tensor;
use serde_json::{Map, json};

use super::peft_experts::stacked;
use crate::checkpoint::write::{write_safetensors, write_whole};
use crate::checkpoint::{Checkpoint, Conversion, PeftBase, UsedTensor};
use crate::error::{Error, Result};
use crate::train::Lora;

/// PEFT's prefix for every module name.
const PREFIX: &str = "base_model.model.";

impl Lora {
    /// Writes `adapter_model.safetensors` and `adapter_config.json` to a directory, which PEFT's `AutoPeftModel` classes,
    /// `PeftModel.from_pretrained` and [`Checkpoint::open`] read together with the base model.
    ///
    /// The files name the base model: the repository, if `checkpoint` was opened from the Hub's cache, or otherwise the absolute path
    /// of its directory. [`Self::save_peft_on`] names another one. They also name the task of a language model, and the class of any
    /// other model.
    ///
    /// Modules are named as in the class that `architectures` in `config.json` names, which PEFT uses; without it, as in the
    /// base model, or as in a model with a head if the files have one.
    ///
    /// Adapters for parts of a fused tensor (GPT-2's query and value) become one equivalent adapter for the fused tensor, with
    /// the sum of their ranks. Further training in PEFT would not keep its zeros. The same is true for gate and up in a mixture
    /// of experts: transformers 5 stacks all experts in one parameter, which PEFT adapts with `target_parameters`. PEFT has no
    /// dropout there, and continues with `lora_dropout` 0.
    ///
    /// # Errors
    /// If an adapted layer's weight is neither a matrix in this checkpoint nor a part of one, or a file cannot be written; also if
    /// PEFT cannot open the base model from the checkpoint's files: they are a GGUF file, or the checkpoint was opened with another
    /// adapter, which they do not contain.
    pub fn save_peft(&self, checkpoint: &Checkpoint, directory: impl AsRef<Path>) -> Result<()> {
        let base = checkpoint.as_peft_base(None)?;
        self.write_peft(checkpoint, directory.as_ref(), &base)
    }

    /// Like [`Self::save_peft`], for the base model in the directory or repository `base`. Its weights must be the ones of
    /// `checkpoint`: for a checkpoint that was opened with an adapter, a folder that [`Checkpoint::save`] wrote.
    ///
    /// ```no_run
    /// # use candle_blocks::{CheckpointOptions, candle_core::{DType, Device}, train::{Lora, LoraConfig}, Weights};
    /// let first = CheckpointOptions::default().adapter("first").open("llama-3.2-1b")?;
    /// let mut stack = first.load(Weights::Dense(DType::F32, &Device::Cpu)).stack()?;
    /// let second = Lora::attach(&mut stack, LoraConfig::new(8, 16.0, &["attention.*"]), 1)?;
    /// // .. train ..
    /// first.save("with-first", candle_blocks::Parameters::default())?; // the base with the first adapter
    /// second.save_peft_on(&first, "second", "with-first")?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::save_peft`]; also if `base` is the directory of a checkpoint that was opened with an adapter.
    pub fn save_peft_on(
        &self,
        checkpoint: &Checkpoint,
        directory: impl AsRef<Path>,
        base: &str,
    ) -> Result<()> {
        let base = checkpoint.as_peft_base(Some(base))?;
        self.write_peft(checkpoint, directory.as_ref(), &base)
    }

    fn write_peft(&self, checkpoint: &Checkpoint, directory: &Path, base: &PeftBase) -> Result<()> {
        let config = self.config();
        let mut adapters = self.adapters();
        let (mut tensors, mut targets, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ranks, mut alphas, mut is_transposed) = (Map::new(), Map::new(), false);
        let mut scaled = |key: &str, n_adapted: usize| {
            if n_adapted > 1 {
                ranks.insert(key.to_string(), (n_adapted * config.rank).into());
                alphas.insert(key.to_string(), (n_adapted as f64 * config.alpha).into());
            }
        };
        let mut put = |module: &str, [a, b]: [Tensor; 2]| {
            tensors.push((format!("{PREFIX}{module}.lora_A.weight"), a));
            tensors.push((format!("{PREFIX}{module}.lora_B.weight"), b));
        };
        for stack in stacked(checkpoint, &mut adapters, config.rank)? {
            scaled(&stack.parameter, stack.n_adapted);
            put(&stack.wrapper, stack.factors);
            parameters.push(stack.parameter);
        }
        // PEFT takes the names of a dense feed-forward beside experts, or of a shared expert, for those of the experts.
        let is_mixture = checkpoint.stacks_experts();
        let mut add = |role: &str, module: &str, n_adapted: usize, factors: [Tensor; 2]| {
            let is_bare = is_mixture && role.contains(".feed_forward.");
            let key = match is_bare {
                true => format!("{module}.weight"),
                false => module.to_string(),
            };
            scaled(&key, n_adapted);
            put(module, factors);
            if is_bare {
                parameters.push(key);
            } else {
                targets.push(key);
            }
        };
        for used in &checkpoint.report().used {
            let adapted = used.roles.iter().filter_map(|r| weight_of(r));
            let adapted: Vec<&str> = adapted.filter(|r| adapters.contains_key(*r)).collect();
            let Some(&first) = adapted.first() else {
                continue;
            };
            let Some((name, is_split)) = checkpoint.in_class(&format!("{first}.weight"))? else {
                continue;
            };
            if is_split {
                for role in adapted {
                    let name = checkpoint.in_class(&format!("{role}.weight"))?;
                    let module = name.as_ref().and_then(|(name, _)| weight_of(name));
                    if let (Some(module), Some(own)) = (module, adapters.remove(role)) {
                        add(role, module, 1, own);
                    }
                }
                continue;
            }
            let Some(module) = weight_of(&name) else {
                continue;
            };
            let n_adapted = adapted.len();
            let is_one = used.roles.len() == 1;
            let whole = match adapted[..] {
                [role] if is_one && !used.conversions.contains(&Conversion::Split) => {
                    adapters.remove(role)
                }
                _ => fused(checkpoint, used, &mut adapters)?,
            };
            let Some(whole) = whole else { continue };
            // PEFT's word for `Conv1D`: a family has one kind of layers throughout.
            is_transposed |= used.conversions.contains(&Conversion::Transposed);
            add(first, module, n_adapted, whole);
        }
        if let Some(role) = adapters.into_keys().min() {
            let reason = "no matrix in this checkpoint contains its weight; give the checkpoint \
             that the stack came from, or use `Lora::save`";
            return Err(Error::input(role, reason));
        }
        let dropout = if parameters.is_empty() {
            config.dropout
        } else {
            0.0
        };
        let mut config = json!({
            "peft_type": "LORA",
            "task_type": base.task,
            "auto_mapping": base.class,
            "base_model_name_or_path": base.name,
            "inference_mode": true,
            "r": config.rank,
            "lora_alpha": config.alpha,
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
            "lora_dropout": dropout,
            "target_modules": targets,
            "bias": "none",
            "fan_in_fan_out": is_transposed,
        });
        if !parameters.is_empty() {
            config["target_parameters"] = parameters.into();
        }
        fs::create_dir_all(directory).map_err(|e| Error::io(directory, "create", e))?;
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        write_safetensors(
            directory.join("adapter_model.safetensors"),
            &tensors,
            Some(metadata),
        )?;
        let path = directory.join("adapter_config.json");
        let json = format!("{config:#}\n");
        write_whole(&path, |out| {
            let written = out.write_all(json.as_bytes());
            written.map_err(|e| Error::io(&path, "write", e))
        })
    }

    /// `A` and `B` by the layer's role.
    fn adapters(&self) -> HashMap<String, [Tensor; 2]> {
        let parameters = self.parameters();
        let find = |name: String| {
            parameters
                .find(&name)
                .map(|variable| variable.as_detached_tensor())
        };
        let roles = parameters.iter();
        let roles = roles.filter_map(|(name, _)| name.strip_suffix(".lora_a.weight"));
        let adapter = |role: &str| {
            let [a, b] = ["lora_a", "lora_b"].map(|part| find(format!("{role}.{part}.weight")));
            Some((role.to_string(), [a?, b?]))
        };
        roles.filter_map(adapter).collect()
    }
}

fn weight_of(role: &str) -> Option<&str> {
    role.strip_suffix(".weight")
}

/// Merges the adapters for a fused tensor's parts, taken out of `adapters`, into one; `None` if the tensor is not a matrix.
fn fused(
    checkpoint: &Checkpoint,
    used: &UsedTensor,
    adapters: &mut HashMap<String, [Tensor; 2]>,
) -> Result<Option<[Tensor; 2]>> {
    let adapted = || used.roles.iter().filter_map(|role| weight_of(role));
    let narrow: Vec<Tensor> = adapted()
        .filter_map(|role| Some(adapters.get(role)?[0].clone()))
        .collect();
    let a = Tensor::cat(&narrow, 0)?; // [n · rank, d_in]
    let (width, mut column) = (a.dim(0)?, 0);
    // Each part's rows of the whole `B`, with zeros in the others' columns; the part itself says where they lie on disk.
    let mut rows = HashMap::new();
    for name in &used.roles {
        let d_out = checkpoint.shape_of(name).map_or(0, |shape| shape[0]);
        let part_weight = match weight_of(name).and_then(|role| adapters.get(role)) {
            None => Tensor::zeros((d_out, width), a.dtype(), a.device())?,
            Some([_, b]) => {
                let rank = b.dim(1)?;
                let padded = b.pad_with_zeros(1, column, width - column - rank)?;
                column += rank;
                padded
            }
        };
        rows.insert(name.clone(), part_weight);
    }
    let (_, b) = checkpoint.to_disk(&rows)?.swap_remove(0);
    if b.rank() != 2 {
        return Ok(None);
    }
    for role in adapted() {
        adapters.remove(role);
    }
    let b = match used.conversions.contains(&Conversion::Transposed) {
        true => b.t()?.contiguous()?,
        false => b,
    };
    Ok(Some([a, b]))
}
