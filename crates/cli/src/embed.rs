//! `candle-blocks embed`: computes a vector for each line in a file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::text::{Pooling, QuantizedVectors, TextOptions, TextRole, VectorPrecision};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Serialize, Serializer};

#[cfg(feature = "media")]
use crate::images::{ImageTask, StepArgs};
use crate::input::InputFile;
use crate::model::{ComputeArgs, ModelArgs, names, note_adapters};
use crate::progress::Progress;
use crate::texts::{EMBEDDINGS, OutputFormat, PromptArgs, TextArgs, TextResults, VectorOutput};
use crate::{CommandOutcome, output};

/// The name for ranges in an output file.
const RANGES: &str = "ranges";
/// The precision of vectors that are not quantized.
const FLOAT: &str = "float32";

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks embed --model all-MiniLM-L6-v2 sentences.txt --output vectors.safetensors
  candle-blocks embed -m all-MiniLM-L6-v2 paragraphs.jsonl -o vectors.npy
  candle-blocks embed --hub sentence-transformers/all-MiniLM-L6-v2 --output - < sentences.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    texts: TextArgs,
    /// Compute vectors for these PNG, JPEG, GIF, BMP or WebP files instead of texts.
    #[cfg(feature = "media")]
    #[arg(long, value_name = "FILE", help_heading = "Images", num_args = 1.., conflicts_with_all = ["file", "texts", "max_length", "pooling", "truncate_dim",
        "vectors", "calibration", "prompt", "prompt_name"])]
    images: Vec<PathBuf>,
    #[cfg(feature = "media")]
    #[command(flatten)]
    image_steps: StepArgs,
    #[command(flatten)]
    output: VectorOutput,
    #[command(flatten)]
    form: VectorArgs,
    /// The texts' role in a search, which selects the model's prompt and, if its files have a Router, its modules.
    #[arg(long, value_name = "ROLE", help_heading = "Vectors",
        value_parser = names(&["query", "document"]).try_map(|name| name.parse::<TextRole>()))]
    task: Option<TextRole>,
    /// The precision of the vectors in the output: bytes relative to a range for each feature, or one bit for each feature.
    /// A .safetensors with int8 or uint8 has these `ranges` [2, d] too.
    #[arg(long, value_name = "PRECISION", help_heading = "Vectors", default_value = FLOAT,
        value_parser = names(&[FLOAT, "int8", "uint8", "binary", "ubinary"]))]
    vectors: String,
    /// A .safetensors that `embed` wrote, whose vectors or `ranges` give the ranges of int8 and uint8 [default: the vectors
    /// themselves].
    #[arg(long, value_name = "FILE", help_heading = "Vectors")]
    calibration: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// How a model's vectors are made.
#[derive(clap::Args)]
#[command(next_help_heading = "Vectors")]
pub struct VectorArgs {
    /// The pooling, instead of the one in the model's files; several are concatenated.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = poolings())]
    pooling: Vec<Pooling>,
    /// Normalize vectors to length 1 or not, whatever the model's files say.
    #[arg(long, value_name = "BOOL")]
    normalize: Option<bool>,
    /// Keep the first N features of a vector, whatever the model's files say.
    #[arg(long, value_name = "N")]
    truncate_dim: Option<usize>,
}

impl VectorArgs {
    /// Adds the form to the options for loading a model.
    pub fn set(&self, options: TextOptions) -> TextOptions {
        let mut options = options.pooling(self.pooling.clone());
        if let Some(normalize) = self.normalize {
            options = options.normalize(normalize);
        }
        if let Some(truncate_dim) = self.truncate_dim {
            options = options.truncate_dim(truncate_dim);
        }
        options
    }
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
    #[serde(rename = "embedding")]
    Quantized(Vec<i16>),
    #[serde(rename = "embeddings")]
    QuantizedTokens(Vec<Vec<i16>>),
    #[serde(serialize_with = "in_order")]
    Weights(Vec<(String, f32)>),
}

/// Writes pairs as an object with its keys in this order.
fn in_order<S: Serializer>(pairs: &[(String, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(token, weight)| (token, weight)))
}

pub fn embed(args: &Args) -> Result<CommandOutcome> {
    #[cfg(feature = "media")]
    if !args.images.is_empty() {
        let task = ImageTask {
            files: &args.images,
            steps: &args.image_steps,
            model: &args.model,
            compute: &args.compute,
        };
        return task.embed(&args.output, args.form.normalize == Some(true));
    }
    let path = args.model.path()?;
    let format = args.output.format(&args.texts, &path)?;
    let precision = args.precision()?;
    let calibration = args.calibration.as_deref().map(InputFile::of).transpose()?;
    let calibration = calibration.as_ref().map(InputFile::path);
    let mut ranges = calibration.map(ranges_of).transpose()?;
    let lines = args.texts.read()?;
    let options = args.compute.text_options(&args.model, &args.texts)?;
    let options = args.form.set(options);
    args.model.note_unread(&path);
    let embedder = Progress::loading(|| options.embedder(path))?;
    note_adapters(embedder.adapters());
    output::notes(embedder.notes());
    if precision.is_some() && embedder.weighted_tokens(&[]).is_some() {
        bail!(
            "--vectors: a vector over the vocabulary is mostly zeros, which are not quantized; leave it out"
        );
    }
    let is_per_token = embedder.pooling() == [Pooling::EachToken];
    if is_per_token && format == OutputFormat::Npy {
        bail!(
            "--format npy holds one array, but a vector for each token needs `lengths` too; give an --output that ends in \
             .safetensors or .jsonl"
        );
    }
    let are_queries = match is_per_token {
        true => {
            let by_prompt = args.prompt.are_queries()?;
            args.task.map_or(by_prompt, |role| role == TextRole::Query)
        }
        false => false,
    };
    let prompt = match is_per_token {
        true => None,
        false => args.prompt.find(|name| embedder.prompt(name))?,
    };
    let mut vectors = Vec::new();
    let outcome = args.texts.each(&lines, |lines| {
        vectors.extend(match (args.task, prompt) {
            _ if are_queries => embedder.query_token_vectors(lines)?,
            _ if is_per_token => embedder.token_vectors(lines)?,
            (Some(role), Some(prompt)) => vec![embedder.embed_as_prompted(role, lines, prompt)?],
            (Some(role), None) => vec![embedder.embed_as(role, lines)?],
            (None, Some(prompt)) => vec![embedder.embed_prompted(lines, prompt)?],
            (None, None) => vec![embedder.embed(lines)?],
        });
        Ok(())
    })?;
    if vectors.is_empty() {
        return Ok(outcome);
    }
    let mut embeddings = Tensor::cat(&vectors, 0)?;
    let mut quantized = None;
    if let Some(precision) = precision {
        if precision.reads_ranges() && ranges.is_none() {
            ranges = Some(VectorPrecision::ranges(&embeddings).with_context(|| {
                format!("--vectors {} without --calibration FILE", args.vectors)
            })?);
        }
        quantized = Some(precision.quantize(&embeddings, ranges.as_ref())?);
    }
    if let Some(quantized) = &quantized {
        let shape = (embeddings.dim(0)?, quantized.width());
        embeddings = Tensor::from_slice(quantized.bytes(), shape, &Device::Cpu)?;
    }
    let is_signed = precision.is_some_and(VectorPrecision::is_signed);
    let mut results = TextResults {
        tensors: Vec::new(),
        signed: is_signed.then_some(EMBEDDINGS),
        lines: Vec::new(),
    };
    match format {
        OutputFormat::Safetensors | OutputFormat::Npy => {
            results.tensors.push((EMBEDDINGS.to_string(), embeddings));
            results
                .tensors
                .extend(ranges.map(|x| (RANGES.to_string(), x)));
            if is_per_token {
                let lengths = vectors.iter().map(|one| Ok(one.dim(0)? as i64));
                let lengths = Tensor::new(lengths.collect::<Result<Vec<_>>>()?, &Device::Cpu)?;
                results.tensors.push(("lengths".to_string(), lengths));
            }
        }
        OutputFormat::Jsonl if quantized.is_some() => {
            let mut rows = quantized.iter().flat_map(QuantizedVectors::rows);
            let n_computed = match is_per_token {
                true => vectors.len(),
                false => embeddings.dim(0)?,
            };
            for (i, text) in lines.iter().enumerate().take(n_computed) {
                let vector = match is_per_token {
                    true => LineVector::QuantizedTokens(
                        rows.by_ref().take(vectors[i].dim(0)?).collect(),
                    ),
                    false => LineVector::Quantized(rows.next().unwrap_or_default()),
                };
                results.lines.push(EmbeddingLine { text, vector });
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
    if format == OutputFormat::Npy && results.tensors.len() > 1 {
        output::warn(
            "note: the ranges are not in a .npy file, and --calibration needs them; a .safetensors has both",
        );
    }
    results.write(&args.output.output, format, &outcome)?;
    Ok(outcome)
}

impl Args {
    /// Returns the precision of quantized vectors, if they are quantized.
    fn precision(&self) -> Result<Option<VectorPrecision>> {
        let precision = match self.vectors.as_str() {
            FLOAT => None,
            name => Some(name.parse::<VectorPrecision>()?),
        };
        if self.calibration.is_some() && !precision.is_some_and(VectorPrecision::reads_ranges) {
            bail!("--calibration has no effect without --vectors int8 or uint8; leave it out");
        }
        Ok(precision)
    }
}

/// Returns the ranges in a file that `embed` wrote, or those of its vectors.
fn ranges_of(path: &Path) -> Result<Tensor> {
    let files = TensorFiles::open(path)?;
    let name = match files.contains(RANGES) {
        true => RANGES,
        false => EMBEDDINGS,
    };
    let tensor = files.read(name)?;
    let (dtype, dims) = (tensor.dtype(), tensor.dims());
    if !dtype.is_float() || dims.len() != 2 {
        bail!(
            "{}: {name} is {} {dims:?}, expected floats [n, d]; give a file that `embed` wrote without --vectors, or with int8 \
             or uint8",
            path.display(),
            dtype.as_str()
        );
    }
    let tensor = tensor.to_dtype(DType::F32)?;
    match name {
        RANGES => Ok(tensor),
        _ => VectorPrecision::ranges(&tensor).with_context(|| path.display().to_string()),
    }
}

/// The poolings by name.
fn poolings() -> impl TypedValueParser<Value = Pooling> {
    let all = Pooling::ALL.into_iter().chain(Pooling::OF_HEADS);
    PossibleValuesParser::new(all.map(Pooling::name)).try_map(|name| name.parse::<Pooling>())
}
