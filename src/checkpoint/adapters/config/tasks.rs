//! Low-rank factors inside a model's own files, one pair for each task (Jina Embeddings v3). A task is requested by its name, in
//! an adapter folder's place.
//!
//! `LoRAParametrization`: <https://huggingface.co/jinaai/xlm-roberta-flash-implementation/blob/main/modeling_lora.py>

use std::path::PathBuf;

use crate::checkpoint::adapters::merged::{Change, Factors, Placed, compute};
use crate::checkpoint::adapters::product_layout::ProductLayout;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{StoredTensor, TensorFiles};
use crate::checkpoint::report::AppliedAdapter;
use crate::error::{Error, Result};

/// The key in `config.json` that names all tasks.
const KEY: &str = "lora_adaptations";
/// The ending that parametrized weights' names have.
const ORIGINAL: &str = ".parametrizations.weight.original";

/// A task whose adapter is in the model's own files, among others.
#[derive(Debug)]
pub(in crate::checkpoint) struct Task {
    name: String,
    index: usize,
    n_tasks: usize,
    scale: f64,
}

impl Task {
    /// Takes the task that the file knows from the requested adapters.
    ///
    /// # Errors
    /// If several tasks are requested, or a key about them is malformed.
    pub fn taken(adapters: &mut Vec<PathBuf>, json: Option<&ConfigJson>) -> Result<Option<Self>> {
        let Some(json) = json.filter(|json| json.value_at(KEY).is_some() && !adapters.is_empty())
        else {
            return Ok(None);
        };
        let names = json.texts(&[KEY])?.unwrap_or_default();
        let index = |path: &PathBuf| {
            let path = path.to_str()?;
            names.iter().position(|name| name == path)
        };
        let requested: Vec<usize> = adapters.iter().filter_map(index).collect();
        adapters.retain(|path| index(path).is_none());
        let index = match requested[..] {
            [] => return unknown(adapters, &names, json).map_or(Ok(None), Err),
            [index] => index,
            _ => return Err(json.error(&[KEY], "several tasks are requested; request one")),
        };
        let rank = json.number(&["lora_rank"], 4.0)?;
        if !rank.is_normal() {
            return Err(json.error(&["lora_rank"], format!("found {rank}, expected a rank")));
        }
        Ok(Some(Self {
            name: names[index].clone(),
            index,
            n_tasks: names.len(),
            scale: json.number(&["lora_alpha"], 1.0)? / rank,
        }))
    }

    /// Returns the task's own part in a tensor, `[tasks, rows, columns]`.
    fn part(&self, of: &StoredTensor) -> Result<StoredTensor> {
        match of.info.shape[..] {
            [n, _, _] if n == self.n_tasks => of.nth(self.index),
            ref shape => Err(of.error(format!(
                "it has shape {shape:?}, expected a matrix for each of {} tasks in {KEY}",
                self.n_tasks
            ))),
        }
    }

    /// Returns a weight's change: `W + scale · B·A` for a linear layer, `W + scale · A·B` for embeddings.
    fn change(&self, base: &StoredTensor, module: &str, files: &TensorFiles) -> Result<Placed> {
        let part = |factor: &str| {
            let name = format!("{module}.parametrizations.weight.0.{factor}");
            let missing = || {
                base.error(format!(
                    "its factor {name} is missing; download the file again"
                ))
            };
            self.part(&files.as_part(&name).ok_or_else(missing)?)
        };
        let (a, b) = (part("lora_A")?, part("lora_B")?);
        let is_embedding = base.info.shape.first() == a.info.shape.first();
        let (a, b) = match is_embedding {
            true => (b, a),
            false => (a, b),
        };
        let factors = Factors {
            rank: a.info.shape[0],
            a,
            b,
            scale: self.scale,
            layout: ProductLayout::OutIn,
        };
        factors.check(base, None)?;
        Ok(Placed {
            change: Change::Product(factors),
            features: None,
        })
    }
}

/// Returns the error for a requested adapter that is no folder, and none of the tasks.
fn unknown(adapters: &[PathBuf], names: &[String], json: &ConfigJson) -> Option<Error> {
    let name = adapters.iter().find(|path| !path.exists())?.display();
    let names = names.join(", ");
    let reason = format!(
        "found {names}, but not {name:?}, and there is no folder with this name; request one of these tasks, or an adapter's \
         folder"
    );
    (!names.is_empty()).then(|| json.error(&[KEY], reason))
}

/// Gives parametrized weights their own names, with the requested task's changes. Returns the task as an adapter.
///
/// # Errors
/// If a factor is missing or has another shape.
pub(in crate::checkpoint) fn apply(
    task: Option<&Task>,
    files: &mut TensorFiles,
) -> Result<Option<AppliedAdapter>> {
    let modules = files.names().filter_map(|name| name.strip_suffix(ORIGINAL));
    let modules: Vec<String> = modules.map(str::to_string).collect();
    let mut tensors = Vec::new();
    for module in modules {
        let Some(base) = files.take(&format!("{module}{ORIGINAL}")) else {
            continue;
        };
        let name = format!("{module}.weight");
        match task {
            None => files.put(name, base.info),
            Some(task) => {
                let change = task.change(&base, &module, files)?;
                let shape = base.info.shape.clone();
                let merged = compute(base.clone(), vec![change]);
                files.add_computed(name.clone(), shape, &[&base], merged);
                tensors.push(name);
            }
        }
    }
    Ok(task.map(|task| AppliedAdapter {
        directory: PathBuf::from(&task.name),
        is_beside: false,
        tensors,
        unread: Vec::new(),
    }))
}
