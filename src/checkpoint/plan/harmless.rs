//! Tensors in published files that change no result in any family: they are left out, and reported as ignored.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::quantized;
use crate::checkpoint::scheme::{Family, matches};
use crate::error::Result;

/// Buffers that modules compute from their configuration: rotary frequencies, positions, and the value for masked scores.
const BUFFERS: [&str; 5] = [
    "*inv_freq",
    "*.cos_cached",
    "*.sin_cached",
    "*position_ids",
    "*.masked_bias",
];

/// Scales for a quantized key/value cache, as modelopt, compressed-tensors and older programs name them. The cache here is
/// not quantized.
const CACHE_SCALES: [&str; 10] = [
    "*.k_scale",
    "*.v_scale",
    "*.q_scale",
    "*.kv_scale",
    "*.k_zero_point",
    "*.v_zero_point",
    "*.q_zero_point",
    "*k_proj.output_scale",
    "*v_proj.output_scale",
    "*q_proj.output_scale",
];

/// Keys in `config.json` that count the layers after the last one, which predict further tokens.
const PREDICTORS: [&str; 2] = ["num_nextn_predict_layers", "num_mtp_layers"];
/// Modules that such a layer has beside a block's.
const OF_PREDICTORS: [&str; 4] = ["eh_proj", "enorm", "hnorm", "shared_head"];

/// Recognizes harmless tensors by their names.
pub(crate) struct Harmless<'n> {
    prefix: &'n str,
    /// The prefix before a block's index.
    block: &'n str,
    /// Indices for layers that predict further tokens.
    predictors: HashSet<usize>,
    has_quantized: bool,
}

impl<'n> Harmless<'n> {
    /// For files with this prefix on block names, and a stack with `n_blocks` blocks.
    ///
    /// # Errors
    /// If a key in the configuration has another type than expected.
    pub fn new(
        family: &'n Family,
        prefix: &'n str,
        n_blocks: usize,
        json: Option<&ConfigJson>,
        files: &TensorFiles,
    ) -> Result<Self> {
        let block = family.block.split("{i").next().unwrap_or_default();
        let mut harmless = Self {
            prefix,
            block,
            predictors: HashSet::new(),
            has_quantized: match json {
                Some(json) => quantized::is_named(json, files.directory())?,
                None => false,
            },
        };
        // transformers' classes do not have these layers, and leave them out.
        let mut further: HashMap<usize, bool> = HashMap::new();
        for name in files.names() {
            if let Some(layer) = harmless.layer(name).filter(|layer| *layer >= n_blocks) {
                let is_predictor = name.split('.').any(|word| OF_PREDICTORS.contains(&word));
                *further.entry(layer).or_default() |= is_predictor;
            }
        }
        let n_predictors = match json {
            Some(json) if !further.is_empty() => number_of_predictors(json, family)?,
            _ => 0,
        };
        let are_all = further.len() <= n_predictors;
        let numbers = further.into_iter();
        let predictors = numbers.filter(|(_, is_predictor)| are_all || *is_predictor);
        harmless.predictors = predictors.map(|(layer, _)| layer).collect();
        Ok(harmless)
    }

    /// Returns the index for the layer that contains a tensor.
    fn layer(&self, name: &str) -> Option<usize> {
        let local = name.strip_prefix(self.prefix).unwrap_or(name);
        let (number, _) = local.strip_prefix(self.block)?.split_once('.')?;
        number.parse().ok()
    }

    /// Returns whether a tensor changes no result.
    pub fn has(&self, name: &str) -> bool {
        let is_one = |patterns: &[&str]| patterns.iter().any(|pattern| matches(pattern, name));
        let is_predictor = |word: &str| word == "mtp" || word.starts_with("mtp_");
        is_one(&BUFFERS)
            || self.has_quantized && is_one(&CACHE_SCALES)
            || name.split('.').any(is_predictor)
            || self
                .layer(name)
                .is_some_and(|layer| self.predictors.contains(&layer))
    }
}

fn number_of_predictors(json: &ConfigJson, family: &Family) -> Result<usize> {
    let section = match &family.keys.section {
        Some(section) => json.section(&[section])?,
        None => None,
    };
    let all = section.iter().chain([json]);
    let numbers = all.map(|json| json.optional_size(&PREDICTORS));
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    Ok(numbers.into_iter().flatten().max().unwrap_or(0))
}

/// Returns whether a tensor is a bias of zeros beside a weight that is used. Quantized files have these where the model has
/// no bias.
///
/// # Errors
/// If the tensor cannot be read.
pub(crate) fn is_bias_of_zeros(
    name: &str,
    files: &TensorFiles,
    is_used: impl Fn(&str) -> bool,
) -> Result<bool> {
    let weight = name
        .strip_suffix("bias")
        .map(|stem| format!("{stem}weight"));
    let is_vector = files.info(name).is_some_and(|info| info.shape.len() == 1);
    if !is_vector || !weight.is_some_and(|weight| is_used(&weight)) {
        return Ok(false);
    }
    let bias = files.read(name)?;
    if !bias.dtype().is_float() {
        return Ok(false);
    }
    let numbers: Vec<f64> = bias.to_dtype(candle_core::DType::F64)?.to_vec1()?;
    Ok(numbers.iter().all(|number| *number == 0.0))
}
