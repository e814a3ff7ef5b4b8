//! GGUF files: quantized tensors with GGUF's own names, together with the configuration.
//!
//! A file reads like the checkpoint that it was converted from: its keys become a `config.json`, its tensors get
//! transformers' names, and changes made by the conversion are undone.

mod architecture;
mod config;
mod constants;
mod describe;
mod lacking;
mod latent;
mod names;
mod own_config;
mod projections;
mod save;
mod unread;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};
use serde_json::Value;

use self::architecture::{Architecture, all};
pub(super) use self::config::sizes::with_keys;
use self::config::{Described, Keys};
pub(super) use self::constants::add_absent;
use self::names::local;
use self::names::value_heads::{HeadCounts, ValueHeads};
pub(super) use self::own_config::{open_config, open_named_config};
pub(super) use self::save::{Dense, save};
use crate::checkpoint::files::{Coding, Compute, StoredForm, StoredTensor, TensorFiles};
#[cfg(feature = "text")]
use crate::error::Error;
use crate::error::Result;
pub(super) use candle_blocks_files::gguf::is_gguf;
use candle_blocks_files::gguf::{Gguf, GgufTensor};
use candle_blocks_kernels::storage::{BlockKind, codes, decode, numbers::multiply};

/// Calls a function with an open file's contents.
fn described<T>(
    files: &TensorFiles,
    gguf: &Gguf,
    of: impl FnOnce(&Described) -> Result<T>,
) -> Result<T> {
    let find = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    of(&Described {
        path: files.path(),
        metadata: &gguf.metadata,
        shape: &|name| Some(find(name)?.shape.clone()),
        numbers: &|name| {
            let (Some(tensor), Some(part)) = (find(name), files.as_part(name)) else {
                return Ok(None);
            };
            let n = tensor.shape.iter().product();
            let blocks = BlockTensor::new(tensor, part, ConversionStep::None);
            blocks.numbers(files, 0..n).map(Some)
        },
    })
}

/// Returns the entry whose names the tensors have: the file's, or the one for the `model_type` in a configuration beside it.
fn entry(
    files: &TensorFiles,
    gguf: &Gguf,
    model_type: &str,
) -> Result<Option<&'static Architecture>> {
    let (own, name) = described(files, gguf, |file| {
        let keys = Keys::of(file);
        Ok((keys.entry(), keys.architecture.to_string()))
    })?;
    if own.is_some_and(|own| own.model_type == model_type) {
        return Ok(own);
    }
    let with_type = |same_name: bool| {
        all().find(|entry| entry.model_type == model_type && (!same_name || entry.name == name))
    };
    Ok(with_type(true).or(own).or(with_type(false)))
}

/// Returns the pooling by its name in sentence-transformers; `None` if the file declares none, or is not a GGUF file.
///
/// # Errors
/// If the pooling is unknown.
#[cfg(feature = "text")]
pub(super) fn pooling(files: &TensorFiles) -> Result<Option<&'static str>> {
    let metadata = files.gguf().map(|gguf| &gguf.metadata);
    let architecture = metadata.and_then(|all| all.get("general.architecture")?.as_str());
    let key = format!("{}.pooling_type", architecture.unwrap_or_default());
    let Some(found) = metadata.and_then(|all| all.get(&key)) else {
        return Ok(None);
    };
    Ok(Some(match found.as_i64() {
        // llama.cpp's number for a type that is not said.
        Some(-1 | 0) => return Ok(None),
        Some(1) => "mean",
        Some(2) => "cls",
        Some(3) => "lasttoken",
        _ => {
            return Err(Error::ConfigKey {
                path: files.path().to_path_buf(),
                key: format!("{key:?}"),
                reason: format!(
                    "is {found}, expected 0 (none), 1 (mean), 2 (cls) or 3 (last token): 4 ranks pairs of texts, and gives no vectors; open the file as a classifier for scores"
                ),
            });
        }
    }))
}

/// Gives a GGUF file's tensors transformers' names and contents.
///
/// # Errors
/// If two tensors have the same name, or a stack does not have the configured number of experts.
pub(super) fn translate(config: &Value, files: &mut TensorFiles) -> Result<()> {
    let Some(gguf) = files.gguf() else {
        return Ok(());
    };
    let tensors = gguf.tensors.clone();
    let model_type = config.get("model_type").and_then(Value::as_str);
    let Some(entry) = entry(files, gguf, model_type.unwrap_or_default())? else {
        return Ok(());
    };
    let first_unused = first_unused_block(&gguf.metadata);
    let head_counts = HeadCounts::of(&gguf.metadata).filter(|_| entry.orders_value_heads);
    if entry.name == "apertus" {
        let n_layers = config.get("num_hidden_layers").and_then(Value::as_u64);
        constants::add(files, n_layers.unwrap_or(0) as usize)?;
    }
    let mut factors = factors(entry, files, &tensors)?;
    for tensor in tensors {
        // The rotation's factors are in the configuration.
        let is_configuration = tensor.name.starts_with("rope_");
        if is_configuration || entry.leaves_out(&tensor.name, first_unused) {
            files.take(&tensor.name);
            factors.remove(&tensor.name);
            continue;
        }
        if latent::add(files, &tensor)? || projections::add(entry, config, files, &tensor)? {
            continue;
        }
        let (name, step) = match entry.translated(&tensor.name) {
            Some(name) => (name, entry.step(config, &tensor.name)),
            None => (tensor.name.clone(), ConversionStep::None),
        };
        let Some(part) = files.take(&tensor.name) else {
            continue;
        };
        let part_factors = factors.remove(&tensor.name).map(|(_, numbers)| numbers);
        let factor = |part: usize| {
            let numbers = part_factors.as_deref().unwrap_or_default();
            numbers
                .get(part)
                .or(numbers.first())
                .copied()
                .unwrap_or(1.0)
        };
        let mut blocks = BlockTensor {
            factor: factor(0),
            ..BlockTensor::new(&tensor, part, step)
        };
        if step != ConversionStep::OneRow && !name.contains("{e}") {
            blocks = blocks.flattened();
        }
        blocks.value_heads = head_counts
            .and_then(|counts| ValueHeads::new(counts, local(&tensor.name), &blocks.shape));
        if let (ConversionStep::Channels, [1, channels, 1, taps]) = (step, &blocks.shape[..]) {
            blocks.shape = vec![*channels, *taps];
        }
        match blocks.shape.clone()[..] {
            [n_parts, ref of_part @ ..] if name.contains("{e}") => {
                let rows = match of_part {
                    [rows, _] => *rows,
                    _ => 1,
                };
                for number in 0..n_parts {
                    let name = name.replace("{e}", &number.to_string());
                    let expert_tensor = BlockTensor {
                        first_row: number * rows,
                        shape: of_part.to_vec(),
                        part: blocks.part.clone(),
                        factor: factor(number),
                        ..blocks
                    };
                    expert_tensor.add(name, files)?;
                }
            }
            [columns] if step == ConversionStep::OneRow => {
                let shape = vec![1, columns];
                BlockTensor { shape, ..blocks }.add(name, files)?;
            }
            [channels, taps] if step == ConversionStep::Channels => {
                let shape = vec![channels, 1, taps];
                BlockTensor { shape, ..blocks }.add(name, files)?;
            }
            _ => blocks.add(name, files)?,
        }
    }
    match factors.into_values().next() {
        Some((part, _)) => Err(part.error("it multiplies a tensor that is not read as a matrix")),
        None => Ok(()),
    }
}

/// Takes the tensors that multiply a matrix, or each expert of a stack, by a number, except for those that `entry` names; the keys
/// are the names of the weights. The scales of inputs, which only products of 4-bit inputs use, are left out.
fn factors(
    entry: &Architecture,
    files: &mut TensorFiles,
    tensors: &[GgufTensor],
) -> Result<BTreeMap<String, (StoredTensor, Vec<f32>)>> {
    let mut found = BTreeMap::new();
    let tensors_without_name = tensors
        .iter()
        .filter(|tensor| !entry.is_named_whole(&tensor.name));
    for tensor in tensors_without_name {
        let ends = [".scale", ".input_scale"];
        let mut modules = ends.iter().filter_map(|end| tensor.name.strip_suffix(end));
        let Some(weight) = modules.next().map(|module| format!("{module}.weight")) else {
            continue;
        };
        let n: usize = tensor.shape.iter().product();
        let multiplies = tensors.iter().any(|other| {
            let n_parts = if other.shape.len() == 3 {
                other.shape[0]
            } else {
                1
            };
            other.name == weight && (n == 1 || n == n_parts)
        });
        let part = files.as_part(&tensor.name).filter(|_| multiplies);
        let Some(part) = part else { continue };
        files.take(&tensor.name);
        if tensor.name.ends_with(".scale") {
            let blocks = BlockTensor::new(tensor, part.clone(), ConversionStep::None);
            found.insert(weight, (part, blocks.numbers(files, 0..n)?));
        }
    }
    Ok(found)
}

/// The first block's number that only predicts tokens beyond the next, as draft models do; such blocks are the last.
fn first_unused_block(metadata: &BTreeMap<String, Value>) -> u64 {
    let architecture = metadata.get("general.architecture").and_then(Value::as_str);
    let size = |key: &str| {
        let key = format!("{}.{key}", architecture.unwrap_or_default());
        metadata.get(&key).and_then(Value::as_u64)
    };
    match (size("block_count"), size("nextn_predict_layers")) {
        (Some(n_blocks), Some(unused)) if unused > 0 => n_blocks.saturating_sub(unused),
        _ => u64::MAX,
    }
}

/// A conversion step, applied when a tensor is written and undone when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConversionStep {
    None,
    /// The rows of each head are interleaved in pairs; reading separates them into halves. The fields are the head count, and
    /// how many, from the first, are so.
    Unpermute(usize, usize),
    /// Gemma's norms are stored plus one.
    LessOne,
    /// A vector is stored as a matrix with one row.
    OneRow,
    /// The taps of a convolution, `[channels, 1, taps]`, are stored as `[channels, taps]`.
    Channels,
    /// A vector is stored as a matrix.
    Vector,
    /// A vector is stored as minus its exponential, perhaps as a matrix.
    NegatedExponential,
    /// Each element of a matrix is stored as minus its exponential.
    NegatedExponentials,
}

/// A tensor in blocks, or one of several in a stack.
#[derive(Debug)]
struct BlockTensor {
    part: StoredTensor,
    kind: BlockKind,
    shape: Vec<usize>,
    /// The length of a row, whatever the shape says.
    columns: usize,
    /// A number that multiplies all values.
    factor: f32,
    /// The row of the stored tensor at which this one begins.
    first_row: usize,
    step: ConversionStep,
    /// The value heads, if they have another order than in transformers.
    value_heads: Option<ValueHeads>,
}

impl BlockTensor {
    fn new(tensor: &GgufTensor, part: StoredTensor, step: ConversionStep) -> Self {
        Self {
            part,
            kind: tensor.kind,
            shape: tensor.shape.clone(),
            columns: tensor.shape.last().copied().unwrap_or(0),
            factor: 1.0,
            first_row: 0,
            step,
            value_heads: None,
        }
    }

    /// Leaves out leading dimensions of 1 in a bias and a norm's weight, which llama.cpp does not tell from none, and all
    /// dimensions but one in a vector that is stored as a matrix.
    fn flattened(mut self) -> Self {
        use ConversionStep::{NegatedExponential, Vector};
        if let Vector | NegatedExponential = self.step {
            self.shape = vec![self.shape.iter().product()];
            return self;
        }
        let name = &self.part.name;
        let is_vector = name.ends_with(".bias") || local(name).contains("norm");
        while is_vector && self.shape.len() > 1 && self.shape[0] == 1 {
            self.shape.remove(0);
        }
        self
    }

    fn add(self, name: String, files: &mut TensorFiles) -> Result<()> {
        if files.contains(&name) {
            return Err(self.part.error(format!("another tensor is also {name}")));
        }
        let (shape, part) = (self.shape.clone(), self.part.clone());
        files.add_computed(name, shape, &[&part], Arc::new(self));
        Ok(())
    }

    /// Returns the bytes of blocks.
    fn stored(&self, files: &TensorFiles, span: Range<usize>) -> Result<Vec<u8>> {
        let (size, bytes) = self.kind.block();
        let span = span.start / size * bytes..span.end.div_ceil(size) * bytes;
        files.part_span(&self.part, span)
    }

    /// Returns values of the tensor in whole blocks.
    fn numbers(&self, files: &TensorFiles, span: Range<usize>) -> Result<Vec<f32>> {
        let (size, bytes) = self.kind.block();
        let stored = self.stored(files, span)?;
        let mut numbers = Vec::with_capacity(stored.len() / bytes * size);
        decode::decode(self.kind, &stored, &mut numbers);
        if self.factor != 1.0 {
            multiply(&mut numbers, self.factor);
        }
        self.part.check_finite(&numbers)?;
        Ok(numbers)
    }
}

impl Compute for BlockTensor {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        // Elements of a row: 1 for a vector.
        let width: usize = self.shape.iter().skip(1).product();
        let start = self.first_row * self.columns;
        let stored = |rows: Range<usize>| {
            self.numbers(files, start + rows.start * width..start + rows.end * width)
        };
        let of = |rows: Range<usize>| match &self.value_heads {
            None => stored(rows),
            Some(heads) => {
                let parts = heads.rows(rows).into_iter().map(stored);
                let found = parts.collect::<Result<Vec<_>>>()?.concat();
                Ok(match heads.columns() {
                    None => found,
                    Some(columns) => in_columns(&found, &columns),
                })
            }
        };
        match self.step {
            ConversionStep::None
            | ConversionStep::OneRow
            | ConversionStep::Channels
            | ConversionStep::Vector => of(rows),
            ConversionStep::LessOne => {
                Ok(of(rows)?.into_iter().map(|number| number - 1.0).collect())
            }
            ConversionStep::NegatedExponential | ConversionStep::NegatedExponentials => {
                let logarithm = |number: f32| match number < 0.0 {
                    true => Ok((-f64::from(number)).ln() as f32),
                    false => {
                        let reason = format!("contains {number}, expected numbers below 0");
                        Err(self.part.error(reason))
                    }
                };
                of(rows)?.into_iter().map(logarithm).collect()
            }
            ConversionStep::Unpermute(n_heads, n_turned) => {
                let head = self.rows_of_head(n_heads)?;
                let heads = rows.start / head * head..rows.end.div_ceil(head) * head;
                let pairs = of(heads.clone())?;
                let mut halves = Vec::with_capacity(rows.len() * width);
                for row in rows {
                    let from = in_pairs(row, head, n_turned) - heads.start;
                    halves.extend_from_slice(&pairs[from * width..][..width]);
                }
                Ok(halves)
            }
        }
    }

    fn coding(&self, _: &TensorFiles) -> Result<Coding> {
        let order = self.value_heads.as_ref().and_then(ValueHeads::columns);
        Ok(match self.format() {
            Some(format) => Coding::Codes(format, order),
            None => Coding::Numbers,
        })
    }

    fn stored_form(&self) -> StoredForm {
        let name = self.kind.name().to_string();
        match self.format() {
            Some(format) => {
                let (bits, _) = format.bits_by_group;
                StoredForm::Values {
                    name,
                    bits,
                    packed: bits,
                }
            }
            None if self.kind.is_quantized() => StoredForm::Unpackable(name),
            None => StoredForm::Elements(name),
        }
    }

    fn coded_rows(
        &self,
        files: &TensorFiles,
        rows: Range<usize>,
        _: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        let mut coded = QuantizedWeightRows::default();
        self.append_codes(files, rows, &mut coded)?;
        Ok(coded)
    }
}

impl BlockTensor {
    /// Appends quantized rows.
    fn append_codes(
        &self,
        files: &TensorFiles,
        rows: Range<usize>,
        coded: &mut QuantizedWeightRows,
    ) -> Result<()> {
        let of = |rows: Range<usize>| {
            let first = (self.first_row + rows.start) * self.columns;
            self.stored(files, first..first + rows.len() * self.columns)
        };
        match self.step {
            ConversionStep::Unpermute(n_heads, n_turned) => {
                let head = self.rows_of_head(n_heads)?;
                let first = rows.start / head * head;
                let pairs = of(first..rows.end.div_ceil(head) * head)?;
                let (size, bytes) = self.kind.block();
                let row_bytes = self.columns / size * bytes;
                for row in rows {
                    let from = in_pairs(row, head, n_turned) - first;
                    codes::append(self.kind, &pairs[from * row_bytes..][..row_bytes], coded);
                }
            }
            _ => {
                let heads = self.value_heads.as_ref();
                for rows in heads.map_or(vec![rows.clone()], |heads| heads.rows(rows)) {
                    codes::append(self.kind, &of(rows)?, coded);
                }
            }
        }
        Ok(())
    }

    /// Returns the format in which the blocks are packed, if they have one.
    fn format(&self) -> Option<QuantizedFormat> {
        match (self.step, &self.shape[..]) {
            // The value added to a norm is not part of the quantized values.
            (ConversionStep::None | ConversionStep::Unpermute(..), [_, _])
                if self.factor == 1.0 =>
            {
                codes::format(self.kind)
            }
            _ => None,
        }
    }

    /// Returns each head's number of rows.
    fn rows_of_head(&self, n_heads: usize) -> Result<usize> {
        let n_rows = self.shape.first().copied().unwrap_or(0);
        rows_of_head(n_rows, n_heads).map_err(|reason| self.part.error(reason))
    }
}

/// Returns rows whose columns have the places that `columns` gives.
fn in_columns(stored: &[f32], columns: &[u32]) -> Vec<f32> {
    let mut found = vec![0.0; stored.len()];
    let width = columns.len().max(1);
    for (found, stored) in found.chunks_mut(width).zip(stored.chunks(width)) {
        for (&column, &number) in columns.iter().zip(stored) {
            found[column as usize] = number;
        }
    }
    found
}

/// Returns each head's number of rows; an error if they cannot be paired.
fn rows_of_head(n_rows: usize, n_heads: usize) -> std::result::Result<usize, String> {
    let head = n_rows / n_heads.max(1);
    match head == 0 || !head.is_multiple_of(2) || !n_rows.is_multiple_of(n_heads) {
        false => Ok(head),
        true => Err(format!(
            "its {n_rows} rows cannot be paired in {n_heads} heads"
        )),
    }
}

/// Returns a row's position in the file, where the rows of each head are interleaved in pairs instead of halves, in the first
/// `n_turned` heads.
fn in_pairs(row: usize, head: usize, n_turned: usize) -> usize {
    let (head_start, in_head) = (row / head * head, row % head);
    match row / head < n_turned {
        true => head_start + in_head % (head / 2) * 2 + in_head / (head / 2),
        false => row,
    }
}
