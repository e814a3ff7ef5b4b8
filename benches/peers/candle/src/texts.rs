//! Text embeddings with candle-transformers' BERT: batches of texts with similar lengths, the mean over tokens, unit
//! length.

use anyhow::{Error, Result, bail};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;
use serde_json::Value;
use tokenizers::{Encoding, PaddingParams, Tokenizer, TruncationParams};

use crate::protocol::{Run, Texts};

/// The batch size in sentence-transformers.
const BATCH: usize = 32;

pub fn load(task: Texts) -> Result<Box<dyn Run>> {
    if task.precision != "f32" {
        bail!("texts are measured in f32 only");
    }
    let read = |name: &str| -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(
            task.checkpoint.join(name),
        )?)?)
    };
    let weights = std::fs::read(task.checkpoint.join("model.safetensors"))?;
    let vb = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
    let model = BertModel::load(vb, &serde_json::from_value(read("config.json")?)?)?;
    let max_length = read("sentence_bert_config.json")?["max_seq_length"].as_u64();
    let file = task.checkpoint.join("tokenizer.json");
    let mut tokenizer = Tokenizer::from_file(file).map_err(Error::msg)?;
    let truncation = max_length.map(|max_length| TruncationParams {
        max_length: max_length as usize,
        ..Default::default()
    });
    tokenizer
        .with_padding(Some(PaddingParams::default()))
        .with_truncation(truncation)
        .map_err(Error::msg)?;
    Ok(Box::new(Embedder {
        tokenizer,
        model,
        texts: task.texts,
    }))
}

struct Embedder {
    tokenizer: Tokenizer,
    model: BertModel,
    texts: Vec<String>,
}

impl Run for Embedder {
    fn compute(&mut self) -> Result<Tensor> {
        let mut order: Vec<usize> = (0..self.texts.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(self.texts[i].len()));
        let batches: Vec<Tensor> = order
            .chunks(BATCH)
            .map(|batch| self.batch(batch))
            .collect::<Result<_>>()?;
        let mut places = vec![0u32; order.len()];
        for (place, &i) in order.iter().enumerate() {
            places[i] = place as u32;
        }
        Ok(Tensor::cat(&batches, 0)?.index_select(&Tensor::new(places, &Device::Cpu)?, 0)?)
    }
}

impl Embedder {
    /// Returns `[texts, d_model]`.
    fn batch(&self, indices: &[usize]) -> Result<Tensor> {
        let texts: Vec<&str> = indices.iter().map(|&i| self.texts[i].as_str()).collect();
        let encodings = self
            .tokenizer
            .encode_batch(texts, true)
            .map_err(Error::msg)?;
        let stacked = |part: fn(&Encoding) -> &[u32]| -> Result<Tensor> {
            let rows: Vec<Vec<u32>> = encodings.iter().map(|e| part(e).to_vec()).collect();
            Ok(Tensor::new(rows, &Device::Cpu)?)
        };
        let mask = stacked(Encoding::get_attention_mask)?;
        let ids = stacked(Encoding::get_ids)?;
        let types = stacked(Encoding::get_type_ids)?;
        let y = self.model.forward(&ids, &types, Some(&mask))?;
        let keep = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
        let sum = y.broadcast_mul(&keep)?.sum(1)?;
        let mean = sum.broadcast_div(&keep.sum(1)?)?;
        Ok(mean.broadcast_div(&mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)?)
    }
}
