//! Saving a model that was trained from scratch, or its blocks, under the names and in the layouts of its family.
//!
//! Where a role has several names, the one that the family lists for new checkpoints is used, or else the first; where
//! a role is only found as a part of a fused tensor, the roles beside it go to the same tensor.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use candle_core::Tensor;

use crate::checkpoint::disk::assemble;
use crate::checkpoint::ends;
use crate::checkpoint::plan::{Place, Request, candidates, count_items, parameters};
use crate::checkpoint::save::{CONFIG, Target, by_role, write_file};
use crate::checkpoint::scheme::matches;
use crate::checkpoint::source::Source;
use crate::checkpoint::write::{Record, dtype_on_disk, write_tensor};
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

    /// Where every parameter of the blocks goes beside the `others`, in the order of the layers; and of what surrounds
    /// them, if there is anything of that in `given`.
    fn sources(
        &self,
        names: &[&str],
        given: &[(String, Tensor)],
        others: &[(String, Tensor)],
    ) -> Result<Vec<Source>> {
        let mut ends = match &self.model {
            Ok(model) => ends::parameters(model)?,
            Err(_) => vec![],
        };
        let is_given = |role: &str| given.iter().any(|(known, _)| known == role);
        let is_whole = ends.iter().any(|(role, _)| is_given(role));
        if !is_whole {
            ends.clear();
        }
        let prefix = self.prefix(names, is_whole, others);
        let is_new = |source: &Source| names.iter().any(|name| matches(name, &source.name));
        let mut places = Vec::new();
        let blocks = parameters(&self.config)?.into_iter();
        let blocks = blocks.map(|(role, shape)| (Place::of(&role), role, shape));
        let ends = ends.into_iter();
        let ends = ends.map(|(role, shape)| (Place::Ends, role, shape));
        for (place, role, shape) in blocks.chain(ends) {
            let request = Request {
                role: &role,
                shape: &shape,
                place,
            };
            let mut found = candidates(&self.table, &self.config, prefix, &request)?;
            found.sort_by_key(|source| !is_new(source));
            places.push(found);
        }
        // Tensors that a role must share because it has no other place.
        let forced: HashSet<String> = places
            .iter()
            .filter(|found| found.len() == 1 && found[0].features.is_some())
            .map(|found| found[0].name.clone())
            .collect();
        let chosen = |found: Vec<Source>| {
            let beside = found
                .iter()
                .position(|source| forced.contains(&source.name));
            found.into_iter().nth(beside.unwrap_or(0))
        };
        let mut sources: Vec<Source> = places.into_iter().filter_map(chosen).collect();
        for source in &sources {
            source.check_part(&self.family)?;
        }
        count_items(&mut sources);
        Ok(sources)
    }

    /// What stands before the names of the others, such as `roberta.` of `roberta.embeddings…`, or of a whole model with a
    /// head; the base model's, which mostly is nothing, where there are none.
    fn prefix(&self, names: &[&str], is_whole: bool, others: &[(String, Tensor)]) -> &str {
        let prefixes = &self.table.prefixes;
        let has_head = matches!(&self.model, Ok(model) if model.head.is_some());
        if is_whole && has_head {
            let is_new = |prefix: &&String| names.iter().any(|n| n.starts_with(prefix.as_str()));
            let mut headed = prefixes.iter().filter(|prefix| !prefix.is_empty());
            let found = headed.clone().find(is_new).or(headed.next());
            return found.map_or("", String::as_str);
        }
        let has_others = |prefix: &&String| {
            let of_others = |(name, _): &(String, Tensor)| name.starts_with(prefix.as_str());
            !prefix.is_empty() && others.iter().any(of_others)
        };
        let found = prefixes.iter().find(has_others);
        let bare = prefixes.iter().find(|prefix| prefix.is_empty());
        found
            .or(bare)
            .or(prefixes.first())
            .map_or("", String::as_str)
    }
}

impl SaveOptions {
    /// Writes a model of the given architecture, or its blocks, to `directory`: its `config.json` as it was read, and one or
    /// more files with the parameters (by role, as from [`Fresh::parameters`](crate::train::Fresh::parameters)) under the
    /// names and in the layouts of the family, and with `others` under the names given.
    ///
    /// Tensors keep their dtypes. A whole model has the names of the class in `architectures`. Of blocks alone, the names
    /// get the prefix of the `others`: beside `transformer.wte.weight` they are `transformer.h.0…`; beside `wte.weight`,
    /// or without others, `h.0…`.
    ///
    /// # Errors
    /// If a parameter of the blocks is missing, or of the whole model if any outside the blocks is given; if one is given twice, unknown or of the wrong shape; if a name among `others` is
    /// given twice or belongs to a block; if roles that share a tensor have different dtypes; if the architecture was
    /// not read from a `config.json`; if the directory is not empty; or if files cannot be written. No file is left behind
    /// then.
    pub fn save_new(
        &self,
        architecture: &Architecture,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
        others: &[(String, Tensor)],
    ) -> Result<()> {
        let Some((json, names)) = &architecture.json else {
            let reason =
                "the blocks were given without one, and transformers cannot read files without it";
            return Err(Error::input(CONFIG, reason));
        };
        let given: Vec<(String, Tensor)> = parameters
            .into_iter()
            .map(|(role, tensor)| (role.as_ref().to_string(), tensor.as_tensor().clone()))
            .collect();
        let sources = architecture.sources(names, &given, others)?;
        let by_role = by_role(&sources, given.iter().map(|(role, tensor)| (role, tensor)))?;
        if let Some(source) = sources.iter().find(|s| !by_role.contains_key(&s.role)) {
            let reason = "not given; a new checkpoint needs every parameter of its blocks, and of what surrounds them all or none";
            return Err(Error::input(&source.role, reason));
        }
        let mut on_disk: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
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
            records.push(Record {
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
                    true => "it is the name of a block's parameter; give that by its role alone",
                    false => "two tensors have this name; rename one",
                };
                return Err(Error::input(name, reason));
            }
            records.push(Record {
                name: name.clone(),
                dtype: dtype_on_disk(name, tensor.dtype())?,
                shape: tensor.dims().to_vec(),
            });
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let target = Target::new(directory.as_ref(), self.existing)?;
        let staging = target.staging();
        self.write_weights(staging, records, HashMap::new(), |name, write| {
            match (on_disk.get(name), added.get(name)) {
                (Some(shared), _) => write_tensor(name, &assemble(shared, &by_role)?, write),
                (_, Some(tensor)) => write_tensor(name, tensor, write),
                _ => Ok(()),
            }
        })?;
        write_file(&staging.join(CONFIG), json)?;
        target.commit()
    }
}
