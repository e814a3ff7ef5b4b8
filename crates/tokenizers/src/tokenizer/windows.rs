//! Divides a text with too many tokens into windows that overlap.

use tokenizers::{
    EncodeInput, Encoding, PostProcessor, PostProcessorWrapper, TruncationParams,
    TruncationStrategy, truncate_encodings,
};

use super::Tokenizer;
use candle_blocks_base::{Error, Result};

/// The windows over a text with too many tokens.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct TokenWindows {
    /// How many tokens a window has, including special tokens and a pair's undivided text.
    pub max_length: usize,
    /// How many tokens a window shares with the one before.
    pub stride: usize,
    /// The text that is divided.
    pub divided: DividedText,
}

/// The text that is divided into windows. Each window has a pair's other text whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum DividedText {
    First,
    Second,
}

impl Tokenizer {
    /// Tokenizes a text or pair with this index as windows, with offsets in characters: one window if it is short enough.
    ///
    /// # Errors
    /// [`Error::Text`] if no window can have `stride` tokens and another one from the divided text.
    #[doc(hidden)]
    pub fn windows(
        &self,
        index: usize,
        text: EncodeInput,
        windows: TokenWindows,
    ) -> Result<Vec<Encoding>> {
        let fail = |reason| Error::Text { index, reason };
        let (first, second) = match text {
            EncodeInput::Single(text) => (text, None),
            EncodeInput::Dual(first, second) => (first, Some(second)),
        };
        // A post-processor trims offsets each time.
        let tokenizer = self.bare();
        let encode = |text| {
            let encoded = tokenizer.encode_char_offsets(EncodeInput::Single(text), false);
            encoded.map_err(|error| fail(error.to_string()))
        };
        let first = encode(first)?;
        let mut second = second.map(encode).transpose()?;
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        let processor = self.inner.get_post_processor();
        let n_special = processor.map_or(0, |processor| processor.added_tokens(second.is_some()));
        let n_second = second.as_ref().map_or(0, Encoding::len);
        let (strategy, n_divided, n_whole) = match windows.divided {
            DividedText::First => (TruncationStrategy::OnlyFirst, first.len(), n_second),
            DividedText::Second => (TruncationStrategy::OnlySecond, n_second, first.len()),
        };
        let room = windows.max_length.saturating_sub(n_special + n_whole);
        if n_divided > room && room <= windows.stride {
            let TokenWindows {
                max_length, stride, ..
            } = windows;
            let other = match second {
                Some(_) => format!(" and {n_whole} tokens of the other text"),
                None => String::new(),
            };
            return Err(fail(format!(
                "has {n_divided} tokens, and a window of {max_length} tokens with {n_special} special tokens{other} does not \
                 fit {stride} tokens from the window before and another one; set a larger max_length or a smaller stride"
            )));
        }
        let params = TruncationParams {
            max_length: windows.max_length.saturating_sub(n_special),
            stride: windows.stride,
            strategy,
            direction: self.truncation_side()?,
        };
        let failed = |error: tokenizers::Error| fail(error.to_string());
        let (first, second) = match n_divided > room {
            true => truncate_encodings(first, second, &params).map_err(failed)?,
            false => (first, second),
        };
        let encoded = match processor {
            Some(processor) => processor.process(first, second, true),
            None => tokenizer.post_process(first, second, true),
        };
        let mut encoded = encoded.map_err(failed)?;
        let others = encoded.take_overflowing();
        Ok(std::iter::once(encoded).chain(others).collect())
    }

    /// Returns the tokenizer without truncation or a post-processor.
    fn bare(&self) -> &tokenizers::Tokenizer {
        self.bare.get_or_init(|| {
            let mut bare = Box::new(self.inner.clone());
            let _ = bare.with_truncation(None); // this never fails
            bare.with_post_processor(None::<PostProcessorWrapper>);
            bare
        })
    }
}
