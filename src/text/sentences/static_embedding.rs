//! Vectors for texts without a model: the mean over a table's vectors for the text's tokens.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use tokenizers::{EncodeInput, InputSequence, TruncationParams};

use crate::error::{Error, Result};
use crate::text::encoder::reading::TextInput;

/// How a table makes a text's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum TableUse {
    /// The mean over the vectors for the text's tokens: sentence-transformers' `StaticEmbedding`, and model2vec.
    Mean,
    /// A feature for each token of the vocabulary: its weight if the text has it, and otherwise 0. sentence-transformers'
    /// `SparseStaticEmbedding`.
    Presence,
}

/// A table with a vector or a weight for each token.
#[derive(Clone, Debug)]
pub(in crate::text) struct StaticEmbedding {
    /// Reads texts without special tokens.
    pub tokenizer: tokenizers::Tokenizer,
    /// The file with the table.
    pub path: PathBuf,
    /// The vectors, one after another.
    pub table: Arc<Vec<f32>>,
    pub width: usize,
    pub usage: TableUse,
    /// The table's row for each token, if tokens share rows.
    pub rows: Option<Arc<Vec<usize>>>,
    /// A factor for each token.
    pub weights: Option<Arc<Vec<f32>>>,
    /// A token that does not count.
    pub left_out: Option<u32>,
    /// How many characters the tokenizer reads in a text.
    pub max_characters: Option<usize>,
}

impl StaticEmbedding {
    /// Truncates texts to this number of tokens, or not at all.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer refuses the number.
    pub fn truncate(&mut self, max_length: Option<usize>) -> Result<()> {
        let params = max_length.map(|max_length| TruncationParams {
            max_length,
            ..TruncationParams::default()
        });
        let truncated = self.tokenizer.with_truncation(params).map(drop);
        truncated.map_err(|error| self.fail(error))
    }

    /// Returns how many tokens a text has at most; `None` for no truncation.
    pub fn max_length(&self) -> Option<usize> {
        let params = self.tokenizer.get_truncation();
        params.map(|params| params.max_length)
    }

    /// Returns the vectors for texts with a prompt, `[n, width]` in f32 on the CPU. A text without tokens has zeros.
    ///
    /// # Errors
    /// [`Error::Text`] if a text has a token that the table does not have; [`Error::Tokenizer`] if the tokenizer fails.
    pub fn vectors(&self, texts: &[TextInput], prompt: &str) -> Result<Tensor> {
        let inputs = texts
            .iter()
            .map(|text| self.shortened(text.after_prompt(prompt)));
        let inputs: Vec<EncodeInput> = inputs.collect();
        let encoded = self.tokenizer.encode_batch_fast(inputs, false);
        let encoded = encoded.map_err(|error| self.fail(error))?;
        let mut vectors = Vec::with_capacity(texts.len() * self.n_features());
        for (index, text) in encoded.iter().enumerate() {
            if self.usage == TableUse::Presence {
                let mut present = vec![0f32; self.table.len()];
                for &id in text.get_ids() {
                    let weight = self.table.get(id as usize);
                    present[id as usize] = *weight.ok_or_else(|| self.unknown(index, id))?;
                }
                vectors.extend(present);
                continue;
            }
            // Sums in f64, so that their order does not matter.
            let mut sums = vec![0f64; self.width];
            let ids = text.get_ids().iter().copied();
            let ids: Vec<u32> = ids.filter(|&id| Some(id) != self.left_out).collect();
            for &id in &ids {
                let (vector, weight) = self.vector(id).ok_or_else(|| self.unknown(index, id))?;
                for (sum, value) in sums.iter_mut().zip(vector) {
                    *sum += f64::from(value * weight);
                }
            }
            let n = ids.len().max(1) as f64;
            vectors.extend(sums.iter().map(|sum| (sum / n) as f32));
        }
        let shape = (texts.len(), self.n_features());
        Ok(Tensor::from_vec(vectors, shape, &Device::Cpu)?)
    }

    /// Returns how many features a text's vector has.
    pub fn n_features(&self) -> usize {
        match self.usage {
            TableUse::Mean => self.width,
            TableUse::Presence => self.table.len(),
        }
    }

    /// Returns a token's vector in the table, and its weight.
    fn vector(&self, id: u32) -> Option<(&[f32], f32)> {
        let id = id as usize;
        let row = match &self.rows {
            Some(rows) => *rows.get(id)?,
            None => id,
        };
        let weight = match &self.weights {
            Some(weights) => *weights.get(id)?,
            None => 1.0,
        };
        let start = row.checked_mul(self.width)?;
        Some((
            self.table.get(start..start.checked_add(self.width)?)?,
            weight,
        ))
    }

    /// Keeps a text's first characters.
    fn shortened<'t>(&self, input: EncodeInput<'t>) -> EncodeInput<'t> {
        match (self.max_characters, input) {
            (Some(n), EncodeInput::Single(InputSequence::Raw(text))) => {
                let kept: String = text.chars().take(n).collect();
                EncodeInput::Single(kept.into())
            }
            (_, input) => input,
        }
    }

    fn unknown(&self, index: usize, id: u32) -> Error {
        let token = self.tokenizer.id_to_token(id).unwrap_or_default();
        let reason = format!(
            "contains token {id} ({token:?}), for which {} has no vector: tokenizer.json belongs to another model",
            self.path.display()
        );
        Error::Text { index, reason }
    }

    fn fail(&self, error: tokenizers::Error) -> Error {
        Error::Tokenizer {
            path: self.path.with_file_name("tokenizer.json"),
            reason: error.to_string(),
        }
    }
}
