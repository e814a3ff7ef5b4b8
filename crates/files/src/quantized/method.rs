//! Reads the method that a `quantization_config` names, and its settings.

use std::{collections::HashMap, fs, path::Path};

use serde_json::Value;

use super::compressed_tensors::{self, Schemes};
use super::gptq::{Gptq, GptqConfig, ZeroPoints};
use super::{
    DequantizedMatrix, QuantizedModule, awq::Awq, bitnet::BitNet, bitsandbytes, companions, keys,
    mlx::Mlx,
};
use crate::config_json::{ConfigJson, abbreviated};
use crate::gguf;
use crate::tensors::{TensorFiles, read_limited};
use candle_blocks_base::{Error, Result};

/// The keys in `config.json` for quantization: transformers' and MLX's.
pub const KEYS: [&str; 2] = ["quantization_config", "quantization"];
/// Files in which older programs stored settings that are now in `config.json`, and the method.
pub(super) const BESIDE: [(&str, &str); 3] = [
    ("hf_quant_config.json", "modelopt"),
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
];
/// bitsandbytes' own keys; its older files do not name the method.
const LOADED_IN: [&str; 2] = ["load_in_4bit", "load_in_8bit"];
/// Keys that distinguish a method's variants.
const VARIANT: [&str; 11] = [
    "bits",
    "w_bit",
    "group_size",
    "q_group_size",
    "version",
    "checkpoint_format",
    "format",
    "fmt",
    "quant_type",
    "bnb_4bit_quant_type",
    "weight_block_size",
];

/// Methods that are not supported, and the packages with which `examples/dequantize.py` writes their weights on a CPU. Each was
/// tried; newer versions of transformers read no hqq.
const COMPUTED: [(&str, &str); 2] = [
    ("hqq", "transformers 4.57 and hqq"),
    ("torchao", "transformers 5 and torchao"),
];
/// The size limit for a model card.
const MAX_CARD_BYTES: u64 = 10_000_000;

/// A supported method, with its settings.
pub(super) enum Method {
    Gptq(GptqConfig),
    Awq { group_size: Option<usize> },
    CompressedTensors(Schemes),
    Fp8(Schemes),
    BitsAndBytes,
    Mxfp4,
    Mlx(Mlx),
    BitNet(BitNet),
}

impl Method {
    /// Returns a checkpoint's method, and the file that names it. `stacks` has the modules of experts that were stacked.
    ///
    /// # Errors
    /// If the method is not supported, or its configuration has invalid settings.
    pub fn of(
        json: &ConfigJson,
        directory: &Path,
        stacks: &HashMap<String, String>,
    ) -> Result<Option<(ConfigJson, Self)>> {
        for (name, method) in BESIDE {
            let path = directory.join(name);
            if json.section(&KEYS)?.is_none()
                && let Some(found) = ConfigJson::open_named(&path)?
            {
                let found = found.with_default("quant_method", method);
                return Self::named(&found, stacks).map(|method| Some((found, method)));
            }
        }
        match quantization(json)? {
            // Some files only have a scheme for the cache, and no group for weights.
            Some(found)
                if found
                    .section(&["config_groups"])?
                    .is_some_and(|groups| groups.keys().count() == 0)
                    && found.section(&["kv_cache_scheme"])?.is_some() =>
            {
                Ok(None)
            }
            Some(found) => Self::named(&found, stacks).map(|method| Some((found, method))),
            None => Ok(None),
        }
    }

    fn named(found: &ConfigJson, stacks: &HashMap<String, String>) -> Result<Self> {
        let name = method_name(found)?;
        let method = Self::of_name(found, &name, stacks)?;
        keys::check(found, &name)?;
        Ok(method)
    }

    fn of_name(found: &ConfigJson, name: &str, stacks: &HashMap<String, String>) -> Result<Self> {
        Ok(match name {
            "gptq" => Self::gptq(found)?,
            "awq" => {
                found.only("version", &["gemm".into(), "GEMM".into()])?;
                Self::awq(found)?
            }
            // The tensors are those of the method that follows the name.
            "auto-round" => match found.text(&["packing_format"])?.as_deref() {
                Some("auto_round:auto_gptq" | "auto_round:gptq") => Self::gptq(found)?,
                Some("auto_round:auto_awq" | "auto_round:awq") => Self::awq(found)?,
                other => {
                    let reason = format!(
                        "{} is not supported, only \"auto_round:auto_gptq\" and \
                             \"auto_round:auto_awq\"; have auto-round export one of these",
                        other.map_or("no format".to_string(), |other| format!("{other:?}"))
                    );
                    return Err(found.error(&["packing_format"], reason));
                }
            },
            "compressed-tensors" | "modelopt" => Self::CompressedTensors(Schemes {
                orders_columns: name == "compressed-tensors",
                ..schemes(found)?
            }),
            "fp8" | "fbgemm_fp8" => {
                found.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
                Self::Fp8(schemes(found)?)
            }
            "bitsandbytes" => Self::BitsAndBytes,
            "mxfp4" => Self::Mxfp4,
            "mlx" => Self::Mlx(Mlx::new(found, stacks)?),
            "bitnet" => Self::BitNet(BitNet::new(found)?),
            _ => return Err(refusal(found)?),
        })
    }

    fn awq(found: &ConfigJson) -> Result<Self> {
        for key in ["bits", "w_bit"] {
            found.only(key, &[4.into()])?;
        }
        let group_size = size_of_group(found, &["group_size", "q_group_size"])?;
        Ok(Self::Awq { group_size })
    }

    fn gptq(found: &ConfigJson) -> Result<Self> {
        found.only("bits", &[2.into(), 3.into(), 4.into(), 8.into()])?;
        let key = ["checkpoint_format", "format"];
        let zero_points = match found.text(&key)?.as_deref() {
            None | Some("gptq") => ZeroPoints::OneLess,
            Some("gptq_v2") => ZeroPoints::AsTheyAre,
            Some(other) => {
                let reason = format!("{other:?} is not supported, only \"gptq\" and \"gptq_v2\"");
                return Err(found.error(&key, reason));
            }
        };
        // GPTQModel's and auto-round's settings for single modules.
        let is_set = |key: &str| found.at(key).is_some_and(|value| !value.is_null());
        let group_size = size_of_group(found, &["group_size"])?;
        Ok(Self::Gptq(GptqConfig {
            bits: found.size(&["bits"])?,
            group_size,
            zero_points,
            symmetric: found.flag(&["sym"], false)?,
            varies: ["dynamic", "extra_config"].into_iter().any(is_set),
        }))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Gptq(_) => "gptq",
            Self::Awq { .. } => "awq",
            Self::CompressedTensors(_) => "compressed-tensors",
            Self::Fp8(_) => "fp8",
            Self::BitsAndBytes => "bitsandbytes",
            Self::Mxfp4 => "mxfp4",
            Self::Mlx(_) => "mlx",
            Self::BitNet(_) => "bitnet",
        }
    }

    /// Returns suffixes of tensor names that mark a module as quantized. The part before the suffix is the module's prefix.
    pub fn markers(&self) -> &'static [&'static str] {
        match self {
            Self::BitNet(BitNet::Online) => &["weight"],
            Self::BitNet(_) => &["weight_scale"],
            Self::Gptq(_) | Self::Awq { .. } => &["qweight"],
            Self::CompressedTensors(_) => &["weight_packed", "weight_scale"],
            Self::Fp8(_) => &["weight_scale_inv", "weight_scale"],
            Self::BitsAndBytes => &[
                "SCB",
                "weight.quant_state.bitsandbytes__nf4",
                "weight.quant_state.bitsandbytes__fp4",
            ],
            Self::Mxfp4 => &["_blocks"],
            Self::Mlx(_) => &["scales"],
        }
    }

    /// Returns the suffix of the weight's name after the module's prefix.
    pub fn weight(&self) -> &'static str {
        match self {
            Self::Mxfp4 => "",
            _ => "weight",
        }
    }

    /// Takes tensors that change no weight from the files, and returns their names.
    pub fn left_out(&self, files: &mut TensorFiles) -> Vec<String> {
        match self {
            Self::CompressedTensors(_) | Self::Fp8(_) => companions::left_out(files),
            _ => Vec::new(),
        }
    }

    /// Returns a module's matrix; `None` if it is not quantized.
    pub fn matrix(&self, module: &mut QuantizedModule) -> Result<Option<DequantizedMatrix>> {
        match self {
            Self::Gptq(config) => Gptq::matrix(module, *config),
            Self::Awq { group_size } => Awq::matrix(module, *group_size),
            Self::CompressedTensors(schemes) | Self::Fp8(schemes) => {
                compressed_tensors::matrix(module, schemes)
            }
            Self::BitsAndBytes => bitsandbytes::matrix(module),
            Self::Mxfp4 => {
                let (codes, scales) = (module.needs("_blocks")?, module.needs("_scales")?);
                compressed_tensors::mxfp4_experts(codes, scales).map(Some)
            }
            Self::Mlx(mlx) => mlx.matrix(module),
            Self::BitNet(bitnet) => bitnet.matrix(module),
        }
    }
}

/// Returns the quantization settings in `config.json`, if the weights are quantized.
pub(super) fn quantization(json: &ConfigJson) -> Result<Option<ConfigJson>> {
    let found = json.section(&KEYS)?;
    Ok(found.filter(|found| found.keys().count() > 0))
}

fn method_name(found: &ConfigJson) -> Result<String> {
    let is_set = |key: &str| found.at(key) == Some(&Value::Bool(true));
    Ok(match found.text(&["quant_method"])? {
        Some(method) => method.to_lowercase(),
        None if LOADED_IN.iter().any(|key| is_set(key)) => "bitsandbytes".to_string(),
        None if found.at("bits").is_some() && found.at("group_size").is_some() => "mlx".to_string(),
        None => "a method without a name".to_string(),
    })
}

/// Returns the group size; -1 means all columns.
fn size_of_group(found: &ConfigJson, keys: &[&str]) -> Result<Option<usize>> {
    match keys.iter().find_map(|key| found.at(key)) {
        Some(size) if size.as_i64() == Some(-1) => Ok(None),
        _ => found.optional_size(keys),
    }
}

/// Returns all bits, group sizes and blocks that modules may have.
fn schemes(found: &ConfigJson) -> Result<Schemes> {
    let format = found.text(&["format"])?.unwrap_or_default();
    if ["marlin-24", "sparse-bitmask", "sparse-24-bitmask"].contains(&format.as_str()) {
        let reason = format!("{format} weights are not supported; save them dense");
        return Err(found.error(&["format"], reason));
    }
    let mut schemes = Schemes::default();
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let block = |value: &Value| match value.as_array()?.as_slice() {
        [rows, columns] => Some((size(rows)?, size(columns)?)),
        _ => None,
    };
    let groups = found.at("config_groups").and_then(Value::as_object);
    let settings = groups.into_iter().flat_map(|groups| groups.values());
    for weights in settings.filter_map(|group| group.get("weights")) {
        schemes.bits.extend(weights.get("num_bits").and_then(size));
        schemes
            .group_sizes
            .extend(weights.get("group_size").and_then(size));
        schemes
            .blocks
            .extend(weights.get("block_structure").and_then(block));
    }
    schemes
        .group_sizes
        .extend(found.at("group_size").and_then(size));
    schemes
        .blocks
        .extend(found.at("weight_block_size").and_then(block));
    Ok(schemes)
}

/// Returns the bytes of a `config.json` for weights that are not quantized. Returns the file's own bytes if its weights are
/// not quantized and nothing was changed.
pub fn config_of_dense_weights(json: &ConfigJson) -> Result<Vec<u8>> {
    let path = json.path();
    let mut value = json.value().clone();
    if !gguf::is_gguf(path) {
        let is_quantized = quantization(json)?.is_some();
        if !is_quantized && ConfigJson::open(path)?.value() == json.value() {
            return fs::read(path).map_err(|source| Error::io(path, "read", source));
        }
        let Some(object) = value.as_object_mut() else {
            return to_bytes(json, &value);
        };
        KEYS.into_iter().for_each(|key| drop(object.remove(key)));
    }
    to_bytes(json, &value)
}

/// Returns the bytes of a `config.json` for weights that are quantized as `quantization` describes.
pub fn config_of_packed_weights(json: &ConfigJson, quantization: Value) -> Result<Vec<u8>> {
    let mut value = json.value().clone();
    if let Some(object) = value.as_object_mut() {
        KEYS.into_iter().for_each(|key| drop(object.remove(key)));
        object.insert(KEYS[0].to_string(), quantization);
    }
    to_bytes(json, &value)
}

fn to_bytes(json: &ConfigJson, value: &Value) -> Result<Vec<u8>> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| json.error(&KEYS, error.to_string()))?;
    Ok((text + "\n").into_bytes())
}

fn refusal(found: &ConfigJson) -> Result<Error> {
    let setting = |key: &&str| match found.at(key)? {
        Value::Null => None,
        value => Some(format!("{key} {}", keys::shown(value))),
    };
    let name = method_name(found)?;
    let settings = LOADED_IN.iter().chain(&VARIANT).filter_map(setting);
    let settings: Vec<String> = settings.collect();
    let settings = match settings.is_empty() {
        true => String::new(),
        false => format!(" ({})", abbreviated(settings.join(", "))),
    };
    let base = match base_model(found.path()) {
        Some(base) => format!(", {base} (`base_model` in README.md)"),
        None => String::new(),
    };
    let script = COMPUTED.iter().find(|(method, _)| *method == name);
    let script = script.map_or_else(String::new, |(_, packages)| {
        format!(
            ", or write the weights unquantized with `python examples/dequantize.py FOLDER NEW` in candle-blocks' \
             repository, which needs {packages}"
        )
    });
    let reason = format!(
        "the weights are quantized by {name}{settings}, which is not supported; use the unquantized checkpoint that they \
         were made from{base}{script}"
    );
    Ok(found.error(&KEYS[..1], reason))
}

/// Returns the model that the card beside a `config.json` names as its base.
fn base_model(config: &Path) -> Option<String> {
    let card = read_limited(
        &config.with_file_name("README.md"),
        MAX_CARD_BYTES,
        "README.md",
    );
    let card = String::from_utf8(card.ok()?).ok()?;
    let (front, _) = card.strip_prefix("---\n")?.split_once("\n---")?;
    let mut lines = front
        .lines()
        .skip_while(|line| !line.starts_with("base_model:"));
    let first = lines.next()?.trim_start_matches("base_model:");
    let name = match first.trim().is_empty() {
        true => lines.next()?.trim_start().strip_prefix("- ")?,
        false => first,
    };
    let name = name.trim().trim_matches(['"', '\'']);
    (!name.is_empty() && !name.contains([':', ' '])).then(|| abbreviated(name.to_string()))
}
