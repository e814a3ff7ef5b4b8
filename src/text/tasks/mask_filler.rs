//! Fills the masks in texts: the tokens that a masked language model finds probable there.

use std::path::Path;

use tokenizers::TruncationDirection;

use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;
use crate::text::TextOptions;
use crate::text::encoder::reading::TextInput;
use crate::text::encoder::{Encoder, host};
use crate::text::scoring::ScoreFunction;
use candle_blocks_tokenizers::SpecialTokens;

/// Fills the masks in texts with probable tokens, by a masked language model, BART, mBART or MVP: transformers' fill-mask
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/fill_mask.py>).
///
/// ```no_run
/// use candle_blocks::text::MaskFiller;
/// let filler = MaskFiller::open("bert-base-uncased")?;
/// let text = format!("Paris is the {} of France.", filler.mask_token());
/// for filling in &filler.fill(&[text], 5)?[0][0] {
///     println!("{} {}", filling.score, filling.sequence);
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MaskFiller {
    encoder: Encoder,
    mask_token: String,
    mask_id: u32,
    /// The only tokens that fill masks, by id; `None` for all.
    targets: Option<Vec<u32>>,
    notes: Vec<String>,
}

/// A token for a mask. [`MaskFiller::fill`](crate::text::MaskFiller::fill) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Filling {
    /// The token's probability.
    pub score: f32,
    /// The token's id.
    pub token: u32,
    /// The token's text.
    pub token_text: String,
    /// The text with the token at this mask; other masks and special tokens remain if there are several masks.
    pub sequence: String,
}

impl MaskFiller {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::mask_filler`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().mask_filler(directory)
    }

    /// Makes a filler from a model and its notes.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer has no mask token.
    pub(in crate::text) fn new(encoder: Encoder, mut notes: Vec<String>) -> Result<Self> {
        const KEY: &str = "mask_token";
        let tokenizer = &encoder.tokenizer;
        let mask_token = tokenizer.named_tokens().get(KEY).cloned();
        let (Some(mask_token), Some(mask_id)) = (mask_token, tokenizer.named_id(KEY)) else {
            return Err(tokenizer.fail(
                "has no mask token; set mask_token in tokenizer_config.json to the token that stood for a gap in training",
            ));
        };
        notes.extend(encoder.notes());
        Ok(Self {
            encoder,
            mask_token,
            mask_id,
            targets: None,
            notes,
        })
    }

    /// Fills masks with these tokens alone, whose scores stay those among all tokens: transformers' `targets`. A target that
    /// the vocabulary lacks is replaced by its first token, and [`Self::notes`] names both.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if no target has a token; [`Error::Tokenizer`] if the tokenizer fails.
    pub fn with_targets<T: AsRef<str>>(mut self, targets: &[T]) -> Result<Self> {
        let tokenizer = &self.encoder.tokenizer;
        let mut ids = Vec::new();
        for target in targets.iter().map(AsRef::as_ref) {
            if let Some(id) = tokenizer.inner().token_to_id(target) {
                ids.push(id);
                continue;
            }
            let tokens = tokenizer.encode_whole(target)?;
            let token = match tokenizer.truncation_side()? {
                TruncationDirection::Right => tokens.first(),
                TruncationDirection::Left => tokens.last(),
            };
            let done = match token {
                Some(id) => {
                    ids.push(*id);
                    let name = tokenizer.inner().id_to_token(*id).unwrap_or_default();
                    format!("{name:?} replaces it")
                }
                None => "it is left out".to_string(),
            };
            self.notes.push(format!(
                "the target {target:?} is no token of the vocabulary: {done}"
            ));
        }
        if ids.is_empty() {
            let reason = "has no token of the vocabulary; name at least one";
            return Err(Error::input("targets", reason));
        }
        ids.sort_unstable();
        ids.dedup();
        self.targets = Some(ids);
        Ok(self)
    }

    getters! {
        /// Returns the model, of an encoder and a decoder the encoder.
        model(&self) -> &Model => &self.encoder.model;
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.encoder.adapters;
        /// Returns the token to write for a gap in a text, such as `[MASK]`.
        mask_token(&self) -> &str => &self.mask_token;
        /// Returns the number of tokens to which texts are truncated; `None` for no truncation.
        max_length(&self) -> Option<usize> => self.encoder.max_length();
        /// Returns notes on settings in the files that results do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the `top_k` most probable tokens for each mask in each text, the most probable first.
    ///
    /// Each mask is filled with the others in place: the probabilities for several masks are not joint. There are fewer than `top_k`
    /// tokens if [`Self::with_targets`] names fewer.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `top_k` is 0 or larger than the vocabulary; [`Error::Text`] if a text has no mask, a token
    /// that the model does not have, or more tokens than the model has positions.
    pub fn fill<T: AsRef<str>>(&self, texts: &[T], top_k: usize) -> Result<Vec<Vec<Vec<Filling>>>> {
        let n_tokens = self.encoder.n_tokens()?;
        if top_k == 0 || top_k > n_tokens {
            let reason = format!("found {top_k}, expected 1 to {n_tokens}, the model's tokens");
            return Err(Error::input("top_k", reason));
        }
        let inputs: Vec<TextInput> = texts
            .iter()
            .map(|text| TextInput::One(text.as_ref()))
            .collect();
        let encoded = self.encoder.encode(&inputs, "")?;
        let mut masks = Vec::with_capacity(texts.len());
        for (index, text) in encoded.iter().enumerate() {
            let ids = text.ids.iter().enumerate();
            let found: Vec<usize> = ids
                .filter(|(_, id)| **id == self.mask_id)
                .map(|(at, _)| at)
                .collect();
            if found.is_empty() {
                let mask = &self.mask_token;
                let reason = match self.encoder.max_length() {
                    Some(n) if texts[index].as_ref().contains(mask.as_str()) => {
                        format!(
                            "has no {mask} in its first {n} tokens; set a larger max_length, or none"
                        )
                    }
                    _ => format!("has no mask; write {mask} for the gap to fill"),
                };
                return Err(Error::Text { index, reason });
            }
            masks.push(found);
        }
        let mut all = vec![Vec::new(); texts.len()];
        self.encoder.logits_at(&encoded, &masks, |text, logits| {
            let n_tokens = logits.dim(1)?;
            for (logits, &mask) in host(&logits)?.chunks_exact(n_tokens).zip(&masks[text]) {
                let special = match masks[text].len() {
                    1 => SpecialTokens::LeftOut,
                    // The other masks are special too.
                    _ => SpecialTokens::Kept,
                };
                let scores = ScoreFunction::Softmax.scores(logits)?;
                let best = best(&scores, self.targets.as_deref(), top_k);
                let best = best.into_iter();
                let filling = |(token, score)| {
                    let mut ids = encoded[text].ids.clone();
                    ids[mask] = token;
                    self.filling(token, score, ids, special)
                };
                all[text].push(best.map(filling).collect::<Result<_>>()?);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn filling(
        &self,
        token: u32,
        score: f32,
        mut ids: Vec<u32>,
        special: SpecialTokens,
    ) -> Result<Filling> {
        let tokenizer = &self.encoder.tokenizer;
        let padding = tokenizer.named_id("pad_token");
        ids.retain(|id| Some(*id) != padding);
        Ok(Filling {
            score,
            token,
            token_text: tokenizer.decoded(&[token], SpecialTokens::Kept)?,
            sequence: tokenizer.decoded(&ids, special)?,
        })
    }
}

/// Returns the tokens, or the targets among them, with the highest scores, the highest first, and the lower id first for equal ones.
fn best(scores: &[f32], targets: Option<&[u32]>, top_k: usize) -> Vec<(u32, f32)> {
    let score = |&id: &u32| Some((id, *scores.get(id as usize)?));
    let mut all: Vec<(u32, f32)> = match targets {
        Some(targets) => targets.iter().filter_map(score).collect(),
        None => (0..).zip(scores.iter().copied()).collect(),
    };
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if top_k < all.len() {
        all.select_nth_unstable_by(top_k, order);
        all.truncate(top_k);
    }
    all.sort_unstable_by(order);
    all
}
