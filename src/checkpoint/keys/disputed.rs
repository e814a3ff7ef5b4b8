//! Keys in `config.json` that transformers' attention implementations follow differently.
//!
//! `weights/sweep/config.py` compares the program with transformers' default attention, and finds where eager attention differs.

use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::scheme::Family;

/// The family, the key, its value (`None` for any), and the implementation that is followed here. Falcon's eager attention adds ALiBi's biases twice:
/// to the scores, and with the mask. For `output_attentions`, its default attention adds a mask of booleans to the scores.
/// The default attention of Phi-4's images is causal where no patch is masked, because `Phi4MultimodalVisionAttention` says `is_causal`; they
/// were trained without such a mask (<https://github.com/microsoft/onnxruntime/pull/25360>).
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/falcon/modeling_falcon.py>
static KEYS: [(&str, &str, Option<Value>, &str); 3] = [
    ("falcon", "alibi", Some(Value::Bool(true)), "sdpa"),
    (
        "falcon",
        "output_attentions",
        Some(Value::Bool(true)),
        "eager",
    ),
    ("phi4_multimodal_vision", "model_type", None, "eager"),
];

/// Returns the keys with values for which transformers' eager attention gives other results than its default attention, each with the
/// implementation that is followed.
pub(crate) fn of(family: &Family, json: &ConfigJson) -> Vec<String> {
    let keys = KEYS.iter().filter(|(name, key, value, _)| {
        let is_value = |found| value.as_ref().is_none_or(|value| value == found);
        *name == family.name && json.value_at(key).is_some_and(is_value)
    });
    keys.map(|(_, key, _, followed)| format!("{key} (as with {followed:?})"))
        .collect()
}
