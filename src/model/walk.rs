//! A whole model, and its walk: embeddings, blocks, pooler, head.

use std::sync::Arc;

use candle_core::{Device, Module, Result, Tensor, bail};

use super::{ModelCache, ModelInput, ModelOutput};
use crate::Error;
use crate::config::{BlockConfig, ModelConfig, Position, RotaryAxes, RotaryConfig, Task, getters};
use crate::layers::{
    BlockStages, BlocksOutput, DropoutSource, Embeddings, ForwardContext, Linear, Readout, Stack,
    TokenEmbeddings, Tokens,
};

/// A model with its embeddings, blocks, pooler and head, made by [`Checkpoint::model`](crate::Checkpoint::model) or
/// [`Checkpoint::packed_model`](crate::Checkpoint::packed_model).
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) config: ModelConfig,
    pub(super) embeddings: Embeddings,
    pub(super) stack: Box<Stack>,
    /// The map of the blocks' output back to the width of the words, if there is one.
    pub(super) projection_back: Option<Linear>,
    pub(super) pooler: Option<Readout>,
    pub(super) head: Option<Readout>,
    pub(super) device: Device,
}

/// Copies the layers, which share their weights with the model's.
impl From<&Model> for Arc<Model> {
    fn from(model: &Model) -> Self {
        Self::new(model.clone())
    }
}

impl Model {
    getters! {
        /// The configuration.
        config(&self) -> &ModelConfig => &self.config;
        /// What makes the input of the first block.
        embeddings(&self) -> &Embeddings => &self.embeddings;
        /// The device that it computes on.
        device(&self) -> &Device => &self.device;
        /// What its head is for, if it has one.
        task(&self) -> Option<Task> => self.config.head.as_ref().map(|head| head.task);
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.embeddings.set_dropout_source(source);
        self.stack.set_dropout_source(source);
        for readout in self.pooler.iter_mut().chain(&mut self.head) {
            readout.set_dropout_source(source);
        }
    }

    /// Whether padding is not computed.
    #[cfg(feature = "text")]
    pub(crate) fn leaves_out_padding(&self) -> bool {
        self.stack.leaves_out_padding()
    }

    /// Runs the whole model.
    ///
    /// # Errors
    /// If the input is not what the model reads, or a token, position or shape does not fit.
    pub fn forward(&self, input: &ModelInput) -> Result<ModelOutput> {
        self.run(input, None)
    }

    /// Like [`Self::forward`], but also hands the intermediate results of every layer to `observer` as they are computed.
    ///
    /// # Errors
    /// As for [`Self::forward`]; an error of `observer` ends the pass and is returned.
    pub fn observe(
        &self,
        input: &ModelInput,
        mut observer: impl FnMut(usize, &BlockStages) -> Result<()>,
    ) -> Result<ModelOutput> {
        self.run(input, Some(&mut observer))
    }

    fn run(&self, input: &ModelInput, observer: Option<&mut Observer>) -> Result<ModelOutput> {
        let embeddings = self.embed(input)?;
        let mut context = input.context(&self.device)?;
        if let Embeddings::Tokens(embeddings) = &self.embeddings {
            context = with_layer_inputs(context, embeddings, &self.tokens(input, &[])?)?;
        }
        if let (Embeddings::Patches(patches), Some(pixels)) =
            (&self.embeddings, &input.pixel_values)
        {
            context = context.with_patches(patches.grid(pixels)?);
        }
        let blocks = match observer {
            None => self.stack.forward_with(&embeddings, &context)?,
            Some(observer) => self.stack.observe(&embeddings, &context, observer)?,
        };
        let last_hidden_state = self.projected_back(blocks)?;
        let pooler_output = self.pool(&last_hidden_state, input)?;
        let logits = self.logits(&last_hidden_state, pooler_output.as_ref(), input)?;
        Ok(ModelOutput {
            embeddings,
            last_hidden_state,
            pooler_output,
            logits,
        })
    }

    /// An empty cache for [`Self::next_logits`].
    pub fn new_cache(&self) -> ModelCache {
        ModelCache::new(self.stack.new_cache())
    }

    /// The logits `[batch, n_tokens]` behind the last of some new positions, which follow those in `cache` and are added
    /// to it. The mask is that of the new positions only.
    ///
    /// # Errors
    /// If the model has no head that reads every position, or as for [`Self::forward`]; the cache then stays as it was.
    pub fn next_logits(&self, input: &ModelInput, cache: &mut ModelCache) -> Result<Tensor> {
        let Embeddings::Tokens(embeddings) = &self.embeddings else {
            bail!("a model that reads no tokens has no next one");
        };
        let tokens = self.tokens(input, &cache.counted)?;
        let counted = embeddings.counted(&tokens)?;
        let context = with_layer_inputs(input.context(&self.device)?, embeddings, &tokens)?;
        let embeddings = embeddings.forward_t(&tokens, input.train)?;
        let keys_and_values = &mut cache.keys_and_values;
        let last = self
            .stack
            .last_cached(embeddings, &context, keys_and_values)?;
        cache.counted = counted;
        let last = self.projected_back(last)?;
        match self.logits(&last, None, input)? {
            Some(logits) if logits.rank() == 3 => logits.squeeze(1),
            _ => {
                bail!("the model has no head for the next token; its checkpoint is a base model's")
            }
        }
    }

    /// Whether it attends to an encoder's output.
    pub(crate) fn is_behind(&self) -> bool {
        let blocks = &self.config.stack.blocks;
        blocks.iter().any(|block| block.cross_attention.is_some())
    }

    /// Whether positions make a difference: they have a table, or turn queries and keys.
    pub(crate) fn reads_positions(&self) -> bool {
        let has_table = match &self.embeddings {
            Embeddings::Tokens(embeddings) => embeddings.config().positions.is_some(),
            _ => false,
        };
        let turns = |block: &BlockConfig| match &block.attention.position {
            Position::Rotary(RotaryConfig { axes, .. }) => {
                !matches!(axes, Some(RotaryAxes::Patches(_)))
            }
            _ => false,
        };
        has_table || self.config.stack.blocks.iter().any(turns)
    }

    /// The input of the first block.
    fn embed(&self, input: &ModelInput) -> Result<Tensor> {
        match &self.embeddings {
            Embeddings::Tokens(embeddings) => {
                embeddings.forward_t(&self.tokens(input, &[])?, input.train)
            }
            Embeddings::Patches(embeddings) => {
                let pixels = given(input.pixel_values.as_ref(), "pixel_values", "images")?;
                embeddings.forward_t(pixels, input.train)
            }
            Embeddings::Spectrum(embeddings) => {
                let features = given(input.input_features.as_ref(), "input_features", "sounds")?;
                embeddings.forward_t(features, input.train)
            }
        }
    }

    /// The tokens, behind so many that were counted of each sequence.
    fn tokens<'t>(&self, input: &'t ModelInput, counted: &'t [u32]) -> Result<Tokens<'t>> {
        let tokens = input.as_tokens(self.is_behind(), counted);
        given(tokens, "input_ids", "tokens")
    }

    /// The blocks' output in the width of the words, if the model has a map back to it.
    fn projected_back(&self, x: Tensor) -> Result<Tensor> {
        match &self.projection_back {
            Some(linear) => linear.forward(&x),
            None => Ok(x),
        }
    }

    fn pool(&self, hidden_states: &Tensor, input: &ModelInput) -> Result<Option<Tensor>> {
        let of = blocks_output(hidden_states, None, input);
        let pooler = self.pooler.as_ref();
        pooler
            .map(|pooler| pooler.forward_t(&of, self.trains(input)))
            .transpose()
    }

    fn logits(
        &self,
        hidden_states: &Tensor,
        pooled: Option<&Tensor>,
        input: &ModelInput,
    ) -> Result<Option<Tensor>> {
        let of = blocks_output(hidden_states, pooled, input);
        let head = self.head.as_ref();
        head.map(|head| head.forward_t(&of, self.trains(input)))
            .transpose()
    }

    /// Whether the dropouts of pooler and head are on.
    fn trains(&self, input: &ModelInput) -> bool {
        input.train && !self.stack.is_packed()
    }
}

/// Receives the intermediate results of each layer.
type Observer<'a> = dyn FnMut(usize, &BlockStages) -> Result<()> + 'a;

/// The context with the rows of tokens that the inputs of layers are made of, where these have some.
fn with_layer_inputs(
    context: ForwardContext,
    embeddings: &TokenEmbeddings,
    tokens: &Tokens,
) -> Result<ForwardContext> {
    Ok(match embeddings.layer_inputs(tokens)? {
        Some(rows) => context.with_layer_inputs(rows),
        None => context,
    })
}

/// What a model reads.
fn given<T>(input: Option<T>, name: &str, what: &str) -> Result<T> {
    let missing = || Error::input(name, format!("missing; the model reads {what}")).into();
    input.ok_or_else(missing)
}

fn blocks_output<'t>(
    hidden_states: &'t Tensor,
    pooled: Option<&'t Tensor>,
    input: &'t ModelInput,
) -> BlocksOutput<'t> {
    BlocksOutput {
        hidden_states,
        pooled,
        ids: input.input_ids.as_ref(),
        mask: input.attention_mask.as_ref(),
    }
}
