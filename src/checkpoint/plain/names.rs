//! Finds the linear layers and the norm in a plain file by its tensors' names.
//!
//! A name is split into words, independent of case, separators and prefix: `ffn.W1`, `ffn.w_1` and `ffn.1.weight` all mean
//! the weight of layer 1 under `ffn`.

use std::collections::BTreeMap;

use crate::checkpoint::files::TensorFiles;
use crate::error::{Error, Result, abbreviated};

/// Words for a weight.
const WEIGHTS: [&str; 4] = ["weight", "weights", "kernel", "w"];
/// Words for a bias.
const BIASES: [&str; 3] = ["bias", "biases", "b"];
/// Words for a norm's weight and bias, also without a word for the norm itself.
const NORM_PARAMETERS: [[&str; 2]; 2] = [["gamma", "beta"], ["scale", "shift"]];
/// Words for a norm; `layer_norm` ends with one.
const NORMS: [&str; 3] = ["norm", "layernorm", "ln"];
/// Words before a norm's word that mean another norm than LayerNorm.
const OTHER_NORMS: [&str; 4] = ["batch", "group", "instance", "rms"];
/// Names for the gate, the up projection and the down projection. All others are numbered.
const ROLES: [[&str; 3]; 10] = [
    ["gate", "up", "down"],
    ["gate_proj", "up_proj", "down_proj"],
    ["", "fc", "proj"],
    ["gate", "in", "out"],
    ["", "input", "output"],
    ["", "hidden", "output"],
    ["", "intermediate_dense", "output_dense"],
    ["", "dense_h_to_4h", "dense_4h_to_h"],
    ["", "wi", "wo"],
    ["wi_0", "wi_1", "wo"],
];

/// Names on disk for the weight and the bias of a linear layer or a norm.
#[derive(Clone, Debug)]
pub(super) struct WeightAndBias {
    pub weight: String,
    pub bias: Option<String>,
}

/// The contents of a plain file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// A chain of linear layers.
    pub layers: Vec<WeightAndBias>,
    /// The gate of a gated feed-forward, beside two layers.
    pub gate: Option<WeightAndBias>,
    pub norm: Option<WeightAndBias>,
}

/// A word in a name, in lower case, and the index of its component; dots separate components.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Word {
    text: String,
    component: usize,
    /// The component contains no other word.
    is_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerKind {
    Layer,
    Norm,
}

/// The words in a layer's or norm's name, and its parameters' names on disk.
type FoundLayers = BTreeMap<(LayerKind, Vec<Word>), [Option<String>; 2]>;

/// Finds layers and the norm in the files. `rename` returns the name to use for each tensor, or `None` to leave it out.
///
/// # Errors
/// If a tensor is neither, or the layers are ambiguous.
pub(super) fn find(
    files: &TensorFiles,
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Contents> {
    let renamed = files.names().filter_map(|name| Some((rename(name)?, name)));
    let all: Vec<(String, &str)> = renamed.collect();
    let contents = sorted(&all, |name| {
        let shape = files.info(name).map(|info| info.shape.len());
        shape == Some(1)
    });
    contents.map_err(|reason| {
        let names: Vec<String> = all.into_iter().map(|(name, _)| name).collect();
        let reason = format!(
            "{reason}; the file contains {}; known names, each with any prefix: {}; rename the \
             tensors with `PlainFile::open_renamed`",
            abbreviated(&names),
            known()
        );
        Error::input(files.path().display().to_string(), reason)
    })
}

/// Returns all known names, for messages.
fn known() -> String {
    let roles = ROLES.map(|[gate, up, down]| match gate {
        "" => format!("{up} and {down}"),
        gate => format!("{up} and {down}, with {gate} or without"),
    });
    let norms = NORM_PARAMETERS.map(|[weight, bias]| format!("{weight}/{bias}"));
    format!(
        "layers as W1/b1, fc1.weight/fc1.bias and so on with any word before the number, 0.weight/0.bias with any numbers, {} (each \
         with weight/bias or w/b); a norm as {} (each with weight/bias or {norms}), or {norms} alone",
        roles.join(", "),
        NORMS.join(", "),
        norms = norms.join(" or ")
    )
}

/// Sorts named tensors into layers and the norm; each pair has a name and the name on disk.
fn sorted(
    names: &[(String, &str)],
    is_vector: impl Fn(&str) -> bool,
) -> std::result::Result<Contents, String> {
    let mut found = FoundLayers::new();
    for (name, on_disk) in names {
        let (key, place) = parameter(name)
            .ok_or_else(|| format!("{name} is not a known name for a weight or a bias"))?;
        let other = found.entry(key).or_default()[place].replace(on_disk.to_string());
        if let Some(other) = other {
            return Err(format!("{other} and {on_disk} are the same parameter"));
        }
    }
    let mut layers: Vec<(Vec<Word>, WeightAndBias)> = Vec::new();
    let mut norms: Vec<(Vec<Word>, WeightAndBias)> = Vec::new();
    for ((kind, stem), parameters) in found {
        let pair = match parameters {
            [Some(weight), bias] => WeightAndBias { weight, bias },
            [None, bias] => {
                let bias = bias.unwrap_or_default();
                return Err(format!("{bias} is a bias without a weight"));
            }
        };
        // In nn.Sequential, a norm has a number like the layers.
        let is_norm = kind == LayerKind::Norm || is_apart(&stem) && is_vector(&pair.weight);
        let one = if is_norm { &mut norms } else { &mut layers };
        one.push((stem, pair));
    }
    if let [(_, first), (_, second), ..] = &norms[..] {
        let (first, second) = (&first.weight, &second.weight);
        return Err(format!(
            "{first} and {second} belong to two norms, expected one"
        ));
    }
    let norm = norms.pop();
    if let Some((stem, norm)) = &norm
        && let Some((_, layer)) = layers.iter().find(|(of_layer, _)| of_layer == stem)
    {
        let (norm, layer) = (&norm.weight, &layer.weight);
        return Err(format!(
            "{norm} is beside {layer}, where norms have other names"
        ));
    }
    let mut contents = chain(layers)?;
    contents.norm = norm.map(|(_, norm)| norm);
    check_biases(&contents)?;
    Ok(contents)
}

/// Splits a tensor's name into its layer's name and the parameter's index in a pair.
fn parameter(name: &str) -> Option<((LayerKind, Vec<Word>), usize)> {
    let mut words = words(name);
    let last = words.last()?.component;
    let (at, place, of_norm) = (0..words.len()).rev().find_map(|at| {
        let word = words[at].text.as_str();
        let of_any = [&WEIGHTS[..], &BIASES[..]];
        let of_any = of_any.iter().position(|words| words.contains(&word));
        let of_norm = NORM_PARAMETERS
            .iter()
            .find_map(|pair| pair.iter().position(|name| *name == word));
        match (of_any, of_norm) {
            (Some(place), _) => Some((at, place, false)),
            (None, Some(place)) => Some((at, place, true)),
            _ => None,
        }
    })?;
    // Only numbers may follow the parameter's word, or words in the same component, as in W_up.
    let follows = |word: &Word| word.component == words[at].component || is_number(word);
    if !words[at..].iter().all(follows) || last > words[at].component + 1 {
        return None;
    }
    words.remove(at);
    let mut named = words.iter().rev().skip_while(|word| is_number(word));
    let is_norm = named
        .next()
        .is_some_and(|word| NORMS.contains(&word.text.as_str()));
    let is_other = named
        .next()
        .is_some_and(|word| OTHER_NORMS.contains(&word.text.as_str()));
    if is_norm && is_other {
        return None;
    }
    let kind = match is_norm || of_norm {
        true => LayerKind::Norm,
        false => LayerKind::Layer,
    };
    Some(((kind, words), place))
}

/// Returns a name's words. Digits after letters are a separate word.
fn words(name: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for (component, text) in name.split(['.', '/']).enumerate() {
        for part in text.split('_') {
            let letters = part.trim_end_matches(|c: char| c.is_ascii_digit());
            let both = [letters, &part[letters.len()..]];
            let word = |word: &&str| Word {
                text: word.to_lowercase(),
                component,
                is_alone: *word == text,
            };
            words.extend(both.iter().filter(|text| !text.is_empty()).map(word));
        }
    }
    words
}

fn is_number(word: &Word) -> bool {
    number(word).is_some()
}

fn number(word: &Word) -> Option<u32> {
    let digits = word.text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.text.parse().ok()).flatten()
}

/// Returns whether a name ends with a numeric component, as in nn.Sequential, where activations have an index too.
fn is_apart(stem: &[Word]) -> bool {
    let last = stem.last();
    last.is_some_and(|word| word.is_alone && is_number(word))
}

/// Returns the layers in order.
fn chain(mut layers: Vec<(Vec<Word>, WeightAndBias)>) -> std::result::Result<Contents, String> {
    if let Some(contents) = ROLES.iter().find_map(|role| by_role(&layers, role)) {
        return Ok(contents);
    }
    if layers.len() > 1 || layers.iter().any(|(stem, _)| !stem.is_empty()) {
        for (stem, pair) in &layers {
            if !stem.last().is_some_and(is_number) {
                return Err(format!(
                    "{} belongs to no layer with a known name",
                    pair.weight
                ));
            }
        }
        let at = |stem: &[Word]| stem.last().and_then(number).unwrap_or(0);
        layers.sort_by_key(|(stem, _)| at(stem));
        for pair in layers.windows(2) {
            let [(before, first), (after, second)] = pair else {
                continue;
            };
            let (first, second) = (&first.weight, &second.weight);
            let (before_start, after_start) =
                (&before[..before.len() - 1], &after[..after.len() - 1]);
            if before_start != after_start || at(before) == at(after) {
                return Err(format!(
                    "{first} and {second} do not belong to one chain of layers"
                ));
            }
            if at(after) != at(before) + 1 && !is_apart(after) {
                return Err(format!("a layer is missing between {first} and {second}"));
            }
        }
        if let Some((first, pair)) = layers.first()
            && at(first) > 1
            && !is_apart(first)
        {
            return Err(format!("a layer is missing before {}", pair.weight));
        }
    }
    Ok(Contents {
        layers: layers.into_iter().map(|(_, pair)| pair).collect(),
        ..Contents::default()
    })
}

/// Returns the layers, if this row names all of them, below one prefix.
fn by_role(layers: &[(Vec<Word>, WeightAndBias)], role: &[&str; 3]) -> Option<Contents> {
    let mut found: [Option<WeightAndBias>; 3] = [None, None, None];
    let mut prefix: Option<&[Word]> = None;
    for (stem, pair) in layers {
        let ends = |name: &&str| -> Option<&[Word]> {
            let texts: Vec<&str> = name.split('_').collect();
            let start = stem.len().checked_sub(texts.len())?;
            let same = stem[start..]
                .iter()
                .map(|word| word.text.as_str())
                .eq(texts);
            same.then(|| &stem[..start])
        };
        let (place, start) = role
            .iter()
            .enumerate()
            .find_map(|(place, name)| Some((place, ends(name)?)))?;
        let is_second = found[place].replace(pair.clone()).is_some();
        let texts = |words: &[Word]| {
            words
                .iter()
                .map(|word| word.text.clone())
                .collect::<Vec<_>>()
        };
        if is_second || prefix.is_some_and(|prefix| texts(prefix) != texts(start)) {
            return None;
        }
        prefix = Some(start);
    }
    match found {
        [gate, Some(up), Some(down)] => Some(Contents {
            layers: vec![up, down],
            gate,
            norm: None,
        }),
        _ => None,
    }
}

/// Refuses biases on some but not all layers: the file may have lost the others.
fn check_biases(contents: &Contents) -> std::result::Result<(), String> {
    let all = || contents.layers.iter().chain(&contents.gate);
    let with = all().find(|layer| layer.bias.is_some());
    let without = all().find(|layer| layer.bias.is_none());
    match (with, without) {
        (Some(with), Some(without)) => Err(format!(
            "{} has a bias and {} has none, expected all or no biases",
            with.weight, without.weight
        )),
        _ => Ok(()),
    }
}
