//! A fixture: the safetensors file in which PyTorch recorded a run's input and its every stage.
//!
//! | name | what it is |
//! |---|---|
//! | `hidden_states` | input of block 0, `[batch, seq, d_model]`; the only tensor that must be there |
//! | `attention_mask` | `[batch, seq]`, 1 = keep, 0 = drop |
//! | `input_ids` | `[batch, seq]`, integers |
//! | `layers.{i}.feed_forward.input`, `.output` | around the MLP alone: before dropout, residual and norm |
//! | `layers.{i}.output` | output of block `i` |
//! | `last_hidden_state` | output of the stack, behind its last norm |
//! | `grad_output` | cotangent of the last block's output, `[batch, seq, d_model]` |
//! | `grads.hidden_states`, `grads.{name on disk}` | gradients |
//! | any of the floating ones with `.f64` added | the same, computed in double precision |

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::{Error, Result};

use super::expected::Expected;
use super::kept_rows::KeptRows;
use super::names::{self, Stage};

/// A run as PyTorch computed it, read into CPU tensors and checked.
#[derive(Clone, Debug)]
pub struct Fixture {
    path: PathBuf,
    metadata: BTreeMap<String, String>,
    tensors: HashMap<String, Tensor>,
    hidden_states: Tensor,
    attention_mask: Option<(Tensor, KeptRows)>,
    stages: Vec<(String, Expected)>,
    gradients: Vec<(String, Expected)>,
    unknown: Vec<String>,
}

impl Fixture {
    /// Reads and checks a fixture.
    ///
    /// # Errors
    /// - [`Error::Io`], [`Error::NotSafetensors`]: the file cannot be read, or is something else.
    /// - [`Error::MissingTensor`]: there is no `hidden_states`.
    /// - [`Error::UnsupportedDType`]: a tensor that must be floating is not.
    /// - [`Error::InvalidFixture`]: a tensor is empty, of the wrong shape, or makes no sense, such as a
    ///   mask that drops every row.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let found = std::fs::metadata(path).map_err(|source| Error::io(path, "read", source))?;
        // A device or a pipe has no end.
        if !found.is_file() {
            return Err(Error::NotSafetensors {
                path: path.to_path_buf(),
                reason: "it is not a regular file".to_string(),
            });
        }
        let bytes = std::fs::read(path).map_err(|source| Error::io(path, "read", source))?;
        let (metadata, tensors) = decode(path, &bytes)?;
        let reader = Reader { path, tensors };

        let hidden_states = reader.hidden_states()?;
        let attention_mask = reader.attention_mask(&hidden_states)?;
        reader.check_input_ids(&hidden_states)?;
        reader.check_grad_output(&hidden_states)?;
        reader.check_no_orphan_twins()?;
        let (stages, gradients) = reader.results()?;

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

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Family, versions, seed: whatever the exporter wrote into the file's header.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The input of block 0, `[batch, seq, d_model]`, in the type it is stored in.
    pub fn hidden_states(&self) -> &Tensor {
        &self.hidden_states
    }

    /// Which tokens are real: `u8` `[batch, seq]`, 1 = keep, 0 = drop, whatever type it is stored in.
    pub fn attention_mask(&self) -> Option<&Tensor> {
        self.attention_mask.as_ref().map(|(mask, _)| mask)
    }

    /// The rows that take part in comparisons; `None` without a mask: all do.
    pub fn kept_rows(&self) -> Option<&KeptRows> {
        self.attention_mask.as_ref().map(|(_, rows)| rows)
    }

    /// The tokens that the input came from, `[batch, seq]`.
    pub fn input_ids(&self) -> Option<&Tensor> {
        self.tensor("input_ids")
    }

    /// The cotangent of the last block's output, `[batch, seq, d_model]`: the start of a backward run.
    pub fn grad_output(&self) -> Option<&Tensor> {
        self.tensor("grad_output")
    }

    /// Any tensor of the file, by its name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The forward results with their names, in order of execution.
    pub fn stages(&self) -> &[(String, Expected)] {
        &self.stages
    }

    /// The gradients with their names (`grads.…`): parameters in the order of their names, numbers
    /// within names by value, and the input's last.
    pub fn gradients(&self) -> &[(String, Expected)] {
        &self.gradients
    }

    /// Names that are neither an input, a stage, a gradient nor a twin; nothing is compared with them.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

type Tensors = HashMap<String, Tensor>;
type NamedExpected = Vec<(String, Expected)>;

fn decode(path: &Path, bytes: &[u8]) -> Result<(BTreeMap<String, String>, Tensors)> {
    let malformed = |error: safetensors::SafeTensorError| Error::NotSafetensors {
        path: path.to_path_buf(),
        reason: error.to_string(),
    };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(malformed)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let file = SafeTensors::deserialize(bytes).map_err(malformed)?;
    let mut tensors = Tensors::new();
    for (name, view) in file.iter() {
        tensors.insert(name.to_string(), load(path, name, &view)?);
    }
    Ok((metadata.into_iter().collect(), tensors))
}

fn load(path: &Path, name: &str, view: &TensorView) -> Result<Tensor> {
    // Before candle sees it: a shape with a zero may have other sizes whose product overflows.
    if view.shape().contains(&0) {
        let reason = match (name, view.shape()) {
            ("hidden_states", [0, ..]) => {
                format!("has an empty batch (shape {:?})", view.shape())
            }
            ("hidden_states", [_, 0, ..]) => {
                format!("has sequences of length zero (shape {:?})", view.shape())
            }
            (_, shape) => format!("is empty (shape {shape:?})"),
        };
        return Err(invalid(
            path,
            name,
            format!("{reason}; every size must be at least 1"),
        ));
    }
    match view.dtype() {
        // candle has no boolean type.
        Dtype::BOOL => Ok(Tensor::from_raw_buffer(
            view.data(),
            DType::U8,
            view.shape(),
            &Device::Cpu,
        )?),
        Dtype::U8
        | Dtype::U16
        | Dtype::U32
        | Dtype::I16
        | Dtype::I32
        | Dtype::I64
        | Dtype::BF16
        | Dtype::F16
        | Dtype::F32
        | Dtype::F64 => Ok(view.load(&Device::Cpu)?),
        other => Err(invalid(
            path,
            name,
            format!(
                "is stored as {other}, expected F32, F16, BF16, F64, BOOL, U8 to U32 or I16 to I64"
            ),
        )),
    }
}

fn invalid(path: &Path, tensor: &str, reason: impl Into<String>) -> Error {
    Error::InvalidFixture {
        path: path.to_path_buf(),
        tensor: tensor.to_string(),
        reason: reason.into(),
    }
}

/// The tensors of a file on their way to a [`Fixture`].
struct Reader<'a> {
    path: &'a Path,
    tensors: Tensors,
}

impl Reader<'_> {
    fn hidden_states(&self) -> Result<Tensor> {
        let Some(tensor) = self.tensors.get("hidden_states") else {
            let mut similar: Vec<String> = self.tensors.keys().cloned().collect();
            similar.retain(|name| name.contains("hidden") && !name.ends_with(names::TWIN));
            similar.sort();
            return Err(Error::MissingTensor {
                path: self.path.to_path_buf(),
                role: "the input of block 0".to_string(),
                tried: vec!["hidden_states".to_string()],
                similar,
            });
        };
        self.check_floating("hidden_states", tensor)?;
        if tensor.rank() != 3 {
            return Err(self.invalid(
                "hidden_states",
                format!(
                    "has shape {:?}, expected [batch, seq, d_model]",
                    tensor.dims()
                ),
            ));
        }
        Ok(tensor.clone())
    }

    fn attention_mask(&self, hidden_states: &Tensor) -> Result<Option<(Tensor, KeptRows)>> {
        let name = "attention_mask";
        let Some(mask) = self.tensors.get(name) else {
            return Ok(None);
        };
        self.check_dims(name, mask, &hidden_states.dims()[..2])?;
        let rows = KeptRows::from_mask(mask).map_err(|error| self.invalid(name, reason(error)))?;
        if rows.count() == 0 {
            return Err(self.invalid(
                name,
                "drops every row, so that nothing could be compared; 1 means keep, 0 means drop",
            ));
        }
        Ok(Some((rows.to_mask()?, rows)))
    }

    fn check_input_ids(&self, hidden_states: &Tensor) -> Result<()> {
        let Some(ids) = self.tensors.get("input_ids") else {
            return Ok(());
        };
        if ids.dtype().is_float() {
            return Err(self.invalid(
                "input_ids",
                format!("is stored as {:?}, expected integers", ids.dtype()),
            ));
        }
        self.check_dims("input_ids", ids, &hidden_states.dims()[..2])
    }

    fn check_grad_output(&self, hidden_states: &Tensor) -> Result<()> {
        let Some(cotangent) = self.tensors.get("grad_output") else {
            return Ok(());
        };
        self.check_floating("grad_output", cotangent)?;
        self.check_dims("grad_output", cotangent, hidden_states.dims())
    }

    fn check_no_orphan_twins(&self) -> Result<()> {
        let mut names: Vec<&String> = self.tensors.keys().collect();
        names.sort();
        for name in names {
            if let Some(base) = name.strip_suffix(names::TWIN)
                && !self.tensors.contains_key(base)
            {
                return Err(self.invalid(
                    name,
                    format!("is the f64 twin of {base}, which the file does not hold; export both"),
                ));
            }
        }
        Ok(())
    }

    /// The stages in order of execution, and the gradients.
    fn results(&self) -> Result<(NamedExpected, NamedExpected)> {
        let mut stages: Vec<(Stage, &String)> = Vec::new();
        let mut gradients: Vec<&String> = Vec::new();
        for name in self.base_names() {
            if let Some(stage) = Stage::parse(name) {
                stages.push((stage, name));
            } else if names::is_gradient(name) {
                gradients.push(name);
            }
        }
        stages.sort();
        // The input's gradient is the last that a backward run produces.
        gradients.sort_by(|a, b| {
            let is_last = |name: &str| name == names::INPUT_GRADIENT;
            is_last(a)
                .cmp(&is_last(b))
                .then_with(|| names::natural_order(a, b))
        });

        let n_layers = stages.iter().filter_map(|(stage, _)| stage.layer()).max();
        let n_layers = n_layers.map_or(1, |last| last.saturating_add(1));
        let mut expected_stages = Vec::new();
        for (stage, name) in stages {
            let depth = stage
                .layer()
                .map_or(n_layers, |layer| layer.saturating_add(1));
            expected_stages.push((name.clone(), self.expected(name, depth)?));
        }
        let mut expected_gradients = Vec::new();
        for name in gradients {
            let there_and_back = n_layers.saturating_mul(2);
            expected_gradients.push((name.clone(), self.expected(name, there_and_back)?));
        }
        Ok((expected_stages, expected_gradients))
    }

    fn expected(&self, name: &str, depth: usize) -> Result<Expected> {
        let value = &self.tensors[name];
        self.check_floating(name, value)?;
        let twin_name = format!("{name}{}", names::TWIN);
        let exact = self.tensors.get(&twin_name).cloned();
        let expected = Expected::new(value.clone(), exact)
            .map_err(|error| self.invalid(&twin_name, reason(error)))?;
        Ok(expected.with_depth(depth))
    }

    fn unknown(&self) -> Vec<String> {
        let is_known = |name: &str| {
            names::is_input(name) || names::is_gradient(name) || Stage::parse(name).is_some()
        };
        let mut unknown: Vec<String> = self
            .base_names()
            .filter(|name| !is_known(name))
            .cloned()
            .collect();
        unknown.sort_by(|a, b| names::natural_order(a, b));
        unknown
    }

    /// Every name that is not a twin's.
    fn base_names(&self) -> impl Iterator<Item = &String> {
        self.tensors
            .keys()
            .filter(|name| !name.ends_with(names::TWIN))
    }

    fn check_floating(&self, name: &str, tensor: &Tensor) -> Result<()> {
        if tensor.dtype().is_float() {
            return Ok(());
        }
        Err(Error::UnsupportedDType {
            path: self.path.to_path_buf(),
            tensor: name.to_string(),
            found: format!("{:?}", tensor.dtype()),
        })
    }

    fn check_dims(&self, name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
        if tensor.dims() == expected {
            return Ok(());
        }
        Err(self.invalid(
            name,
            format!(
                "has shape {:?}, expected {expected:?} to go with hidden_states",
                tensor.dims()
            ),
        ))
    }

    fn invalid(&self, tensor: &str, reason: impl Into<String>) -> Error {
        invalid(self.path, tensor, reason)
    }
}

/// What is wrong, without the name of the input, which the caller knows better.
fn reason(error: Error) -> String {
    match error {
        Error::InvalidInput { reason, .. } => reason,
        other => other.to_string(),
    }
}
