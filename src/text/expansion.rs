//! Lengthens the queries of a model with a vector for each token, as ColBERT does.

use candle_core::{Device, Tensor};

use super::reading::QueryExpansion;
use super::{TokenizedText, Tokenizer};
use crate::error::{Error, Result};

/// The tokens that follow a short query.
#[derive(Clone, Debug)]
pub(super) struct Expansion {
    length: usize,
    attends: bool,
    token: u32,
}

impl Expansion {
    /// Finds the token in the vocabulary.
    ///
    /// # Errors
    /// If it is not there, or the model has fewer positions.
    pub fn new(
        settings: &QueryExpansion,
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
        Ok(Self {
            length,
            attends: settings.attends,
            token: token.ok_or_else(missing)?,
        })
    }

    /// Adds the tokens to a text that has fewer.
    pub fn lengthen(&self, text: &mut TokenizedText) {
        let n_added = self.length.saturating_sub(text.ids.len());
        text.ids.extend(vec![self.token; n_added]);
        text.types.resize(text.ids.len(), 0);
        text.n_unattended = if self.attends { 0 } else { n_added };
    }
}

/// Returns the values to add to scores, `[batch, 1, 1, seq]`, that hide tokens to which the model does not attend, if there
/// are any.
///
/// # Errors
/// If the tensor cannot be made.
pub(super) fn unattended(texts: &[&TokenizedText]) -> Result<Option<Tensor>> {
    if texts.iter().all(|text| text.n_unattended == 0) {
        return Ok(None);
    }
    let seq = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
    let row = |text: &&TokenizedText| {
        let n_attended = text.ids.len() - text.n_unattended;
        (0..seq).map(move |i| {
            if i < n_attended {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        })
    };
    let scores: Vec<f32> = texts.iter().flat_map(row).collect();
    let shape = (texts.len(), 1, 1, seq);
    Ok(Some(Tensor::from_vec(scores, shape, &Device::Cpu)?))
}
