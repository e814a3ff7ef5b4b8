//! Converts texts to tokens.

use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{
    AddedToken, EncodeInput, Encoding, InputSequence, OffsetType, PostProcessor,
    PostProcessorWrapper, TruncationDirection, TruncationParams,
};

use super::config::is_left;
use super::truncation::{TokenLimit, TruncationRule};
use super::{TokenizedText, Tokenizer};
use crate::TruncationStrategy;
use candle_blocks_base::{Error, Result};

impl Tokenizer {
    /// From now on, truncates texts to this number of tokens, including special ones; in a pair, truncates the longer text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if a text without any words has more special tokens.
    pub fn truncate(&mut self, max_length: usize) -> Result<()> {
        self.truncate_by(max_length, TruncationStrategy::LongestFirst)
    }

    /// Like [`Self::truncate`], with a strategy for pairs. There is no `stride`: truncated tokens are not returned.
    ///
    /// # Errors
    /// The errors of [`Self::truncate`].
    pub fn truncate_by(&mut self, max_length: usize, strategy: TruncationStrategy) -> Result<()> {
        let added = self.inner.get_post_processor();
        let n_special = added.map_or(0, |added| added.added_tokens(false));
        if max_length == 0 || max_length < n_special {
            return Err(self.fail(format!(
                "adds {n_special} special tokens, but a text may have only {max_length}"
            )));
        }
        let direction = self.truncation_side()?;
        let truncation = TruncationParams {
            max_length,
            direction,
            ..TruncationParams::default()
        };
        self.limit = Some(TokenLimit {
            max_length,
            direction,
            strategy,
            keeps_whole: false,
        });
        if self.python.is_some() {
            return Ok(());
        }
        let truncated = self.inner.with_truncation(Some(truncation)).map(drop);
        truncated.map_err(|error| self.fail(error.to_string()))
    }

    /// Returns the side on which texts are truncated.
    ///
    /// # Errors
    /// If `tokenizer_config.json` names another side.
    #[doc(hidden)]
    pub fn truncation_side(&self) -> Result<TruncationDirection> {
        let side = self.config.as_ref();
        let side = side.map(|config| is_left(config, "truncation_side"));
        Ok(match side.transpose()?.flatten() {
            Some(true) => TruncationDirection::Left,
            Some(false) => TruncationDirection::Right,
            None => self.sides.truncation,
        })
    }

    /// From now on, leaves a text whole if the strategy in [`Self::truncate_by`] cannot truncate it, instead of refusing it.
    #[doc(hidden)]
    pub fn keep_whole(&mut self) {
        if let Some(limit) = &mut self.limit {
            limit.keeps_whole = true;
        }
    }

    /// Converts every text to lower case first, unless the tokenizer does so itself.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the added tokens do not allow it.
    pub fn lower_case(&mut self) -> Result<()> {
        let lowers =
            |normalizer: &NormalizerWrapper| matches!(normalizer, NormalizerWrapper::Lowercase(_));
        let mut all = match self.inner.get_normalizer() {
            None => Vec::new(),
            Some(NormalizerWrapper::Sequence(sequence)) => sequence.as_ref().to_vec(),
            Some(one) => vec![one.clone()],
        };
        if all.iter().any(lowers) {
            return Ok(());
        }
        all.insert(0, Lowercase.into());
        self.whole.take();
        self.bare.take();
        let changed = self.inner.with_normalizer(Some(Sequence::new(all)));
        changed
            .map(drop)
            .map_err(|error| self.fail(error.to_string()))
    }

    /// From now on, adds no special tokens.
    #[doc(hidden)]
    pub fn leave_out_special_tokens(&mut self) {
        self.whole.take();
        self.bare.take();
        self.inner.with_post_processor(None::<PostProcessorWrapper>);
    }

    /// Adds special tokens, each with the next free id unless the vocabulary has it.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer refuses one.
    #[doc(hidden)]
    pub fn add_special_tokens(&mut self, tokens: &[&str]) -> Result<()> {
        self.whole.take();
        self.bare.take();
        let tokens = tokens.iter().map(|&token| AddedToken::from(token, true));
        let added = self.inner.add_special_tokens(tokens);
        added
            .map(drop)
            .map_err(|error| self.fail(error.to_string()))
    }

    /// Tokenizes a text without special tokens or truncation.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails.
    #[doc(hidden)]
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.untruncated(text.into());
        let encoded = encoded.map_err(|error| self.fail(error))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Tokenizes a text, with special tokens.
    ///
    /// # Errors
    /// The errors of [`Self::encode_all`].
    pub fn encode(&self, text: &str) -> Result<TokenizedText> {
        let encoded = self.encode_all([text])?.pop();
        Ok(encoded.unwrap_or_default())
    }

    /// Tokenizes a text that already contains its special tokens.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails; [`Error::Text`] if the text contains a place to be filled in.
    pub fn encode_written(&self, text: &str) -> Result<TokenizedText> {
        self.check_fillings([text])?;
        let encoded = match &self.python {
            None => self.inner.encode_fast(text, false),
            Some(python) => python.encoding(&self.inner, text),
        };
        let encoded = encoded.map_err(|error| self.fail(error.to_string()))?;
        Ok(TokenizedText::from(&encoded))
    }

    /// Tokenizes many texts or pairs, in parallel.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer fails; [`Error::Text`] if a text cannot be truncated by the strategy in
    /// [`Self::truncate_by`], or contains a place to be filled in (Code Llama's `<FILL_ME>`).
    pub fn encode_all<'t, T>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<TokenizedText>>
    where
        T: Into<EncodeInput<'t>>,
    {
        let encoded = self.encodings(texts, OffsetType::None)?;
        Ok(encoded.iter().map(TokenizedText::from).collect())
    }

    /// Tokenizes texts like [`Self::encode_all`], with each token's offsets in its text and a mark for the special tokens around
    /// texts. Pairs, and a class that is written in Python, have no offsets.
    ///
    /// # Errors
    /// The errors of [`Self::encode_all`].
    #[doc(hidden)]
    pub fn encodings<'t, T>(
        &self,
        texts: impl IntoIterator<Item = T>,
        offsets: OffsetType,
    ) -> Result<Vec<Encoding>>
    where
        T: Into<EncodeInput<'t>>,
    {
        let texts: Vec<EncodeInput> = texts.into_iter().map(Into::into).collect();
        self.check_fillings(texts.iter().filter_map(|text| match text {
            EncodeInput::Single(InputSequence::Raw(text)) => Some(text.as_ref()),
            _ => None,
        }))?;
        if self.python.is_some() {
            let each = texts.into_iter().enumerate();
            let each = each.map(|(index, text)| self.limited(index, text, self.limit.as_ref()));
            return each.collect();
        }
        let own = |limit: &TokenLimit| {
            let own = texts.iter().enumerate();
            let own = own.filter(|(_, text)| !limit.strategy.is_the_library_s(text));
            own.map(|(index, text)| (index, text.clone())).collect()
        };
        let own: Vec<(usize, EncodeInput)> = self.limit.as_ref().map_or(Vec::new(), own);
        let encoded = match offsets {
            OffsetType::None => self.inner.encode_batch_fast(texts, true),
            OffsetType::Byte => self.inner.encode_batch(texts, true),
            OffsetType::Char => self.inner.encode_batch_char_offsets(texts, true),
        };
        let mut encoded = encoded.map_err(|error| self.fail(error.to_string()))?;
        if let Some(limit) = &self.limit {
            for (index, text) in own {
                if encoded[index].len() >= limit.max_length {
                    encoded[index] = self.limited(index, text, Some(limit))?;
                }
            }
        }
        Ok(encoded)
    }

    /// Tokenizes the text or pair with this index, truncated by the crate.
    fn limited(
        &self,
        index: usize,
        text: EncodeInput,
        limit: Option<&TokenLimit>,
    ) -> Result<Encoding> {
        let fail = |reason| Error::Text { index, reason };
        let (first, second) = match text {
            EncodeInput::Single(text) => (text, None),
            EncodeInput::Dual(first, second) => (first, Some(second)),
        };
        let mut first = self.untruncated(first).map_err(fail)?;
        let second = second.map(|text| self.untruncated(text)).transpose();
        let mut second = second.map_err(fail)?;
        let tokenizer = self.whole();
        let processor = tokenizer.get_post_processor();
        let n_special = processor.map_or(0, |processor| processor.added_tokens(second.is_some()));
        if let Some(limit) = limit {
            let rule = match self.python {
                Some(_) => TruncationRule::Python,
                None => TruncationRule::Library,
            };
            let whole = limit.keeps_whole.then(|| (first.clone(), second.clone()));
            let cut = limit.truncated((first, second), n_special, rule);
            (first, second) = match (cut, whole) {
                (Err(_), Some(whole)) => whole,
                (cut, _) => cut.map_err(fail)?,
            };
        }
        if let Some(python) = &self.python {
            for text in std::iter::once(&mut first).chain(&mut second) {
                python.before_the_end(text);
            }
        }
        let encoded = tokenizer.post_process(first, second, true);
        encoded.map_err(|error| fail(error.to_string()))
    }

    /// Tokenizes a text without special tokens or truncation.
    fn untruncated(&self, text: InputSequence) -> std::result::Result<Encoding, String> {
        let encoded = match (&self.python, text) {
            (Some(python), InputSequence::Raw(text)) => python.encoding(&self.inner, &text),
            (_, text) => self.whole().encode_fast(text, false),
        };
        encoded.map_err(|error| error.to_string())
    }

    /// Refuses a text with Code Llama's fill-in token: transformers reorders such a text.
    fn check_fillings<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Result<()> {
        let Some(token) = &self.fill_token else {
            return Ok(());
        };
        match texts
            .into_iter()
            .position(|text| text.contains(token.as_str()))
        {
            Some(index) => Err(Error::Text {
                index,
                reason: format!(
                    "contains {token}, a place to be filled in, which is not supported; write the \
                     tokens ▁<PRE>, ▁<SUF> and ▁<MID> instead"
                ),
            }),
            None => Ok(()),
        }
    }

    /// Returns the tokenizer without truncation.
    fn whole(&self) -> &tokenizers::Tokenizer {
        self.whole.get_or_init(|| {
            let mut whole = Box::new(self.inner.clone());
            let _ = whole.with_truncation(None); // this never fails
            whole
        })
    }
}
