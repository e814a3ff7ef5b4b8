//! Models from checkpoints.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;

use super::Model;
use super::body::Body;
use crate::checkpoint::{Checkpoint, Loader};
use crate::config::{ModelConfig, Precision};
use crate::error::Result;
use crate::layers::{ModelEnds, Readout, Stack};
use crate::packed::PackedStack;

impl Checkpoint {
    /// Loads the whole model, for inference: embeddings, blocks, and the pooler and head that the files hold.
    ///
    /// # Errors
    /// If the family does not say what surrounds the blocks, the files hold no embeddings, or as for [`Loader::block`].
    pub fn model(&self, dtype: DType, device: &Device) -> Result<Model> {
        self.loader(dtype, device)?.model()
    }

    /// Loads the whole model packed for inference on the CPU.
    ///
    /// # Errors
    /// As for [`Self::model`].
    pub fn packed_model(&self, precision: Precision) -> Result<Model> {
        self.loader(DType::F32, &Device::Cpu)?
            .packed_model(precision)
    }

    /// Like [`Self::model`], without the pooler and the head.
    ///
    /// # Errors
    /// As for [`Self::model`].
    pub fn base_model(&self, dtype: DType, device: &Device) -> Result<Model> {
        let loader = self.loader(dtype, device)?;
        loader.typed(|vb| Model::new(&base(self.model_config()?), vb))
    }

    /// Like [`Self::packed_model`], without the pooler and the head.
    ///
    /// # Errors
    /// As for [`Self::model`].
    pub fn packed_base_model(&self, precision: Precision) -> Result<Model> {
        let loader = self.loader(DType::F32, &Device::Cpu)?;
        loader.typed(|vb| Model::packed(&base(self.model_config()?), vb, precision))
    }
}

/// The embeddings and the blocks alone.
fn base(config: &ModelConfig) -> ModelConfig {
    ModelConfig::new(config.embeddings.clone(), config.stack.clone())
}

impl Loader<'_> {
    /// Loads the whole model; errors as for [`Checkpoint::model`].
    pub fn model(&self) -> Result<Model> {
        let config = self.checkpoint().model_config()?;
        self.typed(|vb| Model::new(config, vb))
    }

    /// Loads the whole model and packs it for inference on the CPU. The tables of the embeddings stay f32.
    ///
    /// # Errors
    /// As for [`Checkpoint::model`]; also if the parameters of this loader are variables, f64, or not on the CPU.
    pub fn packed_model(&self, precision: Precision) -> Result<Model> {
        self.check_frozen()?;
        let config = self.checkpoint().model_config()?;
        self.typed(|vb| Model::packed(config, vb, precision))
    }
}

impl Model {
    /// Gets every part from `vb`; names as for [`ModelEnds`] and [`Stack`].
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new(config: &ModelConfig, vb: VarBuilder) -> candle_core::Result<Self> {
        let ends = ModelEnds::new(config, vb.clone())?;
        let device = vb.device().clone();
        Ok(Self {
            config: config.clone(),
            embeddings: ends.embeddings,
            body: Body::Plain {
                stack: Stack::new(&config.stack, vb)?,
                pooler: ends.pooler,
                head: ends.head,
            },
            device,
        })
    }

    /// Like [`Self::new`], packed for inference on the CPU; at most one block is in memory unpacked.
    ///
    /// # Errors
    /// As for [`Self::new`]; also if the parameters are f64, or not on the CPU.
    pub fn packed(
        config: &ModelConfig,
        vb: VarBuilder,
        precision: Precision,
    ) -> candle_core::Result<Self> {
        let ends = ModelEnds::new(config, vb.clone())?;
        let pack = |readout: &Readout| readout.with_layers(|linear| linear.pack(precision));
        Ok(Self {
            config: config.clone(),
            body: Body::Packed {
                pooler: ends.pooler.as_ref().map(pack).transpose()?,
                head: ends.head.as_ref().map(pack).transpose()?,
                stack: PackedStack::new(&config.stack, vb, precision)?,
            },
            embeddings: ends.embeddings,
            device: Device::Cpu,
        })
    }
}
