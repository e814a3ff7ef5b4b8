//! Forward passes, stage by stage.

use candle_core::{DType, Device, Tensor};

use super::TraceInput;
use crate::checkpoint::Checkpoint;
use crate::config::{BlockConfig, Precision, StackConfig};
use crate::error::Result;
use crate::layers::{BlockStages, ForwardContext};
use crate::model::{Model, ModelInput};

/// What a run gave, by name and in order.
pub(super) type Stages = Vec<(String, Tensor)>;

/// Loads a checkpoint in the given dtype on the given device, runs it, and returns every stage in order.
///
/// # Errors
/// If the checkpoint cannot be loaded, or the input does not fit the stack or model, is empty, or contains a malformed
/// mask.
pub fn run(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    device: &Device,
) -> Result<Stages> {
    let input = input.moved(dtype, device)?;
    let Some(x) = &input.hidden_states else {
        return of_model(&checkpoint.model(dtype, device)?, &input.model);
    };
    let stack = checkpoint.stack(dtype, device)?;
    of_blocks(checkpoint.config(), &input, x, |context, observer| {
        stack.observe(x, context, observer)
    })
}

/// Like [`run`], with the weights packed for the CPU; `dtype` is that of input and output.
///
/// # Errors
/// As for [`run`]; also if `dtype` is f64.
pub fn run_packed(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    precision: Precision,
) -> Result<Stages> {
    let input = input.moved(dtype, &Device::Cpu)?;
    let Some(x) = &input.hidden_states else {
        let model = checkpoint.loader(dtype, &Device::Cpu)?;
        return of_model(&model.packed_model(precision)?, &input.model);
    };
    let stack = checkpoint.packed_stack(precision)?;
    of_blocks(checkpoint.config(), &input, x, |context, observer| {
        stack.observe(x, context, observer)
    })
}

/// The stages of a stack of the given configuration, which `observe` holds.
pub(super) fn of_blocks(
    config: &StackConfig,
    input: &TraceInput,
    x: &Tensor,
    observe: impl FnOnce(&ForwardContext, Observer) -> candle_core::Result<Tensor>,
) -> Result<Stages> {
    let d_model = config.blocks.first().map(BlockConfig::d_model);
    let context = input.context(x, d_model)?;
    let mut stages = Vec::new();
    let last = observe(&context, &mut |i, block| {
        note(&mut stages, i, block);
        Ok(())
    })?;
    stages.push(("last_hidden_state".to_string(), last));
    Ok(stages)
}

/// The stages of a whole model.
pub(super) fn of_model(model: &Model, input: &ModelInput) -> Result<Stages> {
    let mut of_blocks = Vec::new();
    let output = model.observe(input, |i, block| {
        note(&mut of_blocks, i, block);
        Ok(())
    })?;
    let mut stages = vec![("embeddings".to_string(), output.embeddings)];
    stages.append(&mut of_blocks);
    for (name, tensor) in [
        ("last_hidden_state", Some(output.last_hidden_state)),
        ("pooler_output", output.pooler_output),
        ("logits", output.logits),
    ] {
        stages.extend(tensor.map(|tensor| (name.to_string(), tensor)));
    }
    Ok(stages)
}

fn note(stages: &mut Stages, i: usize, block: &BlockStages) {
    let feed_forward = &block.feed_forward;
    for (point, tensor) in [
        ("feed_forward.input", &feed_forward.input),
        ("feed_forward.output", &feed_forward.inner_output),
        ("output", block.output()),
    ] {
        stages.push((format!("layers.{i}.{point}"), tensor.clone()));
    }
}

type Observer<'a> = &'a mut dyn FnMut(usize, &BlockStages) -> candle_core::Result<()>;
