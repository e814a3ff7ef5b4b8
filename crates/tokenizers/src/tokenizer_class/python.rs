//! Splits and joins texts like tokenizers that transformers writes in Python: ByT5's, PhoBERT's and BERTweet's.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/byt5/tokenization_byt5.py>,
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/phobert/tokenization_phobert.py>

use std::collections::{BTreeMap, HashMap};

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{AddedToken, Encoding, Token, Tokenizer, TruncationDirection};
use tokenizers::{OffsetReferential, OffsetType};

use super::added_tokens::AddedTokens;
use candle_blocks_templates::is_space;

/// The suffix that a token has if the next one continues it.
const GOES_ON: &str = "@@";
/// The suffix that a word's last symbol has in the merges.
const WORD_END: &str = "</w>";

/// The tokens between added tokens, for a class that is written in Python.
#[derive(Clone, Debug)]
pub(crate) enum PythonTokens {
    /// A token for each byte, after three special ones: ByT5.
    Bytes {
        /// The token that ends a text, unless the text ends with it.
        end: Option<u32>,
    },
    /// Byte pair encoding for words: PhoBERT and BERTweet.
    Words(WordPairs),
    /// A list with tokens, which are found anywhere in a text: ESM.
    Lines,
}

/// Byte pair encoding whose tokens end with `@@`, except the last of a word.
#[derive(Clone, Debug)]
pub(crate) struct WordPairs {
    /// Each merge with its rank.
    ranks: HashMap<(String, String), usize>,
    unknown: Option<u32>,
}

/// ByT5's first tokens, before those of the bytes.
const FIRST: [&str; 3] = ["pad_token", "eos_token", "unk_token"];
/// PhoBERT's first tokens, before those of the vocabulary.
const FIRST_OF_WORDS: [&str; 4] = ["bos_token", "pad_token", "eos_token", "unk_token"];

impl PythonTokens {
    /// Makes ByT5's tokenizer, which has no file.
    ///
    /// # Errors
    /// If the tokenizers library fails.
    pub fn bytes(tokens: &AddedTokens) -> tokenizers::Result<(Tokenizer, Self)> {
        let byte = |byte: u8| (u32::from(byte) + 3, char::from(byte).to_string());
        let mut by_id: BTreeMap<u32, String> = (0..=255).map(byte).collect();
        let named = (0..).zip(FIRST.map(|name| tokens.named.get(name)));
        by_id.extend(named.filter_map(|(id, token)| Some((id, token?.clone()))));
        by_id.extend(listed(tokens).map(|(id, token)| (id, token.clone())));
        let words = by_id.into_iter().map(|(id, token)| (token, id));
        let inner = of_words(words.collect(), tokens)?;
        let end = tokens.named.get(FIRST[1]);
        let end = end.and_then(|token| inner.token_to_id(token));
        Ok((inner, Self::Bytes { end }))
    }

    /// Makes PhoBERT's tokenizer from its vocabulary, a token and its count in each line, and its merges.
    ///
    /// # Errors
    /// If a line of the vocabulary has no count, or the tokenizers library fails.
    pub fn words(
        vocabulary: &str,
        merges: &str,
        tokens: &AddedTokens,
    ) -> tokenizers::Result<(Tokenizer, Self)> {
        let mut words = HashMap::new();
        let named = (0..).zip(FIRST_OF_WORDS.map(|name| tokens.named.get(name)));
        words.extend(named.filter_map(|(id, token)| Some((token?.clone(), id))));
        let (vocabulary, merges) = [vocabulary, merges]
            .map(|text| text.replace("\r\n", "\n").replace('\r', "\n"))
            .into();
        for (index, line) in vocabulary.split_terminator('\n').enumerate() {
            let line = line.trim_matches(is_space);
            let Some((word, _)) = line.rsplit_once(' ') else {
                let index = index + 1;
                return Err(
                    format!("line {index} is {line:?}, expected a token and its count").into(),
                );
            };
            let id = words.len() as u32; // as in transformers, also where a token occurs twice
            words.insert(word.to_string(), id);
        }
        let mut ranks = HashMap::new();
        // A line that no newline ends does not count.
        let lines = merges.rsplit_once('\n').map_or("", |(lines, _)| lines);
        for (rank, line) in lines.split('\n').enumerate() {
            let parts = line.split(is_space).filter(|part| !part.is_empty());
            if let [first, second, _] = parts.collect::<Vec<_>>()[..] {
                ranks.insert((first.to_string(), second.to_string()), rank);
            }
        }
        let inner = of_words(words, tokens)?;
        let unknown = tokens.named.get("unk_token");
        let unknown = unknown.and_then(|token| inner.token_to_id(token));
        Ok((inner, Self::Words(WordPairs { ranks, unknown })))
    }

    /// Tokenizes a text without special tokens around it.
    ///
    /// # Errors
    /// If the tokenizers library fails.
    pub fn encoding(&self, inner: &Tokenizer, text: &str) -> tokenizers::Result<Encoding> {
        if let Self::Lines = self {
            return inner.encode_fast(text, false);
        }
        let added = inner.get_added_vocabulary();
        let split = added.extract_and_normalize(inner.get_normalizer(), text);
        let mut all = Vec::new();
        for (text, _, tokens) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match tokens {
                Some(tokens) => all.extend(tokens.iter().map(|token| token.id)),
                None => self.extend(inner, text, &mut all),
            }
        }
        let token = |id| Token::new(id, String::new(), (0, 0));
        Ok(Encoding::from_tokens(
            all.into_iter().map(token).collect(),
            0,
        ))
    }

    fn extend(&self, inner: &Tokenizer, text: &str, ids: &mut Vec<u32>) {
        match self {
            Self::Bytes { .. } => ids.extend(text.bytes().map(|byte| u32::from(byte) + 3)),
            Self::Lines => {}
            Self::Words(pairs) => {
                let id = |token: String| inner.token_to_id(&token).or(pairs.unknown);
                for word in words(text) {
                    ids.extend(pairs.tokens(word).into_iter().filter_map(id));
                }
            }
        }
    }

    /// Takes off the token that ends a text, where the text itself ends with it.
    pub fn before_the_end(&self, text: &mut Encoding) {
        if let Self::Bytes { end: Some(end) } = self
            && text.get_ids().last() == Some(end)
        {
            text.truncate(text.len() - 1, 0, TruncationDirection::Right);
        }
    }

    /// Converts tokens to text, with or without special ones.
    ///
    /// # Errors
    /// If the tokenizers library fails.
    pub fn decoded(
        &self,
        inner: &Tokenizer,
        ids: &[u32],
        leaves_out_special: bool,
    ) -> tokenizers::Result<String> {
        if let Self::Lines = self {
            return inner.decode(ids, leaves_out_special);
        }
        let added = inner.get_added_vocabulary();
        let tokens = ids
            .iter()
            .map(|&id| inner.id_to_token(id).unwrap_or_default());
        let tokens = tokens.filter(|token| !(leaves_out_special && added.is_special_token(token)));
        Ok(self.joined(inner, &tokens.collect::<Vec<_>>()))
    }

    /// Converts tokens, given as strings, to text.
    pub fn joined(&self, inner: &Tokenizer, tokens: &[String]) -> String {
        let added = inner.get_added_tokens_decoder();
        let bytes = |token: &String| {
            let id = inner.token_to_id(token);
            let byte = id.filter(|id| !added.contains_key(id)).and_then(byte_of);
            byte.map_or_else(|| token.clone().into_bytes(), |byte| vec![byte])
        };
        match self {
            Self::Bytes { .. } => {
                let bytes: Vec<u8> = tokens.iter().flat_map(bytes).collect();
                bytes.utf8_chunks().map(|chunk| chunk.valid()).collect()
            }
            Self::Words(_) => {
                let text = tokens.join(" ").replace("@@ ", "");
                text.trim_matches(is_space).to_string()
            }
            Self::Lines => tokens.join(" "),
        }
    }

    /// Returns a token's bytes within a text; `None` if they depend on the token after it.
    pub fn bytes_of(&self, inner: &Tokenizer, id: u32) -> Option<Vec<u8>> {
        match self {
            Self::Bytes { .. } => Some(match byte_of(id) {
                Some(byte) => vec![byte],
                None => inner.id_to_token(id).unwrap_or_default().into_bytes(),
            }),
            Self::Words(_) | Self::Lines => None,
        }
    }

    /// Returns whether the next token may change the text's end.
    pub fn may_go_on(&self, inner: &Tokenizer, ids: &[u32]) -> bool {
        match self {
            Self::Bytes { .. } => {
                let last = ids.iter().rev().map_while(|&id| byte_of(id));
                let mut last: Vec<u8> = last.take(4).collect();
                last.reverse();
                let end = last.utf8_chunks().last();
                end.is_some_and(|end| !end.invalid().is_empty())
            }
            Self::Words(_) => {
                let last = ids.last().and_then(|&id| inner.id_to_token(id));
                last.is_some_and(|token| token.ends_with(GOES_ON))
            }
            Self::Lines => false,
        }
    }
}

impl WordPairs {
    /// Returns the tokens of a word: transformers' `bpe`.
    fn tokens(&self, word: &str) -> Vec<String> {
        let mut symbols: Vec<String> = word.chars().map(String::from).collect();
        if symbols.len() < 2 {
            return symbols;
        }
        if let Some(last) = symbols.last_mut() {
            last.push_str(WORD_END);
        }
        while symbols.len() > 1 {
            let pairs = symbols.windows(2);
            let pairs = pairs.map(|pair| (pair[0].clone(), pair[1].clone()));
            let ranked = pairs.filter_map(|pair| Some((*self.ranks.get(&pair)?, pair)));
            let Some((_, (first, second))) = ranked.min() else {
                break;
            };
            let mut merged: Vec<String> = Vec::with_capacity(symbols.len());
            let mut rest = symbols.into_iter().peekable();
            while let Some(symbol) = rest.next() {
                let next = rest.next_if(|next| symbol == first && *next == second);
                merged.push(symbol + next.as_deref().unwrap_or_default());
            }
            symbols = merged;
        }
        let last = symbols.pop().unwrap_or_default();
        let mut tokens: Vec<String> = { symbols.into_iter() }
            .map(|symbol| symbol + GOES_ON)
            .collect();
        tokens.push(last.strip_suffix(WORD_END).unwrap_or(&last).to_string());
        tokens
    }
}

/// Returns the words in a text, each with the newline after it: Python's `re.findall(r"\S+\n?", text)`.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_space);
        let end = rest.find(is_space).unwrap_or(rest.len());
        let end = end + usize::from(rest[end..].starts_with('\n'));
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Returns the byte for a ByT5 token.
fn byte_of(id: u32) -> Option<u8> {
    id.checked_sub(3).and_then(|byte| u8::try_from(byte).ok())
}

/// Returns the tokens that the files list by their ids.
fn listed(tokens: &AddedTokens) -> impl Iterator<Item = (u32, &String)> {
    let listed = tokens.listed.iter();
    listed.filter_map(|(id, token)| Some((u32::try_from(*id).ok()?, token)))
}

/// Makes a tokenizer with these tokens and those that the files list. Other added tokens get the next ids, as in transformers.
fn of_words(
    mut words: HashMap<String, u32>,
    tokens: &AddedTokens,
) -> tokenizers::Result<Tokenizer> {
    words.extend(listed(tokens).map(|(id, token)| (token.clone(), id)));
    for token in &tokens.all {
        let next = words.len() as u32;
        words.entry(token.content.clone()).or_insert(next);
    }
    let unknown = tokens.named.get("unk_token").cloned().unwrap_or_default();
    let words = words.into_iter().collect();
    let model = WordLevel::builder().vocab(words).unk_token(unknown);
    Ok(Tokenizer::new(model.build()?))
}

/// Makes ESM's tokenizer: each line is a token.
///
/// # Errors
/// If the tokenizers library fails.
pub(super) fn of_lines(lines: &str, tokens: &AddedTokens) -> tokenizers::Result<Tokenizer> {
    let lines: Vec<&str> = { lines.lines() }
        .map(|line| line.trim_matches(is_space))
        .collect();
    let words = (0..).zip(&lines).map(|(id, line)| (line.to_string(), id));
    let mut inner = of_words(words.collect(), tokens)?;
    let is_added = |line: &str| tokens.all.iter().any(|token| token.content == line);
    let found = { lines.iter() }.filter(|line| !line.is_empty() && !is_added(line));
    let found = found.map(|line| AddedToken::from(*line, false).normalized(false));
    inner.add_tokens(found)?;
    Ok(inner)
}
