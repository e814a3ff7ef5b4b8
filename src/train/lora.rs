//! Low-rank adapters (LoRA) on selected linear layers in a stack.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    checkpoint::{Parameters, files::TensorFiles, write::write_safetensors},
    config::{Distribution, Initialization},
    error::{Error, Result, each_matches, matches},
    layers::{Dropout, DropoutSource, Linear, LowRank, Stack, visit::Visit},
    ops::{share_memory, store, wide},
    train::Fresh,
};

/// The configuration of low-rank adapters: their layers, rank and scale.
/// Pass it to [`Lora::attach`](crate::train::Lora::attach).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct LoraConfig {
    /// The rank of the adapters.
    pub rank: usize,
    /// The adapters' outputs are multiplied by `alpha / rank`.
    pub alpha: f64,
    /// The dropout probability on their input.
    pub dropout: f64,
    /// Patterns for the roles of linear layers, inside every block (`attention.query`, `feed_forward.*`) or in the whole
    /// stack (`blocks.0.*`).
    pub targets: Vec<String>,
}

impl LoraConfig {
    /// Makes a configuration for the layers that match one of the patterns, without dropout.
    pub fn new(rank: usize, alpha: f64, targets: &[&str]) -> Self {
        Self {
            rank,
            alpha,
            dropout: 0.0,
            targets: targets.iter().map(|target| target.to_string()).collect(),
        }
    }

    /// Sets the dropout probability on the adapters' input.
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    fn picks(&self, role: &str) -> bool {
        let is_target = |target: &String| matches(target, local(role)) || matches(target, role);
        self.targets.iter().any(is_target)
    }
}

/// Returns `local` from a role `blocks.{i}.local`.
fn local(role: &str) -> &str {
    role.splitn(3, '.').nth(2).unwrap_or(role)
}

/// LoRA adapters on a stack: `y = x·Wᵀ + b + alpha/rank · dropout(x)·Aᵀ·Bᵀ` instead of `y = x·Wᵀ + b`, where only
/// `A` and `B` are trained (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>).
///
/// Quantized weights stay quantized under them in a stack that is loaded with
/// [`Weights::AsStored`](crate::Weights::AsStored).
///
/// In PEFT and here, `A` starts Kaiming-uniform (`±1/√d_in`) and `B` zero, so nothing changes before the first step. Adapters
/// on a stack in f16 or bf16 are f32, since a training step may be too small for half types.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, candle_core::{DType, Device}, Weights};
/// use candle_blocks::train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup};
/// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
/// let mut stack = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).stack()?; // plain tensors: frozen
/// let config = LoraConfig::new(8, 16.0, &["attention.query", "attention.value"]);
/// let lora = Lora::attach(&mut stack, config, 42)?;
/// let group = ParameterGroup::new(lora.parameters(), 0.0);
/// let mut optimizer = AdamW::new([group], AdamWConfig::default())?;
/// // ... train, then either keep the adapters, or make them part of the model:
/// lora.save("adapters.safetensors")?;
/// checkpoint.save("fine-tuned", lora.merge(&mut stack)?)?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lora {
    config: LoraConfig,
    parameters: Parameters,
}

/// The metadata key for the configuration in a file.
const CONFIG: &str = "lora";

impl Lora {
    /// Adds an adapter to every linear layer in the stack that the configuration selects. From then on, the weights of these
    /// layers get no gradients. To freeze everything else as well, load the stack without variables
    /// ([`Checkpoint::load`](crate::Checkpoint::load)); otherwise give the optimizer the other variables to train.
    ///
    /// # Errors
    /// If a pattern matches no linear layer, the rank is 0, another number is out of range, or a layer already has an
    /// adapter.
    pub fn attach(stack: &mut Stack, config: LoraConfig, seed: u64) -> Result<Self> {
        let is_usable = config.rank > 0 && config.alpha.is_finite() && !config.targets.is_empty();
        if !is_usable {
            let reason = format!("{config:?}, expected a rank above 0, a finite alpha and targets");
            return Err(Error::input("LoraConfig", reason));
        }
        if stack.blocks().iter().any(|block| block.is_part()) {
            let reason = "its blocks are tensor parallel, so each rank would have adapters of its \
             own; adapt them in one process";
            return Err(Error::input("stack", reason));
        }
        let roles: Vec<String> = stack.linears_mut().map(|(role, _)| role).collect();
        let names = roles
            .iter()
            .map(|role| local(role))
            .chain(roles.iter().map(String::as_str));
        each_matches(&config.targets, names)?;
        let mut parameters = Parameters::default();
        let picked = |(role, _): &(String, &mut Linear)| config.picks(role);
        let mut adapted = HashMap::new();
        for (role, linear) in stack.linears_mut().filter(picked) {
            if linear.adapter().is_some() {
                let reason = "it has an adapter already; merge that one first";
                return Err(Error::input(role, reason));
            }
            let (with_adapter, own) = adapt(linear, &role, &config, seed)?;
            parameters.extend(own);
            adapted.insert(role, with_adapter);
        }
        // Only now, so that an error leaves the stack as it was.
        for (role, linear) in stack.linears_mut() {
            if let Some(with_adapter) = adapted.get(&role) {
                *linear = with_adapter.clone();
            }
        }
        Ok(Self { config, parameters })
    }

    /// The configuration.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Returns the variables `<role>.lora_a.weight` `[rank, d_in]` and `<role>.lora_b.weight` `[d_out, rank]`.
    pub fn parameters(&self) -> Parameters {
        self.parameters.clone()
    }

    /// Removes the adapters from the stack and adds their products to its weights. Returns the new weights with their
    /// roles, for [`Checkpoint::save`](crate::Checkpoint::save).
    ///
    /// If the stack's layers were made from variables ([`Checkpoint::trainable`](crate::Checkpoint::trainable), a `VarMap`),
    /// the variables are set to the new weights, and the layers read them again: save or train the variables as before the
    /// adapters. A copy of the stack that still has these adapters then returns errors, since it reads the same variables.
    ///
    /// # Errors
    /// If these adapters are not in the stack, a weight is quantized, is a view of a variable or computed from one, or two layers
    /// share it. In each case nothing has changed.
    pub fn merge(&self, stack: &mut Stack) -> Result<Vec<(String, Tensor)>> {
        check_variables(stack, &self.config)?;
        let mut merged = Vec::new();
        for (role, linear) in stack
            .linears_mut()
            .filter(|(role, _)| self.config.picks(role))
        {
            let name = format!("{role}.lora_a.weight");
            match (linear.adapter(), self.parameters.find(&name)) {
                (Some(adapter), Some(a)) if adapter.a().id() == a.id() => {}
                _ => {
                    let reason = "its adapter is not one of these; merge the stack to which they were attached";
                    return Err(Error::input(role, reason));
                }
            }
            if linear.kept_weight().dense().is_none() {
                let reason = "its weight stays quantized, and cannot hold the sum with the \
                 adapter's product; save the adapters, load the stack with Weights::Dense, \
                 and merge them there";
                return Err(Error::input(role, reason));
            }
            merged.push((role, linear.merged()?.weight()?.detach()));
        }
        for (role, linear) in stack.linears_mut() {
            if let Some((_, sum)) = merged.iter().find(|(known, _)| *known == role) {
                *linear = linear.after_merge(&format!("{role}.weight"), sum)?;
            }
        }
        let named = |(role, sum)| (format!("{role}.weight"), sum);
        Ok(merged.into_iter().map(named).collect())
    }

    /// Writes only the adapters, with their configuration, to a safetensors file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let tensors = self.parameters.iter();
        let tensors: Vec<(String, Tensor)> = tensors
            .map(|(role, variable)| (role.clone(), variable.as_detached_tensor()))
            .collect();
        let config = serde_json::to_string(&self.config);
        let config = config.map_err(|e| Error::input(CONFIG, e.to_string()))?;
        let metadata = HashMap::from([(CONFIG.to_string(), config)]);
        write_safetensors(path, &tensors, Some(metadata))
    }

    /// Attaches the adapters from a file that [`Self::save`] wrote to a stack with the same shape.
    ///
    /// # Errors
    /// If the file is not one of these or does not fit the stack, which then has no adapters.
    pub fn load(stack: &mut Stack, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let files = TensorFiles::open(path)?;
        let failed = |reason: String| Error::input(path.display().to_string(), reason);
        let Some(config) = files.metadata().get(CONFIG) else {
            return Err(failed("it contains no adapters of this crate".to_string()));
        };
        let config = serde_json::from_str(config);
        let config: LoraConfig = config.map_err(|e| failed(format!("its configuration: {e}")))?;
        check_shapes(stack, &config, &files).map_err(failed)?;
        let before = stack.clone();
        let lora = Self::attach(stack, config, 0)?;
        let fill = || -> Result<()> {
            for (role, variable) in &lora.parameters {
                let tensor = files.read(role)?.to_dtype(variable.dtype())?;
                store(variable, &tensor.to_device(variable.device())?)?;
            }
            Ok(())
        };
        match fill() {
            Ok(()) => Ok(lora),
            Err(error) => {
                *stack = before;
                Err(error)
            }
        }
    }
}

/// Checks that the variables below the adapters can be set to the merged weights.
///
/// # Errors
/// If a weight is not the whole variable, or another layer reads it too.
fn check_variables(stack: &Stack, config: &LoraConfig) -> Result<()> {
    let weight =
        |(role, linear): (String, &Linear)| Some((role, linear.unfrozen_weight()?.clone()));
    let tracked = |(_, weight): &(String, Tensor)| weight.track_op();
    let weights: Vec<_> = stack.linears().filter_map(weight).filter(tracked).collect();
    for (i, (role, weight)) in weights
        .iter()
        .enumerate()
        .filter(|(_, (role, _))| config.picks(role))
    {
        let refused = |reason: String| {
            let cure = "save the adapters (Lora::save), and merge them into a stack of plain tensors (Checkpoint::load)";
            Err(Error::input(
                format!("{role}.weight"),
                format!("{reason}; {cure}"),
            ))
        };
        if !weight.is_variable() {
            let reason = "it is a view of a variable or computed from one, which cannot hold the merged weight";
            return refused(reason.to_string());
        }
        let mut others = weights.iter().enumerate().filter(|(other, _)| *other != i);
        if let Some((_, (other, _))) = others.find(|(_, (_, of))| share_memory(of, weight)) {
            let reason = format!("{other} reads the same variable, and would change with it");
            return refused(reason);
        }
    }
    Ok(())
}

/// Checks that a file has exactly the adapters that the configuration gives the stack, before memory is allocated for them,
/// since a damaged configuration could request any amount.
fn check_shapes(
    stack: &mut Stack,
    config: &LoraConfig,
    files: &TensorFiles,
) -> std::result::Result<(), String> {
    let mut expected = BTreeMap::new();
    let picked = |(role, _): &(String, &mut Linear)| config.picks(role);
    for (role, linear) in stack.linears_mut().filter(picked) {
        let (d_out, d_in) = linear.shape();
        expected.insert(format!("{role}.lora_a.weight"), [config.rank, d_in]);
        expected.insert(format!("{role}.lora_b.weight"), [d_out, config.rank]);
    }
    for (name, shape) in &expected {
        match files.info(name).map(|info| info.shape.as_slice()) {
            Some(found) if found == shape => {}
            Some(found) => return Err(format!("{name} is {found:?}, expected {shape:?}")),
            None => {
                return Err(format!(
                    "it contains no {name}; give the stack from which it was saved"
                ));
            }
        }
    }
    match files.names().find(|name| !expected.contains_key(*name)) {
        None => Ok(()),
        Some(other) => Err(format!(
            "it contains {other}, for which the stack has no layer; give the stack from which it was saved"
        )),
    }
}

/// Returns a linear layer with a fresh adapter, and the adapter's variables.
fn adapt(
    linear: &Linear,
    role: &str,
    config: &LoraConfig,
    seed: u64,
) -> Result<(Linear, Parameters)> {
    let (weight, (d_out, d_in)) = (linear.kept_weight(), linear.shape());
    let initialization = Initialization::layers()
        .with("*.lora_a.weight", Distribution::TorchLinear)
        .with("*.lora_b.weight", Distribution::Constant(0.0));
    let fresh = Fresh::new(initialization, seed, wide(weight.dtype()), weight.device());
    let vb = fresh.var_builder().pp(role);
    let a = vb.pp("lora_a").get((config.rank, d_in), "weight")?;
    let b = vb.pp("lora_b").get((d_out, config.rank), "weight")?;
    let dropout = Dropout::new(config.dropout, DropoutSource::default())?;
    let adapter = LowRank::from_parts(a, b, config.alpha / config.rank as f64)?;
    let adapted = linear.frozen_under(adapter.with_dropout(dropout))?;
    Ok((adapted, fresh.parameters()))
}
