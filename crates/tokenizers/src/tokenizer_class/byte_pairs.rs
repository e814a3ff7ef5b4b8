//! Vocabularies of byte pairs: tiktoken's files, such as the `tokenizer.model` of Llama 3, and Mistral's `tekken.json`.
//!
//! A token's rank is also the order of its merges:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/convert_slow_tokenizer.py>

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};

/// The pattern by which transformers cuts a text for every tiktoken file.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A limit for the number of special tokens.
pub(super) const MOST: u64 = 1_000_000;

/// A file's tokens.
pub(crate) struct BytePairs {
    /// The tokens' ranks.
    ranks: HashMap<Vec<u8>, u32>,
    /// Special tokens, whose ids come before all others.
    pub special: Vec<String>,
    /// The pattern by which a text is cut.
    pub pattern: String,
}

impl BytePairs {
    /// Reads a tiktoken file: each line has a token in base 64, and its rank. Returns `None` if a line is unlike this.
    pub fn tiktoken(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let lines = text.lines().filter(|line| !line.is_empty());
        let tokens = lines.map(|line| {
            let (token, rank) = line.split_once(' ')?;
            Some((base64(token)?, rank.trim().parse().ok()?))
        });
        let ranks: HashMap<_, _> = tokens.collect::<Option<_>>()?;
        Some(Self {
            special: Vec::new(),
            pattern: PATTERN.to_string(),
            ranks,
        })
        .filter(|file| !file.ranks.is_empty())
    }

    /// Reads a `tekken.json`.
    ///
    /// # Errors
    /// If a part is missing or malformed.
    pub fn tekken(bytes: &[u8]) -> Result<Self, String> {
        let file: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let config = &file["config"];
        let pattern = config["pattern"]
            .as_str()
            .ok_or("it has no config.pattern")?;
        let Some(listed) = file["special_tokens"].as_array() else {
            let reason = "it has no special_tokens, as the oldest files, whose tokens only the package mistral-common knows; \
                          use the model's tokenizer.json";
            return Err(reason.to_string());
        };
        let mut special: Vec<(u64, &str)> = { listed.iter() }
            .filter_map(|token| Some((token["rank"].as_u64()?, token["token_str"].as_str()?)))
            .collect();
        special.sort_unstable();
        if special.len() != listed.len() || !(0..).zip(&special).all(|(i, (rank, _))| i == *rank) {
            return Err("the ranks of its special_tokens are not 0, 1, 2 and so on".to_string());
        }
        let mut special: Vec<String> = special.iter().map(|(_, text)| text.to_string()).collect();
        let n = config["default_num_special_tokens"].as_u64();
        let n = n.unwrap_or(special.len() as u64);
        if n > MOST {
            return Err(format!("it has {n} special tokens, expected up to {MOST}"));
        }
        let fillers = special.len() as u64..n;
        special.extend(fillers.map(|id| format!("<SPECIAL_{id}>")));
        let all = file["vocab"].as_array().ok_or("it has no vocab")?;
        // A larger file is padded.
        let n_used = match config["default_vocab_size"].as_u64() {
            Some(size) => size
                .checked_sub(n)
                .ok_or("default_vocab_size is too small")? as usize,
            None => all.len(),
        };
        let tokens = (0..).zip(all.iter().take(n_used)).map(|(rank, token)| {
            let bytes = token["token_bytes"].as_str().and_then(base64);
            Ok((
                bytes.ok_or(format!("token {rank} has no token_bytes in base 64"))?,
                rank,
            ))
        });
        Ok(Self {
            ranks: tokens.collect::<Result<_, String>>()?,
            special,
            pattern: pattern.to_string(),
        })
    }

    /// Returns the number of tokens that are not special.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Makes the model, with merges for every pair of tokens whose bytes together are a token.
    ///
    /// # Errors
    /// If the parts do not fit together.
    pub fn model(&self) -> tokenizers::Result<BPE> {
        let ranks = &self.ranks;
        let letters = letters();
        let text = |bytes: &[u8]| -> String {
            bytes
                .iter()
                .map(|&byte| letters[usize::from(byte)])
                .collect()
        };
        let mut pairs: Vec<([u32; 3], [&[u8]; 2])> = Vec::new();
        for (token, &rank) in ranks {
            for at in 1..token.len() {
                let (one, other) = token.split_at(at);
                if let (Some(&first), Some(&second)) = (ranks.get(one), ranks.get(other)) {
                    pairs.push(([rank, first, second], [one, other]));
                }
            }
        }
        pairs.sort_unstable();
        let merges = pairs.iter();
        let merges = merges.map(|(_, [one, other])| (text(one), text(other)));
        let n_special = self.special.len() as u32;
        let mut vocabulary: Vocab = { ranks.iter() }
            .map(|(token, rank)| (text(token), rank.saturating_add(n_special)))
            .collect();
        vocabulary.extend(self.special.iter().cloned().zip(0..));
        let model = BPE::builder().vocab_and_merges(vocabulary, merges.collect::<Vec<_>>());
        model.ignore_merges(true).build()
    }
}

/// Returns the character that stands for each byte: GPT-2's `bytes_to_unicode`.
fn letters() -> [char; 256] {
    let is_itself = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let code = match is_itself(byte) {
            true => Some(byte),
            false => others.next(),
        };
        code.and_then(char::from_u32).unwrap_or_default()
    })
}

/// Decodes base 64; `None` for another text.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut held, mut n_bits) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6 | u32::from(value)) & 0xffff;
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((held >> n_bits) as u8);
        }
    }
    Some(bytes)
}
