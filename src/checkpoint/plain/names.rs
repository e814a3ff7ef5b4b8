//! The names under which plain feed-forward files hold their layers.

use crate::checkpoint::files::TensorFiles;
use crate::error::{Error, Result};

/// Names of the `{n}`-th layer's weight and bias, counted from 1.
const LINEAR_NAMES: [(&str, &str); 4] = [
    ("W{n}", "b{n}"),
    ("linear{n}.weight", "linear{n}.bias"),
    ("fc{n}.weight", "fc{n}.bias"),
    ("w{n}", "b{n}"),
];

/// Names of a norm's weight and bias.
pub(super) const NORM_NAMES: [(&str, &str); 7] = [
    ("norm.weight", "norm.bias"),
    ("layer_norm.weight", "layer_norm.bias"),
    ("norm.scale", "norm.shift"),
    ("layer_norm.scale", "layer_norm.shift"),
    ("norm.gamma", "norm.beta"),
    ("layer_norm.gamma", "layer_norm.beta"),
    ("scale", "shift"),
];

/// One linear layer of the file.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub weight: String,
    pub bias: Option<String>,
}

/// Finds the linear layers, in order, under the first naming whose first layer the file holds.
pub(super) fn find_layers(files: &TensorFiles) -> Result<Vec<Layer>> {
    let name = |pattern: &str, n: usize| pattern.replace("{n}", &n.to_string());
    let naming = LINEAR_NAMES
        .iter()
        .find(|(weight, _)| files.contains(&name(weight, 1)));
    let Some(&(weight, bias)) = naming else {
        return Err(Error::MissingTensor {
            path: files.path().to_path_buf(),
            role: "the first linear layer's weight".to_string(),
            tried: LINEAR_NAMES
                .iter()
                .map(|(weight, _)| name(weight, 1))
                .collect(),
            similar: files.similar(&name(LINEAR_NAMES[0].0, 1), 3),
        });
    };
    let mut layers = Vec::new();
    while files.contains(&name(weight, layers.len() + 1)) {
        let n = layers.len() + 1;
        layers.push(Layer {
            weight: name(weight, n),
            bias: Some(name(bias, n)).filter(|bias| files.contains(bias)),
        });
    }
    let has_biases = layers.iter().any(|layer| layer.bias.is_some());
    match layers.iter().position(|layer| layer.bias.is_none()) {
        Some(at) if has_biases => {
            let tried = name(bias, at + 1);
            Err(Error::MissingTensor {
                path: files.path().to_path_buf(),
                role: format!("the bias of {}", layers[at].weight),
                similar: files.similar(&tried, 3),
                tried: vec![tried],
            })
        }
        _ => Ok(layers),
    }
}
