//! Lengthens the queries of a model with a vector for each token, as ColBERT does.

use candle_core::{Device, Tensor};
use tokenizers::PaddingDirection;

use crate::error::{Error, Result};
use crate::text::encoder::reading::QueryExpansion;
use crate::text::{TokenizedText, Tokenizer};

/// Model types whose blocks use the attention mask after attention too.
const SET_TO_ZERO: [&str; 2] = ["flaubert", "xlm"];
/// Decoders whose attention transformers computes without SDPA, which gives zeros for a query without keys.
const WITHOUT_KEYS: [&str; 16] = [
    "bloom",
    "codegen",
    "ctrl",
    "falcon",
    "gemma2",
    "gpt_neox_japanese",
    "gpt_oss",
    "gptj",
    "granite_swa",
    "granitemoe_swa",
    "llama4",
    "llama4_text",
    "mpt",
    "openai-gpt",
    "vaultgemma",
    "xglm",
];

/// The tokens that lengthen a short query.
#[derive(Clone, Debug)]
pub(crate) struct Expansion {
    length: usize,
    attends: bool,
    token: u32,
    /// The side of the text on which they are.
    side: PaddingDirection,
}

impl Expansion {
    /// Finds the token in the vocabulary, and the side on which sentence-transformers adds it. `padding_side` is that of the
    /// tokenizer's call, if the model's files name one.
    ///
    /// # Errors
    /// If the token is not there, the model has fewer positions, or the tokenizer's padding side is unknown.
    pub fn new(
        settings: &QueryExpansion,
        padding_side: Option<PaddingDirection>,
        tokenizer: &Tokenizer,
        n_positions: Option<usize>,
    ) -> Result<Self> {
        const KEY: &str = "query_expansion";
        let length = settings.length;
        if let Some(n) = n_positions.filter(|&n| n < length) {
            return Err(Error::InvalidConfig(format!(
                "{KEY}: lengthens queries to {length} tokens, but the model has {n} positions"
            )));
        }
        let named = tokenizer.named_tokens();
        let of_class = ["mask_token", "eos_token"]
            .into_iter()
            .find_map(|name| named.get(name));
        let name = settings.token.as_ref().or(of_class);
        let name = name.ok_or_else(|| {
            let reason = format!("{KEY} needs a mask token, which the tokenizer does not have; name a \"token\" there");
            tokenizer.fail(reason)
        })?;
        let token = tokenizer.inner().token_to_id(name);
        let missing = || tokenizer.fail(format!("does not have {name:?}, which {KEY} names"));
        // The strategy "fixed" replaces the tokenizer's padding. The strategy "min" adds tokens on the right.
        let side = match (settings.truncates, padding_side) {
            (false, _) => PaddingDirection::Right,
            (true, Some(side)) => side,
            (true, None) => tokenizer.padding_side()?,
        };
        Ok(Self {
            length,
            attends: settings.attends,
            token: token.ok_or_else(missing)?,
            side,
        })
    }

    /// Returns why tokens to which the model does not attend are not supported for this model type, if they are not.
    pub fn unsupported(&self, model_type: &str) -> Option<String> {
        let has = |types: &[&str]| !self.attends && types.contains(&model_type);
        let (what, why) = match self.side {
            _ if has(&SET_TO_ZERO) => (
                "is",
                "the model sets their vectors to zero after every block",
            ),
            PaddingDirection::Left if has(&WITHOUT_KEYS) => (
                "with a padding_side of left is",
                "tokens before the text have no key to attend to, and transformers gives them the mean of all values",
            ),
            _ => return None,
        };
        Some(format!(
            "query_expansion: \"attend\": false {what} not supported for {model_type}: {why}; set \"attend\" to true in \
             sentence_bert_config.json, if the model was trained so"
        ))
    }

    /// Adds the tokens to a text that has fewer.
    pub fn lengthen(&self, text: &mut TokenizedText) {
        let n_own = text.ids.len();
        let n_added = self.length.saturating_sub(n_own);
        let (at, begin) = match self.side {
            PaddingDirection::Left => (0, n_added),
            PaddingDirection::Right => (n_own, 0),
        };
        text.ids.splice(at..at, vec![self.token; n_added]);
        text.types.splice(at..at, vec![0; n_added]);
        text.attended = (!self.attends && n_added > 0).then(|| begin..begin + n_own);
    }
}

/// Returns the attention mask `[batch, seq]` of texts with tokens to which the model does not attend: 1 for the others. Returns
/// `None` if it attends to all.
///
/// # Errors
/// If the tensor cannot be made.
pub(crate) fn attended(texts: &[&TokenizedText]) -> Result<Option<Tensor>> {
    if texts.iter().all(|text| text.attended.is_none()) {
        return Ok(None);
    }
    let seq = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
    let row = |text: &&TokenizedText| {
        let own = text.attended.clone().unwrap_or(0..text.ids.len());
        (0..seq).map(move |i| u8::from(own.contains(&i)))
    };
    let marks: Vec<u8> = texts.iter().flat_map(row).collect();
    let shape = (texts.len(), seq);
    Ok(Some(Tensor::from_vec(marks, shape, &Device::Cpu)?))
}
