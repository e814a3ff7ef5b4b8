//! Models from checkpoints.

use candle_core::Device;

use super::shared::sharing;
use super::{Model, Seq2Seq, TwoTowers};
use crate::checkpoint::{LoadScope, Loader, SecondStack};
use crate::config::{ModelConfig, Precision, TwoStackKind};
use crate::error::{Error, Result};
use crate::layers::packed::Packing;
use crate::layers::{
    Embeddings, EmbeddingsAndHead, Linear, ParameterSource, Readout, Similarity, Stack, Weight,
};

impl Model {
    /// Creates a model with parameters from `vb`, under `embeddings`, `blocks`, `pooler`, and the name of the head's
    /// task.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &ModelConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> candle_core::Result<Self> {
        let vb = vb.into();
        let ends = EmbeddingsAndHead::new(config, vb.clone())?;
        let device = vb.device().clone();
        let stack = Stack::new(&config.stack, vb)?;
        Ok(Self::of_parts(config, ends, stack, device))
    }

    fn of_parts(
        config: &ModelConfig,
        ends: EmbeddingsAndHead,
        stack: Stack,
        device: Device,
    ) -> Self {
        Self {
            config: config.clone(),
            embeddings: ends.embeddings,
            stack: Box::new(stack),
            projection_back: ends.projection_back,
            pooler: ends.pooler,
            head: ends.head,
            device,
        }
    }

    /// Creates a model like [`Self::new`], packed for inference on the CPU. At most one block is in memory unpacked.
    ///
    /// # Errors
    /// Same as [`Self::new`]. Also if the parameters are f64, or not on the CPU.
    pub fn packed<'p>(
        config: &ModelConfig,
        vb: impl Into<ParameterSource<'p>>,
        precision: Precision,
    ) -> candle_core::Result<Self> {
        let vb = vb.into();
        let mut ends = EmbeddingsAndHead::new(config, vb.clone())?;
        let packing = Packing::new(precision)?;
        for readout in ends.pooler.iter_mut().chain(&mut ends.head) {
            readout.pack(&packing)?;
        }
        if let Some(linear) = &mut ends.projection_back {
            *linear = linear.packed(&packing)?;
        }
        if let Embeddings::Tokens(embeddings) = &mut ends.embeddings {
            let shared = ends.head.as_ref().and_then(Readout::shared_embeddings);
            let tied = match (shared, embeddings.word_weight()) {
                // The packed table is shared, and made before the blocks are read: it is a large part of a small
                // model.
                (Some(shared), _) => Some(shared.kept_weight().clone()),
                (None, table @ Weight::Stored(_)) => {
                    let table = Linear::from_weight(table.clone(), None)?.packed(&packing)?;
                    Some(table.kept_weight().clone())
                }
                _ => None,
            };
            if let Some(tied) = tied {
                embeddings.set_word_weight(tied);
            }
        }
        let stack = Stack::packed(&config.stack, vb, precision)?;
        Ok(Self::of_parts(config, ends, stack, Device::Cpu))
    }
}

impl Seq2Seq {
    /// Creates a decoder and its encoder. The decoder's parameters have the names in [`Model::new`], the encoder's
    /// have the prefix `encoder`. Parameters that both stacks share are read once.
    ///
    /// ```no_run
    /// use candle_blocks::{CheckpointOptions, candle_core::{DType, Device}, model::Seq2Seq, train::Fresh};
    /// let architecture = CheckpointOptions::default().whole().architecture("my-t5/config.json")?;
    /// let fresh = Fresh::new(architecture.initialization.clone(), 42, DType::F32, &Device::Cpu);
    /// let encoder = architecture.second_stack()?.expect("a T5 has two stacks");
    /// let model = Seq2Seq::new(architecture.model_config()?, encoder, fresh.var_builder())?;
    /// // ... train the model, then:
    /// architecture.save("trained", fresh.parameters(), &[])?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the second stack is not an encoder, or as in [`Model::new`].
    pub fn new<'p>(
        decoder: &ModelConfig,
        encoder: &SecondStack,
        vb: impl Into<ParameterSource<'p>>,
    ) -> candle_core::Result<Self> {
        Self::built(decoder, encoder, vb.into(), None)
    }

    fn built(
        decoder: &ModelConfig,
        encoder: &SecondStack,
        vb: ParameterSource,
        packing: Option<Precision>,
    ) -> candle_core::Result<Self> {
        let TwoStackKind::EncoderDecoder { start_token } = encoder.kind else {
            return Err(not_of("an encoder and a decoder").into());
        };
        let vb = sharing(vb, &encoder.shared);
        let (part, embeddings) = (encoder.part.to_string(), "embeddings.word.weight");
        let shared = encoder.shared.get(&format!("{part}.{embeddings}"));
        let mut encoder = built(&encoder.config, vb.pp(part), packing)?;
        let decoder = built(decoder, vb, packing)?;
        if let (Embeddings::Tokens(of_encoder), Embeddings::Tokens(of_decoder)) =
            (&mut encoder.embeddings, &decoder.embeddings)
            && shared.is_some_and(|first| first == embeddings)
        {
            of_encoder.set_word_weight(of_decoder.word_weight().clone());
        }
        Ok(Self {
            encoder,
            decoder,
            start_token,
        })
    }
}

impl TwoTowers {
    /// Creates a text tower and a vision tower. The text tower's parameters have the names in [`Model::new`], the
    /// vision tower's have the prefix `vision`, and the scale and bias of the comparison have the prefix
    /// `similarity`. [`Seq2Seq::new`] has an example.
    ///
    /// # Errors
    /// If the second stack is not a vision tower, or as in [`Model::new`].
    pub fn new<'p>(
        text: &ModelConfig,
        vision: &SecondStack,
        vb: impl Into<ParameterSource<'p>>,
    ) -> candle_core::Result<Self> {
        Self::built(text, vision, vb.into(), None)
    }

    fn built(
        text: &ModelConfig,
        vision: &SecondStack,
        vb: ParameterSource,
        packing: Option<Precision>,
    ) -> candle_core::Result<Self> {
        let TwoStackKind::TwoTowers { bias } = vision.kind else {
            return Err(not_of("a text and a vision tower").into());
        };
        let vb = sharing(vb, &vision.shared);
        Ok(Self {
            vision: built(&vision.config, vb.pp(vision.part.to_string()), packing)?,
            similarity: Similarity::new(bias, vb.pp("similarity"))?,
            text: built(text, vb, packing)?,
        })
    }
}

/// Returns the configuration without pooler and head.
fn base(config: &ModelConfig) -> ModelConfig {
    ModelConfig::new(config.embeddings.clone(), config.stack.clone())
}

impl Loader<'_> {
    /// Loads the whole model: embeddings, blocks, and the pooler and head if the files hold them. In a packed model,
    /// embedding tables stay f32, except a word embedding that the head shares: its values are rounded to the precision.
    ///
    /// # Errors
    /// If the family does not describe embeddings, the files hold none, or as in [`Self::block`].
    pub fn model(&self) -> Result<Model> {
        let config = self.checkpoint().model_config()?;
        self.load(LoadScope::Model, |vb| built(config, vb, self.packing()))
    }

    /// Loads the model like [`Self::model`], without its pooler and head.
    ///
    /// # Errors
    /// Same as [`Self::model`].
    pub fn base_model(&self) -> Result<Model> {
        let config = base(self.checkpoint().model_config()?);
        self.load(LoadScope::Blocks, |vb| built(&config, vb, self.packing()))
    }

    /// Loads an encoder and its decoder. The checkpoint must have been opened with
    /// [`whole`](crate::CheckpointOptions::whole).
    ///
    /// # Errors
    /// If the checkpoint has no encoder and decoder, or was not opened with `whole`, or as in [`Self::model`].
    pub fn seq2seq(&self) -> Result<Seq2Seq> {
        let (config, other) = self.two_stacks("an encoder and a decoder")?;
        let build = |vb| Seq2Seq::built(config, other, vb, self.packing());
        self.load(LoadScope::TwoStacks, build)
    }

    /// Loads a text tower and a vision tower. The checkpoint must have been opened with
    /// [`whole`](crate::CheckpointOptions::whole).
    ///
    /// # Errors
    /// If the checkpoint has no two towers, or was not opened with `whole`, or as in [`Self::model`].
    pub fn two_towers(&self) -> Result<TwoTowers> {
        let (config, other) = self.two_stacks("a text and a vision tower")?;
        let build = |vb| TwoTowers::built(config, other, vb, self.packing());
        self.load(LoadScope::TwoStacks, build)
    }

    fn two_stacks(&self, wanted: &str) -> Result<(&ModelConfig, &SecondStack)> {
        let checkpoint = self.checkpoint();
        let other = checkpoint.second_stack()?.ok_or_else(|| not_of(wanted))?;
        Ok((checkpoint.model_config()?, other))
    }
}

fn not_of(wanted: &str) -> Error {
    Error::InvalidConfig(format!(
        "the checkpoint was not opened as {wanted}; open it with CheckpointOptions::whole"
    ))
}

/// Creates a model with one stack from `vb`, packed if `packing` has a precision.
fn built(
    config: &ModelConfig,
    vb: ParameterSource,
    packing: Option<Precision>,
) -> candle_core::Result<Model> {
    match packing {
        None => Model::new(config, vb),
        Some(precision) => Model::packed(config, vb, precision),
    }
}
