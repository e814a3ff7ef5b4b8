//! Merges adapters into a model: which tensors an adapter changes, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::Value;

use super::Adapter;
use super::config::AdapterConfig;
use super::merged::{Change, Factors, Placed, compute, n_rows};
use super::names::{ClassNames, TensorSlice};
use super::product_layout::ProductLayout;
use super::tensors::{AdapterTensors, Low};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::families;
use crate::checkpoint::files::{StoredTensor, TensorFiles};
use crate::checkpoint::plan::{Plan, names_on_disk};
use crate::checkpoint::report::AppliedAdapter;
use crate::checkpoint::scheme::Family;
use crate::config::{HeadTask, OutputWeight, StackConfig};
use crate::error::{Error, Result, listed};

/// A head that shares its weight with the token embeddings: both have one tensor in the files.
struct Tied {
    embeddings: String,
    outputs: Vec<String>,
}

/// The checkpoint before any adapter is applied.
pub(in crate::checkpoint) struct Base<'b> {
    pub(super) family: &'b Family,
    /// Families of all stacks that such files may hold.
    siblings: Vec<&'b Family>,
    config: &'b StackConfig,
    plan: &'b Plan,
}

impl<'b> Base<'b> {
    pub fn new(family: &'b Family, config: &'b StackConfig, plan: &'b Plan) -> Self {
        let is_sibling = |other: &&Family| {
            (other.model_types.iter()).any(|name| family.model_types.contains(name))
        };
        Self {
            family,
            siblings: families::all().filter(is_sibling).collect(),
            config,
            plan,
        }
    }

    fn tied(&self) -> Result<Option<Tied>> {
        let head = self
            .plan
            .model
            .as_ref()
            .and_then(|model| model.head.as_ref());
        let Some((task, output)) = head.and_then(|h| Some((h.task, h.readout.output.as_ref()?)))
        else {
            return Ok(None);
        };
        let embeddings = self.plan.source("embeddings.word.weight");
        match embeddings.filter(|_| output.weight == OutputWeight::Words) {
            None => Ok(None),
            Some(embeddings) => Ok(Some(Tied {
                embeddings: embeddings.name.clone(),
                outputs: self.outputs(task)?,
            })),
        }
    }

    /// Returns possible names for the output weight of a head.
    fn outputs(&self, task: HeadTask) -> Result<Vec<String>> {
        let role = format!("{task}.output.weight");
        if !self
            .family
            .end_rules
            .iter()
            .any(|rule| role.starts_with(&rule.role))
        {
            return Ok(vec![]);
        }
        names_on_disk(self.family, self.config, &role, &[])
    }
}

/// Adapters while they are being applied.
pub(super) struct Application<'b> {
    pub(super) base: &'b Base<'b>,
    pub(super) names: ClassNames<'b>,
    tied: Option<Tied>,
    pub(super) changes: BTreeMap<String, Vec<Placed>>,
    /// Tensors that earlier adapters have changed.
    before: BTreeSet<String>,
    /// The class of the last adapter that brought its own tensors, and its head's number of labels.
    class: Option<String>,
    n_labels: Option<usize>,
    brought: Vec<Brought>,
}

/// An adapter's tensor that the base model lacks.
pub(in crate::checkpoint) struct Brought {
    pub name: String,
    /// The error to report if the model class has no place for it either.
    pub error: Error,
}

/// Merges adapters, one after the other, into the tensors of `files`, and updates `json` to describe the resulting model.
///
/// # Errors
/// If the model has no place for an adapter's tensor, or the tensor does not fit there.
pub(in crate::checkpoint) fn apply(
    adapters: Vec<Adapter>,
    base: &Base,
    json: &mut ConfigJson,
    files: &mut TensorFiles,
) -> Result<(Vec<AppliedAdapter>, Vec<Brought>)> {
    if adapters.len() > 1
        && let Some(with_biases) = adapters.iter().find(|adapter| adapter.config.has_biases)
    {
        return Err(with_biases.config.json.error(
            &["bias"],
            "if several adapters are applied, none may change biases, as in PEFT; give this one alone",
        ));
    }
    let mut application = Application {
        names: ClassNames::new(base.family, &base.siblings, base.plan),
        tied: base.tied()?,
        base,
        changes: BTreeMap::new(),
        before: BTreeSet::new(),
        class: None,
        n_labels: None,
        brought: Vec::new(),
    };
    let mut applied = Vec::new();
    for adapter in adapters {
        let tensors = AdapterTensors::sorted(files.take_in(adapter.files))?;
        applied.push(AppliedAdapter {
            tensors: application.add(&adapter.config, tensors, files)?,
            unread: adapter.config.unread(),
            directory: adapter.directory,
            is_beside: adapter.is_beside,
        });
    }
    for (name, changes) in application.changes {
        if let Some(part) = files.as_part(&name) {
            let shape = part.info.shape.clone();
            files.add_computed(name, shape, &[&part.clone()], compute(part, changes));
        }
    }
    let mut value = json.value().clone();
    if let (Some(class), Some(keys)) = (application.class, value.as_object_mut()) {
        keys.insert("architectures".to_string(), vec![class].into());
    }
    if let (Some(n_labels), Some(keys)) = (application.n_labels, value.as_object_mut()) {
        let n_named = keys
            .get("id2label")
            .and_then(Value::as_object)
            .map(|names| names.len());
        keys.insert("num_labels".to_string(), n_labels.into());
        if n_named != Some(n_labels) {
            keys.remove("id2label");
        }
    }
    if value != *json.value() {
        *json = json.with_value(value, BTreeMap::new());
    }
    Ok((applied, application.brought))
}

impl Application<'_> {
    /// Adds an adapter, and returns the tensors that it changes, by their names on disk.
    fn add(
        &mut self,
        config: &AdapterConfig,
        tensors: AdapterTensors,
        files: &mut TensorFiles,
    ) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.check_all_linear(config)?;
        let (saved, in_place) = {
            let (mut saved, mut in_place) = (Vec::new(), Vec::new());
            for (name, part) in tensors.whole {
                match config.saves(&name)? {
                    true => saved.push((name, part)),
                    false => in_place.push((name, part)),
                }
            }
            (saved, in_place)
        };
        // Changes to the base model's own parameters come first: a parameter that shares the tensor must see them too.
        for (name, part) in in_place {
            let place = self
                .find(files, &name)
                .or_else(|| self.tied_embeddings(&name));
            names.push(self.replace(&name, place, part, config, files)?);
        }
        for (name, part) in saved {
            let place = self.names.find(files, &name);
            if let Some(place) = &place {
                self.untie(&place.name, config, files);
            }
            names.push(self.replace(&name, place, part, config, files)?);
        }
        for (module, low) in tensors.low {
            self.add_low(&module, low, config, files, &mut names)?;
        }
        names.sort();
        names.dedup();
        self.before.extend(names.iter().cloned());
        Ok(names)
    }

    pub(super) fn find(&self, files: &TensorFiles, name: &str) -> Option<TensorSlice> {
        self.names.find(files, name)
    }

    /// Returns the token embeddings, if `name` is the weight of a head tied to them.
    fn tied_embeddings(&self, name: &str) -> Option<TensorSlice> {
        let tied = self.tied.as_ref()?;
        let is_output = |output: &String| self.names.are_one(name, output);
        tied.outputs.iter().any(is_output).then(|| TensorSlice {
            name: tied.embeddings.clone(),
            features: None,
        })
    }

    /// Gives a tied head its own weight before the embeddings change.
    fn untie(&mut self, name: &str, config: &AdapterConfig, files: &mut TensorFiles) {
        let Some(tied) = self.tied.as_ref().filter(|tied| tied.embeddings == name) else {
            return;
        };
        let output = tied.outputs.first();
        if let (false, Some(output), Some(embeddings)) =
            (config.keeps_ties, output, files.info(name))
        {
            let embeddings = embeddings.clone();
            if !files.contains(output) {
                files.put(output.clone(), embeddings);
            }
        }
    }

    /// Replaces a whole tensor of the base model, or adds one that the base model lacks.
    fn replace(
        &mut self,
        name: &str,
        place: Option<TensorSlice>,
        part: StoredTensor,
        config: &AdapterConfig,
        files: &mut TensorFiles,
    ) -> Result<String> {
        let Some(TensorSlice {
            name: on_disk,
            features,
        }) = place
        else {
            self.note_head(name, &part, config)?;
            self.class = self.class.take().or(config.class()?);
            let reason = format!(
                "with {} of {}, neither it nor architectures in the model's config.json names a \
                 class that has {name}; set the task, or set the class with base_model_class \
                 in auto_mapping",
                config.json.at("task_type").unwrap_or(&Value::Null),
                part.info.path.display()
            );
            self.brought.push(Brought {
                name: name.to_string(),
                error: config.json.error(&["task_type"], reason),
            });
            files.put(name.to_string(), part.info);
            return Ok(name.to_string());
        };
        if self.before.contains(&on_disk) {
            return Err(part.error(format!(
                "it replaces {on_disk}, which another adapter changes; apply one of them"
            )));
        }
        let is_head = self.note_head(&on_disk, &part, config)?;
        let mut expected = files.find(&on_disk)?.shape.clone();
        if let (Some(_), Some(first)) = (&features, expected.first_mut()) {
            *first = n_rows(&[], features.as_ref());
        }
        // A head with a different number of labels replaces the base model's.
        if !is_head {
            part.check_shape(&expected)?;
        }
        match features {
            None => {
                files.put(on_disk.clone(), part.info);
            }
            features => {
                let change = Change::Whole { part };
                let changes = self.changes.entry(on_disk.clone()).or_default();
                changes.push(Placed { change, features });
            }
        }
        Ok(on_disk)
    }

    /// Returns whether a tensor belongs to a classification head, and records how many labels that head has.
    fn note_head(
        &mut self,
        name: &str,
        part: &StoredTensor,
        config: &AdapterConfig,
    ) -> Result<bool> {
        use HeadTask::{ImageClassification, SequenceClassification, TokenClassification};
        let tasks = [
            SequenceClassification,
            TokenClassification,
            ImageClassification,
        ];
        for task in tasks {
            for output in self.base.outputs(task)? {
                let bias = output
                    .strip_suffix(".weight")
                    .map(|stem| format!("{stem}.bias"));
                let is_weight = self.names.are_one(name, &output);
                let is_bias = bias.is_some_and(|bias| self.names.are_one(name, &bias));
                if (is_weight || is_bias) && config.saves(name)? {
                    self.n_labels = part.info.shape.first().copied();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Adds an adapter's tensors for one module.
    fn add_low(
        &mut self,
        wrapped: &str,
        low: Low,
        config: &AdapterConfig,
        files: &mut TensorFiles,
        names: &mut Vec<String>,
    ) -> Result<()> {
        let Some(first) = low.first().cloned() else {
            return Ok(());
        };
        let target = self.target(wrapped, &first, config, files)?;
        if self.names.stack(&target.weight).is_some() {
            return self.add_stacked(&target, low, config, names);
        }
        let (module, weight) = (target.module.as_str(), target.weight.clone());
        let Low {
            a,
            b,
            is_table,
            bias,
            lengths,
            rows,
        } = low;
        let place = match (self.find(files, &weight), self.tied_embeddings(&weight)) {
            (Some(place), _) => place,
            // A tied head gets its own weight, except for embedding rows that both learn.
            (None, Some(embeddings)) if rows.is_none() => {
                let info = files.find(&embeddings.name)?.clone();
                files.put(weight.clone(), info);
                TensorSlice {
                    name: weight.clone(),
                    features: None,
                }
            }
            (None, Some(embeddings)) => embeddings,
            (None, None) => {
                let similar = files.similar(&weight, 3);
                return Err(first.error(format!(
                    "the base model has no {module}{}; give the adapter's own base model",
                    listed("nearest:", &similar)
                )));
            }
        };
        if let Some(rows) = rows {
            let change = self.rows(
                module,
                rows,
                config,
                files.find(&place.name)?.shape.as_slice(),
            )?;
            self.push(&place, change, names);
        }
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (None, None) if bias.is_none() && lengths.is_none() => return Ok(()),
            _ => return Err(first.error(format!("{module} lacks one of lora_A and lora_B"))),
        };
        let follows_embeddings = config.keeps_ties && self.tied_embeddings(&weight).is_some();
        if !follows_embeddings && !target.is_bare {
            let is_output = match self.base.plan.model.as_ref().and_then(|m| m.head.as_ref()) {
                Some(head) => {
                    let outputs = self.base.outputs(head.task)?;
                    outputs.iter().any(|name| self.names.are_one(&weight, name))
                }
                None => false,
            };
            let is_linear = !is_table && !is_output && first.info.shape.len() == 2;
            if let Some(key) = config.leaves_out(module, is_linear)? {
                return Err(first.error(format!(
                    "{key} in {} excludes {module}, so PEFT ignores this tensor; correct one of the two files",
                    config.json.path().display()
                )));
            }
        }
        if is_table {
            self.untie(&place.name, config, files);
        }
        if !target.is_bare {
            self.check_single(module, &place.name, config)?;
        }
        let rank = config.rank(target.key())?;
        if a.info.shape.first() != Some(&rank) {
            let found = &a.info.shape;
            return Err(a.error(format!(
                "it has shape {found:?}, but r and rank_pattern in {} give {module} the rank {rank}",
                config.json.path().display()
            )));
        }
        let factors = Factors {
            scale: config.scale(target.key(), rank)?,
            layout: self.product_layout(&place, is_table, config),
            a,
            b,
            rank,
        };
        let base = files
            .as_part(&place.name)
            .ok_or_else(|| first.error("it has no base tensor"))?;
        factors.check(&base, place.features.as_ref())?;
        if let Some(bias) = bias {
            let Some(on_disk) = self.find(files, &format!("{module}.bias")) else {
                return Err(bias.error(format!("{module} has no bias to add it to")));
            };
            let scale = factors.scale;
            bias.check_shape(&[n_rows(
                &files.find(&on_disk.name)?.shape,
                on_disk.features.as_ref(),
            )])?;
            self.push(&on_disk, Change::Vector { part: bias, scale }, names);
        }
        let change = match (lengths, config.is_dora) {
            (None, false) => Change::Product(factors),
            (Some(lengths), true) => {
                let n: usize = lengths.info.shape.iter().product();
                let n_outputs = factors.b.info.shape.first().copied();
                if Some(n) != n_outputs {
                    let reason =
                        format!("it has {n} values, expected one for each output of {module}");
                    return Err(lengths.error(reason));
                }
                let before = OnceLock::new();
                Change::Directed {
                    factors,
                    lengths,
                    before,
                }
            }
            (None, true) => {
                let reason = format!("use_dora is true, but {module} has no lora_magnitude_vector");
                return Err(first.error(reason));
            }
            (Some(lengths), false) => {
                return Err(lengths.error("it is a DoRA tensor, but use_dora is false"));
            }
        };
        self.push(&place, change, names);
        Ok(())
    }

    /// Returns a change that replaces embedding rows.
    fn rows(
        &self,
        module: &str,
        part: StoredTensor,
        config: &AdapterConfig,
        table: &[usize],
    ) -> Result<Change> {
        let is_of = |(name, _): &&(String, Vec<usize>)| {
            let before = module.strip_suffix(name.as_str());
            before
                .is_some_and(|before| name.is_empty() || before.is_empty() || before.ends_with('.'))
        };
        let key = "trainable_token_indices";
        let Some((_, rows)) = config.tokens.iter().find(is_of) else {
            let reason = format!("it has no rows for {module}, which {} replaces", part.name);
            return Err(config.json.error(&[key], reason));
        };
        let rows = rows.clone();
        if part.info.shape.first() != Some(&rows.len()) {
            let reason = format!(
                "it has {} rows for {module}, but {} is {:?}",
                rows.len(),
                part.name,
                part.info.shape
            );
            return Err(config.json.error(&[key], reason));
        }
        part.check_shape(&[rows.len(), table.get(1).copied().unwrap_or(0)])?;
        Ok(Change::Rows { part, rows })
    }

    fn push(&mut self, place: &TensorSlice, change: Change, names: &mut Vec<String>) {
        let features = place.features.clone();
        let changes = self.changes.entry(place.name.clone()).or_default();
        changes.push(Placed { change, features });
        names.push(place.name.clone());
    }

    /// Returns the orientation of the factors' product: the family's for this tensor, which `fan_in_fan_out` repeats.
    fn product_layout(
        &self,
        place: &TensorSlice,
        is_table: bool,
        config: &AdapterConfig,
    ) -> ProductLayout {
        let mut sources = self.base.plan.sources.iter();
        let known = sources.find(|source| source.name == place.name);
        let is_in_out = match known {
            Some(source) => source.is_transposed(),
            None => config.fan_in_fan_out,
        };
        match is_in_out || is_table {
            true => ProductLayout::InOut,
            false => ProductLayout::OutIn,
        }
    }
}
