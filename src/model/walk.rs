//! A whole model: embeddings, blocks, pooler, head.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Module, Result, Tensor, bail};

use super::{ModelCache, ModelInput, ModelOutput};
use crate::Error;
use crate::config::{BlockConfig, HeadTask, ModelConfig, Position};
use crate::error::getters;
use crate::layers::{
    BlockStages, BlocksOutput, DropoutSource, Embeddings, ForwardContext, Linear, Readout, Stack,
    TokenEmbeddings, Tokens,
};

/// A model with its embeddings, blocks, pooler and head, made by [`Loader::model`](crate::Loader::model).
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) config: ModelConfig,
    pub(super) embeddings: Embeddings,
    pub(super) stack: Box<Stack>,
    /// The projection from the blocks' output to the width of the word embeddings, if there is one.
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
        /// The embeddings, which compute the first block's input.
        embeddings(&self) -> &Embeddings => &self.embeddings;
        /// The blocks, without embeddings, pooler and head.
        stack(&self) -> &Stack => &self.stack;
        /// The device on which the model computes.
        device(&self) -> &Device => &self.device;
        /// The head's task, if the model has a head.
        task(&self) -> Option<HeadTask> => self.config.head.as_ref().map(|head| head.task);
    }

    /// Returns the blocks, to which [`Lora::attach`](crate::train::Lora::attach) adds adapters.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.embeddings.set_dropout_source(source);
        self.stack.set_dropout_source(source);
        for readout in self.pooler.iter_mut().chain(&mut self.head) {
            readout.set_dropout_source(source);
        }
    }

    /// Returns true if the model does not compute rows of padding.
    #[cfg(feature = "text")]
    pub(crate) fn leaves_out_padding(&self) -> bool {
        self.stack.leaves_out_padding()
    }

    /// Runs the whole model.
    ///
    /// # Errors
    /// If the input lacks something that the model reads, or a token, position or shape does not fit.
    pub fn forward(&self, input: &ModelInput) -> Result<ModelOutput> {
        self.run(input, None, None)
    }

    /// Runs the model like [`Self::forward`], and hands the intermediate results of every layer to `observer` as they
    /// are computed.
    ///
    /// # Errors
    /// Same as [`Self::forward`]. An error of `observer` ends the pass and is returned.
    pub fn observe(
        &self,
        input: &ModelInput,
        mut observer: impl FnMut(usize, &BlockStages) -> Result<()>,
    ) -> Result<ModelOutput> {
        self.run(input, None, Some(&mut observer))
    }

    /// Runs the whole model on tokens to some of which it does not attend. Unlike padding, they are computed. `attended`,
    /// `[batch, seq]` of `u8` with 1 for the other tokens, is transformers' `attention_mask`.
    #[cfg(feature = "text")]
    pub(crate) fn forward_attending(
        &self,
        input: &ModelInput,
        attended: Option<&Tensor>,
    ) -> Result<ModelOutput> {
        self.run(input, attended, None)
    }

    /// Returns the head's logits `[n, n_out]` at some positions of a batch, given as `row * seq + position`, without computing
    /// those of the others.
    ///
    /// # Errors
    /// If the model has no head that reads every position, or as in [`Self::forward`].
    #[cfg(feature = "text")]
    pub(crate) fn logits_at(&self, input: &ModelInput, positions: &[u32]) -> Result<Tensor> {
        let (_, hidden_states) = self.hidden_states(input, None, None)?;
        let positions = Tensor::new(positions, &self.device)?;
        let rows = hidden_states.flatten(0, 1)?.index_select(&positions, 0)?; // [n, d_model]
        match self.logits(&rows.unsqueeze(0)?, None, input)? {
            Some(logits) if logits.rank() == 3 => logits.squeeze(0),
            _ => bail!("the model has no head that reads every position"),
        }
    }

    fn run(
        &self,
        input: &ModelInput,
        attended: Option<&Tensor>,
        observer: Option<&mut Observer>,
    ) -> Result<ModelOutput> {
        let input = &*self.own_input(input);
        let (embeddings, last_hidden_state) = self.hidden_states(input, attended, observer)?;
        let pooler_output = self.pool(&last_hidden_state, input)?;
        let logits = self.logits(&last_hidden_state, pooler_output.as_ref(), input)?;
        Ok(ModelOutput {
            embeddings,
            last_hidden_state,
            pooler_output,
            logits,
        })
    }

    /// Returns the first block's input, and the output of the blocks.
    fn hidden_states(
        &self,
        input: &ModelInput,
        attended: Option<&Tensor>,
        observer: Option<&mut Observer>,
    ) -> Result<(Tensor, Tensor)> {
        let embeddings = match attended {
            Some(mask) => self.embed(&input.clone().with_mask(mask))?,
            None => self.embed(input)?,
        };
        let mut context = input.context(&self.device)?;
        if let Some(attended) = attended {
            let added = self.hiding(attended, embeddings.dtype())?;
            let added = added
                .to_device(&self.device)?
                .to_dtype(embeddings.dtype())?;
            let mask = context.mask().clone().with_additive(added);
            context = context.with_mask(mask);
        }
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
        Ok((embeddings, self.projected_back(blocks)?))
    }

    /// Returns the values to add to scores, `[batch, 1, 1 or seq, seq]`, that hide the tokens to which the model does not
    /// attend. In DeBERTa, such a token attends to all tokens equally.
    fn hiding(&self, attended: &Tensor, dtype: DType) -> Result<Tensor> {
        /// A score next to which other scores vanish, so that the softmax of equal ones is uniform.
        const LEAST: f32 = -1e30;
        let marks = attended.to_vec2::<u8>()?;
        let (batch, seq) = attended.dims2()?;
        let blocks = &self.config.stack.blocks;
        let mut attentions = blocks.iter().flat_map(BlockConfig::attention);
        let is_disentangled = attentions.any(|of| matches!(of.position, Position::Disentangled(_)));
        let hidden = match is_disentangled {
            true => LEAST,
            false => f32::NEG_INFINITY,
        };
        if hidden == LEAST && dtype == DType::F16 {
            bail!(
                "query_expansion with \"attend\": false needs scores that f16 does not have in DeBERTa; use f32 or bf16"
            );
        }
        let keys = |row: &[u8]| -> Vec<f32> {
            let score = |&mark: &u8| if mark > 0 { 0.0 } else { hidden };
            row.iter().map(score).collect()
        };
        if hidden == f32::NEG_INFINITY {
            let scores: Vec<f32> = marks.iter().flat_map(|row| keys(row)).collect();
            return Tensor::from_vec(scores, (batch, 1, 1, seq), &Device::Cpu);
        }
        let query = |row: &[u8], mark: u8| {
            if mark > 0 {
                keys(row)
            } else {
                vec![LEAST; seq]
            }
        };
        let queries =
            |row: &Vec<u8>| -> Vec<f32> { row.iter().flat_map(|&mark| query(row, mark)).collect() };
        let scores: Vec<f32> = marks.iter().flat_map(queries).collect();
        Tensor::from_vec(scores, (batch, 1, seq, seq), &Device::Cpu)
    }

    /// Creates an empty cache for [`Self::next_logits`].
    pub fn new_cache(&self) -> ModelCache {
        ModelCache::new(self.stack.new_cache())
    }

    /// Reads a cache that [`ModelCache::save`] wrote, to the device of this model. Nothing in the file says which weights
    /// computed it: another model of the same sizes gives wrong tokens.
    ///
    /// # Errors
    /// If the file is no such cache, or one of a model with other sizes or another form of weights.
    pub fn load_cache(&self, path: impl AsRef<Path>, device: &Device) -> crate::Result<ModelCache> {
        ModelCache::load(&self.stack, path.as_ref(), device)
    }

    /// Returns the logits `[batch, n_tokens]` after the last new position. The new positions follow those in `cache`
    /// and are added to it. The mask covers the new positions only.
    ///
    /// # Errors
    /// If the model has no head that reads every position, or as in [`Self::forward`]. The cache is then unchanged.
    pub fn next_logits(&self, input: &ModelInput, cache: &mut ModelCache) -> Result<Tensor> {
        let Embeddings::Tokens(embeddings) = &self.embeddings else {
            bail!("next_logits needs a model that reads tokens");
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
                bail!("the model has no head for the next token; its checkpoint holds a base model")
            }
        }
    }

    /// Returns true if the model attends to an encoder's output.
    pub(crate) fn attends_to_encoder(&self) -> bool {
        let blocks = &self.config.stack.blocks;
        blocks.iter().any(|block| block.cross_attention.is_some())
    }

    /// Returns true if positions change the output: the model has a position table or rotary embeddings.
    pub(crate) fn reads_positions(&self) -> bool {
        let has_table = match &self.embeddings {
            Embeddings::Tokens(embeddings) => embeddings.config().positions.is_some(),
            _ => false,
        };
        let mut blocks = self.config.stack.blocks.iter();
        has_table || blocks.any(|block| block.facts().reads_positions)
    }

    /// Returns the input without the mask and positions of `input_ids`, if the model reads images or audio instead.
    fn own_input<'i>(&self, input: &'i ModelInput) -> Cow<'i, ModelInput> {
        let reads_tokens = matches!(self.embeddings, Embeddings::Tokens(_));
        match reads_tokens || input.input_ids.is_none() {
            true => Cow::Borrowed(input),
            false => Cow::Owned(ModelInput {
                attention_mask: None,
                position_ids: None,
                ..input.clone()
            }),
        }
    }

    /// Computes the first block's input.
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
                let features = given(input.input_features.as_ref(), "input_features", "audio")?;
                embeddings.forward_t(features, input.train)
            }
        }
    }

    /// Returns the token inputs. `counted` has the number of tokens that each sequence already had.
    fn tokens<'t>(&self, input: &'t ModelInput, counted: &'t [u32]) -> Result<Tokens<'t>> {
        let tokens = input.as_tokens(self.attends_to_encoder(), counted);
        given(tokens, "input_ids", "tokens")
    }

    /// Projects the blocks' output to the width of the word embeddings, if the model has such a projection.
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

    /// Returns true if the dropouts of pooler and head are on.
    fn trains(&self, input: &ModelInput) -> bool {
        input.train && !self.stack.is_packed()
    }
}

/// A callback for the intermediate results of each layer.
type Observer<'a> = dyn FnMut(usize, &BlockStages) -> Result<()> + 'a;

/// Adds the token rows for per-layer inputs to the context, if the model has such inputs.
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

/// Returns `input`, or an error that says what the model reads.
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
