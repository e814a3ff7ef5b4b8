//! The input for a traced run.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::layers::{ForwardContext, KeySource};
use crate::model::ModelInput;

/// The input for a traced run.
#[derive(Clone, Debug)]
pub struct TraceInput {
    /// The input to block 0, `[batch, seq, d_model]`, if only the blocks run.
    pub hidden_states: Option<Tensor>,
    /// The other inputs to the blocks, or the whole model's input.
    pub model: ModelInput,
    /// The gradient that starts the backward pass: for the last block's output, or for a whole model's
    /// `last_hidden_state`.
    pub grad_output: Option<Tensor>,
    /// The gradient for a whole model's logits, or for its pooler's output if it has no logits.
    pub grad_logits: Option<Tensor>,
}

impl TraceInput {
    /// Collects the input from a fixture's tensors, which `tensor` returns by name.
    ///
    /// # Errors
    /// If the fixture has no input for the blocks or the model.
    pub fn new(tensor: impl Fn(&str) -> Option<Tensor>) -> Result<Self> {
        let hidden_states = tensor("hidden_states");
        let model = ModelInput {
            input_ids: tensor("input_ids"),
            token_type_ids: tensor("token_type_ids"),
            position_ids: tensor("position_ids"),
            attention_mask: tensor("attention_mask"),
            pixel_values: tensor("pixel_values"),
            input_features: tensor("input_features"),
            decoder_input_ids: tensor("decoder_input_ids"),
            decoder_attention_mask: tensor("decoder_attention_mask"),
            encoder_hidden_states: tensor("encoder_hidden_states"),
            encoder_attention_mask: tensor("encoder_attention_mask"),
            train: false,
        };
        let sources = [
            &hidden_states,
            &model.input_ids,
            &model.pixel_values,
            &model.input_features,
            &model.decoder_input_ids,
        ];
        if sources.into_iter().all(Option::is_none) {
            let reason =
                "missing, as are input_ids, pixel_values, input_features and decoder_input_ids";
            return Err(Error::input("hidden_states", reason));
        }
        Ok(Self {
            hidden_states,
            model,
            grad_output: tensor("grad_output"),
            grad_logits: tensor("grad_logits"),
        })
    }

    /// Checks the hidden states against the stack's width, and returns the context for a forward pass.
    pub(super) fn context(
        &self,
        hidden_states: &Tensor,
        d_model: Option<usize>,
    ) -> Result<ForwardContext> {
        let dims = hidden_states.dims();
        let d_model = d_model.or(dims.last().copied()).unwrap_or(0);
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
        let model = &self.model;
        KeySource::Input.check(model.attention_mask.as_ref(), dims[0], dims[1])?;
        if let Some(positions) = &model.position_ids {
            let found = positions.dims();
            let of_one = found.strip_prefix(&[3]).filter(|rest| rest.len() == 2);
            let of_one = of_one.unwrap_or(found);
            if of_one != &dims[..2] && of_one != [1, dims[1]] {
                let reason = format!("has shape {found:?}, expected {:?}", &dims[..2]);
                return Err(Error::input("position_ids", reason));
            }
        }
        if let Some(memory) = &model.encoder_hidden_states {
            let &[batch, keys, _] = memory.dims() else {
                let found = memory.dims();
                let reason =
                    format!("has shape {found:?}, expected [batch, encoder_seq, d_encoder]");
                return Err(Error::input("encoder_hidden_states", reason));
            };
            KeySource::Encoder.check(model.encoder_attention_mask.as_ref(), batch, keys)?;
        }
        model.context(hidden_states.device())
    }

    /// Returns the input converted to a type and copied to a device.
    pub(super) fn moved(&self, dtype: DType, device: &Device) -> Result<Self> {
        // Through the CPU, which converts every type.
        let move_ = |t: &Tensor| {
            let t = t.to_device(&Device::Cpu)?.to_dtype(dtype)?;
            t.to_device(device)
        };
        let moved = |t: &Option<Tensor>| t.as_ref().map(move_).transpose();
        Ok(Self {
            hidden_states: moved(&self.hidden_states)?,
            model: ModelInput {
                pixel_values: moved(&self.model.pixel_values)?,
                input_features: moved(&self.model.input_features)?,
                encoder_hidden_states: moved(&self.model.encoder_hidden_states)?,
                ..self.model.clone()
            },
            grad_output: moved(&self.grad_output)?,
            grad_logits: moved(&self.grad_logits)?,
        })
    }
}
