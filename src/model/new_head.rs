//! A pretrained model under a new head.

use std::path::Path;

use candle_core::{DType, Device};

use super::Model;
use crate::checkpoint::{Architecture, Checkpoint, Parameters, SaveOptions, Weights};
use crate::config::HeadTask;
use crate::error::Result;
use crate::train::Fresh;

/// A pretrained model under a new head. All parameters are variables, and those that the checkpoint lacks are drawn as
/// transformers draws them (`_init_weights` of its class).
///
/// ```no_run
/// use candle_blocks::candle_core::{DType, Device};
/// use candle_blocks::{Checkpoint, config::HeadTask, model::NewHead};
/// let pretrained = Checkpoint::open("all-MiniLM-L6-v2")?;
/// let (task, labels) = (HeadTask::SequenceClassification, ["praise", "complaint"]);
/// let classifier = NewHead::new(&pretrained, task, &labels, 42, DType::F32, &Device::Cpu)?;
/// assert_eq!(classifier.new_parameters().len(), 2); // weight and bias of the head
/// // ... train `classifier.parameters()` by the logits of `classifier.model()`, then:
/// classifier.save("classifier")?; // transformers loads it, and so does `TextClassifier`
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Debug)]
pub struct NewHead {
    model: Model,
    architecture: Architecture,
    fresh: Fresh,
    new: Vec<String>,
}

impl NewHead {
    /// Puts the head of a task with these labels on a checkpoint's blocks, in place of the head that it has. Without labels,
    /// the head has those of `config.json`. `seed` determines the new parameters ([`Fresh`]).
    ///
    /// # Errors
    /// If the family has no head for the task, `config.json` names no class, or the weights cannot be read.
    pub fn new(
        checkpoint: &Checkpoint,
        task: HeadTask,
        labels: &[impl AsRef<str>],
        seed: u64,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
        let architecture = checkpoint.architecture_with_head(task, &labels)?;
        let fresh = Fresh::new(architecture.initialization.clone(), seed, dtype, device);
        let model = Model::new(architecture.model_config()?, fresh.var_builder())?;
        let head = format!("{task}.");
        let pretrained = checkpoint.load(Weights::Dense(dtype, device));
        let new = fresh.copy_but(&pretrained, |role| role.starts_with(&head))?;
        Ok(Self {
            model,
            architecture,
            fresh,
            new,
        })
    }

    /// Returns the model, whose outputs have logits.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the model, for [`Lora::attach`](crate::train::Lora::attach) on its stack and for a source of dropout.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Returns the variables with their roles.
    pub fn parameters(&self) -> Parameters {
        self.fresh.parameters()
    }

    /// Returns the roles of the parameters that are not the checkpoint's: those of the head, and others that the files lack.
    pub fn new_parameters(&self) -> &[String] {
        &self.new
    }

    /// Returns the architecture, whose `config.json` names the class of the new head and its labels.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Saves the model to a new directory, with the files of the checkpoint's tokenizer and processor.
    ///
    /// # Errors
    /// The errors of [`SaveOptions::save_new`].
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<()> {
        let options = SaveOptions::default();
        options.save_new(&self.architecture, directory, self.parameters(), &[])
    }
}
