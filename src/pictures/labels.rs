//! Sentences about labels, as a text tower reads them.

use candle_core::{Device, Tensor};
use tokenizers::PaddingDirection;

use crate::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::config::EmbeddingsConfig;
use crate::error::{Error, Result};
use crate::model::{Model, ModelInput, ModelOutput};
use crate::text::Tokenizer;

/// The number of tokens to which SigLIP's texts are padded: transformers' pipeline sets it.
const SIGLIP_LENGTH: usize = 64;
/// The most sentences in one pass of the text tower.
const AT_ONCE: usize = 64;

/// The tokenizer of a text tower, with the padding that transformers' zero-shot image classification sets.
#[derive(Clone, Debug)]
pub(super) struct LabelReader {
    tokenizer: Tokenizer,
    /// The length of all texts; `None` for the longest text's.
    length: Option<usize>,
    padding: u32,
    side: PaddingDirection,
    /// The tower gets a mask that hides padding.
    has_mask: bool,
    n_positions: Option<usize>,
}

impl LabelReader {
    /// Opens the checkpoint's tokenizer.
    ///
    /// # Errors
    /// If it is missing, malformed or another model's, or has no padding token.
    pub fn new(tower: &Model, is_siglip: bool, checkpoint: &Checkpoint) -> Result<Self> {
        let mut tokenizer = Tokenizer::of(checkpoint)?;
        let EmbeddingsConfig::Tokens(embeddings) = &tower.config().embeddings else {
            let reason = "the text tower does not read tokens";
            return Err(Error::InvalidConfig(reason.into()));
        };
        tokenizer.check_vocabulary(embeddings.n_tokens)?;
        if is_siglip {
            tokenizer.truncate(SIGLIP_LENGTH)?;
        }
        let Some(padding) = tokenizer.named_id("pad_token") else {
            return Err(Error::Tokenizer {
                path: tokenizer.path().to_path_buf(),
                reason: "names no pad_token in tokenizer_config.json, which texts of unequal lengths need".into(),
            });
        };
        let config = checkpoint.files().directory().join("tokenizer_config.json");
        let inputs = match ConfigJson::open_named(&config)? {
            Some(json) => json.texts(&["model_input_names"])?,
            None => None,
        };
        Ok(Self {
            length: is_siglip.then_some(SIGLIP_LENGTH),
            padding,
            side: tokenizer.padding_side()?,
            has_mask: inputs.is_none_or(|names| names.iter().any(|name| name == "attention_mask")),
            n_positions: embeddings.positions.map(|table| table.n_positions()),
            tokenizer,
        })
    }

    /// Runs the tower on sentences, and passes on its output for several at a time.
    ///
    /// # Errors
    /// [`Error::Text`] if a sentence has more tokens than the tower has positions.
    pub fn outputs(
        &self,
        tower: &Model,
        sentences: &[String],
        mut each: impl FnMut(ModelOutput) -> Result<()>,
    ) -> Result<()> {
        let encoded = self
            .tokenizer
            .encode_all(sentences.iter().map(String::as_str))?;
        let longest = encoded.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let length = self.length.unwrap_or(longest);
        if let Some(n) = self.n_positions.filter(|&n| n < length) {
            let found = encoded
                .iter()
                .position(|text| text.ids.len() > n)
                .unwrap_or(0);
            return Err(Error::Text {
                index: found,
                reason: format!(
                    "has {length} tokens with its padding, but the model has {n} positions; shorten the label or the template"
                ),
            });
        }
        for texts in encoded.chunks(AT_ONCE) {
            let (mut ids, mut mask) = (Vec::new(), Vec::new());
            for text in texts {
                let n_padding = length.saturating_sub(text.ids.len());
                let mut row = (text.ids.clone(), vec![1u8; text.ids.len()]);
                let at = match self.side {
                    PaddingDirection::Left => 0,
                    PaddingDirection::Right => text.ids.len(),
                };
                row.0.splice(at..at, vec![self.padding; n_padding]);
                row.1.splice(at..at, vec![0; n_padding]);
                ids.extend(row.0);
                mask.extend(row.1);
            }
            let shape = (texts.len(), length);
            let ids = Tensor::from_vec(ids, shape, &Device::Cpu)?.to_device(tower.device())?;
            let hides = self.has_mask && mask.contains(&0);
            let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
            // SigLIP pools the last position, which is padding and yet computed.
            let attended = hides.then_some(&mask);
            each(tower.forward_attending(&ModelInput::tokens(&ids), attended)?)?;
        }
        Ok(())
    }
}
