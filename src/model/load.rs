//! Models from checkpoints.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;

use super::Model;
use super::body::Body;
use crate::checkpoint::{Checkpoint, Loader};
use crate::config::{ModelConfig, Precision};
use crate::error::Result;
use crate::layers::{ModelEnds, Stack};
use crate::packed::PackedStack;

impl Model {
    /// Makes a model whose parameters come from `vb`: under `embeddings`, `blocks`, `pooler`, and the head's task.
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
}

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
        self.typed(|vb| {
            let ends = ModelEnds::new(config, vb.clone())?;
            let pack = |readout: &crate::layers::Readout| {
                readout.with_layers(|linear| linear.pack(precision))
            };
            Ok(Model {
                config: config.clone(),
                body: Body::Packed {
                    pooler: ends.pooler.as_ref().map(pack).transpose()?,
                    head: ends.head.as_ref().map(pack).transpose()?,
                    stack: PackedStack::new(&config.stack, vb, precision)?,
                },
                embeddings: ends.embeddings,
                device: Device::Cpu,
            })
        })
    }
}
