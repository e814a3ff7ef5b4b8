//! Backward passes.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var, backprop::GradStore};

use super::TraceInput;
use super::stages::{Stages, of_blocks, of_whole};
use crate::checkpoint::{Checkpoint, Loader};
use crate::error::{Error, Result};
use crate::layers::has_gradient;

/// Like [`run`](super::run), with the gradient for every parameter, under its name and in its layout on disk.
///
/// For blocks the backward pass starts from `grad_output`, the gradient for the last block's output, and also
/// computes the inputs' gradients. For a whole model it starts from `grad_output` for `last_hidden_state`,
/// `grad_logits` for the logits, or both. Parameters that do not affect these have no gradient.
///
/// # Errors
/// Same as for [`run`](super::run), and if the initial gradient is missing or has the wrong shape, or a parameter in
/// the blocks gets no gradient.
pub fn run_backward(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    device: &Device,
) -> Result<Stages> {
    let loader = checkpoint.trainable(dtype, device)?;
    let input = input.moved(dtype, device)?;
    match &input.hidden_states {
        Some(x) => {
            checkpoint.check_chosen()?;
            through_blocks(checkpoint, &loader, &input, x)
        }
        None => through_model(checkpoint, &loader, &input),
    }
}

fn through_blocks(
    checkpoint: &Checkpoint,
    loader: &Loader,
    input: &TraceInput,
    x: &Tensor,
) -> Result<Stages> {
    let stack = loader.stack()?;
    let cotangent = cotangent(&input.grad_output, "grad_output", x, "hidden_states")?;
    let mut input = input.clone();
    let source = Var::from_tensor(x)?;
    let memory = input.model.encoder_hidden_states.as_ref();
    let memory = memory.map(Var::from_tensor).transpose()?;
    if let Some(memory) = &memory {
        input.model.encoder_hidden_states = Some(memory.as_tensor().clone());
    }
    let x = source.as_tensor();
    let mut stages = of_blocks(checkpoint.config(), &input, x, |context, observer| {
        stack.observe(x, context, observer)
    })?;
    let mut outputs = stages.iter().rev();
    let output = outputs.find(|(name, _)| name.ends_with(".output"));
    let none = || Error::InvalidConfig("a stack without blocks has no gradient".to_string());
    let (_, output) = output.ok_or_else(none)?;
    let gradients = (output * cotangent)?.sum_all()?.backward()?;
    let gradient = |name: &str, variable: &Var| {
        let gradient = gradients.get(variable).cloned();
        gradient.ok_or_else(|| Error::InvalidConfig(format!("{name} got no gradient")))
    };
    detach(&mut stages);
    stages.push((
        "grads.hidden_states".to_string(),
        gradient("hidden_states", &source)?,
    ));
    if let Some(memory) = &memory {
        let name = "encoder_hidden_states";
        stages.push((format!("grads.{name}"), gradient(name, memory)?));
    }
    let mut by_role = HashMap::new();
    // With several streams, the last block's active stream is the output: parameters for the other streams get no
    // gradient.
    let has_streams = stack.shared.streams.is_some();
    for (role, variable) in loader.parameters() {
        let is_idle = has_streams && gradients.get(&variable).is_none();
        if !role.starts_with("final_norm.") && has_gradient(&role) && !is_idle {
            by_role.insert(role.clone(), gradient(&role, &variable)?);
        }
    }
    add_by_name(checkpoint, by_role, &mut stages)?;
    Ok(stages)
}

/// The outputs that `grad_logits` may belong to. The model's first one counts.
const HEADS: [&str; 5] = [
    "logits",
    "logits_per_image",
    "text_embeds",
    "image_embeds",
    "pooler_output",
];

fn through_model(checkpoint: &Checkpoint, loader: &Loader, input: &TraceInput) -> Result<Stages> {
    let mut stages = of_whole(loader, &input.model)?;
    let is_there = |name: &&str| stages.iter().any(|(stage, _)| stage == name);
    let head = HEADS.into_iter().find(|name| is_there(name));
    let started = [
        ("last_hidden_state", "grad_output", &input.grad_output),
        (head.unwrap_or("logits"), "grad_logits", &input.grad_logits),
    ];
    let mut sum: Option<Tensor> = None;
    for (name, of, given) in started {
        if given.is_none() {
            continue;
        }
        let output = stages.iter().find(|(stage, _)| stage == name);
        let missing = || Error::input(of, format!("the model returns no {name}"));
        let (_, output) = output.ok_or_else(missing)?;
        let part = (output * cotangent(given, of, output, name)?)?.sum_all()?;
        sum = Some(match sum {
            Some(sum) => (sum + part)?,
            None => part,
        });
    }
    let missing = || {
        let reason = "missing, as is grad_logits; a backward pass starts from one of them";
        Error::input("grad_output", reason)
    };
    let gradients: GradStore = sum.ok_or_else(missing)?.backward()?;
    detach(&mut stages);
    let with_gradient = |(role, variable): (String, Var)| {
        let gradient = gradients.get(&variable).cloned();
        gradient.map(|gradient| (role, gradient))
    };
    let by_role = loader.parameters().into_iter().filter_map(with_gradient);
    add_by_name(checkpoint, by_role.collect(), &mut stages)?;
    Ok(stages)
}

/// Returns the initial gradient for an output, after checking its shape.
fn cotangent<'t>(
    given: &'t Option<Tensor>,
    name: &str,
    of: &Tensor,
    of_name: &str,
) -> Result<&'t Tensor> {
    let missing = || Error::input(name, "missing; a backward pass needs it");
    let cotangent = given.as_ref().ok_or_else(missing)?;
    let (found, expected) = (cotangent.dims(), of.dims());
    if found != expected {
        let reason = format!("has shape {found:?}, expected {expected:?} of {of_name}");
        return Err(Error::input(name, reason));
    }
    Ok(cotangent)
}

fn detach(stages: &mut Stages) {
    for (_, stage) in stages {
        *stage = stage.detach();
    }
}

fn add_by_name(
    checkpoint: &Checkpoint,
    by_role: HashMap<String, Tensor>,
    stages: &mut Stages,
) -> Result<()> {
    for (name, gradient) in checkpoint.to_disk(&by_role)? {
        stages.push((format!("grads.{name}"), gradient));
    }
    Ok(())
}
