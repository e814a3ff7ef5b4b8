//! Saves the state of a training run, and resumes from it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Tensor, Var};

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::write::write_safetensors;
use crate::error::{Error, Result};
use crate::ops::{self, Moments, moment_dtype};
use crate::train::AdamW;

/// The metadata key that distinguishes these files from other safetensors files.
const FORMAT: (&str, &str) = ("training_state", "1");
/// The key for the number of updates.
const N_UPDATES: &str = "n_updates";
/// The prefix for the caller's keys.
const NOTE: &str = "note.";

const PARTS: [&str; 3] = ["value", "first_moment", "second_moment"];

impl AdamW {
    /// Writes the parameters, moments and step counts to a safetensors file, atomically, together with your own `notes` (the
    /// epoch, [`DropoutSource::position`](crate::DropoutSource::position) ...).
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>, notes: &BTreeMap<String, String>) -> Result<()> {
        let mut tensors = Vec::new();
        let mut metadata = HashMap::new();
        for ((role, variable), state) in self.parameters.iter().zip(&self.states) {
            metadata.insert(format!("step.{role}"), state.step.to_string());
            let [first, second] = state.moments.to_tensors(variable)?;
            let values = [variable.as_detached_tensor(), first, second];
            for (part, tensor) in PARTS.into_iter().zip(values) {
                tensors.push((format!("{part}.{role}"), tensor));
            }
        }
        metadata.insert(FORMAT.0.to_string(), FORMAT.1.to_string());
        metadata.insert(N_UPDATES.to_string(), self.n_updates().to_string());
        let notes = notes.iter();
        metadata.extend(notes.map(|(key, value)| (format!("{NOTE}{key}"), value.clone())));
        write_safetensors(path, &tensors, Some(metadata))
    }

    /// Restores the parameters, moments and step counts from a file that [`Self::save`] wrote, and returns its notes.
    /// The training then continues with the same bits as if it had never stopped.
    ///
    /// # Errors
    /// If the file is of another kind, or has other parameters, shapes or dtypes than this optimizer; the message names the
    /// first. In each case nothing has changed.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<BTreeMap<String, String>> {
        let path = path.as_ref();
        let file = StateFile {
            files: TensorFiles::open(path)?,
            path,
        };
        if file.files.metadata().get(FORMAT.0).map(String::as_str) != Some(FORMAT.1) {
            return Err(file.error(
                "it is not a training state that this version can read; give a file that AdamW::save wrote",
            ));
        }
        let n_updates = file.count(N_UPDATES)?;
        let mut restored = Vec::with_capacity(self.parameters.len());
        for (role, variable) in &self.parameters {
            restored.push(file.read(role, variable)?);
        }
        let expected = PARTS.len() * self.parameters.len();
        if file.files.names().count() != expected {
            let is_known = |name: &&str| {
                let role = name.split_once('.').map_or("", |(_, role)| role);
                self.parameters.find(role).is_some()
            };
            let other = file.files.names().find(|name| !is_known(name));
            let other = other.unwrap_or("more tensors");
            return Err(file.error(format!(
                "it contains {other}, which this optimizer does not train; give it the same parameters"
            )));
        }
        let own = self.parameters.iter().zip(&mut self.states);
        for (((_, variable), state), (value, moments, step)) in own.zip(restored) {
            ops::store(variable, &value)?;
            (state.moments, state.step) = (moments, step);
        }
        self.n_updates = n_updates;
        let notes = file.files.metadata().iter();
        let note = |(key, value): (&String, &String)| {
            Some((key.strip_prefix(NOTE)?.to_string(), value.clone()))
        };
        Ok(notes.filter_map(note).collect())
    }
}

/// An opened file.
struct StateFile<'p> {
    files: TensorFiles,
    path: &'p Path,
}

impl StateFile<'_> {
    fn error(&self, reason: impl Into<String>) -> Error {
        Error::input(self.path.display().to_string(), reason)
    }

    fn count(&self, key: &str) -> Result<u64> {
        let value = self.files.metadata().get(key);
        let count = value.and_then(|value| value.parse().ok());
        count.ok_or_else(|| {
            self.error(format!(
                "its metadata has no count under {key}; give a file as AdamW::save wrote it"
            ))
        })
    }

    /// Reads one parameter's value, moments and count.
    fn read(&self, role: &str, variable: &Var) -> Result<(Tensor, Moments, u64)> {
        let moment = moment_dtype(variable.dtype());
        let dtypes = [variable.dtype(), moment, moment];
        let mut tensors = Vec::with_capacity(PARTS.len());
        for (part, dtype) in PARTS.into_iter().zip(dtypes) {
            let name = format!("{part}.{role}");
            if !self.files.contains(&name) {
                return Err(self.error(format!(
                    "it contains no {name}; it was saved by an optimizer with other parameters: resume with those"
                )));
            }
            let tensor = self.files.read(&name)?;
            if tensor.dims() != variable.dims() || tensor.dtype() != dtype {
                return Err(self.error(format!(
                    "{name} is {:?} {:?}, expected {dtype:?} {:?}; resume with the model that it was saved with",
                    tensor.dtype(),
                    tensor.dims(),
                    variable.dims()
                )));
            }
            tensors.push(tensor);
        }
        let value = tensors[0].to_device(variable.device())?;
        let moments = Moments::from_tensors(variable, &tensors[1], &tensors[2])?;
        Ok((value, moments, self.count(&format!("step.{role}"))?))
    }
}
