//! Maps roles to tensors on disk: the location of each parameter that the layers request.
//!
//! The list of parameters is not written down a second time. A plan builds the layers once with a `VarBuilder` that records
//! every request and returns zeros that take no memory.

pub(crate) mod harmless;
pub(crate) mod least_memory;
pub(crate) mod outside_blocks;
pub(crate) mod source;
pub(crate) mod stacked_experts;
pub(crate) mod tied;
pub(crate) mod unread;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{SIMILAR, TensorFiles};
use crate::checkpoint::gguf::with_keys;
use crate::checkpoint::plan::harmless::{Harmless, is_bias_of_zeros};
use crate::checkpoint::plan::outside_blocks::OutsideBlocks;
use crate::checkpoint::plan::source::{Item, StoredParameter};
use crate::checkpoint::plan::tied::add_later_uses;
use crate::checkpoint::plan::unread::Readers;
use crate::checkpoint::scheme::{
    Family, ModelPlace, Orientation, PartOwner, Rule, Stacking, matches,
};
use crate::config::{AttentionConfig, ModelConfig, StackConfig};
use crate::error::{Error, Result, listed, nearest};
use crate::layers::Stack;

/// The limit for parameters: five times as many as in the largest published mixture of experts. Without it, a small
/// `config.json` with a billion heads or experts would exhaust memory.
const MAX_PARAMETERS: usize = 1 << 18;

/// The limit for one dimension of a parameter: 64 times the largest vocabulary. Without it, a layer that copies the zeros
/// of its plan, or a list of every other output feature, would exhaust memory.
const MAX_DIMENSION: usize = 1 << 26;

/// A parameter that no tensor on disk stores.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub role: String,
    pub tried: Vec<String>,
}

/// The location of every parameter, and a classification of all other tensors.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The blocks' parameters first, then embeddings, pooler and head.
    pub sources: Vec<StoredParameter>,
    /// The number of sources in the blocks.
    pub(super) n_in_blocks: usize,
    /// The whole model.
    pub model: Option<ModelConfig>,
    /// The reason why there is no whole model; the blocks can still be loaded.
    pub no_model: Option<Error>,
    /// A role's index in `sources`.
    pub(super) places: HashMap<String, usize>,
    /// Tied roles, and the role that owns the parameter.
    pub(super) tied: HashMap<String, String>,
    /// Head and token embeddings differ in the files, although `config.json` ties them.
    pub unties: bool,
    pub missing: Vec<Missing>,
    pub ignored: Vec<String>,
    pub outside: Vec<String>,
    /// Tensors outside the blocks that no part of the whole model reads.
    pub unread: Vec<String>,
    pub unused: Vec<String>,
    /// Keys in `config.json` that nothing reads and that are not known to change nothing.
    pub unread_keys: Vec<String>,
    /// Keys in `config.json` that transformers' attention implementations follow differently.
    pub disputed_keys: Vec<String>,
    /// Settings and tensors by which activations or caches would be rounded.
    pub unrounded: Vec<String>,
}

impl Plan {
    /// Finds every parameter of a stack, its embeddings and its heads in the files' headers.
    pub fn new(
        family: &Family,
        config: &StackConfig,
        json: Option<&ConfigJson>,
        files: &TensorFiles,
    ) -> Result<Self> {
        let prefix = prefix(family, files);
        let mut plan = Self::default();
        for (role, shape) in parameters(config)? {
            let place = ModelPlace::of(&role);
            let request = Request {
                role: &role,
                shape: &shape,
                place,
                attention: None,
            };
            let candidates = candidates(family, config, prefix, &request)?;
            let stored = || candidates.iter().filter(|s| files.contains(&s.name));
            match stored().find(|s| fits(s, files)).or(stored().next()) {
                Some(source) => {
                    source.check_part(&family.name)?;
                    plan.sources.push(source.clone());
                }
                None => {
                    let tried = candidates.into_iter().map(|source| source.name).collect();
                    plan.missing.push(Missing { role, tried });
                }
            }
        }
        plan.n_in_blocks = plan.sources.len();
        add_later_uses(&mut plan.sources, config, files, |request| {
            candidates(family, config, prefix, request)
        })?;
        if let Some(json) = json {
            match OutsideBlocks::new(family, json, config, files, prefix) {
                Ok(ends) => {
                    plan.sources.extend(ends.sources);
                    plan.missing.extend(ends.missing);
                    plan.model = ends.model;
                    plan.unties = ends.unties;
                }
                Err(error) => plan.no_model = Some(error.located(json.path())),
            }
        }
        for source in &mut plan.sources {
            source.is_quantized = files.is_dequantized(&source.name);
        }
        count_items(&mut plan.sources);
        plan.unite_tied();
        let harmless = Harmless::new(family, prefix, config.blocks.len(), json, files)?;
        plan.classify(family, prefix, &harmless, files)?;
        Ok(plan)
    }

    /// Classifies the tensors that no block uses.
    fn classify(
        &mut self,
        family: &Family,
        prefix: &str,
        harmless: &Harmless,
        files: &TensorFiles,
    ) -> Result<()> {
        let (in_blocks, outside_blocks) = (names(self.in_blocks()), names(self.outside_blocks()));
        let is_listed = |patterns: &[String], name: &str| {
            patterns.iter().any(|pattern| {
                let local = name.strip_prefix(prefix).unwrap_or(name);
                matches(pattern, local) || matches(pattern, name)
            })
        };
        let is_used = |name: &str| in_blocks.contains(name) || outside_blocks.contains(name);
        let model = self.model.as_ref();
        let readers = model.map(|m| Readers::new(family, prefix, m, [&in_blocks, &outside_blocks]));
        let is_elsewhere = |name: &str| readers.as_ref().is_none_or(|r| r.is_elsewhere(name));
        for name in files.names().filter(|name| !in_blocks.contains(*name)) {
            let names = if outside_blocks.contains(name) {
                &mut self.outside
            } else if is_listed(&family.ignored, name) || harmless.has(name) {
                &mut self.ignored
            } else if is_listed(&family.outside, name) && is_elsewhere(name) {
                &mut self.outside
            } else if is_bias_of_zeros(name, files, is_used)? {
                &mut self.ignored
            } else if is_listed(&family.outside, name) {
                &mut self.unread
            } else {
                &mut self.unused
            };
            names.push(name.to_string());
        }
        Ok(())
    }

    /// Returns the sources of the blocks' parameters.
    pub fn in_blocks(&self) -> &[StoredParameter] {
        &self.sources[..self.n_in_blocks]
    }

    /// Returns the sources of the parameters outside the blocks.
    pub fn outside_blocks(&self) -> &[StoredParameter] {
        &self.sources[self.n_in_blocks..]
    }
}

/// Returns the names of the tensors that contain some parameters.
pub(super) fn names(sources: &[StoredParameter]) -> HashSet<String> {
    let names = sources.iter().flat_map(StoredParameter::names);
    names.map(String::from).collect()
}

/// Returns the error for a parameter that no tensor stores, with the names most similar to the first one tried. Unused
/// tensors come first: a renamed tensor is one of them, while used tensors beside it often have more similar names.
pub(crate) fn missing(missing: &Missing, unused: &[String], files: &TensorFiles) -> Error {
    let similar = missing.tried.first().map(|name| {
        let renamed = nearest(name, unused.iter().map(String::as_str), SIMILAR, 3);
        if renamed.is_empty() {
            files.similar(name, 3)
        } else {
            renamed
        }
    });
    let error = Error::MissingTensor {
        path: files.path().to_path_buf(),
        role: missing.role.clone(),
        tried: missing.tried.clone(),
        similar: similar.unwrap_or_default(),
    };
    let name = missing.tried.first().map_or("", String::as_str);
    with_keys(files, name, error)
}

/// Returns the error for a role that none of the `sources` has.
pub(super) fn unknown_role(role: &str, sources: &[StoredParameter]) -> Error {
    let known = sources.iter().map(|source| source.role.as_str());
    let nearest = listed("nearest:", &nearest(role, known, SIMILAR, 3));
    Error::input(
        role,
        format!("the checkpoint has no such parameter{nearest}"),
    )
}

/// Sets how many parameters each tensor stacks.
pub(super) fn count_items(sources: &mut [StoredParameter]) {
    let mut totals: HashMap<String, usize> = HashMap::new();
    for source in &*sources {
        if let Some(item) = source.item {
            let total = totals.entry(source.name.clone()).or_default();
            *total = (*total).max(item.index + 1);
        }
    }
    for source in sources {
        if let (Some(item), Some(&total)) = (&mut source.item, totals.get(&source.name)) {
            item.total = total;
        }
    }
}

/// A parameter that a layer requests.
pub(super) struct Request<'a> {
    pub role: &'a str,
    pub shape: &'a [usize],
    pub place: ModelPlace,
    /// The attention that contains it, if it is outside the blocks.
    pub attention: Option<&'a AttentionConfig>,
}

/// Returns the names on disk, without a prefix, under which a family may store a role of a whole model.
pub(crate) fn names_on_disk(
    family: &Family,
    config: &StackConfig,
    role: &str,
    shape: &[usize],
) -> Result<Vec<String>> {
    let request = Request {
        role,
        shape,
        place: family.place(role),
        attention: None,
    };
    let found = candidates(family, config, "", &request)?;
    Ok(found.into_iter().map(|source| source.name).collect())
}

/// Returns the possible locations of a role such as `blocks.3.attention.query.weight`, in the order in which they are tried.
pub(super) fn candidates(
    family: &Family,
    config: &StackConfig,
    prefix: &str,
    request: &Request,
) -> Result<Vec<StoredParameter>> {
    let &Request {
        role, shape, place, ..
    } = request;
    let local = match place {
        ModelPlace::Block(_) => role.splitn(3, '.').nth(2).unwrap_or(role),
        ModelPlace::Stack | ModelPlace::OutsideBlocks => role,
    };
    let (module, parameter) = local.rsplit_once('.').unwrap_or((local, "weight"));
    let (rules, number) = family.rules(module, place);
    if rules.is_empty() {
        let reason = format!(
            "family {} has no rule for {module}; add one with the names of {role}",
            family.name
        );
        return Err(Error::InvalidConfig(reason));
    }
    let block = match place {
        ModelPlace::Block(index) => config.blocks.get(index),
        ModelPlace::Stack | ModelPlace::OutsideBlocks => None,
    };
    let within = block.map_or("", |block| (family.within_block)(block, module));
    let starts = match place {
        ModelPlace::Block(index) => vec![format!("{prefix}{}{within}", family.block_prefix(index))],
        ModelPlace::Stack => vec![prefix.to_string()],
        ModelPlace::OutsideBlocks if prefix.is_empty() => vec![String::new()],
        // A head is usually beside the base model, without that model's prefix.
        ModelPlace::OutsideBlocks => match role.split('.').next() {
            Some("embeddings" | "pooler") => vec![prefix.to_string(), String::new()],
            _ => vec![String::new(), prefix.to_string()],
        },
    };
    let block_attention = block.and_then(|block| {
        match (
            &block.cross_attention,
            module.starts_with("cross_attention."),
        ) {
            (Some(cross), true) => Some(cross),
            _ => block.attention().ok(),
        }
    });
    let owner = PartOwner {
        attention: block_attention.or(request.attention),
        mixer: block.map(|block| &block.mixer),
    };
    let d_out = shape.first().copied().unwrap_or(0);
    let source = |rule: &Rule, start: &String, name: &String| {
        let name = match number {
            Some(number) => name.replace("{e}", &number.to_string()),
            None => name.clone(),
        };
        let name = match place {
            ModelPlace::Block(index) => name.replace("{i}", &index.to_string()),
            ModelPlace::Stack | ModelPlace::OutsideBlocks => name,
        };
        let is_joined = rule.stacking == Stacking::Joined;
        let item = match rule.stacking {
            Stacking::Stacked | Stacking::Joined => number.map(|index| Item {
                index,
                total: 0,
                is_joined,
            }),
            Stacking::Apart => None,
        };
        StoredParameter {
            role: role.to_string(),
            name: format!("{start}{name}"),
            shape: shape.to_vec(),
            orientation: rule.orientation,
            features: rule.part.features(owner, d_out),
            item,
            leading_ones: rule.leading_ones,
            is_quantized: false,
            is_trained: !family
                .untrained
                .iter()
                .any(|pattern| matches(pattern, role)),
            copies: vec![],
        }
    };
    let mut candidates = Vec::new();
    for rule in rules {
        for name in rule.names(parameter) {
            candidates.extend(starts.iter().map(|start| source(rule, start, name)));
        }
    }
    if candidates.is_empty() {
        let reason = format!(
            "family {} gives {role} no name; list one under `{parameter}` of the rule for {module}, or configure the \
             layer without it",
            family.name
        );
        return Err(Error::InvalidConfig(reason));
    }
    Ok(candidates)
}

/// Returns whether stacked parameters have a candidate's orientation in the files, where a family has rules for both.
fn fits(candidate: &StoredParameter, files: &TensorFiles) -> bool {
    let (Some(_), [.., d_in]) = (candidate.item, &candidate.shape[..]) else {
        return true;
    };
    let shape = files.info(&candidate.name).map(|info| &info.shape[..]);
    match (candidate.orientation, shape) {
        (Orientation::OutIn, Some([_, _, last])) => last == d_in,
        (Orientation::InOut, Some([_, first, _])) => first == d_in,
        _ => true,
    }
}

/// Returns the first prefix under which the files contain a block; the last one if none does.
fn prefix<'f>(family: &'f Family, files: &TensorFiles) -> &'f str {
    let block = family.block.split("{i").next().unwrap_or_default();
    let holds = |prefix: &&String| {
        let start = format!("{prefix}{block}");
        files.names().any(|name| name.starts_with(&start))
    };
    let found = family.prefixes.iter().find(holds);
    found.or(family.prefixes.last()).map_or("", String::as_str)
}

/// Returns role and shape of every parameter in a stack, in the order in which its layers request them.
pub(super) fn parameters(config: &StackConfig) -> Result<Vec<(String, Vec<usize>)>> {
    recorded(|vb| Stack::new(config, vb).map(drop))
}

/// Returns role and shape of every parameter that `build` requests, in that order.
pub(super) fn recorded(
    build: impl FnOnce(VarBuilder) -> candle_core::Result<()>,
) -> Result<Vec<(String, Vec<usize>)>> {
    let recorder = Recorder::default();
    let backend: Box<dyn SimpleBackend> = Box::new(&recorder);
    let vb = VarBuilder::from_backend(backend, DType::F32, Device::Cpu);
    let built = build(vb);
    let requested = recorder.requested.into_inner();
    let requested = requested.unwrap_or_else(PoisonError::into_inner);
    if requested.len() == MAX_PARAMETERS {
        return Err(Error::InvalidConfig(format!(
            "the blocks have {MAX_PARAMETERS} parameters or more; check the numbers of blocks, heads and experts"
        )));
    }
    if let Some((role, shape)) = requested.iter().find(|(_, shape)| is_too_large(shape)) {
        return Err(Error::InvalidConfig(format!(
            "{role} would have the shape {shape:?}, and no parameter has a dimension of more than {MAX_DIMENSION}; check the \
             sizes"
        )));
    }
    built?;
    Ok(requested)
}

fn is_too_large(shape: &[usize]) -> bool {
    shape.iter().any(|&dimension| dimension > MAX_DIMENSION)
}

/// Records the role and shape of every request.
#[derive(Default)]
struct Recorder {
    requested: Mutex<Vec<(String, Vec<usize>)>>,
}

impl SimpleBackend for &Recorder {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let mut requested = self
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if requested.len() == MAX_PARAMETERS {
            candle_core::bail!("{name}: too many parameters");
        }
        requested.push((name.to_string(), shape.dims().to_vec()));
        if is_too_large(shape.dims()) {
            candle_core::bail!("{name}: too large");
        }
        Tensor::zeros((), dtype, device)?.broadcast_as(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("{name}: requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}
