//! Weights that were quantised before they were saved, recognised only in order to say by which method, and what to do.

use serde_json::Value;

use crate::checkpoint::config_json::{ConfigJson, abbreviated};
use crate::error::Result;

const KEY: &str = "quantization_config";
/// bitsandbytes' own keys; its older files do not name the method.
const LOADED_IN: [&str; 2] = ["load_in_4bit", "load_in_8bit"];
/// What tells the variants of a method apart.
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

/// Refuses a `config.json` whose weights are quantised.
pub(super) fn refuse(json: &ConfigJson) -> Result<()> {
    let Some(found) = json.section(&[KEY])? else {
        return Ok(());
    };
    if found.keys().count() == 0 {
        return Ok(());
    }
    let is_set = |key: &&str| found.at(key) == Some(&Value::Bool(true));
    let loaded_in = LOADED_IN.into_iter().find(is_set);
    let method = match (found.text(&["quant_method"])?, loaded_in) {
        (Some(method), _) => method,
        (None, Some(_)) => "bitsandbytes".to_string(),
        (None, None) => "a method without a name".to_string(),
    };
    let setting = |key: &str| match found.at(key)? {
        Value::Null => None,
        Value::String(text) => Some(format!("{key} {text}")),
        value => Some(format!("{key} {value}")),
    };
    let variant = VARIANT.into_iter().filter_map(setting);
    let variant: Vec<String> = loaded_in
        .map(String::from)
        .into_iter()
        .chain(variant)
        .collect();
    let reason = format!(
        "the weights are quantised by {method} ({}), and are read only as f32, f16 or bf16; open the checkpoint that \
         they were made from, or have transformers write one: `AutoModel.from_pretrained(directory).dequantize()`, \
         then `save_pretrained`",
        abbreviated(variant.join(", "))
    );
    Err(json.error(&[KEY], reason))
}
