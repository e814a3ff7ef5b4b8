//! MLX: quantized values along each row, with a scale and an offset for every group. Modules may have their own bits and
//! group sizes.

use std::collections::HashMap;

use safetensors::Dtype;
use serde_json::Value;

use super::grouped::{CodePacking, Grouped, Scales, ZeroSource};
use super::{DequantizedMatrix, QuantizedModule};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// The bits of a quantized value, and the columns in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    bits: usize,
    group_size: usize,
}

/// A checkpoint's settings.
#[derive(Clone, Debug)]
pub(super) struct Mlx {
    default: Setting,
    /// Settings for individual modules.
    modules: HashMap<String, Setting>,
}

impl Mlx {
    /// Reads `quantization`, in which objects and booleans are entries for modules.
    ///
    /// # Errors
    /// If a mode is not `affine`, or a key has another type than expected.
    pub fn new(found: &ConfigJson) -> Result<Self> {
        let default = setting(found, None)?;
        let mut modules = HashMap::new();
        let names: Vec<String> = found.keys().map(String::from).collect();
        for name in names {
            // `false` means a module that is not quantized, `true` one with the common settings.
            if found.value().get(&name).is_some_and(Value::is_object)
                && let Some(own) = found.section(&[&name])?
            {
                modules.insert(name, setting(&own, Some(default))?);
            }
        }
        Ok(Self { default, modules })
    }

    /// Returns a module's matrix; `None` if it is not quantized.
    pub fn matrix(&self, module: &mut QuantizedModule) -> Result<Option<DequantizedMatrix>> {
        if !(module.has("scales") && module.has("biases")) {
            return Ok(None);
        }
        let name = module.prefix.trim_end_matches('.').to_string();
        let (codes, scales, offsets) = (
            module.needs("weight")?,
            module.needs("scales")?,
            module.needs("biases")?,
        );
        codes.check_dtype(&[Dtype::U32])?;
        let (n_rows, n_words) = codes.dims2()?;
        let own = self.modules.get(&name);
        let Setting { bits, group_size } = own.copied().unwrap_or(self.default);
        let columns = n_words.saturating_mul(32) / bits;
        let n_groups = columns.div_ceil(group_size);
        let is_whole = n_words.saturating_mul(32) == columns * bits;
        for part in [&scales, &offsets] {
            if !is_whole || part.info.shape != [n_rows, n_groups] {
                let found = &part.info.shape;
                let key = match own {
                    Some(_) => format!("quantization.{name}"),
                    None => "quantization".to_string(),
                };
                return Err(codes.error(format!(
                    "{key}.bits = {bits} and {key}.group_size = {group_size} in config.json do not \
                     fit {n_words} words in a row and {} of shape {found:?}; set this module's \
                     bits and group_size in quantization.{name}",
                    part.name
                )));
            }
        }
        let scales = Scales {
            part: scales,
            n_groups,
            rows: 1,
            columns: group_size,
        };
        let packing = CodePacking::Words { bits };
        let stored = Grouped::new(codes, packing, (n_rows, columns), scales);
        let stored = stored.with_zeros(ZeroSource::Behind(offsets));
        stored.matrix().map(Some)
    }
}

/// Reads bits and group size, with those of `default` as defaults.
fn setting(found: &ConfigJson, default: Option<Setting>) -> Result<Setting> {
    found.only("mode", &["affine".into()])?;
    let size = |key: &str, default: Option<usize>| match (found.optional_size(&[key])?, default) {
        (Some(size), _) | (None, Some(size)) => Ok(size),
        (None, None) => found.size(&[key]),
    };
    let bits = size("bits", default.map(|default| default.bits))?;
    let group_size = size("group_size", default.map(|default| default.group_size))?;
    if !(2..=8).contains(&bits) {
        return Err(found.error(&["bits"], format!("found {bits}, expected 2 to 8")));
    }
    if group_size == 0 {
        return Err(found.error(&["group_size"], "found 0, expected a number of columns"));
    }
    Ok(Setting { bits, group_size })
}
