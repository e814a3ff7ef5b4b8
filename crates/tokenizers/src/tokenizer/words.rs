//! Tokenizes texts word by word, after a prompt with labels, and selects labeled ranges of words, as the package gliner does.
//!
//! <https://github.com/urchade/GLiNER/blob/v0.2.29/gliner/data_processing/processor.py>

use std::ops::Range;
use std::sync::LazyLock;

use tokenizers::utils::SysRegex;
use tokenizers::{EncodeInput, Encoding, InputSequence, OffsetType};

use super::{TokenizedText, Tokenizer};
use candle_blocks_base::{Error, Result};

/// A word, or another character that is no space: gliner's `WhitespaceTokenSplitter`, with the classes of Python's `re`.
const PATTERN: &str = r"[\p{L}\p{N}_]+(?:[-_][\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]";

/// A word's place in a text.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Word {
    pub bytes: Range<usize>,
    /// The same place in Unicode code points.
    pub characters: Range<usize>,
}

/// The words of a prompt with labels: a marker before each label, and another one after all.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LabelPrompt {
    pub label_marker: String,
    pub end_marker: String,
    /// A label's token is the marker before it, not the token after that.
    pub reads_marker: bool,
    /// The id of the marker before a label, and the number of tokens; `None` if gliner adds its tokens to those of another model.
    pub ids: Option<(usize, usize)>,
}

/// A text after a prompt, as tokens.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TokenizedWords {
    /// The index of the text.
    pub text: usize,
    pub tokens: TokenizedText,
    pub words: Vec<Word>,
    /// The first token of each word; `None` if it has no token, for example because of truncation.
    pub first_tokens: Vec<Option<u32>>,
    /// The token for each label.
    pub labels: Vec<u32>,
}

impl LabelPrompt {
    /// A token that gliner adds to a tokenizer before the markers, and does not use.
    const UNUSED: &str = "[FLERT]";

    /// Adds the markers to a tokenizer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer refuses one.
    pub fn add_markers(&self, tokenizer: &mut Tokenizer) -> Result<()> {
        tokenizer.add_special_tokens(&[Self::UNUSED, &self.label_marker, &self.end_marker])
    }

    /// Returns the id of the marker before a label.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary lacks one of the markers or has another id, or the tokenizer's class is written in
    /// Python, which does not tell the tokens of a word.
    pub fn label_id(&self, tokenizer: &Tokenizer) -> Result<u32> {
        if !tokenizer.has_offsets() {
            let reason = "this class of tokenizers does not tell a word's tokens; use a model with another one";
            return Err(tokenizer.fail(reason));
        }
        let id = |marker: &str| {
            let lacks = || {
                tokenizer.fail(format!(
                    "lacks the token {marker:?}; use the tokenizer that gliner saved with the model"
                ))
            };
            tokenizer.inner.token_to_id(marker).ok_or_else(lacks)
        };
        id(&self.end_marker)?;
        let found = id(&self.label_marker)?;
        match self.ids {
            Some((expected, _)) if expected != found as usize => Err(tokenizer.fail(format!(
                "has the token {:?} with the id {found}, expected class_token_index, {expected}; use the tokenizer that gliner saved \
                 with the model",
                self.label_marker
            ))),
            _ => Ok(found),
        }
    }

    /// Returns the token for each label.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if truncation left no token for one.
    fn labels_in(&self, ids: &[u32], marker: u32, n_labels: usize) -> Result<Vec<u32>> {
        let marks = (0..ids.len()).filter(|&token| ids[token] == marker);
        let tokens = marks.map(|token| token + usize::from(!self.reads_marker));
        let tokens = tokens.take(n_labels).filter(|&token| token < ids.len());
        let tokens: Vec<u32> = tokens.map(|token| token as u32).collect();
        if tokens.len() < n_labels {
            let reason = format!(
                "the {n_labels} labels have more tokens than the tokenizer's limit of {}; name fewer",
                ids.len()
            );
            return Err(Error::input("labels", reason));
        }
        Ok(tokens)
    }
}

impl TokenizedWords {
    /// Returns the place of a range of words.
    pub fn place(&self, words: &Range<usize>) -> Word {
        let (first, last) = (&self.words[words.start], &self.words[words.end - 1]);
        Word {
            bytes: first.bytes.start..last.bytes.end,
            characters: first.characters.start..last.characters.end,
        }
    }
}

/// A range of words with a label's index and score.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LabeledWords {
    pub words: Range<usize>,
    pub label: usize,
    pub score: f32,
}

/// Returns the score for a logit, in f32 like PyTorch: scores near 1 are then equal in the same places.
fn score(logit: &f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

impl LabeledWords {
    /// Returns the ranges whose score for a label exceeds the threshold, from logits `[n_spans, n_labels]`.
    pub fn of_spans(spans: &[Range<usize>], logits: &[f32], threshold: f64) -> Vec<Self> {
        let n_labels = logits.len() / spans.len().max(1);
        let scores = logits.iter().map(score).enumerate();
        let above = scores.filter(|(_, score)| *score > threshold as f32);
        let labeled = above.map(|(i, score)| Self {
            words: spans[i / n_labels].clone(),
            label: i % n_labels,
            score,
        });
        labeled.collect()
    }

    /// Returns the ranges whose first word begins an entity and whose last ends one, with all words inside it, by logits
    /// `[n_words, n_labels, 3]`. The score is the lowest.
    pub fn of_words(logits: &[f32], n_labels: usize, threshold: f64) -> Vec<Self> {
        let scores: Vec<f32> = logits.iter().map(score).collect();
        let is_above = |score: f32| score > threshold as f32;
        let mut all = Vec::new();
        for (place, first) in scores.chunks_exact(3).enumerate() {
            let start = place / n_labels;
            let mut score = first[0];
            let words = scores[3 * place..].chunks_exact(3).step_by(n_labels);
            for (n, word) in words.enumerate().take_while(|_| is_above(first[0])) {
                if f64::from(word[2]) < threshold {
                    break;
                }
                score = score.min(word[2]);
                if is_above(word[1]) {
                    all.push(Self {
                        words: start..start + n + 1,
                        label: place % n_labels,
                        score: score.min(word[1]),
                    });
                }
            }
        }
        all
    }
}

/// The overlaps that two labeled ranges may have: gliner's arguments `flat_ner` and `multi_label`.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlaps {
    /// One may lie inside the other: the opposite of `flat_ner`.
    pub nested: bool,
    /// The same words may have several labels.
    pub multi_label: bool,
}

impl Overlaps {
    /// Returns the ranges that remain, in the order of their first words: gliner's `greedy_search`. One with a lower score may not
    /// overlap one with a higher score.
    pub fn selected(self, mut all: Vec<LabeledWords>) -> Vec<LabeledWords> {
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut selected: Vec<LabeledWords> = Vec::new();
        for one in all {
            let excludes = |other: &LabeledWords| {
                let (a, b) = (&one.words, &other.words);
                let (starts, ends) = (a.start.cmp(&b.start), a.end.cmp(&b.end));
                let is_inside = starts.is_le() && ends.is_ge() || starts.is_ge() && ends.is_le();
                match a == b {
                    true => !self.multi_label,
                    false => a.start < b.end && b.start < a.end && !(self.nested && is_inside),
                }
            };
            if !selected.iter().any(excludes) {
                selected.push(one);
            }
        }
        selected.sort_by_key(|one| one.words.start);
        selected
    }
}

impl Tokenizer {
    /// Tokenizes the first words of texts, each after the labels. Leaves out texts without any words.
    ///
    /// # Errors
    /// The errors of [`Self::encode_all`] and [`LabelPrompt::label_id`]; also [`Error::InvalidInput`] if truncation left no token for
    /// a label.
    #[doc(hidden)]
    pub fn encode_words(
        &self,
        prompt: &LabelPrompt,
        labels: &[&str],
        texts: &[&str],
        max_words: usize,
    ) -> Result<Vec<TokenizedWords>> {
        let marker = prompt.label_id(self)?;
        let n_labels = labels.len();
        let labels = labels
            .iter()
            .flat_map(|label| [&prompt.label_marker, *label]);
        let prompt_words: Vec<&str> = labels.chain([prompt.end_marker.as_str()]).collect();
        let (mut inputs, mut split) = (Vec::new(), Vec::new());
        for (index, text) in texts.iter().enumerate() {
            let words = self.words(text, max_words)?;
            if words.is_empty() {
                continue;
            }
            let written = words.iter().map(|word| &text[word.bytes.clone()]);
            let all: Vec<&str> = prompt_words.iter().copied().chain(written).collect();
            inputs.push(EncodeInput::Single(InputSequence::from(all)));
            split.push((index, words));
        }
        let encodings = self.encodings(inputs, OffsetType::Byte)?;
        let all = encodings
            .iter()
            .zip(split)
            .map(|(encoding, (text, words))| {
                Ok(TokenizedWords {
                    text,
                    tokens: TokenizedText::from(encoding),
                    first_tokens: first_tokens(encoding, prompt_words.len(), words.len()),
                    words,
                    labels: prompt.labels_in(encoding.get_ids(), marker, n_labels)?,
                })
            });
        all.collect()
    }

    fn words(&self, text: &str, max_words: usize) -> Result<Vec<Word>> {
        static WORDS: LazyLock<std::result::Result<SysRegex, String>> =
            LazyLock::new(|| SysRegex::new(PATTERN).map_err(|error| error.to_string()));
        let pattern = WORDS.as_ref().map_err(|error| self.fail(error))?;
        let (mut before, mut n_characters) = (0, 0);
        let found = pattern.find_iter(text).take(max_words);
        let words = found.map(|(start, end)| {
            let first = n_characters + text[before..start].chars().count();
            n_characters = first + text[start..end].chars().count();
            before = end;
            Word {
                bytes: start..end,
                characters: first..n_characters,
            }
        });
        Ok(words.collect())
    }
}

/// Returns the first token of each word after the prompt. As in gliner's `prepare_word_mask`, words without tokens do not count: the
/// word after them takes their place.
fn first_tokens(encoding: &Encoding, n_prompt: usize, n_words: usize) -> Vec<Option<u32>> {
    let mut all = vec![None; n_words];
    let (mut n_seen, mut before) = (0_usize, None);
    for (token, &word) in encoding.get_word_ids().iter().enumerate() {
        if word.is_some() && word != before {
            let place = n_seen.checked_sub(n_prompt);
            if let Some(first) = place.and_then(|place| all.get_mut(place)) {
                *first = Some(token as u32);
            }
            n_seen += 1;
        }
        before = word;
    }
    all
}
