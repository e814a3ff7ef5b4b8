//! The characters that a CTC head writes: transformers' `Wav2Vec2CTCTokenizer`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/wav2vec2/tokenization_wav2vec2.py>

use std::collections::BTreeMap;
use std::path::Path;

use super::TimestampKind;
use super::transcript::{Chunk, Transcript};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};

/// A vocabulary with its blank and its mark between words.
#[derive(Clone, Debug)]
pub(super) struct CtcVocabulary {
    tokens: BTreeMap<u32, String>,
    blank: String,
    delimiter: String,
    /// The text for the mark between words.
    space: String,
    letters: Letters,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Letters {
    Kept,
    Lowercased,
}

/// A character, and the positions at which the model found it.
#[derive(Clone, Debug)]
struct Character<'v> {
    text: &'v str,
    from: usize,
    to: usize,
}

impl CtcVocabulary {
    /// Reads `vocab.json` and the settings beside it. If it has a vocabulary for each language (MMS), the one for `language` or
    /// for the `target_lang` of `tokenizer_config.json` is read.
    ///
    /// # Errors
    /// If `vocab.json` is missing, malformed, or lacks the language.
    pub fn open(folder: &Path, language: Option<&str>) -> Result<Self> {
        let path = folder.join("vocab.json");
        let vocabulary = ConfigJson::open(&path)?;
        let config = ConfigJson::open_named(&folder.join("tokenizer_config.json"))?;
        let config = config.unwrap_or_else(|| {
            let none = serde_json::Map::new();
            ConfigJson::given(&folder.join("tokenizer_config.json"), none.into())
        });
        let own = config.text(&["target_lang"])?;
        let vocabulary = match language.or(own.as_deref()) {
            None => vocabulary,
            Some(language) => vocabulary.section(&[language])?.ok_or_else(|| {
                let reason = format!("has no vocabulary for the language {language:?}");
                Error::Tokenizer {
                    path: path.clone(),
                    reason,
                }
            })?,
        };
        let mut tokens = BTreeMap::new();
        for (token, id) in vocabulary.entries() {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                let reason = format!(
                    "token {token:?} has the value {id}, expected an id; for a file with a vocabulary for each language, \
                     give a language, or set target_lang in tokenizer_config.json"
                );
                return Err(Error::Tokenizer { path, reason });
            };
            tokens.insert(id, token.clone());
        }
        config.only("clean_up_tokenization_spaces", &[false.into()])?;
        for (id, token) in added(&config)? {
            tokens.insert(id, token);
        }
        let named = |key: &str, default: &str| -> Result<String> {
            let token = config.special_token(key)?;
            Ok(token.unwrap_or_else(|| default.to_string()))
        };
        let lowercases = config.flag(&["do_lower_case"], false)?;
        Ok(Self {
            tokens,
            blank: named("pad_token", "<pad>")?,
            delimiter: named("word_delimiter_token", "|")?,
            space: named("replace_word_delimiter_char", " ")?,
            letters: if lowercases {
                Letters::Lowercased
            } else {
                Letters::Kept
            },
        })
    }

    /// Returns the transcript for the most likely token at each position: repeated tokens are one, and blanks are left out. `step`
    /// counts the samples from one position to the next, and in a second.
    ///
    /// # Errors
    /// If a token is not in the vocabulary.
    pub fn transcript(
        &self,
        ids: &[u32],
        kind: TimestampKind,
        step: (usize, u32),
    ) -> Result<Transcript> {
        let mut characters: Vec<Character> = Vec::new();
        let mut at = 0;
        for run in ids.chunk_by(|a, b| a == b) {
            let Some(token) = self.tokens.get(&run[0]) else {
                let reason = format!(
                    "token {} of the model is not in it; use the file that was published with the weights",
                    run[0]
                );
                return Err(Error::input("vocab.json", reason));
            };
            let text = match token == &self.delimiter {
                true => &self.space,
                false => token,
            };
            if *token != self.blank {
                characters.push(Character {
                    text,
                    from: at,
                    to: at + run.len(),
                });
            }
            at += run.len();
        }
        let text: String = characters.iter().map(|character| character.text).collect();
        let text = text.trim();
        Ok(Transcript {
            text: match self.letters {
                Letters::Kept => text.to_string(),
                Letters::Lowercased => text.to_lowercase(),
            },
            chunks: match kind {
                TimestampKind::Word => self.words(&characters, step),
                TimestampKind::None | TimestampKind::Segment => Vec::new(),
            },
        })
    }

    /// Returns the words with their times.
    fn words(&self, characters: &[Character], (samples, rate): (usize, u32)) -> Vec<Chunk> {
        let seconds = |position: usize| Some((position * samples) as f64 / f64::from(rate));
        let words = characters.split(|character| character.text == self.space);
        let chunk = |word: &[Character]| {
            let (first, last) = (word.first()?, word.last()?);
            Some(Chunk {
                text: word.iter().map(|character| character.text).collect(),
                timestamp: (seconds(first.from), seconds(last.to)),
            })
        };
        words.filter_map(chunk).collect()
    }
}

/// Returns the tokens in `added_tokens_decoder`.
fn added(config: &ConfigJson) -> Result<Vec<(u32, String)>> {
    let added: Option<BTreeMap<u32, serde_json::Value>> = config.parsed("added_tokens_decoder")?;
    let content = |(id, token): (u32, serde_json::Value)| {
        Some((id, token.get("content")?.as_str()?.to_string()))
    };
    Ok(added.into_iter().flatten().filter_map(content).collect())
}
