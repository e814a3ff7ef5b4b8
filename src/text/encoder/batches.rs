//! Groups texts into batches.

use candle_blocks_tokenizers::{TokenizedText, Tokenizer, token_types};
use candle_core::{Device, Tensor};
use tokenizers::EncodeInput;

use crate::error::Result;
use crate::model::ModelInput;

/// How many tokens a batch has: enough to keep two threads busy, with hidden states that fit the caches.
const MAX_TOKENS: usize = 2048;

/// The lengths that one batch may mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchLengths {
    /// Any lengths: padding is not computed.
    Any,
    /// Equal lengths only: padding would be computed, or would change the sums' order.
    Equal,
}

/// Groups texts by length in tokens, the longest first, so that the largest memory is allocated first.
pub(crate) fn batches(n_tokens: &[usize], lengths: BatchLengths) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..n_tokens.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(n_tokens[text]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for text in order {
        let fits = |batch: &Vec<usize>| {
            let longest = n_tokens[batch[0]];
            let may_join = lengths == BatchLengths::Any || longest == n_tokens[text];
            may_join && longest * (batch.len() + 1) <= MAX_TOKENS
        };
        match batches.last_mut() {
            Some(batch) if fits(batch) => batch.push(text),
            _ => batches.push(vec![text]),
        }
    }
    batches
}

/// Returns a batch of texts, with shorter ones padded on the right.
///
/// # Errors
/// If the device has no memory for it.
pub(super) fn padded(
    texts: &[&TokenizedText],
    padding: u32,
    has_types: bool,
    device: &Device,
) -> Result<ModelInput> {
    let longest = texts.iter().map(|text| text.ids.len()).max();
    let shape = (texts.len(), longest.unwrap_or(0));
    let rows = |values: fn(&TokenizedText) -> &[u32], padding: u32| -> Result<Tensor> {
        let mut all = Vec::with_capacity(shape.0 * shape.1);
        for (row, text) in texts.iter().enumerate() {
            all.extend(values(text));
            all.resize((row + 1) * shape.1, padding);
        }
        Ok(Tensor::from_vec(all, shape, device)?)
    };
    let mut input = ModelInput::tokens(&rows(|text| &text.ids, padding)?);
    let mut types = texts.iter().flat_map(|text| &text.types);
    if has_types && types.any(|&of| of > 0) {
        input = input.with_types(&rows(|text| &text.types, 0)?);
    }
    if texts.iter().any(|text| text.ids.len() < shape.1) {
        let kept = |text: &&TokenizedText| {
            let n = text.ids.len();
            (0..shape.1).map(move |i| u8::from(i < n))
        };
        let mask: Vec<u8> = texts.iter().flat_map(kept).collect();
        input = input.with_mask(&Tensor::from_vec(mask, shape, device)?);
    }
    Ok(input)
}

impl ModelInput {
    /// Creates an input from texts, or pairs of texts, as one batch: tokens, their types if the tokenizer gives them, and a
    /// mask of the padding after shorter texts. [`Tokenizer::truncate`] shortens long ones.
    ///
    /// ```no_run
    /// use candle_blocks::{Checkpoint, ModelInput, candle_core::Device, text::Tokenizer};
    /// let mut tokenizer = Tokenizer::of(&Checkpoint::open("all-MiniLM-L6-v2")?)?;
    /// tokenizer.truncate(256)?;
    /// let input = ModelInput::texts(&tokenizer, ["small boats", "the clock"], &Device::Cpu)?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode_all`].
    pub fn texts<'t, T: Into<EncodeInput<'t>>>(
        tokenizer: &Tokenizer,
        texts: impl IntoIterator<Item = T>,
        device: &Device,
    ) -> Result<Self> {
        let padding = tokenizer.named_id("pad_token").unwrap_or(0);
        let encoded = tokenizer.encode_all(texts)?;
        let has_types = token_types::are_given(tokenizer, None)?;
        padded(
            &encoded.iter().collect::<Vec<_>>(),
            padding,
            has_types,
            device,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_in_one_batch_of_bounded_size() {
        let n_tokens = [3, 900, 5, 3, 1200, 900, 3, 5000];
        for lengths in [BatchLengths::Any, BatchLengths::Equal] {
            let batches = batches(&n_tokens, lengths);
            let mut all: Vec<usize> = batches.concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
            for batch in &batches {
                let longest = batch.iter().map(|&text| n_tokens[text]).max().unwrap();
                assert!(batch.len() == 1 || longest * batch.len() <= MAX_TOKENS);
                let is_equal = |&text: &usize| n_tokens[text] == longest;
                assert!(lengths == BatchLengths::Any || batch.iter().all(is_equal));
            }
        }
        assert_eq!(batches(&[2, 2, 1], BatchLengths::Any), [[0, 1, 2]]);
        assert_eq!(
            batches(&[2, 2, 1], BatchLengths::Equal),
            [vec![0, 1], vec![2]]
        );
    }
}
