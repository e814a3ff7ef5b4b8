//! Groups labeled tokens to entities, as transformers' token classification does.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/token_classification.py>

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::text::Tokenizer;
use crate::text::scoring::best;

/// The label of tokens outside entities, which are left out.
const OUTSIDE: &str = "O";

/// How labeled tokens become entities: transformers' `aggregation_strategy`.
///
/// Pass it to [`TokenClassifier::entities`](crate::text::TokenClassifier::entities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Aggregation {
    /// Each token is an entity.
    #[default]
    None,
    /// Adjacent tokens with the same label are one entity. A label that begins with `B-` begins another.
    Simple,
    /// Like [`Self::Simple`], with whole words. A word has the label of its first token.
    First,
    /// Like [`Self::Simple`], with whole words. A word has the label with the highest mean score of its tokens.
    Average,
    /// Like [`Self::Simple`], with whole words. A word has the label of its token with the highest score.
    Max,
}

impl Aggregation {
    const ALL: [(&'static str, Self); 5] = [
        ("none", Self::None),
        ("simple", Self::Simple),
        ("first", Self::First),
        ("average", Self::Average),
        ("max", Self::Max),
    ];

    /// Returns whether whole words get labels, which needs to know which tokens continue a word.
    pub(super) fn joins_words(self) -> bool {
        matches!(self, Self::First | Self::Average | Self::Max)
    }
}

impl fmt::Display for Aggregation {
    /// Writes transformers' name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::ALL.iter();
        let name = names.find_map(|(name, one)| (one == self).then_some(*name));
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Aggregation {
    type Err = Error;

    /// Reads transformers' name.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is not one.
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, one)| *one).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            let reason = format!("{name:?} is unknown; expected one of {names}");
            Error::input("aggregation", reason)
        })
    }
}

/// A labeled part of a text. [`TokenClassifier::entities`](crate::text::TokenClassifier::entities) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entity {
    /// The label: of a token with its prefix (`B-PER`), of an entity without (`PER`).
    pub label: String,
    /// The label's probability; the mean if the entity has several tokens or words.
    pub score: f32,
    /// The token, or the text that the tokenizer makes of the entity's tokens.
    pub word: String,
    /// The token's index in the tokenized text, special tokens included; `None` for aggregated entities.
    pub index: Option<usize>,
    /// The entity's place in the text, in characters (Unicode code points); `None` if the tokenizer gives no offsets.
    pub span: Option<Range<usize>>,
}

/// A token with the probability of each label.
pub(super) struct ScoredToken<'t> {
    pub word: String,
    pub scores: Vec<f32>,
    pub span: Option<Range<usize>>,
    pub index: usize,
    /// The token continues the word before it.
    pub is_subword: bool,
    pub labels: &'t [String],
}

impl ScoredToken<'_> {
    /// Returns the index of the label with the highest probability, the first of equal ones.
    fn best(&self) -> usize {
        best(&self.scores)
    }

    fn entity(&self, label: usize, score: f32) -> Entity {
        Entity {
            label: self.labels[label].clone(),
            score,
            word: self.word.clone(),
            index: Some(self.index),
            span: self.span.clone(),
        }
    }
}

/// Returns the entities of a text's tokens, without those outside.
///
/// # Errors
/// If the tokenizer fails.
pub(super) fn entities(
    tokens: &[ScoredToken],
    aggregation: Aggregation,
    tokenizer: &Tokenizer,
) -> Result<Vec<Entity>> {
    let mut found: Vec<Entity> = match aggregation.joins_words() {
        false => {
            let each = tokens.iter().map(|token| {
                let best = token.best();
                token.entity(best, token.scores[best])
            });
            each.collect()
        }
        true => {
            let words = tokens.chunk_by(|_, next| next.is_subword);
            let words = words.map(|tokens| word(tokens, aggregation, tokenizer));
            words.collect::<Result<_>>()?
        }
    };
    if aggregation != Aggregation::None {
        let groups = found.chunk_by(|last, next| continues(&last.label, &next.label));
        found = groups
            .map(|group| joined(group, tokenizer))
            .collect::<Result<_>>()?;
    }
    found.retain(|entity| entity.label != OUTSIDE);
    Ok(found)
}

/// Returns a word with one label: transformers' `aggregate_word`.
fn word(tokens: &[ScoredToken], aggregation: Aggregation, tokenizer: &Tokenizer) -> Result<Entity> {
    let first = &tokens[0];
    let (label, score) = match aggregation {
        Aggregation::Average => {
            let mean = |label: usize| mean(tokens.iter().map(|token| token.scores[label]));
            let means: Vec<f32> = (0..first.scores.len()).map(mean).collect();
            let best = best(&means);
            (best, means[best])
        }
        Aggregation::Max => {
            let highest: Vec<f32> = tokens
                .iter()
                .map(|token| token.scores[token.best()])
                .collect();
            let token = &tokens[best(&highest)];
            (token.best(), token.scores[token.best()])
        }
        _ => (first.best(), first.scores[first.best()]),
    };
    let last = tokens[tokens.len() - 1].span.as_ref();
    Ok(Entity {
        word: tokenizer.joined(tokens.iter().map(|token| token.word.clone()).collect())?,
        span: whole(first.span.as_ref(), last),
        ..first.entity(label, score)
    })
}

/// Returns one entity for adjacent tokens or words: transformers' `group_sub_entities`.
fn joined(group: &[Entity], tokenizer: &Tokenizer) -> Result<Entity> {
    let (first, last) = (&group[0], &group[group.len() - 1]);
    let label = first.label.split_once('-');
    Ok(Entity {
        label: label.map_or(first.label.as_str(), |(_, rest)| rest).into(),
        score: mean(group.iter().map(|entity| entity.score)),
        word: tokenizer.joined(group.iter().map(|entity| entity.word.clone()).collect())?,
        index: None,
        span: whole(first.span.as_ref(), last.span.as_ref()),
    })
}

/// Returns the entities in a text's windows, sorted by their starts. Where some overlap, the longest remains, or among equally
/// long ones that with the highest score. transformers' `aggregate_overlapping_entities`.
pub(super) fn without_overlaps(mut all: Vec<Entity>) -> Vec<Entity> {
    let span = |entity: &Entity| entity.span.clone().unwrap_or_default();
    all.sort_by_key(|entity| span(entity).start);
    let mut kept: Vec<Entity> = Vec::new();
    for entity in all {
        match kept.last_mut() {
            Some(last) if span(last).contains(&span(&entity).start) => {
                let (n, n_last) = (span(&entity).len(), span(last).len());
                if n > n_last || n == n_last && entity.score > last.score {
                    *last = entity;
                }
            }
            _ => kept.push(entity),
        }
    }
    kept
}

/// Returns whether a label continues the entity of the one before it. A label without a prefix continues its own.
fn continues(last: &str, next: &str) -> bool {
    !next.starts_with("B-") && without_prefix(last) == without_prefix(next)
}

fn without_prefix(label: &str) -> &str {
    let prefixes = ["B-", "I-"].into_iter();
    let mut without = prefixes.filter_map(|prefix| label.strip_prefix(prefix));
    without.next().unwrap_or(label)
}

/// Returns the place from the start of one to the end of another.
fn whole(first: Option<&Range<usize>>, last: Option<&Range<usize>>) -> Option<Range<usize>> {
    Some(first?.start..last?.end)
}

fn mean(scores: impl ExactSizeIterator<Item = f32>) -> f32 {
    let n = scores.len() as f64;
    (scores.map(f64::from).sum::<f64>() / n) as f32
}
