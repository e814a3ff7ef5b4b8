//! Reads static embeddings: sentence-transformers' module `StaticEmbedding`, and model2vec's models.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use safetensors::Dtype;
use tokenizers::{ModelWrapper, Tokenizer};

use crate::checkpoint::files::{TensorFiles, floating, read_limited};
use crate::error::{Error, Result};
use crate::text::sentences::stages::{ModuleStep, VectorMap};
use crate::text::sentences::static_embedding::{StaticEmbedding, TableUse};
use candle_blocks_files::python_json;
use candle_blocks_tokenizers::{MAX_BYTES, Tokenizer as ModelTokenizer};

/// The table's names in sentence-transformers and in model2vec.
const TABLES: [&str; 2] = ["embedding.weight", "embeddings"];
/// A token's row in the table, and a token's factor: model2vec's, if tokens share rows.
const MAPPING: &str = "mapping";
const WEIGHTS: &str = "weights";
/// How many tokens model2vec reads in a text if the files name no number.
const MAX_LENGTH: usize = 512;

/// Returns whether a folder without `modules.json` has a model2vec model.
pub(super) fn is_model2vec(directory: &Path) -> Result<bool> {
    let json = super::optional(&directory.join("config.json"))?;
    let kind = json.map(|json| json.text(&["model_type"])).transpose()?;
    Ok(kind.flatten().as_deref() == Some("model2vec"))
}

/// Reads the module `StaticEmbedding` whose files are in `folder`. The tokenizer truncates as its own file says, and adds no
/// special tokens.
///
/// # Errors
/// If a file is missing or malformed, or a tensor has another shape.
pub(in crate::text) fn open(folder: &Path) -> Result<StaticEmbedding> {
    let path = folder.join("tokenizer.json");
    let bytes = read_limited(&path, MAX_BYTES, "tokenizer.json")?;
    let malformed = |error: String| Error::Tokenizer {
        path: path.clone(),
        reason: format!("not a tokenizer: {error}; download it again"),
    };
    let bytes = python_json::after_mark(&bytes).map_err(|error| malformed(error.to_string()))?;
    let tokenizer = Tokenizer::from_bytes(bytes);
    let mut tokenizer = tokenizer.map_err(|error| malformed(error.to_string()))?;
    tokenizer.with_padding(None);
    let files = TensorFiles::open(folder)?;
    let name = TABLES.into_iter().find(|name| files.contains(name));
    let name = name.unwrap_or(TABLES[0]);
    let info = files.find(name)?;
    let [_, width] = info.shape[..] else {
        return Err(Error::ShapeMismatch {
            path: files.path().to_path_buf(),
            tensor: name.to_string(),
            expected: vec![tokenizer.get_vocab_size(true), 1],
            found: info.shape.clone(),
        });
    };
    super::dense::check_known(&files, &[name, MAPPING, WEIGHTS])?;
    let has = |part: &str| name != TABLES[0] && files.contains(part);
    let rows = has(MAPPING).then(|| indices(&files)).transpose()?;
    let weights = has(WEIGHTS).then(|| floats(&files, WEIGHTS)).transpose()?;
    Ok(StaticEmbedding {
        table: Arc::new(floats(&files, name)?),
        path: files.path().to_path_buf(),
        width,
        usage: TableUse::Mean,
        rows: rows.map(Arc::new),
        weights: weights.map(Arc::new),
        tokenizer,
        left_out: None,
        max_characters: None,
    })
}

/// Reads the module `SparseStaticEmbedding` whose files are in `folder`. Its tokenizer is transformers'.
///
/// # Errors
/// If a file is missing or malformed, the weights are in another file, or there are not as many weights as tokens.
pub(in crate::text) fn sparse(folder: &Path) -> Result<StaticEmbedding> {
    const TABLE: &str = "weight";
    if let Some(json) = super::optional(&folder.join("config.json"))? {
        json.only("path", &[serde_json::Value::Null])?;
        super::finished(&json, &["frozen"])?;
    }
    let tokenizer = ModelTokenizer::open(folder)?;
    if !tokenizer.has_offsets() {
        return Err(tokenizer.fail(
            "belongs to a class that a SparseStaticEmbedding does not read with; use a model with another tokenizer",
        ));
    }
    let files = TensorFiles::open(folder)?;
    super::dense::check_known(&files, &[TABLE])?;
    let n_tokens = tokenizer.inner().get_vocab_size(true);
    let table = super::dense::parameter(&files, TABLE, &[n_tokens])?;
    let mut embedding = StaticEmbedding {
        table: Arc::new(table.to_vec1()?),
        path: files.path().to_path_buf(),
        width: 1,
        usage: TableUse::Presence,
        rows: None,
        weights: None,
        tokenizer: tokenizer.inner().clone(),
        left_out: None,
        max_characters: None,
    };
    embedding.truncate(tokenizer.max_length()?)?;
    Ok(embedding)
}

/// Reads a model2vec folder (<https://github.com/MinishLab/model2vec/blob/main/model2vec/model.py>), and the step after its
/// table. `max_length` replaces the files' limit on tokens.
///
/// # Errors
/// If a file is missing or malformed, or a tensor has another shape.
pub(in crate::text) fn model2vec(
    directory: &Path,
    max_length: Option<usize>,
) -> Result<(StaticEmbedding, Vec<ModuleStep>)> {
    let mut embedding = open(directory)?;
    // Its other keys say how the table was made.
    let json = super::optional(&directory.join("config.json"))?;
    let (mut limit, mut normalizes) = (Some(MAX_LENGTH), false);
    if let Some(json) = &json {
        let is_named = json.value_at("max_length").is_some();
        if is_named {
            limit = json.optional_size(&["max_length"])?; // null: no limit
        }
        normalizes = json.flag(&["normalize"], false)?;
    }
    let limit = max_length.or(limit);
    embedding.truncate(limit)?;
    let mut lengths: Vec<usize> = { embedding.tokenizer.get_vocab(true).into_keys() }
        .map(|token| token.chars().count())
        .collect();
    lengths.sort_unstable();
    let median = match lengths.len() {
        0 => 0,
        n => (lengths[(n - 1) / 2] + lengths[n / 2]) / 2,
    };
    embedding.max_characters = limit.map(|limit| limit.saturating_mul(median));
    embedding.left_out = unknown(&embedding.tokenizer);
    let steps = normalizes.then(|| ModuleStep::of_vectors(VectorMap::Normalize));
    Ok((embedding, steps.into_iter().collect()))
}

/// Returns a tokenizer's unknown token, which does not count in model2vec.
fn unknown(tokenizer: &Tokenizer) -> Option<u32> {
    match tokenizer.get_model() {
        ModelWrapper::WordPiece(model) => tokenizer.token_to_id(&model.unk_token),
        ModelWrapper::WordLevel(model) => tokenizer.token_to_id(&model.unk_token),
        ModelWrapper::BPE(model) => tokenizer.token_to_id(model.unk_token.as_ref()?),
        ModelWrapper::Unigram(model) => {
            let written = serde_json::to_value(model).ok()?;
            u32::try_from(written.get("unk_id")?.as_u64()?).ok()
        }
    }
}

/// Reads a tensor's values in f32. Bytes are signed.
fn floats(files: &TensorFiles, name: &str) -> Result<Vec<f32>> {
    let info = files.find(name)?;
    if info.dtype == Dtype::I8 {
        let mut values = Vec::with_capacity(info.n_bytes);
        files.copy(name, &mut |bytes| {
            values.extend(bytes.iter().map(|&byte| f32::from(byte as i8)));
            Ok(())
        })?;
        return Ok(values);
    }
    let tensor = floating(files.read(name)?, files.path(), name)?;
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// Reads each token's row.
fn indices(files: &TensorFiles) -> Result<Vec<usize>> {
    let rows = files.read(MAPPING)?.to_dtype(DType::I64)?;
    let rows = rows.flatten_all()?.to_vec1::<i64>()?.into_iter();
    // A negative row is none, which a text with that token reports.
    Ok(rows
        .map(|row| usize::try_from(row).unwrap_or(usize::MAX))
        .collect())
}
