//! Tensors beside a module's quantized weight: zero points, each column's group, and tensors that change no weight.

use safetensors::Dtype;
use serde_json::Value;

use super::QuantizedModule;
use super::gptq::WORDS;
use super::grouped::{CodePacking, Grouped, ZeroSource};
use crate::config_json::ConfigJson;
use crate::tensors::TensorFiles;
use candle_blocks_base::Result;
use candle_blocks_base::matches;
use candle_blocks_kernels::storage::bits::n_words;

/// Scales and zero points that round a module's input or output, which is not rounded here, and observers' states.
const LEFT_OUT: [&str; 11] = [
    "*.input_scale",
    "*.input_zero_point",
    "*.input_global_scale",
    "*.output_scale",
    "*.output_zero_point",
    "*.output_global_scale",
    "*.activation_scale",
    "*_observer.*",
    "*.activation_post_process.*",
    "*.min_vals",
    "*.max_vals",
];

/// Keys by which a method rounds activations or caches.
const ROUNDING: [&str; 4] = [
    "activation_scheme",
    "activation_scale_ub",
    "kv_cache_scheme",
    "kv_cache_quant_algo",
];

/// Takes tensors that change no weight from the files, and returns their names.
pub(super) fn left_out(files: &mut TensorFiles) -> Vec<String> {
    let is_one = |name: &&str| LEFT_OUT.iter().any(|pattern| matches(pattern, name));
    let names: Vec<String> = files.names().filter(is_one).map(String::from).collect();
    for name in &names {
        files.take(name);
    }
    names
}

/// Returns the settings and tensors by which the method rounds activations or caches, which are not rounded here.
pub(super) fn unrounded(config: &ConfigJson, left_out: &[String]) -> Vec<String> {
    let is_set = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    let groups = config.at("config_groups").and_then(Value::as_object);
    let group_targets = groups.into_iter().flatten().flat_map(|(name, group)| {
        let keys = ["input_activations", "output_activations"].into_iter();
        let keys = keys.filter(move |key| is_set(group.get(key)));
        keys.map(move |key| format!("config_groups.{name}.{key}"))
    });
    let own = ROUNDING.into_iter().filter(|key| is_set(config.at(key)));
    // BitNet's layers round every input to 8 bits.
    let method = config.at("quant_method").and_then(Value::as_str);
    let is_bitnet = method.is_some_and(|method| method.eq_ignore_ascii_case("bitnet"));
    let own = own.chain(is_bitnet.then_some("quant_method"));
    let tensors = LEFT_OUT.into_iter().filter_map(|pattern| {
        let is_one = |name: &&String| pattern.ends_with("scale") && matches(pattern, name);
        let name = left_out.iter().find(is_one)?;
        Some(match left_out.iter().filter(is_one).count() {
            1 => name.clone(),
            n => format!("{name} and {} more", n - 1),
        })
    });
    let own = own.map(str::to_string);
    group_targets.chain(own).chain(tensors).collect()
}

impl Grouped {
    /// Adds the zero points and groups that compressed-tensors has beside a module's values and scales.
    ///
    /// # Errors
    /// If a tensor has another type or shape than it should, or zero points are not supported for this packing.
    pub fn with_companions(mut self, module: &mut QuantizedModule) -> Result<Self> {
        if let Some(part) = module.take("weight_zero_point") {
            let shape = &self.scales.part.info.shape;
            self.zeros = match (self.packing, part.info.dtype) {
                (CodePacking::Words { bits }, Dtype::I32 | Dtype::U32) => {
                    let words = n_words(self.n_rows, bits).unwrap_or(0);
                    part.check_shape(&[words, self.scales.n_groups])?;
                    ZeroSource::Words { part, bits }
                }
                (CodePacking::Words { .. } | CodePacking::Int8, _) => {
                    part.check_dtype(&[&WORDS[..], &[Dtype::I8]].concat())?;
                    part.check_shape(shape)?;
                    let bits = self.packing.bits();
                    ZeroSource::Bytes { part, bits }
                }
                // Symmetric, whatever type its zeros have.
                (CodePacking::E4m3 | CodePacking::E2m1, _) => {
                    let bytes: Vec<u8> = module.files.part(&part)?;
                    if bytes.iter().any(|byte| *byte != 0) {
                        return Err(part.error(
                            "it holds a zero point that is not zero, which is not read beside floating-point values",
                        ));
                    }
                    ZeroSource::All(0.0)
                }
            };
        }
        if let Some(index) = module.take("weight_g_idx") {
            index.check_dtype(&[Dtype::I32])?;
            index.check_shape(&[self.columns])?;
            let groups: Vec<i32> = module.files.part(&index)?;
            // compressed-tensors writes -1 if groups are contiguous after all.
            if !groups.contains(&-1) {
                self.index = Some(index);
            }
        }
        Ok(self)
    }
}
