//! A GGUF file's tokenizer as plain data, from which a tokenizer is built.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::tensors::TensorFiles;
use candle_blocks_base::{Error, Result};

/// A file's keys under `tokenizer.ggml`.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct GgufTokenizer {
    /// The file's path.
    pub path: PathBuf,
    /// `model`: the tokenizer's type.
    pub model: String,
    /// `pre`: the pre-tokenizer, which splits text before pairs are merged.
    pub pre: Option<String>,
    /// The vocabulary, by id.
    pub tokens: Vec<String>,
    /// True if the file has types, and not all tokens are normal for lack of these.
    pub has_types: bool,
    /// Each token's type.
    pub types: Vec<TokenType>,
    /// Each token's score, if the file has scores.
    pub scores: Vec<f32>,
    /// Merges as two tokens with a space between; the first merge has priority.
    pub merges: Vec<String>,
    /// SentencePiece's compiled character normalization.
    pub charsmap: Vec<u8>,
    /// `general.name`, in lower case: the special tokens of some models strip spaces, which no other key says.
    pub model_name: String,
    metadata: Map<String, Value>,
}

/// A token's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum TokenType {
    Normal,
    Unknown,
    /// A special token, such as an end of text, that is not shown.
    Control,
    /// A token that is matched in text before everything else.
    UserDefined,
    Unused,
    /// `<0x0A>`: a byte, for characters that are not in the vocabulary.
    Byte,
}

/// A token with a special function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum SpecialToken {
    Bos,
    Eos,
    Eot,
    Eom,
    Unknown,
    Separator,
    Padding,
    Cls,
    Mask,
}

impl SpecialToken {
    /// Returns its key; one is misspelled in GGUF too.
    fn key(self) -> &'static str {
        match self {
            Self::Bos => "bos_token_id",
            Self::Eos => "eos_token_id",
            Self::Eot => "eot_token_id",
            Self::Eom => "eom_token_id",
            Self::Unknown => "unknown_token_id",
            Self::Separator => "seperator_token_id",
            Self::Padding => "padding_token_id",
            Self::Cls => "cls_token_id",
            Self::Mask => "mask_token_id",
        }
    }

    /// Returns the default id for a tokenizer type, as in llama.cpp.
    fn default_id(self, model: &str) -> Option<u32> {
        Some(match (model, self) {
            ("llama", Self::Bos) => 1,
            ("llama", Self::Eos) => 2,
            ("llama", Self::Unknown) => 0,
            ("t5", Self::Eos) => 1,
            ("t5", Self::Unknown) => 2,
            ("t5", Self::Padding) => 0,
            ("bert", Self::Unknown) => 100,
            ("bert", Self::Cls) => 101,
            ("bert", Self::Separator) => 102,
            ("bert", Self::Mask) => 103,
            ("bert", Self::Padding) => 0,
            _ => return None,
        })
    }
}

impl GgufTokenizer {
    /// Reads a file's tokenizer; `None` if it has none, or is not a GGUF file.
    ///
    /// # Errors
    /// If a key has another type than expected, or two tokens are equal.
    pub fn read(files: &TensorFiles) -> Result<Option<Self>> {
        let Some(words) = Self::without_list(files) else {
            return Ok(None);
        };
        let Some(tokens) = files.gguf_texts("tokenizer.ggml.tokens")? else {
            return Ok(None);
        };
        match &words.model[..] {
            "none" | "no_vocab" => return Ok(None),
            // An old file without keys for its tokenizer's type.
            "" => return Ok(None),
            _ => {}
        }
        let n = tokens.len();
        let of_each = |key: &str| {
            let found = files.gguf_numbers(&format!("tokenizer.ggml.{key}"))?;
            match &found {
                Some(found) if found.len() < n => {
                    let reason = format!("has {} items for {n} tokens", found.len());
                    Err(words.error(key, reason))
                }
                _ => Ok(found),
            }
        };
        let types = of_each("token_type")?;
        let types = types.map(|types| types.into_iter().map(token_type).collect());
        let scores = of_each("scores")?.unwrap_or_default();
        let charsmap = files.gguf_numbers("tokenizer.ggml.precompiled_charsmap")?;
        let byte = |number: f64| (number as i64) as u8; // may be signed
        let merges = files.gguf_texts("tokenizer.ggml.merges")?;
        let words = Self {
            has_types: types.is_some(),
            types: types.unwrap_or_else(|| vec![TokenType::Normal; n]),
            scores: scores.into_iter().map(|score| score as f32).collect(),
            merges: merges.unwrap_or_default(),
            charsmap: charsmap.unwrap_or_default().into_iter().map(byte).collect(),
            tokens,
            ..words
        };
        words.check()?;
        Ok(Some(words))
    }

    /// Reads a file's keys without the vocabulary; `None` if it is not a GGUF file.
    pub fn without_list(files: &TensorFiles) -> Option<Self> {
        let metadata: Map<String, Value> = files.gguf()?.metadata.clone().into_iter().collect();
        let text = |key: &str| {
            metadata
                .get(key)
                .and_then(Value::as_str)
                .map(str::to_string)
        };
        Some(Self {
            path: files.path().to_path_buf(),
            model: text("tokenizer.ggml.model").unwrap_or_default(),
            pre: text("tokenizer.ggml.pre").filter(|pre| !pre.is_empty()),
            tokens: Vec::new(),
            has_types: false,
            types: Vec::new(),
            scores: Vec::new(),
            merges: Vec::new(),
            charsmap: Vec::new(),
            model_name: text("general.name").unwrap_or_default().to_lowercase(),
            metadata,
        })
    }

    fn check(&self) -> Result<()> {
        let mut seen = std::collections::HashMap::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if let Some(first) = seen.insert(token, id) {
                let reason = format!("contains {token:?} twice, as {first} and as {id}");
                return Err(self.error("tokens", reason));
            }
        }
        let all = [
            SpecialToken::Bos,
            SpecialToken::Eos,
            SpecialToken::Eot,
            SpecialToken::Eom,
            SpecialToken::Unknown,
            SpecialToken::Separator,
            SpecialToken::Padding,
            SpecialToken::Cls,
            SpecialToken::Mask,
        ];
        for special in all {
            if let Some(id) = self.said(special)
                && id as usize >= self.tokens.len()
            {
                let reason = format!("is {id}, but there are {} tokens", self.tokens.len());
                return Err(self.error(special.key(), reason));
            }
        }
        Ok(())
    }

    /// Returns the id that the file sets.
    pub fn said(&self, special: SpecialToken) -> Option<u32> {
        let id = self.key(special.key())?.as_u64()?;
        u32::try_from(id).ok()
    }

    /// Returns a special token's id, if there is one: from the file, or the default for its tokenizer type.
    pub fn id(&self, special: SpecialToken) -> Option<u32> {
        let by_text = || {
            let text = match special {
                _ if self.model != "bert" => return None,
                SpecialToken::Unknown => "[UNK]",
                SpecialToken::Cls => "[CLS]",
                SpecialToken::Separator => "[SEP]",
                SpecialToken::Padding => "[PAD]",
                SpecialToken::Mask => "[MASK]",
                _ => return None,
            };
            self.find(text)
        };
        let default = || {
            let id = special.default_id(&self.model)?;
            ((id as usize) < self.tokens.len()).then_some(id)
        };
        self.said(special).or_else(by_text).or_else(default)
    }

    /// Returns a token's id, given its text.
    pub fn find(&self, text: &str) -> Option<u32> {
        let at = self.tokens.iter().position(|token| token == text)?;
        u32::try_from(at).ok()
    }

    /// Returns a token's text.
    pub fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// Returns a boolean, if the file has it.
    ///
    /// # Errors
    /// If it is not a boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.key(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.error(key, format!("is {other}, expected true or false"))),
        }
    }

    /// Returns the id of a token that has a key of its own, such as `fim_pad_token_id`.
    #[doc(hidden)]
    pub fn numbered(&self, key: &str) -> Option<u32> {
        u32::try_from(self.key(key)?.as_u64()?).ok()
    }

    /// Returns tokens that are never sampled.
    #[doc(hidden)]
    pub fn suppressed(&self) -> Value {
        let found = self.key("suppress_tokens").cloned();
        found.unwrap_or_else(|| json!([]))
    }

    /// Returns the token that the decoder begins with.
    #[doc(hidden)]
    pub fn decoder_start(&self) -> Option<&Value> {
        let architecture = self.metadata.get("general.architecture")?.as_str()?;
        self.metadata
            .get(&format!("{architecture}.decoder_start_token_id"))
    }

    fn key(&self, key: &str) -> Option<&Value> {
        let found = self.metadata.get(&format!("tokenizer.ggml.{key}"))?;
        (!found.is_null()).then_some(found)
    }

    /// Returns a sampling setting that the authors recommend, such as `general.sampling.temp`.
    #[doc(hidden)]
    pub fn sampling(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("general.sampling.{key}"))
    }

    /// Returns all sampling settings under their own names.
    #[doc(hidden)]
    pub fn all_sampling(&self) -> impl Iterator<Item = (&String, &Value)> {
        let all = self.metadata.iter();
        all.filter(|(key, _)| key.starts_with("general.sampling."))
    }

    /// Makes an error about a key under `tokenizer.ggml`.
    pub fn error(&self, key: &str, reason: String) -> Error {
        Error::ConfigKey {
            path: self.path.clone(),
            key: format!("\"tokenizer.ggml.{key}\""),
            reason,
        }
    }

    /// Returns the `tokenizer_config.json` that the file's keys imply: its special tokens and chat templates.
    pub fn tokenizer_config(&self) -> Value {
        let mut config = Map::new();
        let names = [
            (SpecialToken::Bos, "bos_token"),
            (SpecialToken::Eos, "eos_token"),
            (SpecialToken::Unknown, "unk_token"),
            (SpecialToken::Separator, "sep_token"),
            (SpecialToken::Padding, "pad_token"),
            (SpecialToken::Cls, "cls_token"),
            (SpecialToken::Mask, "mask_token"),
        ];
        for (special, name) in names {
            if let Some(text) = self.id(special).and_then(|id| self.text(id)) {
                config.insert(name.to_string(), text.into());
            }
        }
        const TEMPLATE: &str = "tokenizer.chat_template";
        let named = self.metadata.iter().filter_map(|(key, template)| {
            let name = key.strip_prefix(TEMPLATE)?.strip_prefix('.')?;
            Some(json!({"name": name, "template": template}))
        });
        let mut templates: Vec<Value> = named.collect();
        let default = self
            .metadata
            .get(TEMPLATE)
            .filter(|template| template.is_string());
        if templates.is_empty() {
            config.extend(default.map(|one| ("chat_template".to_string(), one.clone())));
        } else {
            templates.extend(default.map(|one| json!({"name": "default", "template": one})));
            config.insert("chat_template".to_string(), templates.into());
        }
        config.into()
    }
}

/// Converts a number in `tokenizer.ggml.token_type`.
fn token_type(number: f64) -> TokenType {
    match number as i64 {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    }
}
