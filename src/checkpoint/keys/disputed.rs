//! Keys in `config.json` that transformers' attention implementations follow differently.
//!
//! `weights/sweep/config.py` compares the program with transformers' default attention, and finds where eager attention differs.

use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::scheme::Family;

/// The family, the key, its value, and the implementation that is followed here. Falcon's eager attention adds ALiBi's biases twice:
/// to the scores, and with the mask. For `output_attentions`, its default attention adds a mask of booleans to the scores.
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/falcon/modeling_falcon.py>
static KEYS: [(&str, &str, Value, &str); 2] = [
    ("falcon", "alibi", Value::Bool(true), "sdpa"),
    ("falcon", "output_attentions", Value::Bool(true), "eager"),
];

/// Returns the keys with values for which transformers' eager attention gives other results than its default attention, each with the
/// implementation that is followed.
pub(crate) fn of(family: &Family, json: &ConfigJson) -> Vec<String> {
    let keys = KEYS
        .iter()
        .filter(|(name, key, value, _)| *name == family.name && json.value_at(key) == Some(value));
    keys.map(|(_, key, _, followed)| format!("{key} (as with {followed:?})"))
        .collect()
}
