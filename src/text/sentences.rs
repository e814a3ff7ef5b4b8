//! Computes vectors for texts: a model, a pooling, and the modules after it.

use candle_core::{DType, Device, Tensor};

use super::encoder::{Encoder, TextInput, host, no_words};
use super::sentence_files::{PoolingBody, TokenFeatures};
use super::stages::{Feature, ModuleStep, VectorMap};
use crate::error::{Error, Result};
use crate::model::ModelOutput;

/// A model whose output becomes one vector for each text.
#[derive(Clone, Debug)]
pub(super) struct Sentences {
    pub encoder: Encoder,
    source: VectorSource,
    steps: Vec<ModuleStep>,
    result: Feature,
    width: usize,
}

/// The source of the vectors that the steps read.
#[derive(Clone, Debug)]
pub(super) enum VectorSource {
    /// The model's pooler.
    Pooler,
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
                width = width_of_tokens(&encoder, pooling)? * pooling.poolings.len();
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
        }
        let mut widths = [Some(width), None];
        for step in &steps {
            let width = widths[place(step.from)].map(|width| step.stage.width(width));
            widths[place(step.to)] = width.transpose()?;
        }
        let width = widths[place(result)].unwrap_or_default();
        Ok(Self {
            encoder,
            source,
            steps,
            result,
            width,
        })
    }

    /// Returns the number of features in a result.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the pooling, if there is one.
    pub fn pooling(&self) -> Option<&PoolingBody> {
        match &self.source {
            VectorSource::Pooling(pooling) => Some(pooling),
            VectorSource::Pooler => None,
        }
    }

    /// Returns whether a result has one feature for each token of the vocabulary.
    pub fn is_over_vocabulary(&self) -> bool {
        let pooling = self.pooling();
        pooling.is_some_and(|pooling| {
            let steps = self.steps.iter().map(|step| &step.stage);
            let mut maps = pooling.of_tokens.iter().chain(steps);
            pooling.reads == TokenFeatures::Logits
                && pooling.poolings.len() == 1
                && maps.all(VectorMap::keeps_features)
        })
    }

    /// Returns the results for texts with a prompt, `[n, width]` in f32 on the CPU, in their order.
    ///
    /// # Errors
    /// The errors of [`Encoder::encode`] and [`Encoder::run`].
    pub fn vectors(&self, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let vectors = match &self.source {
            VectorSource::Pooler => self.by_pooler(texts, prompt),
            VectorSource::Pooling(pooling) => self.pooled(pooling, texts, prompt),
        }?;
        let mut features = [Some(vectors), None];
        for step in &self.steps {
            let output = features[place(step.from)]
                .as_ref()
                .map(|x| step.stage.forward(x));
            features[place(step.to)] = output.transpose()?;
        }
        let missing = || Error::InvalidConfig(format!("no module returns {}", self.result));
        features[place(self.result)].take().ok_or_else(missing)
    }

    fn by_pooler(&self, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let encoded = self.encoder.encode(texts, prompt)?;
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); texts.len()];
        self.encoder.run(&encoded, |batch, output| {
            let missing = || Error::InvalidConfig("the model has no pooler".into());
            let pooled = output.pooler_output.ok_or_else(missing)?;
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
        self.encoder.run(&encoded, |batch, output| {
            let hidden = of_tokens(pooling, &output)?;
            let seq = output.last_hidden_state.dim(1)?;
            let mut vector = Vec::with_capacity(width);
            for (sequence, &text) in hidden.chunks_exact(seq * d_token).zip(batch) {
                let rows = &sequence[..encoded[text].ids.len() * d_token];
                vector.clear();
                for one in &pooling.poolings {
                    one.pool(rows, d_token, skipped, &mut vector);
                }
                pooled[text * width..][..width].copy_from_slice(&vector);
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(
            pooled,
            (texts.len(), width),
            &Device::Cpu,
        )?)
    }
}

/// Returns the number of features of the token vectors that are pooled.
fn width_of_tokens(encoder: &Encoder, pooling: &PoolingBody) -> Result<usize> {
    let width = encoder.width_of(pooling.reads)?;
    let maps = &pooling.of_tokens;
    maps.iter().try_fold(width, |width, map| map.width(width))
}

/// Returns all token vectors in a batch.
fn of_tokens(pooling: &PoolingBody, output: &ModelOutput) -> Result<Vec<f32>> {
    let features = match pooling.reads {
        TokenFeatures::Hidden => &output.last_hidden_state,
        TokenFeatures::Logits => output.logits.as_ref().ok_or_else(no_words)?,
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

/// Returns the index of a text's feature, one of two.
fn place(feature: Feature) -> usize {
    usize::from(feature == Feature::Scores)
}
