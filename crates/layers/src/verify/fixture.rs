//! A fixture: the safetensors file in which PyTorch recorded a run's input and all its stages.
//!
//! | name | content |
//! |---|---|
//! | `hidden_states` | input of block 0, `[batch, seq, d_model]`, if only the blocks ran |
//! | `attention_mask` | `[batch, seq]`, 1 = keep, 0 = drop |
//! | `input_ids`, `pixel_values`, `input_features` | a whole model's input; without `hidden_states` one of them is required |
//! | `token_type_ids`, `position_ids` | `[batch, seq]`, integers |
//! | `decoder_input_ids`, `decoder_attention_mask` | `[batch, decoder_seq]`: the decoder's input |
//! | `embeddings` | input of block 0, made by the model |
//! | `layers.{i}.feed_forward.input`, `.output` | the feed-forward's input and output, before dropout, residual and norm |
//! | `layers.{i}.output` | output of block `i` |
//! | `last_hidden_state` | output of the stack, after its final norm |
//! | `pooler_output`, `logits` | a whole model's pooler and head outputs |
//! | `encoder.…`, `encoder_last_hidden_state` | an encoder's stages; the others are then its decoder's |
//! | `vision.…` | a vision tower's stages; the others are then a text tower's |
//! | `text_embeds`, `image_embeds`, `logits_per_image` | text and image vectors, and their similarity |
//! | `grad_output` | gradient for the last block's output, or for a whole model's `last_hidden_state` |
//! | `grad_logits` | gradient for a whole model's logits, or else for the first among `logits_per_image`, `text_embeds`, `image_embeds` |
//! | `grads.hidden_states`, `grads.{name on disk}` | gradients |
//! | any floating-point tensor with `.f64` appended | the same, computed in double precision |

mod decode;
mod reader;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};

use self::decode::decode;
use self::reader::Reader;
use super::expected::Expected;
use super::kept_rows::KeptRows;
use super::names;
use crate::error::{Error, Result};

/// A run recorded by PyTorch, read into CPU tensors and validated.
/// Pass it to [`Comparer::verify`](crate::verify::Comparer::verify).
#[derive(Clone, Debug)]
pub struct Fixture {
    path: PathBuf,
    metadata: BTreeMap<String, String>,
    tensors: HashMap<String, Tensor>,
    hidden_states: Option<Tensor>,
    attention_mask: Option<(Tensor, KeptRows)>,
    stages: Vec<(String, Expected)>,
    gradients: Vec<(String, Expected)>,
    unknown: Vec<String>,
}

impl Fixture {
    /// Reads and validates a fixture.
    ///
    /// # Errors
    /// - [`Error::Io`], [`Error::NotSafetensors`]: the file cannot be read or is in another format.
    /// - [`Error::MissingTensor`]: the file has no input for a run.
    /// - [`Error::UnsupportedDType`]: a tensor that must have a floating-point dtype has another one.
    /// - [`Error::InvalidFixture`]: a tensor is empty, has the wrong shape, or is otherwise invalid, such as a mask
    ///   that drops every row.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref(), |_, _| true)
    }

    /// Reads and validates only a run's inputs, and ignores everything else in the file.
    ///
    /// # Errors
    /// Same as for [`Self::open`], for the inputs.
    pub fn open_input(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref(), names::starts_a_run)
    }

    fn read(path: &Path, is_wanted: fn(&str, names::Start) -> bool) -> Result<Self> {
        let found = std::fs::metadata(path).map_err(|source| Error::io(path, "read", source))?;
        // A device or a pipe has no end.
        if !found.is_file() {
            return Err(Error::irregular(path));
        }
        let bytes = std::fs::read(path).map_err(|source| Error::io(path, "read", source))?;
        let (metadata, names, tensors) = decode(path, &bytes, is_wanted)?;
        let reader = Reader {
            path,
            names,
            tensors,
        };

        let hidden_states = reader.hidden_states()?;
        let attention_mask = reader.attention_mask(hidden_states.as_ref())?;
        reader.check_input_ids(hidden_states.as_ref())?;
        if let Some(hidden_states) = &hidden_states {
            reader.check_grad_output(hidden_states)?;
        }
        reader.check_no_orphan_twins()?;
        let kept = attention_mask.as_ref().map(|(_, rows)| rows);
        let (stages, gradients) = reader.results(kept)?;

        Ok(Self {
            path: path.to_path_buf(),
            metadata,
            hidden_states,
            attention_mask,
            stages,
            gradients,
            unknown: reader.unknown(),
            tensors: reader.tensors,
        })
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the metadata in the file's header: family, versions, seed and the exporter's other entries.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Returns the input to block 0, `[batch, seq, d_model]`, in the file's dtype; `None` for a whole model's run.
    pub fn hidden_states(&self) -> Option<&Tensor> {
        self.hidden_states.as_ref()
    }

    /// Returns the dtype in which PyTorch computed.
    pub fn dtype(&self) -> DType {
        let first = self.stages.first().map(|(_, expected)| expected.value());
        let of = self.hidden_states.as_ref().or(first);
        of.map_or(DType::F32, Tensor::dtype)
    }

    /// Returns the attention mask as `u8` `[batch, seq]`, 1 = keep, 0 = drop, converted from any dtype in the file.
    pub fn attention_mask(&self) -> Option<&Tensor> {
        self.attention_mask.as_ref().map(|(mask, _)| mask)
    }

    /// Returns the rows to compare; `None` without a mask, for all rows.
    pub fn kept_rows(&self) -> Option<&KeptRows> {
        self.attention_mask.as_ref().map(|(_, rows)| rows)
    }

    /// Returns the input's token ids, `[batch, seq]`, if recorded.
    pub fn input_ids(&self) -> Option<&Tensor> {
        self.tensor("input_ids")
    }

    /// Returns the gradient for the last block's output, `[batch, seq, d_model]`, which starts the backward pass.
    pub fn grad_output(&self) -> Option<&Tensor> {
        self.tensor("grad_output")
    }

    /// Returns any tensor in the file by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Returns the forward pass's results with their names, in execution order.
    pub fn stages(&self) -> &[(String, Expected)] {
        &self.stages
    }

    /// Returns the gradients with their names (`grads.…`): parameter gradients sorted by name, with digits compared
    /// by value, then the input's gradient.
    pub fn gradients(&self) -> &[(String, Expected)] {
        &self.gradients
    }

    /// Returns the names that are neither an input, a stage, a gradient nor a twin. They are not compared or, of
    /// [`Self::open_input`], not read.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

type Tensors = HashMap<String, Tensor>;
type NamedExpected = Vec<(String, Expected)>;
