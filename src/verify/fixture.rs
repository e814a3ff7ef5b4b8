//! A fixture: the safetensors file in which PyTorch recorded the input of a run and all its stages.
//!
//! | name | what it is |
//! |---|---|
//! | `hidden_states` | input of block 0, `[batch, seq, d_model]`, if only the blocks ran |
//! | `attention_mask` | `[batch, seq]`, 1 = keep, 0 = drop |
//! | `input_ids`, `pixel_values`, `input_features` | what a whole model read; without `hidden_states` one of them is required |
//! | `token_type_ids`, `position_ids` | `[batch, seq]`, integers |
//! | `embeddings` | input of block 0, made by the model |
//! | `layers.{i}.feed_forward.input`, `.output` | of the feed-forward alone: before dropout, residual and norm |
//! | `layers.{i}.output` | output of block `i` |
//! | `last_hidden_state` | output of the stack, after its final norm |
//! | `pooler_output`, `logits` | what a whole model's pooler and head made of it |
//! | `grad_output` | gradient of the last block's output, or of a whole model's `last_hidden_state` |
//! | `grad_logits` | gradient of a whole model's logits |
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

/// A run that PyTorch computed, read into CPU tensors and validated.
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
    /// - [`Error::MissingTensor`]: there is nothing to start from.
    /// - [`Error::UnsupportedDType`]: a tensor that must be of a floating-point dtype is not.
    /// - [`Error::InvalidFixture`]: a tensor is empty, of the wrong shape, or otherwise invalid, such as a
    ///   mask that drops every row.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref(), |_, _| true)
    }

    /// Reads and validates only what a run starts from; everything else in the file is ignored, whatever it is.
    ///
    /// # Errors
    /// As [`Self::open`], about the inputs.
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

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata in the header of the file: family, versions, seed and whatever else the exporter wrote.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The input of block 0, `[batch, seq, d_model]`, in the dtype of the file; `None` if a whole model ran.
    pub fn hidden_states(&self) -> Option<&Tensor> {
        self.hidden_states.as_ref()
    }

    /// The dtype in which PyTorch computed.
    pub fn dtype(&self) -> DType {
        let first = self.stages.first().map(|(_, expected)| expected.value());
        let of = self.hidden_states.as_ref().or(first);
        of.map_or(DType::F32, Tensor::dtype)
    }

    /// The attention mask as `u8` `[batch, seq]`, 1 = keep, 0 = drop, whatever its dtype in the file.
    pub fn attention_mask(&self) -> Option<&Tensor> {
        self.attention_mask.as_ref().map(|(mask, _)| mask)
    }

    /// The rows that are compared; `None` without a mask, when all are.
    pub fn kept_rows(&self) -> Option<&KeptRows> {
        self.attention_mask.as_ref().map(|(_, rows)| rows)
    }

    /// The token ids of the input, `[batch, seq]`, if recorded.
    pub fn input_ids(&self) -> Option<&Tensor> {
        self.tensor("input_ids")
    }

    /// The gradient of the last block's output, `[batch, seq, d_model]`, from which the backward pass starts.
    pub fn grad_output(&self) -> Option<&Tensor> {
        self.tensor("grad_output")
    }

    /// Any tensor of the file by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The results of the forward pass with their names, in order of execution.
    pub fn stages(&self) -> &[(String, Expected)] {
        &self.stages
    }

    /// The gradients with their names (`grads.…`): those of parameters sorted by name, with numbers by value,
    /// and last that of the input.
    pub fn gradients(&self) -> &[(String, Expected)] {
        &self.gradients
    }

    /// The names that are neither an input, a stage, a gradient nor a twin; they are not compared.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

type Tensors = HashMap<String, Tensor>;
type NamedExpected = Vec<(String, Expected)>;
