//! PyTorch classes that sentence-transformers' files name as activations.

use crate::checkpoint::config_json::ConfigJson;
use crate::config::Activation;
use crate::error::Result;
use crate::text::scoring::ScoreFunction;

/// Classes in `torch.nn` that map each element, with PyTorch's default arguments.
const CLASSES: &[(&str, Activation)] = &[
    ("Identity", Activation::Identity),
    ("Tanh", Activation::Tanh),
    ("GELU", Activation::Gelu),
    ("ReLU", Activation::Relu),
    ("ReLU6", Activation::Relu6),
    ("LeakyReLU", Activation::LeakyRelu),
    ("SiLU", Activation::Silu),
    ("Mish", Activation::Mish),
    ("Hardswish", Activation::HardSwish),
    ("Sigmoid", Activation::Sigmoid),
];

/// Returns the activation under `key`; `None` if absent.
///
/// # Errors
/// If it is not one of PyTorch's known classes. (For a class outside PyTorch, sentence-transformers uses its default
/// instead.)
pub(super) fn activation(json: &ConfigJson, key: &str) -> Result<Option<Activation>> {
    match scoring(json, key)? {
        None => Ok(None),
        Some(ScoreFunction::Each(activation)) => Ok(Some(activation)),
        Some(ScoreFunction::Softmax) => Err(unknown(json, key, "torch.nn.Softmax")),
    }
}

/// Returns the function under `key` for a cross-encoder's scores; `None` if absent.
///
/// # Errors
/// If it is not one of PyTorch's known classes.
pub(in crate::text) fn scoring(json: &ConfigJson, key: &str) -> Result<Option<ScoreFunction>> {
    let Some(path) = json.text(&[key])? else {
        return Ok(None);
    };
    // `torch.nn.modules.activation.Tanh`, or `torch.nn.Tanh`
    let class = path
        .strip_prefix("torch.nn.")
        .map(|path| path.rsplit('.').next());
    let known = |class: &str| match class {
        "Softmax" => Some(ScoreFunction::Softmax),
        class => CLASSES
            .iter()
            .find(|(name, _)| *name == class)
            .map(|&(_, activation)| ScoreFunction::Each(activation)),
    };
    let found = class.flatten().and_then(known);
    found.map(Some).ok_or_else(|| unknown(json, key, &path))
}

/// Returns the function that `config.json` names for sentence-transformers' `CrossEncoder`, if it names one.
///
/// # Errors
/// If it is unknown.
pub(in crate::text) fn of_cross_encoder(json: &ConfigJson) -> Result<Option<ScoreFunction>> {
    if let Some(section) = json.section(&["sentence_transformers"])?
        && section.at("activation_fn").is_some()
    {
        return scoring(&section, "activation_fn");
    }
    scoring(json, "sbert_ce_default_activation_function") // before version 4
}

fn unknown(json: &ConfigJson, key: &str, path: &str) -> crate::Error {
    let names: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
    let reason = format!(
        "{path:?} is not supported; supported are these classes of torch.nn: {}",
        names.join(", ")
    );
    json.error(&[key], reason)
}
