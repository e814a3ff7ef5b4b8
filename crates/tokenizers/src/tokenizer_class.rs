//! The class in transformers that builds a tokenizer from `tokenizer.json` and the files beside it.
//!
//! Many classes only use the vocabulary and merges of `tokenizer.json`, and build normalizer, pre-tokenizer, decoder and
//! post-processor themselves, from keys in `tokenizer_config.json`. `classes.json` has these parts for each such class.
//!
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/auto/tokenization_auto.py>

pub(crate) mod added_tokens;
mod bos_eos;
mod byte_pairs;
mod files;
pub(crate) mod git_lfs;
mod parts;
mod python;
mod sentence_piece;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use candle_blocks_templates::minijinja::value::Value as Described;
use serde_json::{Map, Value};
use tokenizers::{ModelWrapper, PaddingDirection};

pub(crate) use self::parts::Origin;
pub(crate) use self::python::PythonTokens;
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;
use candle_blocks_files::tensors::is_named;

static CLASSES: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let classes = serde_json::from_str(include_str!("tokenizer_class/classes.json"));
    classes.unwrap_or_default() // a test checks this
});

/// Classes that follow `tokenizer.json`.
const AS_WRITTEN: [&str; 5] = [
    "TokenizersBackend",
    "MistralCommonBackend",
    "PreTrainedTokenizer",
    "PythonBackend",
    "ConvBertTokenizer",
];
/// Entries in the list that are not classes: model types, classes in Python, and classes without a model type.
const MISTAKEN: &str = "mistaken";
const IN_PYTHON: &str = "in Python";
const WITHOUT_A_TYPE: &str = "without a type";
/// A mark of the parts for a class in Python, which reads no `tokenizer.json`.
const PYTHON: &str = "python";
/// A mark of the parts for files that have added tokens of their own.
const KEEPS_TOKENS: &str = "keeps_tokens";
/// Names for which transformers has no class, so it follows `tokenizer.json`.
const NONE: &str = "";

/// How a tokenizer is built from `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) enum TokenizerClass {
    /// Exactly like the file.
    AsWritten,
    /// With parts that a class builds from its keys' values.
    Built {
        parts: Map<String, Value>,
        keys: BTreeMap<String, Value>,
        /// Control and user-defined pieces from a SentencePiece model, if there is no `tokenizer.json`.
        of_pieces: Option<Vec<Described>>,
    },
    /// By a class that is not supported here: `tokenizer.json` is followed. If transformers has the class, the note says so.
    Unknown { note: Option<String> },
}

impl TokenizerClass {
    /// Returns the class that transformers uses for the tokenizer in a directory.
    ///
    /// # Errors
    /// If a key that the class reads has a value of another type.
    pub fn of(
        directory: &Path,
        config: Option<&ConfigJson>,
        inner: &tokenizers::Tokenizer,
    ) -> Result<Self> {
        let name = name_of(directory, config, || is_byte_level(inner))?;
        if name == NONE || AS_WRITTEN.contains(&name.as_str()) {
            return Ok(Self::AsWritten);
        }
        let found = kind_of(inner.get_model());
        let Some(parts) = parts_of(&name) else {
            let note = is_of_transformers(&name).then(|| {
                format!(
                    "tokenizer.json is followed unchanged; transformers uses its class {name}, \
                     which may produce other tokens"
                )
            });
            return Ok(Self::Unknown { note });
        };
        if parts.contains_key(PYTHON) {
            let files = files::names(&parts).join(" and ");
            let note = format!(
                "tokenizer.json is followed unchanged; transformers uses its class {name}, which reads \
                 {files} instead and may produce other tokens"
            );
            return Ok(Self::Unknown { note: Some(note) });
        }
        let kind = parts.get("model").and_then(|model| model["type"].as_str());
        if kind != Some(found) {
            let kind = kind.unwrap_or_default();
            let note = format!(
                "tokenizer.json has a {found} model and is followed unchanged; transformers uses \
                 its class {name}, which makes a {kind} model and therefore other tokens"
            );
            return Ok(Self::Unknown { note: Some(note) });
        }
        Self::built(parts, config)
    }

    fn built(parts: Map<String, Value>, config: Option<&ConfigJson>) -> Result<Self> {
        let mut keys = BTreeMap::new();
        let defaults = parts.get("keys").and_then(Value::as_object);
        for (key, default) in defaults.into_iter().flatten() {
            let said = match (config, default) {
                // A null says that Pegasus has no such token.
                (Some(config), Value::String(_)) if key == "mask_token_sent" => {
                    let said = config.value_at(key);
                    let is_null = said.is_some_and(Value::is_null);
                    let text = config.text(&[key])?.map(Value::from);
                    text.or(is_null.then_some(Value::Null))
                }
                (Some(config), Value::String(_)) => {
                    let text = config.text(&[key])?;
                    let text = match parts.contains_key("marks_languages") {
                        true => text.map(marked),
                        false => text,
                    };
                    text.map(Value::from)
                }
                (Some(config), Value::Number(_)) => number_of_tokens(config, key)?,
                (Some(config), _) if key == "task" => config.text(&[key])?.map(Value::from),
                // Python takes a null for false, unless the class takes it for its default.
                (Some(config), Value::Bool(_)) if !parts.contains_key("null_is_default") => {
                    let is_null = config.value_at(key).is_some_and(Value::is_null);
                    let flag = config.parsed::<bool>(key)?;
                    flag.or(is_null.then_some(false)).map(Value::from)
                }
                (Some(config), _) => config.parsed::<bool>(key)?.map(Value::from),
                (None, _) => None,
            };
            keys.insert(key.clone(), said.unwrap_or_else(|| default.clone()));
        }
        let refused = parts.get("refused").and_then(Value::as_object);
        for (key, reason) in refused.into_iter().flatten() {
            if let (Some(Value::Bool(true)), Some(config)) = (keys.get(key), config) {
                return Err(config.error(&[key], reason.as_str().unwrap_or_default()));
            }
        }
        Ok(Self::Built {
            parts,
            keys,
            of_pieces: None,
        })
    }

    /// Returns whether transformers makes the tokenizer in a directory in Python, from the class's own files, and reads no
    /// `tokenizer.json` beside them.
    ///
    /// # Errors
    /// If `tokenizer_class` is not a string.
    pub fn passes_over_json(directory: &Path, config: Option<&ConfigJson>) -> Result<bool> {
        let name = name_of(directory, config, || false)?;
        let parts = parts_of(&name).filter(|parts| parts.contains_key(PYTHON));
        Ok(parts.is_some_and(|parts| files::are_there(directory, &parts)))
    }

    /// Returns why a directory without `tokenizer.json` has no tokenizer, and the cure.
    ///
    /// # Errors
    /// If `tokenizer_class` is not a string.
    pub fn missing(directory: &Path, config: Option<&ConfigJson>) -> Result<String> {
        let name = name_of(directory, config, || false)?;
        let parts = parts_of(&name).unwrap_or_default();
        let files = files::names(&parts).into_iter();
        let absent: Vec<&str> = { files }
            .filter(|file| !is_named(&directory.join(file)))
            .collect();
        if !absent.is_empty() {
            return Ok(format!(
                "missing, and {name} has no {}, from which it can be made; copy one of them from the model's repository",
                absent.join(" and no ")
            ));
        }
        if types_of(IN_PYTHON).any(|one| one == name) {
            return Ok(format!(
                "missing, and transformers' {name}, which is written in Python, writes none and is not read here; tokenize \
                 the texts with it, and give the model token ids: `candle-blocks run --input FILE`, or ModelInput::tokens"
            ));
        }
        let class = match is_of_transformers(&name) && !AS_WRITTEN.contains(&name.as_str()) {
            true => format!("missing, and the files of {name} are not read here"),
            false => format!(
                "missing, and there are no other files of its class that are read ({})",
                Self::known_files()
            ),
        };
        Ok(format!(
            "{class}; copy it from the model's repository, or, if all files of its class are there, without which transformers \
             may write other tokens, write it with `python -c 'import transformers as t, sys; \
             t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' {}`",
            directory.display()
        ))
    }

    /// Returns the special tokens that a class defines if the files do not: first those with names that all classes know,
    /// then its own in the order in which they get ids.
    pub fn named_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        let part = |name: &str| match self {
            Self::Built { parts, .. } => parts.get(name),
            _ => None,
        };
        let known = part("tokens").and_then(Value::as_object);
        let known = known.into_iter().flatten();
        let own = part("own_tokens").and_then(Value::as_array);
        let own = own.into_iter().flatten();
        let own = own.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?)));
        known
            .filter_map(|(name, token)| Some((name.as_str(), token.as_str()?)))
            .chain(own)
    }

    /// Returns the special tokens without a name that a class defines if the files list none, such as languages, as
    /// `tokenizer_config.json` would list them.
    pub fn further_tokens(&self) -> Vec<Described> {
        match self {
            Self::Built {
                parts,
                keys,
                of_pieces,
            } => {
                let special = parts::further_tokens(parts, keys).into_iter();
                let special = special.map(Described::from);
                let adds = parts
                    .get("pieces")
                    .and_then(|pieces| pieces["adds"].as_str());
                let adds = match of_pieces {
                    None => "special",
                    Some(_) => adds.unwrap_or("both"),
                };
                let pieces = of_pieces.iter().flatten().cloned();
                match adds {
                    "special" => special.collect(),
                    "pieces" => pieces.collect(),
                    _ => pieces.chain(special).collect(),
                }
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether the class builds the tokenizer from vocabulary and merges alone, without the added tokens beside them.
    pub fn builds(&self) -> bool {
        matches!(self, Self::Built { .. }) && !self.says(KEEPS_TOKENS)
    }

    /// Returns the side on which the class pads, if the files name none.
    pub fn padding_side(&self) -> PaddingDirection {
        match self.says("pads_left") {
            true => PaddingDirection::Left,
            false => PaddingDirection::Right,
        }
    }

    /// Returns whether the first special tokens take the spaces around them, where a file gives their texts alone.
    pub fn tokens_take_spaces(&self) -> bool {
        self.says("tokens_take_spaces")
    }

    /// Returns whether the mask takes the spaces before it, where a file gives its text alone.
    pub fn mask_takes_spaces(&self) -> bool {
        self.says("mask_takes_spaces")
    }

    /// Returns whether the mask is found in a text after its normalization, where a file gives its text alone.
    pub fn mask_is_normalized(&self) -> bool {
        self.says("mask_is_normalized")
    }

    /// Returns whether every token in a list of special tokens is special, whatever the files say.
    pub fn has_only_special_tokens(&self) -> bool {
        self.says("all_are_special")
    }

    /// Returns whether special tokens take no spaces, whatever the files say.
    pub fn has_plain_special_tokens(&self) -> bool {
        self.says("special_are_plain")
    }

    /// Returns whether a null in place of a list of tokens counts as a missing list.
    pub fn passes_over_null(&self) -> bool {
        self.says("null_is_no_list")
    }

    fn says(&self, name: &str) -> bool {
        matches!(self, Self::Built { parts, .. } if parts.contains_key(name))
    }

    /// Returns the suffix of a word's last token, which decoding replaces by a space.
    pub fn word_end(&self) -> Option<&str> {
        match self {
            Self::Built { parts, .. } => parts.get("word_end").and_then(Value::as_str),
            _ => None,
        }
    }

    /// Returns Code Llama's fill-in token.
    ///
    /// # Errors
    /// If the key's value is not a string.
    pub fn fill_token(&self, config: Option<&ConfigJson>) -> Result<Option<String>> {
        const KEY: &str = "fill_token";
        let Some((_, default)) = self.named_tokens().find(|(name, _)| *name == KEY) else {
            return Ok(None);
        };
        let said = config.map(|config| config.text(&[KEY])).transpose()?;
        Ok(Some(said.flatten().unwrap_or_else(|| default.to_string())))
    }

    /// Returns whether the class's own keys are not read here.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// Returns a note on a transformers class that is not followed.
    pub fn note(&self) -> Option<&str> {
        match self {
            Self::Unknown { note } => note.as_deref(),
            _ => None,
        }
    }
}

/// Returns SeamlessM4T's token for a language.
fn marked(language: String) -> String {
    match language.contains("__") {
        true => language,
        false => format!("__{language}__"),
    }
}

/// Returns the value of a key that sets the number of tokens that a class adds.
fn number_of_tokens(config: &ConfigJson, key: &str) -> Result<Option<Value>> {
    const MOST: u64 = 1_000_000;
    match config.parsed::<u64>(key)? {
        Some(n) if n > MOST => {
            let reason = format!("found {n}, expected a number of tokens up to {MOST}");
            Err(config.error(&[key], reason))
        }
        n => Ok(n.map(Value::from)),
    }
}

/// Returns the class name for the files in a directory; empty if there is none.
fn name_of(
    directory: &Path,
    config: Option<&ConfigJson>,
    is_byte_level: impl FnOnce() -> bool,
) -> Result<String> {
    // The model's own reader reports its errors.
    let model = ConfigJson::open(&directory.join("config.json")).ok();
    let named = |file: Option<&ConfigJson>, key: &str| match file {
        Some(file) => file.text(&[key]).unwrap_or_default(),
        None => None,
    };
    let model_type = named(model.as_ref(), "model_type");
    let class = match config {
        Some(config) => config.text(&["tokenizer_class"])?,
        None => None,
    };
    let class = class.or_else(|| named(model.as_ref(), "tokenizer_class"));
    Ok(chosen(
        class.as_deref(),
        model_type.as_deref(),
        is_byte_level,
    ))
}

/// Returns the class name for a file that names `class` and a model type; empty if there is none.
fn chosen(
    class: Option<&str>,
    model_type: Option<&str>,
    is_byte_level: impl FnOnce() -> bool,
) -> String {
    let slow = |name: &str| name.strip_suffix("Fast").unwrap_or(name).to_string();
    let registered = model_type.and_then(registered);
    let is_mistaken = model_type.is_some_and(|name| types_of(MISTAKEN).any(|one| one == name));
    let is_generic = |name: &str| AS_WRITTEN.contains(&name);
    let Some(class) = class.map(slow) else {
        return registered.unwrap_or(NONE).to_string();
    };
    let is_mistral = registered == Some("MistralCommonBackend");
    if class == "LlamaTokenizer" && !is_mistral && !is_mistaken && is_byte_level() {
        return NONE.to_string();
    }
    match registered {
        Some(registered) if is_generic(registered) && registered != class => NONE.to_string(),
        Some(registered) if is_mistaken => registered.to_string(),
        _ => class,
    }
}

/// The classes of transformers, each with the model types that use it.
pub const TYPES_OF_CLASSES: &str = include_str!("tokenizer_class/of_types.txt");

/// Returns the lines `class: types` in the list.
fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = TYPES_OF_CLASSES.lines();
    lines.filter_map(|line| line.split_once(": "))
}

fn types_of(class: &str) -> impl Iterator<Item = &'static str> {
    lines()
        .filter(move |(name, _)| *name == class)
        .flat_map(|(_, types)| types.split(' '))
}

/// Returns whether transformers has a class with this name.
fn is_of_transformers(name: &str) -> bool {
    let further = types_of(IN_PYTHON).chain(types_of(WITHOUT_A_TYPE));
    lines()
        .map(|(class, _)| class)
        .chain(further)
        .any(|one| one == name)
}

/// Returns the class that transformers registers for a model type.
fn registered(model_type: &str) -> Option<&'static str> {
    let mut classes =
        lines().filter(|(name, _)| ![MISTAKEN, IN_PYTHON, WITHOUT_A_TYPE].contains(name));
    let found = classes.find(|(_, types)| types.split(' ').any(|one| one == model_type));
    found.map(|(name, _)| name)
}

/// Returns a class's parts, merged with those of the class that it resembles.
fn parts_of(name: &str) -> Option<Map<String, Value>> {
    let has_name = |entry: &Value| {
        let names = entry.get("names").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|one| one == name))
    };
    let own = CLASSES
        .get(name)
        .or_else(|| CLASSES.values().find(|entry| has_name(entry)))?;
    let own = own.as_object()?;
    let mut parts = match own.get("like").and_then(Value::as_str) {
        Some(like) => parts_of(like)?,
        None => Map::new(),
    };
    parts.extend(own.clone());
    Some(parts)
}

fn kind_of(model: &ModelWrapper) -> &'static str {
    match model {
        ModelWrapper::BPE(_) => "BPE",
        ModelWrapper::WordPiece(_) => "WordPiece",
        ModelWrapper::Unigram(_) => "Unigram",
        ModelWrapper::WordLevel(_) => "WordLevel",
    }
}

fn is_byte_level(inner: &tokenizers::Tokenizer) -> bool {
    let parts = serde_json::json!([inner.get_pre_tokenizer(), inner.get_decoder()]);
    parts.to_string().contains("\"ByteLevel\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_every_class_are_readable() {
        assert!(CLASSES.len() > 25, "{}", CLASSES.len());
        for name in CLASSES.keys() {
            let parts = parts_of(name).unwrap();
            for part in ["model", "normalizer", "pre_tokenizer", "decoder"] {
                assert!(parts.contains_key(part), "{name}: {part}");
            }
        }
        assert!(registered("bert") == Some("BertTokenizer"));
    }

    #[test]
    fn the_class_is_chosen_by_the_file_and_the_type_of_the_model() {
        let of = |class, model_type| chosen(class, model_type, || false);
        assert_eq!(of(Some("BertTokenizerFast"), None), "BertTokenizer");
        assert_eq!(of(Some("LlamaTokenizer"), Some("llama")), "LlamaTokenizer");
        assert_eq!(of(Some("LlamaTokenizer"), Some("mistral")), NONE);
        assert_eq!(of(Some("LlamaTokenizer"), Some("qwen2")), "Qwen2Tokenizer");
        assert_eq!(
            of(Some("RobertaTokenizer"), Some("gpt2")),
            "RobertaTokenizer"
        );
        assert_eq!(of(None, Some("t5")), "T5Tokenizer");
        assert_eq!(of(None, Some("of no one")), NONE);
        assert_eq!(chosen(Some("LlamaTokenizer"), None, || true), NONE);
    }
}
