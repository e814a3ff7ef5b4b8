//! Computes vectors for texts: a model, a pooling, and the modules after it.

pub(crate) mod expansion;
pub(in crate::text) mod pipeline;
pub(crate) mod pooling;
pub(crate) mod stages;
pub(in crate::text) mod static_embedding;
pub(crate) mod vector_precision;

use candle_core::{DType, Device, Tensor};

use super::encoder::reading::TextInput;
use super::encoder::{Encoder, host, no_masked_lm};
use super::sentence_files::{PoolingBody, TokenFeatures};
use super::{Pooling, TokenizedText};
use crate::config::HeadTask;
use crate::error::{Error, Result};
use crate::model::{Model, ModelOutput};
use crate::text::sentences::stages::{Feature, ModuleStep, VectorMap, after, width_after};

/// A model whose output becomes one vector for each text.
#[derive(Clone, Debug)]
pub(super) struct Sentences {
    pub encoder: Encoder,
    source: VectorSource,
    steps: Vec<ModuleStep>,
    result: Feature,
    width: usize,
    /// Tokens whose vectors are left out, if each has one.
    skipped: Vec<u32>,
}

/// The source of the vectors that the steps read.
#[derive(Clone, Debug)]
pub(super) enum VectorSource {
    /// The model's pooler.
    Pooler,
    /// The model's projection.
    Projection,
    /// A pooling of token vectors.
    Pooling(PoolingBody),
}

impl Sentences {
    /// Makes the pipeline from its parts; `result` is the feature that is returned.
    ///
    /// # Errors
    /// If a step reads vectors with another width, or the model lacks the pooler that is needed.
    pub fn new(
        encoder: Encoder,
        source: VectorSource,
        steps: Vec<ModuleStep>,
        result: Feature,
    ) -> Result<Self> {
        let mut width = encoder.width_of(TokenFeatures::Hidden)?;
        match &source {
            VectorSource::Pooling(pooling) => {
                width = width_of_tokens(&encoder, pooling)?;
                width = match pooling.poolings[..] {
                    [Pooling::Lexical] => encoder.n_tokens()?,
                    _ => width * pooling.poolings.len(),
                };
            }
            VectorSource::Pooler => {
                let pooler = encoder.model.config().pooler.as_ref();
                let pooler = pooler.ok_or_else(|| {
                    Error::InvalidConfig(
                        "sentence_bert_config.json uses the pooler_output, but the checkpoint has no pooler".into(),
                    )
                })?;
                width = pooler.output.as_ref().map_or(width, |output| output.n_out);
            }
            VectorSource::Projection => width = projection_width(&encoder.model)?,
        }
        let width = width_after(&steps, width, result)?;
        Ok(Self {
            encoder,
            source,
            steps,
            result,
            width,
            skipped: Vec::new(),
        })
    }

    /// Leaves out the vectors of these tokens, if the vocabulary has them.
    pub fn skipping(mut self, words: &[String]) -> Self {
        let tokenizer = self.encoder.tokenizer.inner();
        self.skipped = words
            .iter()
            .filter_map(|word| tokenizer.token_to_id(word))
            .collect();
        self
    }

    /// Returns the number of features in a result.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the pooling, if there is one.
    pub fn pooling(&self) -> Option<&PoolingBody> {
        match &self.source {
            VectorSource::Pooling(pooling) => Some(pooling),
            VectorSource::Pooler | VectorSource::Projection => None,
        }
    }

    /// Returns whether a result has one feature for each token of the vocabulary.
    pub fn is_over_vocabulary(&self) -> bool {
        let pooling = self.pooling();
        pooling.is_some_and(|pooling| {
            let is_lexical = pooling.poolings == [Pooling::Lexical];
            let steps = self.steps.iter().map(|step| &step.stage);
            let token_pooling = pooling.of_tokens.iter().filter(|_| !is_lexical);
            let mut maps = token_pooling.chain(steps);
            (is_lexical || pooling.reads == TokenFeatures::Logits && pooling.poolings.len() == 1)
                && maps.all(VectorMap::keeps_features)
        })
    }

    /// Returns the results for texts with a prompt, `[n, width]` in f32 on the CPU, in their order.
    ///
    /// # Errors
    /// The errors of [`Encoder::encode`] and [`Encoder::run`].
    pub fn vectors(&self, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let vectors = match &self.source {
            VectorSource::Pooler => self.of_texts(texts, prompt, |output| output.pooler_output),
            VectorSource::Projection => self.of_texts(texts, prompt, |output| output.logits),
            VectorSource::Pooling(pooling) if pooling.poolings == [Pooling::EachToken] => {
                return Err(Error::InvalidConfig(
                    "the pooling each_token gives a vector for each token; use `token_vectors`"
                        .into(),
                ));
            }
            VectorSource::Pooling(pooling) if pooling.poolings == [Pooling::Lexical] => {
                self.lexical(pooling, texts, prompt)
            }
            VectorSource::Pooling(pooling) => self.pooled(pooling, texts, prompt),
        }?;
        after(&self.steps, vectors, self.result)
    }

    /// Returns the vectors of each text's tokens, `[n_tokens, width]` in f32 on the CPU.
    ///
    /// # Errors
    /// If the model does not have them, or as in [`Self::vectors`].
    pub fn vectors_of_tokens(&self, texts: &[TextInput], prompt: &str) -> Result<Vec<Tensor>> {
        let body = self
            .pooling()
            .filter(|pooling| pooling.poolings == [Pooling::EachToken]);
        let body = body.ok_or_else(|| {
            let reason = "the model gives one vector for each text; use `embed`, or set the pooling each_token";
            Error::InvalidConfig(reason.into())
        })?;
        let mut vectors: Vec<Option<Tensor>> = vec![None; texts.len()];
        let encoded = self.encoder.encode(texts, prompt)?;
        self.each_row(body, &encoded, |text, rows| {
            let rows = rows.chunks_exact(self.width).zip(&encoded[text].ids);
            let rows = rows
                .skip(body.n_first)
                .filter(|(_, id)| !self.skipped.contains(id));
            let rows: Vec<f32> = rows.flat_map(|(row, _)| row).copied().collect();
            let shape = (rows.len() / self.width, self.width);
            vectors[text] = Some(Tensor::from_vec(rows, shape, &Device::Cpu)?);
            Ok(())
        })?;
        Ok(vectors.into_iter().flatten().collect())
    }

    /// Returns the largest weight of each token of the vocabulary in a text. Tokens that begin, end and fill texts have none.
    fn lexical(&self, body: &PoolingBody, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let width = self.encoder.n_tokens()?;
        let tokenizer = &self.encoder.tokenizer;
        let left_out = ["cls_token", "eos_token", "pad_token", "unk_token"]
            .map(|name| tokenizer.named_id(name));
        let mut weights = vec![0f32; texts.len() * width];
        let encoded = self.encoder.encode(texts, prompt)?;
        self.each_row(body, &encoded, |text, rows| {
            let weights = &mut weights[text * width..][..width];
            for (&id, &weight) in encoded[text].ids.iter().zip(rows) {
                if !left_out.contains(&Some(id)) {
                    weights[id as usize] = weights[id as usize].max(weight);
                }
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(
            weights,
            (texts.len(), width),
            &Device::Cpu,
        )?)
    }

    /// Calls `each` with the vectors of each text's tokens.
    fn each_row(
        &self,
        body: &PoolingBody,
        encoded: &[TokenizedText],
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let width = width_of_tokens(&self.encoder, body)?;
        self.encoder.run(encoded, |batch, output| {
            let hidden = of_tokens(body, &output)?;
            let seq = output.last_hidden_state.dim(1)?;
            for (sequence, &text) in hidden.chunks_exact(seq * width).zip(batch) {
                each(text, &sequence[..encoded[text].ids.len() * width])?;
            }
            Ok(())
        })
    }

    /// Returns an output of the model that is one vector for each text.
    fn of_texts(
        &self,
        texts: &[TextInput],
        prompt: &str,
        select: impl Fn(ModelOutput) -> Option<Tensor>,
    ) -> Result<Tensor> {
        let encoded = self.encoder.encode(texts, prompt)?;
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); texts.len()];
        self.encoder.run(&encoded, |batch, output| {
            let missing = || Error::InvalidConfig("the model has no vector for a text".into());
            let pooled = select(output).ok_or_else(missing)?;
            let (_, width) = pooled.dims2()?;
            for (row, &text) in host(&pooled)?.chunks_exact(width).zip(batch) {
                rows[text] = row.to_vec();
            }
            Ok(())
        })?;
        let width = rows.first().map_or(0, Vec::len);
        Ok(Tensor::from_vec(
            rows.concat(),
            (texts.len(), width),
            &Device::Cpu,
        )?)
    }

    fn pooled(&self, pooling: &PoolingBody, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let encoded = self.encoder.encode(texts, prompt)?;
        let skipped = match pooling.skip_prompt {
            true => self.encoder.prompt_length(prompt)?,
            false => 0,
        };
        let d_token = width_of_tokens(&self.encoder, pooling)?;
        let width = d_token * pooling.poolings.len();
        let mut pooled = vec![0f32; texts.len() * width];
        let mut vector = Vec::with_capacity(width);
        self.each_row(pooling, &encoded, |text, rows| {
            vector.clear();
            for one in &pooling.poolings {
                one.pool(rows, d_token, skipped, &mut vector);
            }
            pooled[text * width..][..width].copy_from_slice(&vector);
            Ok(())
        })?;
        Ok(Tensor::from_vec(
            pooled,
            (texts.len(), width),
            &Device::Cpu,
        )?)
    }
}

/// Returns the number of features in the token vectors that are pooled.
fn width_of_tokens(encoder: &Encoder, pooling: &PoolingBody) -> Result<usize> {
    let width = encoder.width_of(pooling.reads)?;
    let maps = &pooling.of_tokens;
    maps.iter().try_fold(width, |width, map| map.width(width))
}

/// Returns all token vectors in a batch.
fn of_tokens(pooling: &PoolingBody, output: &ModelOutput) -> Result<Vec<f32>> {
    let features = match pooling.reads {
        TokenFeatures::Hidden => &output.last_hidden_state,
        TokenFeatures::Logits => output.logits.as_ref().ok_or_else(no_masked_lm)?,
    };
    if pooling.of_tokens.is_empty() {
        return host(features);
    }
    let hidden = features.flatten(0, 1)?;
    let mut hidden = hidden.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    for stage in &pooling.of_tokens {
        hidden = stage.forward(&hidden)?;
    }
    host(&hidden)
}

/// Returns the width of a text tower's projection.
fn projection_width(model: &Model) -> Result<usize> {
    let head = model.config().head.as_ref();
    let projection = head.filter(|head| head.task == HeadTask::Projection);
    let output = projection.and_then(|head| head.readout.output.as_ref());
    output.map(|output| output.n_out).ok_or_else(|| {
        Error::InvalidConfig(
            "sentence-transformers' files use get_text_features, but the checkpoint has no text tower with a projection".into(),
        )
    })
}
