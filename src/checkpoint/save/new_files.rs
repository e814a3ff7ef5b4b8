//! Saves a model that was trained from scratch, or its blocks, with its family's names and layouts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;

use crate::checkpoint::loader::disk::assemble;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::save::companions::copy_of_the_input;
use crate::checkpoint::save::{CONFIG, SaveTarget, by_role, write_file};
use crate::checkpoint::write::{TensorRecord, dtype_on_disk, write_tensor};
use crate::checkpoint::{Architecture, AsTensor, SaveOptions};
use crate::error::{Error, Result};

impl Architecture {
    /// Saves a new checkpoint to `directory`; [`SaveOptions::save_new`] describes the arguments and has options.
    ///
    /// ```no_run
    /// use candle_blocks::{Architecture, candle_core::{DType, Device}, model::Model, train::Fresh};
    /// let architecture = Architecture::open("my-gpt2/config.json")?;
    /// let fresh = Fresh::new(architecture.initialization.clone(), 42, DType::F32, &Device::Cpu);
    /// let model = Model::new(architecture.model_config()?, fresh.var_builder())?;
    /// // ... train the model, then:
    /// architecture.save("trained", fresh.parameters(), &[])?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn save(
        &self,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
        others: &[(String, Tensor)],
    ) -> Result<()> {
        SaveOptions::default().save_new(self, directory, parameters, others)
    }
}

impl SaveOptions {
    /// Writes a model with the given architecture, or its blocks, to `directory`: its original `config.json`, and one or
    /// more files with the parameters. `parameters` (by role, as from
    /// [`Fresh::parameters`](crate::train::Fresh::parameters)) get the family's names and layouts; `others` keep the names
    /// given.
    ///
    /// Tensors keep their dtypes. A whole model has the names of the class in `architectures`. For blocks alone, `others`
    /// determine the prefix: beside `transformer.wte.weight` names are `transformer.h.0…`; beside `wte.weight`, or without
    /// others, `h.0…`.
    ///
    /// # Errors
    /// If a parameter of the blocks is missing, or a parameter of the whole model if any outside the blocks is given; if one
    /// is given twice, unknown or has the wrong shape; if a name among `others` is given twice or belongs to a block; if
    /// roles that share a tensor have different dtypes; if the architecture was not read from a `config.json`; if the
    /// directory is not empty; or if files cannot be written. Then no file remains.
    pub fn save_new(
        &self,
        architecture: &Architecture,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
        others: &[(String, Tensor)],
    ) -> Result<()> {
        let Some((json, _)) = &architecture.json else {
            let reason =
                "the blocks were given without one, and transformers cannot read files without it";
            return Err(Error::input(CONFIG, reason));
        };
        let given: Vec<(String, Tensor)> = parameters
            .into_iter()
            .map(|(role, tensor)| (role.as_ref().to_string(), tensor.as_tensor().clone()))
            .collect();
        let sources = architecture.sources(&given, others)?;
        let by_role = by_role(&sources, given.iter().map(|(role, tensor)| (role, tensor)))?;
        if let Some(source) = sources.iter().find(|s| !by_role.contains_key(&s.role)) {
            let reason = match source.is_trained {
                true => {
                    "missing; a new checkpoint needs every parameter of its blocks, and all or none of the others"
                }
                false => {
                    "missing; it is not a variable, because PyTorch does not train it: get it from \
                     `Loader::var_builder`"
                }
            };
            return Err(Error::input(&source.role, reason));
        }
        let mut on_disk: BTreeMap<&str, Vec<&StoredParameter>> = BTreeMap::new();
        for source in &sources {
            on_disk.entry(&source.name).or_default().push(source);
        }
        let mut records = Vec::new();
        for (name, shared) in &on_disk {
            let dtype = by_role[&shared[0].role].dtype();
            let other = shared.iter().find(|s| by_role[&s.role].dtype() != dtype);
            if let Some(other) = other {
                let reason = format!(
                    "it is {:?} and shares {name} with {}, which is {dtype:?}; convert one with to_dtype",
                    by_role[&other.role].dtype(),
                    shared[0].role
                );
                return Err(Error::input(&other.role, reason));
            }
            records.push(TensorRecord {
                name: name.to_string(),
                dtype: dtype_on_disk(name, dtype)?,
                shape: shared[0].disk_shape(),
            });
        }
        let mut added: HashMap<&str, &Tensor> = HashMap::new();
        for (name, tensor) in others {
            let is_taken = on_disk.contains_key(name.as_str());
            if is_taken || added.insert(name, tensor).is_some() {
                let reason = match is_taken {
                    true => {
                        "it is the name of a block's parameter; give that parameter by its role only"
                    }
                    false => "two tensors have this name; rename one",
                };
                return Err(Error::input(name, reason));
            }
            records.push(TensorRecord {
                name: name.clone(),
                dtype: dtype_on_disk(name, tensor.dtype())?,
                shape: tensor.dims().to_vec(),
            });
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let target = SaveTarget::new(directory.as_ref(), self.existing)?;
        let staging = target.staging();
        self.write_weights(staging, records, HashMap::new(), |name, write| {
            match (on_disk.get(name), added.get(name)) {
                (Some(shared), _) => write_tensor(name, &assemble(shared, &by_role)?, write),
                (_, Some(tensor)) => write_tensor(name, tensor, write),
                _ => Ok(()),
            }
        })?;
        write_file(&staging.join(CONFIG), json)?;
        if let Some(from) = &architecture.files {
            copy_of_the_input(from, staging)?;
        }
        target.commit()
    }
}
