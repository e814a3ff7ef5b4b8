//! `candle-blocks embed`: computes a vector for each line in a file.

use std::path::PathBuf;

use anyhow::Result;
use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::text::Pooling;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Serialize, Serializer};

use crate::model::{ComputeArgs, ModelArgs, note_adapters};
use crate::texts::{OutputFormat, PromptArgs, TextArgs, TextResults};
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks embed --model all-MiniLM-L6-v2 sentences.txt --output vectors.safetensors
  candle-blocks embed --hub sentence-transformers/all-MiniLM-L6-v2 --output vectors.jsonl < sentences.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    texts: TextArgs,
    /// The file to write: .safetensors with `embeddings` [n, d] (where each token has one, those of all lines, and the number
    /// of each in `lengths`), or .jsonl with one object per line, in which a vector over
    /// the vocabulary is `weights` by token.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The pooling, instead of the one in the model's files; several are concatenated.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = poolings())]
    pooling: Vec<Pooling>,
    /// Normalize vectors to length 1 or not, whatever the model's files say.
    #[arg(long, value_name = "BOOL")]
    normalize: Option<bool>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// One line in the results.
#[derive(Serialize)]
struct EmbeddingLine<'a> {
    text: &'a str,
    #[serde(flatten)]
    vector: LineVector,
}

/// A text's vector, or those of its tokens: every feature, or for a vector over the vocabulary the tokens that it weighs, the largest weight first.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum LineVector {
    Embedding(Vec<f32>),
    Embeddings(Vec<Vec<f32>>),
    #[serde(serialize_with = "in_order")]
    Weights(Vec<(String, f32)>),
}

/// Writes pairs as an object with its keys in this order.
fn in_order<S: Serializer>(pairs: &[(String, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(token, weight)| (token, weight)))
}

pub fn embed(args: &Args) -> Result<CommandOutcome> {
    let path = args.model.path()?;
    let format = OutputFormat::of(&args.output, &args.texts, &path)?;
    let lines = args.texts.read()?;
    let mut options = args
        .compute
        .text_options(&args.model, &args.texts)?
        .pooling(args.pooling.clone());
    if let Some(normalize) = args.normalize {
        options = options.normalize(normalize);
    }
    args.model.note_unread(&path);
    let embedder = options.embedder(path)?;
    note_adapters(embedder.adapters());
    output::notes(embedder.notes());
    let is_per_token = embedder.pooling() == [Pooling::EachToken];
    let are_queries = is_per_token && args.prompt.are_queries()?;
    let prompt = match is_per_token {
        true => None,
        false => args.prompt.find(|name| embedder.prompt(name))?,
    };
    let mut vectors = Vec::new();
    let outcome = args.texts.each(&lines, |lines| {
        vectors.extend(match prompt {
            _ if are_queries => embedder.query_token_vectors(lines)?,
            _ if is_per_token => embedder.token_vectors(lines)?,
            Some(prompt) => vec![embedder.embed_prompted(lines, prompt)?],
            None => vec![embedder.embed(lines)?],
        });
        Ok(())
    })?;
    if vectors.is_empty() {
        return Ok(outcome);
    }
    let embeddings = Tensor::cat(&vectors, 0)?;
    let mut results = TextResults {
        tensors: Vec::new(),
        lines: Vec::new(),
    };
    match format {
        OutputFormat::Safetensors => {
            results.tensors.push(("embeddings".to_string(), embeddings));
            if is_per_token {
                let lengths = vectors.iter().map(|one| Ok(one.dim(0)? as i64));
                let lengths = Tensor::new(lengths.collect::<Result<Vec<_>>>()?, &Device::Cpu)?;
                results.tensors.push(("lengths".to_string(), lengths));
            }
        }
        OutputFormat::Jsonl if is_per_token => {
            for (text, one) in lines.iter().zip(&vectors) {
                let vector = LineVector::Embeddings(one.to_vec2()?);
                results.lines.push(EmbeddingLine { text, vector });
            }
        }
        OutputFormat::Jsonl => {
            let rows = embeddings.to_vec2()?.into_iter().zip(&lines);
            results.lines = rows
                .map(|(row, text): (Vec<f32>, _)| {
                    let weights = embedder.weighted_tokens(&row);
                    let vector = weights.map_or(LineVector::Embedding(row), LineVector::Weights);
                    EmbeddingLine { text, vector }
                })
                .collect();
        }
    }
    results.write(&args.output, format, &outcome)?;
    Ok(outcome)
}

/// The poolings by name.
pub fn poolings() -> impl TypedValueParser<Value = Pooling> {
    let all = Pooling::ALL.into_iter().chain(Pooling::OF_HEADS);
    PossibleValuesParser::new(all.map(Pooling::name)).try_map(|name| name.parse::<Pooling>())
}
