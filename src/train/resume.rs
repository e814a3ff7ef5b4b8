//! Saves the state of a training run, and resumes from it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::str::FromStr;

use candle_core::{Tensor, Var};

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::write::{Overwrite, write_tensors};
use crate::error::{Error, Result};
use crate::ops::{self, Moments, RankOf, moment_dtype};
use crate::train::AdamW;

/// The metadata key that distinguishes these files from other safetensors files.
const FORMAT: (&str, &str) = ("training_state", "1");
/// The key for the number of updates.
const N_UPDATES: &str = "n_updates";
/// The keys for the rank whose parts of parameters are in the file, and for the number of ranks.
const RANK: [&str; 2] = ["rank", "n_ranks"];
/// The prefix for the caller's keys.
const NOTE: &str = "note.";

const PARTS: [&str; 3] = ["value", "first_moment", "second_moment"];

impl AdamW {
    /// Writes the parameters, moments and step counts to a safetensors file, atomically, together with your own `notes` (the
    /// epoch, [`DropoutSource::position`](crate::DropoutSource::position) ...). The hyperparameters and groups are not in
    /// the file: restore it to an optimizer that was made with the same.
    ///
    /// An optimizer on one rank of a [`TensorParallel`](crate::checkpoint::TensorParallel) model writes the rank, too, and
    /// replaces only a file that the same rank wrote: each rank needs a path of its own.
    ///
    /// # Errors
    /// If the file cannot be written, or is not this rank's.
    pub fn save(&self, path: impl AsRef<Path>, notes: &BTreeMap<String, String>) -> Result<()> {
        let path = path.as_ref();
        let overwrite = self.overwrite(path)?;
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
        if let Some(RankOf { rank, size }) = self.rank {
            for (key, value) in RANK.into_iter().zip([rank, size]) {
                metadata.insert(key.to_string(), value.to_string());
            }
        }
        let written = write_tensors((path, overwrite), &tensors, Some(metadata));
        // Another rank may have written to the same path meanwhile.
        written.map_err(|error| self.overwrite(path).err().unwrap_or(error))
    }

    /// Returns whether the state may replace a file at the path. A rank's state may only replace that of the same rank.
    ///
    /// # Errors
    /// If this is a rank's optimizer, and the path has a file that this rank did not write.
    fn overwrite(&self, path: &Path) -> Result<Overwrite> {
        let Some(own) = self.rank else {
            return Ok(Overwrite::Allowed);
        };
        if !path.is_file() {
            return Ok(Overwrite::Refused);
        }
        let opened = TensorFiles::open(path).and_then(|files| StateFile { files, path }.rank());
        let found = match opened {
            Ok(Some(rank)) if rank == own => return Ok(Overwrite::Allowed),
            Ok(Some(rank)) => format!("the state of {rank}"),
            Ok(None) | Err(_) => "no state of a rank".to_string(),
        };
        let reason = format!(
            "it holds {found}, and {own} would replace it; give each rank a path of its own, such as state-{}.safetensors, or \
             remove the file",
            own.rank
        );
        Err(Error::input(path.display().to_string(), reason))
    }

    /// Restores the parameters, moments and step counts from a file that [`Self::save`] wrote, and returns its notes.
    /// The training then continues with the same bits as if it had never stopped.
    ///
    /// # Errors
    /// If the file is of another kind, another rank wrote it, or it has other parameters, shapes or dtypes than this
    /// optimizer; the message names the first. In each case nothing has changed.
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
        let rank = file.rank()?;
        if rank != self.rank {
            let [found, expected] = [rank, self.rank].map(|rank| match rank {
                Some(rank) => format!("the state of {rank}"),
                None => "the state of whole parameters".to_string(),
            });
            return Err(file.error(format!(
                "it holds {found}, expected {expected}; restore each rank from the file that it saved"
            )));
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

    fn count<T: FromStr>(&self, key: &str) -> Result<T> {
        let value = self.files.metadata().get(key);
        let count = value.and_then(|value| value.parse().ok());
        count.ok_or_else(|| {
            self.error(format!(
                "its metadata has no count under {key}; give a file as AdamW::save wrote it"
            ))
        })
    }

    /// Returns the rank whose parts of parameters the file holds, or `None` for whole parameters.
    fn rank(&self) -> Result<Option<RankOf>> {
        if !RANK
            .iter()
            .any(|key| self.files.metadata().contains_key(*key))
        {
            return Ok(None);
        }
        let [rank, size] = RANK.map(|key| self.count(key));
        Ok(Some(RankOf {
            rank: rank?,
            size: size?,
        }))
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
