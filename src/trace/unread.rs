//! Inputs that a checkpoint does not read.

use super::TraceInput;
use crate::checkpoint::Checkpoint;
use crate::config::{EmbeddingsConfig, ModelConfig, StackConfig, TwoStackKind};
use crate::error::Result;

impl TraceInput {
    /// Returns the names of the inputs that a run of this checkpoint does not read, such as `pixel_values` for a model without
    /// images.
    ///
    /// # Errors
    /// If the checkpoint has no whole model and the input is not for the blocks alone.
    pub fn unread(&self, checkpoint: &Checkpoint) -> Result<Vec<&'static str>> {
        let reads = match self.hidden_states {
            Some(_) => of_blocks(checkpoint.config()),
            None => of_model(checkpoint)?,
        };
        let input = &self.model;
        let given = [
            ("input_ids", &input.input_ids),
            ("token_type_ids", &input.token_type_ids),
            ("position_ids", &input.position_ids),
            ("pixel_values", &input.pixel_values),
            ("input_features", &input.input_features),
            ("decoder_input_ids", &input.decoder_input_ids),
            ("decoder_attention_mask", &input.decoder_attention_mask),
            ("encoder_hidden_states", &input.encoder_hidden_states),
            ("encoder_attention_mask", &input.encoder_attention_mask),
        ];
        let given = given.into_iter().filter(|(_, tensor)| tensor.is_some());
        let unread = given
            .map(|(name, _)| name)
            .filter(|name| !reads.contains(name));
        let mut unread: Vec<_> = unread.collect();
        // The mask of tokens that are not read is not that of the images or the audio.
        if unread.contains(&"input_ids")
            && input.attention_mask.is_some()
            && self.hidden_states.is_none()
        {
            unread.push("attention_mask");
        }
        Ok(unread)
    }
}

/// The inputs that blocks read beside their hidden states.
fn of_blocks(stack: &StackConfig) -> Vec<&'static str> {
    let mut reads = Vec::new();
    if reads_positions(stack) {
        reads.push("position_ids");
    }
    if attends_to_encoder(stack) {
        reads.extend(["encoder_hidden_states", "encoder_attention_mask"]);
    }
    reads
}

fn of_model(checkpoint: &Checkpoint) -> Result<Vec<&'static str>> {
    let model = checkpoint.model_config()?;
    let other = checkpoint.second_stack()?;
    let mut reads = of_embeddings(model);
    reads.extend(
        other
            .map(|other| of_embeddings(&other.config))
            .into_iter()
            .flatten(),
    );
    let attends_to_encoder = attends_to_encoder(&model.stack);
    match other.map(|other| other.kind) {
        Some(TwoStackKind::EncoderDecoder { .. }) => {
            reads.extend(["decoder_input_ids", "decoder_attention_mask"]);
        }
        None if attends_to_encoder => reads.extend([
            "decoder_input_ids",
            "encoder_hidden_states",
            "encoder_attention_mask",
        ]),
        _ => {}
    }
    Ok(reads)
}

fn of_embeddings(model: &ModelConfig) -> Vec<&'static str> {
    match &model.embeddings {
        EmbeddingsConfig::Tokens(tokens) => {
            let mut reads = vec!["input_ids", "token_type_ids"]; // types without a table are an error
            if tokens.positions.is_some() || reads_positions(&model.stack) {
                reads.push("position_ids");
            }
            reads
        }
        EmbeddingsConfig::Patches(_) => vec!["pixel_values"],
        EmbeddingsConfig::Spectrum(_) => vec!["input_features"],
    }
}

fn reads_positions(stack: &StackConfig) -> bool {
    let mut blocks = stack.blocks.iter();
    blocks.any(|block| block.facts().reads_positions)
}

fn attends_to_encoder(stack: &StackConfig) -> bool {
    stack
        .blocks
        .iter()
        .any(|block| block.cross_attention.is_some())
}
