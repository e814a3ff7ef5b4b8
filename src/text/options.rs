//! Options for loading a model that reads texts.

mod scores;
mod tasks;
mod vectors;

use candle_core::{DType, Device};

use super::encoder::Encoder;
use super::{FunctionToApply, Pooling, TruncationStrategy};
use crate::config::{HeadTask, Precision};
use crate::error::{Error, Result, setters};
use crate::text::encoder::folder::Folder;
use crate::text::encoder::reading::{LengthLimit, TextReading};
use crate::{Checkpoint, CheckpointOptions, Loader, Weights};

/// Options for opening a [`TextEmbedder`](super::TextEmbedder), a classifier, a [`TextRanker`](super::TextRanker), a
/// [`MaskFiller`](super::MaskFiller) or a [`TextGenerator`](super::TextGenerator). By default the files determine everything, and
/// the model is packed in f32 for inference on the CPU.
///
/// ```no_run
/// use candle_blocks::text::{Pooling, TextOptions};
/// let embedder = TextOptions::default()
///     .pooling([Pooling::Mean]) // of a plain encoder, whose files name none
///     .normalize(true)
///     .embedder("bert-base-uncased")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TextOptions {
    checkpoint: CheckpointOptions,
    form: WeightForm,
    max_length: Option<usize>,
    truncation: Option<TruncationStrategy>,
    pooling: Vec<Pooling>,
    normalize: Option<bool>,
    truncate_dim: Option<usize>,
    function_to_apply: Option<FunctionToApply>,
}

/// The only results that an option has an effect on.
#[derive(Clone, Copy, PartialEq)]
enum Belonging {
    Vectors,
    /// Scores of the model's own labels.
    Scores,
    /// Results for two texts.
    Pairs,
}

/// The form of the weights.
#[derive(Clone, Debug)]
pub(crate) enum WeightForm {
    Packed(Precision),
    Plain(DType, Device),
}

impl Default for WeightForm {
    fn default() -> Self {
        Self::Packed(Precision::F32)
    }
}

impl WeightForm {
    /// Returns the type of a model's input.
    #[cfg(feature = "media")]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Packed(_) => DType::F32,
            Self::Plain(dtype, _) => *dtype,
        }
    }

    /// Returns the device on which a model computes.
    #[cfg(feature = "media")]
    pub fn device(&self) -> Device {
        match self {
            Self::Packed(_) => Device::Cpu,
            Self::Plain(_, device) => device.clone(),
        }
    }

    /// Returns the form for a loader.
    pub fn weights(&self) -> Weights<'_> {
        match self {
            Self::Packed(precision) => Weights::Packed(*precision),
            Self::Plain(dtype, device) => Weights::Dense(*dtype, device),
        }
    }
}

impl TextOptions {
    setters! {
        /// Sets the options for opening the checkpoint.
        checkpoint(options: CheckpointOptions) => checkpoint = options;
        /// Packs the weights for the CPU in this precision.
        precision(precision: Precision) => form = WeightForm::Packed(precision);
        /// Truncates texts to this number of tokens, including special ones. A table of positions limits it, with a note.
        max_length(max_length: usize) => max_length = Some(max_length);
        /// Sets which text of a pair is truncated, overriding the files.
        truncation(truncation: TruncationStrategy) => truncation = Some(truncation);
        /// Sets whether vectors are normalized to length 1, overriding the files.
        normalize(normalize: bool) => normalize = Some(normalize);
        /// Keeps this number of a vector's features, the first, overriding the files: for models that were trained so
        /// (Matryoshka). They are truncated before [`Self::normalize`].
        truncate_dim(truncate_dim: usize) => truncate_dim = Some(truncate_dim);
        /// Sets the function that converts a classifier's logits to scores, overriding the files.
        function_to_apply(function: FunctionToApply) => function_to_apply = Some(function);
    }

    /// Loads the weights unpacked, in this dtype and on this device.
    pub fn device(mut self, dtype: DType, device: &Device) -> Self {
        self.form = WeightForm::Plain(dtype, device.clone());
        self
    }

    /// Sets the pooling, overriding the files; the results of several are concatenated.
    pub fn pooling(mut self, pooling: impl IntoIterator<Item = Pooling>) -> Self {
        self.pooling = pooling.into_iter().collect();
        self
    }

    /// Returns the model with its own head for a task.
    fn with_head(
        &self,
        folder: &Folder,
        checkpoint: &Checkpoint,
        reading: TextReading,
        task: HeadTask,
    ) -> Result<Encoder> {
        folder.check_head(checkpoint, task)?;
        match checkpoint.second_stack()? {
            // BART's head is the decoder's.
            Some(_) => {
                let whole = self.loader(checkpoint).seq2seq()?;
                Encoder::with_decoder(whole, checkpoint, reading)
            }
            None => Encoder::new(self.loader(checkpoint).model()?, checkpoint, reading),
        }
    }

    /// Refuses options that only other results have.
    fn refuse(&self, belonging: &[Belonging], result: &str) -> Result<()> {
        use Belonging::{Pairs, Scores, Vectors};
        let all = [
            (Vectors, "pooling", !self.pooling.is_empty()),
            (Vectors, "normalize", self.normalize.is_some()),
            (Vectors, "truncate_dim", self.truncate_dim.is_some()),
            (
                Scores,
                "function_to_apply",
                self.function_to_apply.is_some(),
            ),
            (Pairs, "truncation", self.truncation.is_some()),
        ];
        let mut set = all.into_iter();
        let set = set.find(|(of, _, is_set)| *is_set && belonging.contains(of));
        set.map_or(Ok(()), |(_, name, _)| Err(without_effect(name, result)))
    }

    /// Overrides the files' limit on tokens, and how texts are truncated.
    fn shorten(&self, reading: &mut TextReading) {
        reading.limit = self.max_length.map_or(reading.limit, LengthLimit::Asked);
        reading.truncation = self.truncation.unwrap_or(reading.truncation);
    }

    /// Notes on matrices that are not packed as they are stored, if they should be.
    fn notes(&self, checkpoint: &Checkpoint) -> Vec<String> {
        let WeightForm::Packed(Precision::AsStored) = self.form else {
            return Vec::new();
        };
        let path = checkpoint.files().path().display();
        let types = checkpoint.report().not_as_stored.into_iter();
        types.map(|of_type| format!("{path}: {of_type}")).collect()
    }

    fn loader<'c>(&self, checkpoint: &'c Checkpoint) -> Loader<'c> {
        checkpoint.load(self.form.weights())
    }
}

/// Returns the error for an option that has no effect on a result.
pub(crate) fn without_effect(option: &str, result: &str) -> Error {
    let reason = format!("has no effect on {result}; leave it out");
    Error::input(option, reason)
}
