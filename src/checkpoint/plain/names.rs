//! Finds the linear layers and the norm in a plain file by its tensors' names.
//!
//! A name is split into words, independent of case, separators and prefix: `ffn.W1`, `ffn.w_1` and `ffn.1.weight` all mean
//! the weight of layer 1 under `ffn`.

use std::collections::BTreeMap;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::Orientation;
use crate::error::{Error, Result, abbreviated};

/// Words for a weight.
const WEIGHTS: [&str; 4] = ["weight", "weights", "kernel", "w"];
/// Words for a bias.
const BIASES: [&str; 3] = ["bias", "biases", "b"];
/// Words for a norm's weight and bias, also without a word for the norm itself.
const NORM_PARAMETERS: [[&str; 2]; 2] = [["gamma", "beta"], ["scale", "shift"]];
/// Words for a norm; `layer_norm` ends with one.
const NORMS: [&str; 4] = ["norm", "layernorm", "ln", "rmsnorm"];
/// Words before a norm's word that mean a norm that no layer computes.
const OTHER_NORMS: [&str; 3] = ["batch", "group", "instance"];
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

/// The word before the number in Llama's own names for gate, down and up: `w1`, `w2`, `w3`.
const LLAMA_WORD: &str = "w";

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
    pub norm: Option<FoundNorm>,
    /// The orientation in the library whose names the gated feed-forward has.
    pub named_orientation: Option<Orientation>,
}

/// A norm, and the properties that its name has.
#[derive(Debug)]
pub(super) struct FoundNorm {
    pub parameters: WeightAndBias,
    /// The number of linear layers before it, if they are numbered together, as in nn.Sequential.
    pub place: Option<usize>,
    /// The name says that it is an RMSNorm.
    pub is_rms: bool,
    /// A number is its only name.
    pub is_nameless: bool,
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
    RmsNorm,
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
    let shape = |name: &str| files.info(name).map_or(&[][..], |info| &info.shape[..]);
    let contents = sorted(&all, shape);
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
         with weight/bias or w/b), w1, w2 and w3 of Llama; a norm as {} (each with weight/bias or {norms}), or {norms} alone",
        roles.join(", "),
        NORMS.join(", "),
        norms = norms.join(" or ")
    )
}

/// Sorts named tensors into layers and the norm; each pair has a name and the name on disk.
fn sorted<'f>(
    names: &[(String, &str)],
    shape: impl Fn(&str) -> &'f [usize],
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
    let mut norms: Vec<(Vec<Word>, FoundNorm)> = Vec::new();
    for ((kind, stem), parameters) in found {
        let pair = match parameters {
            [Some(weight), bias] => WeightAndBias { weight, bias },
            [None, bias] => {
                let bias = bias.unwrap_or_default();
                return Err(format!("{bias} is a bias without a weight"));
            }
        };
        // In nn.Sequential, a norm has a number like the layers.
        let is_nameless = kind == LayerKind::Layer && is_apart(&stem);
        match (kind, shape(&pair.weight)) {
            (LayerKind::Layer, [1]) if is_nameless && pair.bias.is_none() => {
                let slope = pair.weight;
                return Err(format!(
                    "{slope} has one element, as a PReLU's slope has, and no layer here computes a PReLU; leave \
                     {slope} out, and apply candle_nn::PReLU between the layers of `linears`"
                ));
            }
            (LayerKind::Layer, [_]) if is_nameless => {}
            (LayerKind::Layer, _) => {
                layers.push((stem, pair));
                continue;
            }
            (LayerKind::Norm | LayerKind::RmsNorm, _) => {}
        }
        let norm = FoundNorm {
            parameters: pair,
            place: None,
            is_rms: kind == LayerKind::RmsNorm,
            is_nameless,
        };
        norms.push((stem, norm));
    }
    if let [(_, first), (_, second), ..] = &norms[..] {
        let (first, second) = (&first.parameters.weight, &second.parameters.weight);
        return Err(format!(
            "{first} and {second} belong to two norms, expected one"
        ));
    }
    let mut norm = norms.pop();
    if let Some((stem, norm)) = &mut norm {
        if let Some((_, layer)) = layers.iter().find(|(of_layer, _)| of_layer == stem) {
            let (norm, layer) = (&norm.parameters.weight, &layer.weight);
            return Err(format!(
                "{norm} is beside {layer}, where norms have other names"
            ));
        }
        norm.place = place_among(stem, &layers);
    }
    let mut contents = chain(layers, shape)?;
    contents.norm = norm.map(|(_, norm)| norm);
    check_biases(&contents)?;
    let own_names = names.iter().all(|(name, on_disk)| name == on_disk);
    contents.named_orientation = orientation(&contents).filter(|_| own_names);
    Ok(contents)
}

/// Returns the count of layers before a norm, if the norm and the layers are numbered in the same module.
fn place_among(norm: &[Word], layers: &[(Vec<Word>, WeightAndBias)]) -> Option<usize> {
    let split = |stem: &[Word]| {
        let (last, module) = stem.split_last()?;
        is_apart(stem).then(|| Some((module.to_vec(), number(last)?)))?
    };
    let (module, at) = split(norm)?;
    let numbers = layers.iter().map(|(stem, _)| {
        let (other, number) = split(stem)?;
        (other == module).then_some(number)
    });
    let numbers = numbers.collect::<Option<Vec<u32>>>()?;
    Some(numbers.into_iter().filter(|number| *number < at).count())
}

/// Returns the orientation of a gated feed-forward's weights, from the word that PyTorch (`weight`) or Flax (`kernel`) has
/// for them.
fn orientation(contents: &Contents) -> Option<Orientation> {
    contents.gate.as_ref()?;
    let all = || contents.layers.iter().chain(&contents.gate);
    let ends_with =
        |word: &str| all().all(|layer| layer.weight.rsplit(['.', '/']).next() == Some(word));
    let library_names = [
        ("weight", Orientation::OutIn),
        ("kernel", Orientation::InOut),
    ];
    let found = library_names.into_iter().find(|(word, _)| ends_with(word));
    found.map(|(_, orientation)| orientation)
}

/// Splits a tensor's name into its layer's name and the parameter's index in a pair.
fn parameter(name: &str) -> Option<((LayerKind, Vec<Word>), usize)> {
    let mut words = words(name);
    let last = words.last()?.component;
    let (at, place, norm_part) = (0..words.len()).rev().find_map(|at| {
        let word = words[at].text.as_str();
        let weight_or_bias = [&WEIGHTS[..], &BIASES[..]];
        let weight_or_bias = weight_or_bias
            .iter()
            .position(|words| words.contains(&word));
        let norm_part = NORM_PARAMETERS
            .iter()
            .find_map(|pair| pair.iter().position(|name| *name == word));
        match (weight_or_bias, norm_part) {
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
    let kind = match named.next().map(|word| word.text.as_str()) {
        Some("rmsnorm") => LayerKind::RmsNorm,
        Some(word) if NORMS.contains(&word) => match named.next() {
            Some(before) if before.text == "rms" => LayerKind::RmsNorm,
            Some(before) if OTHER_NORMS.contains(&before.text.as_str()) => return None,
            _ => LayerKind::Norm,
        },
        _ if norm_part => LayerKind::Norm,
        _ => LayerKind::Layer,
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
fn chain<'f>(
    mut layers: Vec<(Vec<Word>, WeightAndBias)>,
    shape: impl Fn(&str) -> &'f [usize],
) -> std::result::Result<Contents, String> {
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
    let is_llama = is_llama(&layers, shape);
    let mut layers: Vec<WeightAndBias> = layers.into_iter().map(|(_, pair)| pair).collect();
    let gate = is_llama.then(|| layers.remove(0)); // w1; w2 is down, w3 is up
    if is_llama {
        layers.reverse();
    }
    Ok(Contents {
        layers,
        gate,
        ..Contents::default()
    })
}

/// Returns whether three layers in order are Llama's `w1`, `w2` and `w3`: without biases, and with the shape of `w2` the
/// reverse of the others'.
fn is_llama<'f>(
    layers: &[(Vec<Word>, WeightAndBias)],
    shape: impl Fn(&str) -> &'f [usize],
) -> bool {
    let is_named = |(at, (stem, pair)): (usize, &(Vec<Word>, WeightAndBias))| match &stem[..] {
        [.., word, last] => {
            word.text == LLAMA_WORD && number(last) == Some(at as u32) && pair.bias.is_none()
        }
        _ => false,
    };
    let [(_, gate), (_, down), (_, up)] = layers else {
        return false;
    };
    let [gate, down, up] = [gate, down, up].map(|pair| shape(&pair.weight));
    let fits = matches!((gate, down), ([f, d], [e, g]) if f == g && d == e && f != d);
    (1..).zip(layers).all(is_named) && gate == up && fits
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
            ..Contents::default()
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
