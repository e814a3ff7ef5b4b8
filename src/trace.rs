//! Runs a stack and returns its intermediate results under the names that fixtures use.
//!
//! The names are `layers.{i}.feed_forward.input` and `.output` (of the feed-forward alone, before dropout,
//! residual and norm), `layers.{i}.output`, `last_hidden_state`, `grads.hidden_states` and
//! `grads.<tensor name on disk>`. Together with [`verify`](crate::verify) this compares a checkpoint with PyTorch:
//!
//! ```
//! use candle_blocks::{Checkpoint, candle_core::{DType, Device}, trace, verify};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-bert")?;
//! let fixture = verify::Fixture::open("weights/tiny-bert/fixture.safetensors")?;
//! let input = trace::TraceInput::new(|name| fixture.tensor(name).cloned())?;
//! let stages = trace::run(&checkpoint, &input, DType::F32, &Device::Cpu)?;
//! let report = verify::verify(&fixture, &stages.into_iter().collect());
//! assert!(report.passed, "{report}");
//! # Ok::<(), candle_blocks::Error>(())
//! ```

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};

use crate::checkpoint::Checkpoint;
use crate::config::{BlockConfig, Precision, StackConfig};
use crate::error::{Error, Result};
use crate::layers::{AttentionMask, BlockStages, ForwardContext, Marked};

/// The input of a traced run.
#[derive(Clone, Debug)]
pub struct TraceInput {
    /// Input of block 0, `[batch, seq, d_model]`.
    pub hidden_states: Tensor,
    /// `[batch, seq]`, 1 = keep.
    pub attention_mask: Option<Tensor>,
    /// Positions `[batch, seq]`, if they do not count from 0.
    pub position_ids: Option<Tensor>,
    /// An encoder output `[batch, encoder_seq, d_memory]`, for cross-attention.
    pub encoder_hidden_states: Option<Tensor>,
    /// `[batch, encoder_seq]`, 1 = keep.
    pub encoder_attention_mask: Option<Tensor>,
    /// The gradient with respect to the last block's output, from which the backward pass starts.
    pub grad_output: Option<Tensor>,
}

impl TraceInput {
    /// Collects the input from the tensors of a fixture, which `tensor` returns by name.
    ///
    /// # Errors
    /// If there is no tensor `hidden_states`.
    pub fn new(tensor: impl Fn(&str) -> Option<Tensor>) -> Result<Self> {
        let hidden_states = tensor("hidden_states");
        Ok(Self {
            hidden_states: hidden_states.ok_or_else(|| Error::input("hidden_states", "missing"))?,
            attention_mask: tensor("attention_mask"),
            position_ids: tensor("position_ids"),
            encoder_hidden_states: tensor("encoder_hidden_states"),
            encoder_attention_mask: tensor("encoder_attention_mask"),
            grad_output: tensor("grad_output"),
        })
    }

    /// Checks the input against the width of the stack, and builds the context of a forward pass.
    fn context(&self, d_model: usize) -> Result<ForwardContext> {
        let dims = self.hidden_states.dims();
        let fail = |reason| Err(Error::input("hidden_states", reason));
        match *dims {
            [0, _, width] if width == d_model => {
                return fail(format!("has shape {dims:?}: the batch is empty"));
            }
            [_, 0, width] if width == d_model => {
                return fail(format!("has shape {dims:?}: the sequence is empty"));
            }
            [_, _, width] if width == d_model => {}
            _ => {
                return fail(format!(
                    "has shape {dims:?}, expected [batch, seq, {d_model}]"
                ));
            }
        }
        let padding = |mask: &Option<Tensor>, of: Marked, batch, keys| -> Result<AttentionMask> {
            let Some(mask) = mask else {
                return Ok(AttentionMask::none());
            };
            let mask = AttentionMask::of_keys(mask, of, self.hidden_states.device())?;
            of.check(mask.keep(), batch, keys)?;
            Ok(mask)
        };
        let mask = padding(&self.attention_mask, Marked::Sequence, dims[0], dims[1])?;
        let mut context = ForwardContext::evaluation().with_mask(mask);
        if let Some(positions) = &self.position_ids {
            let found = positions.dims();
            if found != &dims[..2] && found != [1, dims[1]] {
                let reason = format!("has shape {found:?}, expected {:?}", &dims[..2]);
                return Err(Error::input("position_ids", reason));
            }
            context = context.with_position_ids(positions)?;
        }
        if let Some(memory) = &self.encoder_hidden_states {
            let &[batch, keys, _] = memory.dims() else {
                let found = memory.dims();
                let reason =
                    format!("has shape {found:?}, expected [batch, encoder_seq, d_memory]");
                return Err(Error::input("encoder_hidden_states", reason));
            };
            let mask = padding(&self.encoder_attention_mask, Marked::Memory, batch, keys)?;
            context = context.with_memory(memory.clone(), mask);
        }
        Ok(context)
    }

    /// The input in the given type on the given device.
    fn moved(&self, dtype: DType, device: &Device) -> Result<Self> {
        // By way of the CPU, which converts every type.
        let move_ = |t: &Tensor| {
            let t = t.to_device(&Device::Cpu)?.to_dtype(dtype)?;
            t.to_device(device)
        };
        Ok(Self {
            hidden_states: move_(&self.hidden_states)?,
            encoder_hidden_states: self.encoder_hidden_states.as_ref().map(move_).transpose()?,
            grad_output: self.grad_output.as_ref().map(move_).transpose()?,
            ..self.clone()
        })
    }
}

/// Runs a stack of the given configuration, which `observe` holds, and returns every stage in order.
fn stages(
    config: &StackConfig,
    input: &TraceInput,
    observe: impl FnOnce(&Tensor, &ForwardContext, Observer) -> candle_core::Result<Tensor>,
) -> Result<Vec<(String, Tensor)>> {
    let last = input.hidden_states.dims().last().copied();
    let d_model = config.blocks.first().map(BlockConfig::d_model);
    let context = input.context(d_model.or(last).unwrap_or(0))?;
    let mut stages = Vec::new();
    let last = observe(&input.hidden_states, &context, &mut |i, block| {
        let feed_forward = &block.feed_forward;
        for (point, tensor) in [
            ("feed_forward.input", &feed_forward.input),
            ("feed_forward.output", &feed_forward.inner_output),
            ("output", block.output()),
        ] {
            stages.push((format!("layers.{i}.{point}"), tensor.clone()));
        }
        Ok(())
    })?;
    stages.push(("last_hidden_state".to_string(), last));
    Ok(stages)
}

type Observer<'a> = &'a mut dyn FnMut(usize, &BlockStages) -> candle_core::Result<()>;

/// Loads a checkpoint in the given dtype on the given device, runs it, and returns every stage in order.
///
/// # Errors
/// If the checkpoint cannot be loaded, or the input does not fit the stack, is empty, or contains a malformed mask.
pub fn run(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    device: &Device,
) -> Result<Vec<(String, Tensor)>> {
    let stack = checkpoint.stack(dtype, device)?;
    let input = input.moved(dtype, device)?;
    stages(checkpoint.config(), &input, |x, context, observer| {
        stack.observe(x, context, observer)
    })
}

/// Like [`run`], with the blocks packed for the CPU; `dtype` is that of input and output.
///
/// # Errors
/// As for [`run`]; also if `dtype` is f64.
pub fn run_packed(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    precision: Precision,
) -> Result<Vec<(String, Tensor)>> {
    let stack = checkpoint.packed_stack(precision)?;
    let input = input.moved(dtype, &Device::Cpu)?;
    stages(checkpoint.config(), &input, |x, context, observer| {
        stack.observe(x, context, observer)
    })
}

/// Like [`run`], followed by the gradients of the input and of every block parameter, under its name
/// and in its layout on disk, for the gradient `grad_output` of the last block's output.
///
/// # Errors
/// As for [`run`]; also if `grad_output` is missing or has another shape than the input, or a parameter gets no gradient.
pub fn run_backward(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    device: &Device,
) -> Result<Vec<(String, Tensor)>> {
    let loader = checkpoint.trainable(dtype, device)?;
    let stack = loader.stack()?;
    let mut input = input.moved(dtype, device)?;
    let missing = || Error::input("grad_output", "missing; a backward pass needs it");
    let cotangent = input.grad_output.clone().ok_or_else(missing)?;
    if cotangent.dims() != input.hidden_states.dims() {
        let (found, expected) = (cotangent.dims(), input.hidden_states.dims());
        let reason = format!("has shape {found:?}, expected {expected:?} of hidden_states");
        return Err(Error::input("grad_output", reason));
    }
    let source = Var::from_tensor(&input.hidden_states)?;
    input.hidden_states = source.as_tensor().clone();
    let memory = input.encoder_hidden_states.as_ref();
    let memory = memory.map(Var::from_tensor).transpose()?;
    if let Some(memory) = &memory {
        input.encoder_hidden_states = Some(memory.as_tensor().clone());
    }
    let mut stages = stages(checkpoint.config(), &input, |x, context, observer| {
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
    let input_gradient = gradient("hidden_states", &source)?;
    let mut by_role = HashMap::new();
    for (role, variable) in loader.parameters() {
        if !role.starts_with("final_norm.") {
            by_role.insert(role.clone(), gradient(&role, &variable)?);
        }
    }
    for stage in &mut stages {
        stage.1 = stage.1.detach();
    }
    stages.push(("grads.hidden_states".to_string(), input_gradient));
    if let Some(memory) = &memory {
        let name = "encoder_hidden_states";
        stages.push((format!("grads.{name}"), gradient(name, memory)?));
    }
    for (name, gradient) in checkpoint.to_disk(&by_role)? {
        stages.push((format!("grads.{name}"), gradient));
    }
    Ok(stages)
}
