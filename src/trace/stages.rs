//! Forward passes, stage by stage.

use candle_core::{DType, Device, Tensor};

use super::TraceInput;
use crate::checkpoint::{Checkpoint, Loader, Weights};
use crate::config::{BlockConfig, HeadTask, Precision, StackConfig, TwoStackKind};
use crate::error::{Error, Result};
use crate::layers::{BlockStages, Embeddings, ForwardContext};
use crate::model::{Model, ModelInput, ModelOutput, Seq2Seq, TwoTowers};

/// The stages of a run with their names, in order.
pub(super) type Stages = Vec<(String, Tensor)>;

/// Loads a checkpoint in `dtype` on `device`, runs it, and returns every stage in order.
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
        return of_whole(
            &checkpoint.load(Weights::Dense(dtype, device)),
            &input.model,
        );
    };
    checkpoint.check_chosen()?;
    let stack = checkpoint.load(Weights::Dense(dtype, device)).stack()?;
    of_blocks(checkpoint.config(), &input, x, |context, observer| {
        stack.observe(x, context, observer)
    })
}

/// Like [`run`], with weights packed for the CPU. `dtype` is the type for input and output.
///
/// # Errors
/// Same as for [`run`], and if `dtype` is f64.
pub fn run_packed(
    checkpoint: &Checkpoint,
    input: &TraceInput,
    dtype: DType,
    precision: Precision,
) -> Result<Stages> {
    let input = input.moved(dtype, &Device::Cpu)?;
    let Some(x) = &input.hidden_states else {
        let loader = checkpoint.load(Weights::Packed(precision));
        return of_whole(&loader.with_dtype(dtype), &input.model);
    };
    checkpoint.check_chosen()?;
    let stack = checkpoint.load(Weights::Packed(precision)).stack()?;
    of_blocks(checkpoint.config(), &input, x, |context, observer| {
        stack.observe(x, context, observer)
    })
}

/// Returns a stack's stages, which `observe` computes.
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

/// Returns the stages of a whole model, with one stack or two.
pub(super) fn of_whole(loader: &Loader, input: &ModelInput) -> Result<Stages> {
    match loader.checkpoint().second_stack()?.map(|other| other.kind) {
        None => of_model(&loader.model()?, input),
        Some(TwoStackKind::EncoderDecoder { .. }) => of_seq2seq(&loader.seq2seq()?, input),
        Some(TwoStackKind::TwoTowers { .. }) => of_towers(&loader.two_towers()?, input),
    }
}

fn of_model(model: &Model, input: &ModelInput) -> Result<Stages> {
    let (mut stages, output) = of_stack(model, input, "")?;
    let head = match (model.task(), model.embeddings()) {
        (Some(HeadTask::Projection), Embeddings::Tokens(_)) => "text_embeds",
        (Some(HeadTask::Projection), _) => "image_embeds",
        _ => "logits",
    };
    stages.extend(output.logits.map(|logits| (head.to_string(), logits)));
    Ok(stages)
}

fn of_seq2seq(model: &Seq2Seq, input: &ModelInput) -> Result<Stages> {
    let encoder = model.encoder_input(input);
    let (mut stages, encoded) = of_stack(model.encoder(), &encoder, "encoder.")?;
    for (name, _) in &mut stages {
        if name == "encoder.last_hidden_state" {
            *name = "encoder_last_hidden_state".to_string(); // transformers' name
        }
    }
    let decoder = model.decoder_input(input, &encoded.last_hidden_state)?;
    stages.append(&mut of_model(model.decoder(), &decoder)?);
    Ok(stages)
}

/// Returns both towers' stages if both have an input, otherwise one tower's stages as a single model.
fn of_towers(towers: &TwoTowers, input: &ModelInput) -> Result<Stages> {
    match (&input.input_ids, &input.pixel_values) {
        (Some(_), None) => return of_model(towers.text(), input),
        (None, Some(_)) => return of_model(towers.vision(), input),
        _ => {}
    }
    let (mut stages, text) = of_stack(towers.text(), input, "")?;
    let images = towers.vision_input(input);
    let (mut vision_stages, vision) = of_stack(towers.vision(), &images, "vision.")?;
    stages.append(&mut vision_stages);
    let output = towers.compared(text, vision)?;
    for (name, tensor) in [
        ("text_embeds", output.text_embeds),
        ("image_embeds", output.image_embeds),
        ("logits_per_image", output.logits_per_image),
    ] {
        stages.push((name.to_string(), tensor));
    }
    Ok(stages)
}

/// Returns the stages of a stack except its head, with names prefixed by `start`.
fn of_stack(model: &Model, input: &ModelInput, start: &str) -> Result<(Stages, ModelOutput)> {
    if input.position_ids.is_some() && !model.reads_positions() {
        let reason = "the model reads no positions; leave them out";
        return Err(Error::input("position_ids", reason));
    }
    let mut block_stages = Vec::new();
    let output = model.observe(input, |i, block| {
        note(&mut block_stages, i, block);
        Ok(())
    })?;
    let mut stages = vec![("embeddings".to_string(), output.embeddings.clone())];
    stages.append(&mut block_stages);
    let last = output.last_hidden_state.clone();
    stages.push(("last_hidden_state".to_string(), last));
    let pooled = output.pooler_output.clone();
    stages.extend(pooled.map(|pooled| ("pooler_output".to_string(), pooled)));
    for (name, _) in &mut stages {
        name.insert_str(0, start);
    }
    Ok((stages, output))
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
