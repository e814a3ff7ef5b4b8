//! MLX: quantized values along each row, with a scale for every group, and an offset if the values are integers. Modules may
//! have their own bits, group sizes and modes.
//!
//! `mlx.core.quantize`: <https://github.com/ml-explore/mlx/blob/v0.32.4/python/src/ops.cpp>

use std::collections::HashMap;

use safetensors::Dtype;
use serde_json::Value;

use super::grouped::{CodePacking, Grouped, Scales, ZeroSource};
use super::{DequantizedMatrix, QuantizedModule};
use crate::config_json::ConfigJson;
use candle_blocks_base::Result;

/// The type of quantized values and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Integers, with scales and offsets.
    Affine,
    /// E2M1, with powers of two.
    Mxfp4,
    /// E4M3, with powers of two.
    Mxfp8,
    /// E2M1, with scales in E4M3.
    Nvfp4,
}

impl Mode {
    const ALL: [(&str, Self); 4] = [
        ("affine", Self::Affine),
        ("mxfp4", Self::Mxfp4),
        ("mxfp8", Self::Mxfp8),
        ("nvfp4", Self::Nvfp4),
    ];

    /// Returns the bits and the group size that the mode fixes.
    fn fixed(self) -> Option<(usize, usize)> {
        match self {
            Self::Affine => None,
            Self::Mxfp4 => Some((4, 32)),
            Self::Mxfp8 => Some((8, 32)),
            Self::Nvfp4 => Some((4, 16)),
        }
    }
}

/// The type and the bits of a quantized value, and the columns in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    mode: Mode,
    bits: usize,
    group_size: usize,
}

/// MLX's defaults, which apply beside a mode that fixes bits and group size.
const OF_MLX: Setting = Setting {
    mode: Mode::Affine,
    bits: 4,
    group_size: 64,
};

/// A checkpoint's settings.
#[derive(Clone, Debug)]
pub(super) struct Mlx {
    default: Setting,
    /// Settings for individual modules.
    modules: HashMap<String, Setting>,
}

impl Mlx {
    /// Reads `quantization`, in which objects and booleans are entries for modules. `stacks` has the modules of experts that
    /// were stacked, each with the stack's module, whose entry applies to it.
    ///
    /// # Errors
    /// If a mode is unknown, or a key has another type than expected.
    pub fn new(found: &ConfigJson, stacks: &HashMap<String, String>) -> Result<Self> {
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
        for (expert, stack) in stacks {
            if let Some(own) = modules.get(stack) {
                modules.insert(expert.clone(), *own);
            }
        }
        Ok(Self { default, modules })
    }

    /// Returns a module's matrix; `None` if it is not quantized.
    pub fn matrix(&self, module: &mut QuantizedModule) -> Result<Option<DequantizedMatrix>> {
        let name = module.prefix.trim_end_matches('.').to_string();
        let own = self.modules.get(&name);
        let setting = own.copied().unwrap_or(self.default);
        let has_offsets = module.has("biases");
        // Only integers have offsets, whatever the settings of other modules.
        if !module.has("scales") || (setting.mode == Mode::Affine && !has_offsets) {
            return Ok(None);
        }
        let (codes, mut scales) = (module.needs("weight")?, module.needs("scales")?);
        codes.check_dtype(&[Dtype::U32])?;
        let (n_rows, n_words) = codes.dims2()?;
        let Setting {
            mode,
            bits,
            group_size,
        } = setting;
        let offsets = match has_offsets {
            true => Some(module.needs("biases")?),
            false => None,
        };
        let columns = n_words.saturating_mul(32) / bits;
        let n_groups = columns.div_ceil(group_size);
        let is_whole = n_words.saturating_mul(32) == columns * bits;
        for part in [&scales].into_iter().chain(&offsets) {
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
        let packing = match (&offsets, mode) {
            (None, Mode::Affine) => return Ok(None),
            (None, _) => {
                scales.check_dtype(&[Dtype::U8])?;
                match mode {
                    Mode::Mxfp8 => CodePacking::E4m3,
                    _ => CodePacking::E2m1,
                }
            }
            (Some(_), Mode::Affine) => CodePacking::Words { bits },
            (Some(offsets), _) => {
                return Err(offsets.error(format!(
                    "only weights of the mode \"affine\" have offsets, but config.json gives {name} another mode; set its \
                     mode in quantization.{name}"
                )));
            }
        };
        if mode == Mode::Nvfp4 {
            scales.info.dtype = Dtype::F8_E4M3; // stored as bytes
        }
        let scales = Scales {
            part: scales,
            n_groups,
            rows: 1,
            columns: group_size,
        };
        let stored = Grouped::new(codes, packing, (n_rows, columns), scales);
        match offsets {
            Some(offsets) => stored.with_zeros(ZeroSource::Behind(offsets)).matrix(),
            None => stored.matrix(),
        }
        .map(Some)
    }
}

/// Reads mode, bits and group size, with those of `default` as defaults. Without a mode of its own, a module is affine, as
/// in MLX.
fn setting(found: &ConfigJson, default: Option<Setting>) -> Result<Setting> {
    let names = Mode::ALL.map(|(name, _)| Value::from(name));
    found.only("mode", &names)?;
    let named = found.text(&["mode"])?;
    let mode = Mode::ALL
        .iter()
        .find(|(name, _)| named.as_deref() == Some(*name));
    let mode = mode.map_or(Mode::Affine, |(_, mode)| *mode);
    if let Some((bits, group_size)) = mode.fixed() {
        found.only("bits", &[bits.into()])?;
        found.only("group_size", &[group_size.into()])?;
        return Ok(Setting {
            mode,
            bits,
            group_size,
        });
    }
    let default = default.map(|default| match default.mode {
        Mode::Affine => default,
        _ => OF_MLX,
    });
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
    Ok(Setting {
        mode,
        bits,
        group_size,
    })
}
