//! Builds a tokenizer from a GGUF file.
//!
//! The result equals the model's own `tokenizer.json`. Parts that a GGUF file lacks follow from the tokenizer's type and its
//! pre-tokenizer's name.

mod pairs;
mod pre_tokenizers;
mod sentence_pieces;
mod unigram;
mod word_pieces;

use serde_json::{Value, json};
use tokenizers::{AddedToken, Tokenizer};

use self::pre_tokenizers::{Also, PreTokenizer};
use candle_blocks_base::{Error, Result};
use candle_blocks_files::gguf::vocabulary::{GgufTokenizer, SpecialToken, TokenType};

/// A tokenizer's components without added tokens, and the special tokens around a text.
struct TokenizerParts {
    tokenizer: Tokenizer,
    around: Around,
}

/// The special tokens around a text, and between two.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    first: Option<u32>,
    /// Between two texts, before the second one's own.
    between: Option<u32>,
    last: Option<u32>,
    /// True if a second text begins as the first, where nothing is between them.
    begins_again: bool,
    /// The token type for the second text.
    second_type: u32,
}

/// Returns the tokenizer in a file.
///
/// # Errors
/// If the tokenizer's type or pre-tokenizer is unknown, or a required key is missing or malformed.
pub(crate) fn tokenizer(gguf: &GgufTokenizer) -> Result<Tokenizer> {
    let TokenizerParts {
        mut tokenizer,
        around,
    } = match &gguf.model[..] {
        "gpt2" | "gemma4" => pairs::parts(gguf)?,
        "llama" => sentence_pieces::parts(gguf)?,
        "bert" => word_pieces::parts(gguf)?,
        "t5" => unigram::parts(gguf)?,
        other => {
            let reason = format!(
                "is {other:?}; supported are gpt2, llama, bert, t5, gemma4; give token ids instead \
                 of texts, or use the model's tokenizer.json"
            );
            return Err(gguf.error("model", reason));
        }
    };
    add_tokens(gguf, &mut tokenizer)?;
    if let Some(template) = around.template(gguf) {
        let template = part::<tokenizers::PostProcessorWrapper>(gguf, template)?;
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

/// Returns a note on a byte-level file that does not name its pre-tokenizer, as files from before May 2024. llama.cpp prints a warning.
pub(crate) fn note(gguf: &GgufTokenizer) -> Option<String> {
    (gguf.model == "gpt2" && gguf.pre.is_none()).then(|| {
        "tokenizer.ggml.pre is missing, so texts are split as for \"default\", which is not how most models split them: \
         digits, contractions and line breaks may become other tokens than the model's. Put the model's tokenizer.json \
         beside the file, and use it with --files-beside (`CheckpointOptions::beside`)"
            .to_string()
    })
}

/// Makes a component from its description in the form of `tokenizer.json`.
fn part<T: serde::de::DeserializeOwned>(gguf: &GgufTokenizer, described: Value) -> Result<T> {
    serde_json::from_value(described).map_err(|error| failed(gguf, error))
}

fn failed(gguf: &GgufTokenizer, reason: impl ToString) -> Error {
    Error::Tokenizer {
        path: gguf.path.clone(),
        reason: reason.to_string(),
    }
}

/// Adds tokens that are matched in a text before everything else.
fn add_tokens(gguf: &GgufTokenizer, tokenizer: &mut Tokenizer) -> Result<()> {
    let is_phi = ["phi-3", "phi3"]
        .iter()
        .any(|name| gguf.model_name.contains(name));
    let added = |(id, kind): (usize, TokenType)| {
        let is_special = match kind {
            TokenType::Control | TokenType::Unknown => true,
            TokenType::UserDefined => false,
            _ => return None,
        };
        let text = &gguf.tokens[id];
        // Marked as the beginning of a word.
        let text = match (gguf.model == "bert", text.strip_prefix('▁')) {
            (true, Some(text)) => text,
            _ => text,
        };
        let swallows = is_phi && !["<unk>", "<s>", "<|endoftext|>"].contains(&text);
        let is_mask =
            text == "<mask>" || text == "[MASK]" && gguf.pre.as_deref() == Some("modern-bert");
        let token = AddedToken::from(text, is_special).normalized(false);
        (!text.is_empty()).then(|| token.rstrip(swallows).lstrip(is_mask))
    };
    let types = gguf.settled_types();
    let tokens: Vec<AddedToken> = types.into_iter().enumerate().filter_map(added).collect();
    // In one call, because each call rebuilds the search; the library recognizes special ones by their flag.
    let added = tokenizer.add_tokens(tokens);
    added.map(drop).map_err(|error| failed(gguf, error))
}

impl Around {
    /// Returns the template as in `tokenizer.json`; `None` if there are no tokens around a text.
    fn template(self, gguf: &GgufTokenizer) -> Option<Value> {
        let text = |id: u32| gguf.text(id).unwrap_or_default();
        let token = |id: Option<u32>, kind: u32| {
            id.map(|id| json!({"SpecialToken": {"id": text(id), "type_id": kind}}))
        };
        let ids = [self.first, self.between, self.last];
        ids.iter().flatten().next()?;
        let second = self.second_type;
        let first_text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let second_text = json!({"Sequence": {"id": "B", "type_id": second}});
        let single = [token(self.first, 0), Some(first_text), token(self.last, 0)];
        let begin = self.between.or(self.first.filter(|_| self.begins_again));
        let pair = [
            token(begin, second),
            Some(second_text),
            token(self.last, second),
        ];
        let single: Vec<Value> = single.into_iter().flatten().collect();
        let pair: Vec<Value> = single
            .iter()
            .cloned()
            .chain(pair.into_iter().flatten())
            .collect();
        let known: serde_json::Map<String, Value> = { ids.into_iter().flatten() }
            .map(|id| {
                let of = json!({"id": text(id), "ids": [id], "tokens": [text(id)]});
                (text(id).to_string(), of)
            })
            .collect();
        Some(
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}),
        )
    }
}

/// Returns the token that begins or ends a text, if the file or else `default` requests one.
///
/// # Errors
/// If there is no such token.
fn wanted(
    gguf: &GgufTokenizer,
    key: &str,
    default: bool,
    special: SpecialToken,
) -> Result<Option<u32>> {
    match (gguf.flag(key)?.unwrap_or(default), gguf.id(special)) {
        (false, _) => Ok(None),
        (true, Some(id)) => Ok(Some(id)),
        // If the file does not set it, no token is added.
        (true, None) if gguf.flag(key)?.is_none() => Ok(None),
        (true, None) => {
            Err(gguf.error(key, "is true, but the file names no such token".to_string()))
        }
    }
}

/// Returns the token between two texts, if the file or else `default` requests one; without a token for that, the last.
///
/// # Errors
/// If the key is not a boolean.
fn separator(gguf: &GgufTokenizer, default: bool, last: Option<u32>) -> Result<Option<u32>> {
    let is_separated = gguf.flag("add_sep_token")?.unwrap_or(default);
    let token = || gguf.id(SpecialToken::Separator).or(last);
    Ok(is_separated.then(token).flatten())
}

/// Returns whether a token is only filler, as converters write it.
fn is_filler(gguf: &GgufTokenizer, id: usize) -> bool {
    let is_unused = gguf.types.get(id) == Some(&TokenType::Unused);
    is_unused && gguf.tokens[id].starts_with("[PAD")
}
