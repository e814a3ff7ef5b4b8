//! Sentence embeddings as sentence-transformers computes them: tokenize, embed, run the blocks, average
//! over the real tokens, normalise. The Python twin is `sentence_embeddings.py`.
//!
//! ```text
//! cargo run --release --features text,hub --example sentence_embeddings                 # downloads all-MiniLM-L6-v2
//! cargo run --release --features text --example sentence_embeddings -- --model DIR [--text FILE] [--out FILE.json]
//! ```

use std::{fs, path::PathBuf};

use anyhow::{Context, Error, Result, bail};
use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, Norm, NormConfig, Stack,
    candle_core::{D, DType, Device, Module, Tensor},
};
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

const HUB_ID: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// `max_seq_length` in the model's sentence_bert_config.json.
const MAX_TOKENS: usize = 256;
const SENTENCES: [&str; 6] = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds an infant in her arms.",
    "A cheetah is running behind its prey.",
    "The stock market fell by three percent on Tuesday.",
];

fn main() -> Result<()> {
    let args = Args::parse()?;
    let directory = match args.model {
        Some(directory) => directory,
        None => downloaded()?,
    };
    let sentences: Vec<String> = match args.text {
        Some(path) => fs::read_to_string(&path)
            .with_context(|| path.display().to_string())?
            .lines()
            .map(str::to_string)
            .collect(),
        None => SENTENCES.map(str::to_string).to_vec(),
    };
    let encoder = SentenceEncoder::open(&directory)?;
    let embeddings = encoder.encode(&sentences)?; // [sentences, d_model], of length 1
    if let Some(path) = args.out {
        let rows = embeddings.to_vec2::<f32>()?;
        fs::write(
            path,
            serde_json::json!({"sentences": sentences, "embeddings": rows}).to_string(),
        )?;
    }
    let similarity = embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?;
    for (sentence, row) in sentences.iter().zip(similarity) {
        let row: Vec<String> = row.iter().map(|s| format!("{s:6.3}")).collect();
        println!("{}  {sentence}", row.join(" "));
    }
    Ok(())
}

#[cfg(feature = "hub")]
fn downloaded() -> Result<PathBuf> {
    Ok(candle_blocks::checkpoint::hub::Hub::new(HUB_ID).download()?)
}

#[cfg(not(feature = "hub"))]
fn downloaded() -> Result<PathBuf> {
    bail!(
        "name a directory that holds {HUB_ID} with --model DIR, or download it with --features text,hub"
    )
}

/// A BERT with its tokenizer and embeddings.
struct SentenceEncoder {
    tokenizer: Tokenizer,
    word: Tensor,
    position: Tensor,
    token_type: Tensor,
    norm: Norm,
    stack: Stack,
}

impl SentenceEncoder {
    fn open(directory: &PathBuf) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let mut tokenizer = Tokenizer::from_file(&path)
            .map_err(Error::msg)
            .with_context(|| path.display().to_string())?;
        let checkpoint = Checkpoint::open(directory)?;
        let read = |name: &str| -> Result<Tensor> {
            let tensor = checkpoint.files().read(&format!("embeddings.{name}"))?;
            Ok(tensor.to_dtype(DType::F32)?)
        };
        let position = read("position_embeddings.weight")?;
        let truncation = TruncationParams {
            max_length: MAX_TOKENS.min(position.dim(0)?), // a model of another size may have fewer positions
            ..Default::default()
        };
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(Error::msg)?;
        tokenizer.with_padding(Some(PaddingParams::default())); // to the longest of the batch

        Ok(Self {
            tokenizer,
            word: read("word_embeddings.weight")?,
            position,
            token_type: read("token_type_embeddings.weight")?.get(0)?,
            norm: Norm::from_parts(
                read("LayerNorm.weight")?,
                Some(read("LayerNorm.bias")?),
                NormConfig {
                    ..checkpoint.config().blocks[0].norm
                },
            )?,
            stack: checkpoint.stack(DType::F32, &Device::Cpu)?,
        })
    }

    fn encode(&self, sentences: &[String]) -> Result<Tensor> {
        let encodings = self
            .tokenizer
            .encode_batch(sentences.to_vec(), true)
            .map_err(Error::msg)?;
        let stack = |values: Vec<&[u32]>| {
            let rows = values.into_iter().map(|row| Tensor::new(row, &Device::Cpu));
            Tensor::stack(
                &rows.collect::<candle_blocks::candle_core::Result<Vec<_>>>()?,
                0,
            )
        };
        let ids = stack(encodings.iter().map(|e| e.get_ids()).collect())?; // [batch, seq]
        let mask = stack(encodings.iter().map(|e| e.get_attention_mask()).collect())?;
        let hidden = self.embed(&ids)?; // [batch, seq, d_model]
        let context = ForwardContext::evaluation().with_mask(AttentionMask::padding(&mask)?);
        let hidden = self.stack.forward_with(&hidden, &context)?;
        // Mean over the real tokens, then length 1.
        let mask = mask.to_dtype(DType::F32)?.unsqueeze(D::Minus1)?; // [batch, seq, 1]
        let sums = hidden.broadcast_mul(&mask)?.sum(1)?; // [batch, d_model]
        let means = sums.broadcast_div(&mask.sum(1)?)?;
        let lengths = means.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
        Ok(means.broadcast_div(&lengths)?)
    }

    /// The sum of word, position and token-type embeddings, normalised.
    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let (batch, seq) = ids.dims2()?;
        let word = self.word.index_select(&ids.flatten_all()?, 0)?;
        let word = word
            .reshape((batch, seq, ()))?
            .broadcast_add(&self.token_type)?;
        Ok(self
            .norm
            .forward(&word.broadcast_add(&self.position.narrow(0, 0, seq)?)?)?)
    }
}

#[derive(Default)]
struct Args {
    model: Option<PathBuf>,
    text: Option<PathBuf>,
    out: Option<PathBuf>,
}

impl Args {
    fn parse() -> Result<Self> {
        let mut parsed = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let target = match arg.as_str() {
                "--model" => &mut parsed.model,
                "--text" => &mut parsed.text,
                "--out" => &mut parsed.out,
                _ => bail!(
                    "unknown argument {arg}; known: --model DIR, --text FILE, --out FILE.json"
                ),
            };
            *target = Some(
                args.next()
                    .with_context(|| format!("{arg} needs a value"))?
                    .into(),
            );
        }
        Ok(parsed)
    }
}
