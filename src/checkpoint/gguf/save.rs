//! Saves a checkpoint as a GGUF file: the type of each tensor, as in llama.cpp's tools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::ConversionStep;
use super::architecture::Architecture;
use super::describe::{Description, entry};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::save::{QuantizedTensor, SquaredError, check_room, in_parts};
use crate::config::StackConfig;
use crate::error::{Error, Result};
use candle_blocks_files::gguf::write::{TensorEntry, write};
use candle_blocks_kernels::storage::BlockKind;
use candle_blocks_kernels::storage::{decode::decode, encode::encode};

/// A checkpoint to be saved.
pub(in crate::checkpoint) struct Dense<'c> {
    pub json: &'c ConfigJson,
    pub stack: &'c StackConfig,
    /// Names and shapes of its tensors, with weights as `[d_out, d_in]`.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Tensors among these that repeat another tensor's values for the same parameter, such as those of a tied head.
    pub copies: BTreeSet<String>,
    /// Returns a tensor's values.
    pub read: &'c dyn Fn(&str) -> Result<Vec<f32>>,
}

/// The source of an entry's values.
struct EntrySource {
    entry: TensorEntry,
    /// All tensors in a stack of experts, in order.
    names: Vec<String>,
    step: ConversionStep,
    note: Option<String>,
}

/// Writes the file, and calls `each` for every tensor.
///
/// # Errors
/// If GGUF has no such architecture, no name for a tensor, or no key for a setting; if a tensor's values exceed the range of
/// its type; if the file cannot be written; or if `each` returns an error.
pub(in crate::checkpoint) fn save(
    dense: &Dense,
    kind: BlockKind,
    path: &Path,
    each: &mut dyn FnMut(&QuantizedTensor) -> Result<()>,
) -> Result<()> {
    let entry = entry(dense.json)?;
    let (origins, left_out) = origins(dense, entry, kind)?;
    let n_rows = |name: &str| origins.get(name)?.entry.shape.first().copied();
    let described = Description::new(dense.json, entry, dense.stack, n_rows, kind)?;
    let factors = described.factors.iter().map(|(name, factors)| TensorEntry {
        name: name.to_string(),
        kind: BlockKind::F32,
        shape: vec![factors.len()],
    });
    let tensor_entries = origins.values().map(|origin| &origin.entry);
    let entries: Vec<TensorEntry> = tensor_entries.cloned().chain(factors).collect();
    described.check(path, &entries, dense.stack)?;
    for tensor in &left_out {
        each(tensor)?;
    }
    write(path, &described.keys, &entries, |entry| {
        let Some(origin) = origins.get(&entry.name) else {
            let mut all = described.factors.iter();
            let found = all.find(|(name, _)| *name == entry.name);
            let bytes = found.map(|(_, factors)| bytemuck::cast_slice(factors).to_vec());
            return Ok(bytes.unwrap_or_default());
        };
        let numbers = origin.numbers(dense)?;
        let (bytes, error) = encoded(entry, &numbers)?;
        each(&QuantizedTensor {
            name: entry.name.clone(),
            kind: entry.kind.name().to_string(),
            n: entry.n(),
            n_bytes: bytes.len(),
            error,
            note: origin.note.clone(),
        })?;
        Ok(bytes)
    })
}

/// Returns the sources for all tensors in the file, by their names in GGUF, and the tensors that the file omits.
fn origins(
    dense: &Dense,
    entry: &Architecture,
    kind: BlockKind,
) -> Result<(BTreeMap<String, EntrySource>, Vec<QuantizedTensor>)> {
    let mut stacks: BTreeMap<String, BTreeMap<usize, (&str, &[usize])>> = BTreeMap::new();
    let mut left_out = vec![];
    for (name, shape) in &dense.tensors {
        let why = if entry.model_type == "bert"
            && ["pooler", "cls"].iter().any(|part| name.contains(part))
        {
            "files of this architecture have none"
        } else if dense.copies.contains(name) {
            "it is a copy of another tensor, such as the token embeddings"
        } else {
            let Some((there, expert)) = entry.original(name) else {
                let reason =
                    "GGUF has no such tensor; save the base model alone, or use another format";
                return Err(Error::input(name, reason));
            };
            let stack = stacks.entry(there).or_default();
            if let Some((other, _)) = stack.insert(expert.unwrap_or(0), (name, shape)) {
                return Err(Error::input(name, format!("{other} is the same tensor")));
            }
            continue;
        };
        left_out.push(QuantizedTensor {
            name: name.clone(),
            kind: "left out".to_string(),
            n: shape.iter().product(),
            n_bytes: 0,
            error: 0.0,
            note: Some(why.to_string()),
        });
    }
    let mut origins = BTreeMap::new();
    for (there, stack) in stacks {
        let is_stack = there.contains("_exps.");
        let mut shape = stack
            .values()
            .next()
            .map_or(vec![], |(_, shape)| shape.to_vec());
        if let Some((name, other)) = stack.values().find(|(_, other)| *other != shape) {
            let reason = format!("its shape is {other:?}, that of the first expert {shape:?}");
            return Err(Error::input(*name, reason));
        }
        if let (Some((&last, _)), true) = (stack.last_key_value(), is_stack) {
            if last + 1 != stack.len() {
                let reason = format!(
                    "there are {} experts, and the last one is {last}",
                    stack.len()
                );
                return Err(Error::input(&there, reason));
            }
            shape.insert(0, stack.len());
        }
        let step = entry.step(dense.json.value(), &there);
        if let (ConversionStep::OneRow, [1, columns]) = (step, &shape[..]) {
            shape = vec![*columns];
        }
        let (kind, note) = kind_of(&there, &shape, kind);
        let origin = EntrySource {
            entry: TensorEntry {
                name: there.clone(),
                kind,
                shape,
            },
            names: stack.values().map(|(name, _)| name.to_string()).collect(),
            step,
            note,
        };
        origins.insert(there, origin);
    }
    Ok((origins, left_out))
}

/// Returns a tensor's type in a file with weights of type `kind`, and the reason if it differs. As in llama.cpp, vectors,
/// routers and position tables are not quantized, and token embeddings and the head are Q8_0.
fn kind_of(name: &str, shape: &[usize], kind: BlockKind) -> (BlockKind, Option<String>) {
    const NOT: [&str; 4] = ["_norm.", "ffn_gate_inp", "position_embd.", "token_types."];
    if shape.len() < 2 || !name.ends_with(".weight") || NOT.iter().any(|not| name.contains(not)) {
        return (BlockKind::F32, None);
    }
    let wanted = match name {
        "token_embd.weight" | "output.weight" => BlockKind::Q8_0,
        _ => kind,
    };
    let columns = shape.last().copied().unwrap_or(0);
    let fits = |kind: &BlockKind| columns.is_multiple_of(kind.block().0);
    if fits(&wanted) {
        return (wanted, None);
    }
    let kind = [BlockKind::Q8_0, BlockKind::F16].into_iter().find(fits);
    let note = format!(
        "its rows with {columns} elements are not whole blocks of {}'s {}",
        wanted.name(),
        wanted.block().0
    );
    (kind.unwrap_or(BlockKind::F16), Some(note))
}

impl EntrySource {
    fn numbers(&self, dense: &Dense) -> Result<Vec<f32>> {
        let mut numbers = vec![];
        if self.names.len() > 1 {
            check_room(&self.entry.name, self.entry.n())?;
            numbers.reserve_exact(self.entry.n());
        }
        for name in &self.names {
            let mut one = (dense.read)(name)?;
            if let Some(found) = one.iter().find(|number| !number.is_finite()) {
                return Err(Error::input(
                    name,
                    format!("it contains {found}, which quantized values cannot represent"),
                ));
            }
            match self.step {
                ConversionStep::None
                | ConversionStep::OneRow
                | ConversionStep::Channels
                | ConversionStep::Vector => {}
                ConversionStep::LessOne => one.iter_mut().for_each(|number| *number += 1.0),
                ConversionStep::NegatedExponential | ConversionStep::NegatedExponentials => {
                    one.iter_mut().for_each(|number| *number = -number.exp());
                }
                ConversionStep::Unpermute(n_heads, n_turned) => {
                    let n_rows = self.entry.shape.first().copied().unwrap_or(0);
                    check_room(name, one.len())?;
                    one = paired(one, n_rows, n_heads, n_turned)
                        .map_err(|reason| Error::input(name, reason))?;
                }
            }
            match self.names.len() {
                1 => numbers = one,
                _ => numbers.append(&mut one),
            }
        }
        Ok(numbers)
    }
}

/// Interleaves the two halves of each head's rows.
fn paired(
    halves: Vec<f32>,
    n_rows: usize,
    n_heads: usize,
    n_turned: usize,
) -> std::result::Result<Vec<f32>, String> {
    let head = super::rows_of_head(n_rows, n_heads)?;
    let width = halves.len() / n_rows;
    let mut pairs = vec![0.0; halves.len()];
    for (row, numbers) in halves.chunks_exact(width.max(1)).enumerate() {
        let at = super::in_pairs(row, head, n_turned) * width;
        pairs[at..at + width].copy_from_slice(numbers);
    }
    Ok(pairs)
}

/// Returns a tensor's blocks, and their error relative to the tensor.
fn encoded(entry: &TensorEntry, numbers: &[f32]) -> Result<(Vec<u8>, f64)> {
    /// The number of values quantized at a time: whole blocks for every type.
    const PIECE: usize = 1 << 16;
    let kind = entry.kind;
    // The threads' parts, and all of them in one piece.
    check_room(&entry.name, 2 * entry.n_bytes() / size_of::<f32>())?;
    let parts = in_parts(&entry.name, numbers, PIECE, |part| {
        let (block, bytes) = kind.block();
        let mut bytes = Vec::with_capacity(part.len() / block * bytes);
        let (mut decoded, mut squares) = (vec![], SquaredError::default());
        for numbers in part.chunks(PIECE) {
            let start = bytes.len();
            encode(kind, numbers, &mut bytes);
            decoded.clear();
            decode(kind, &bytes[start..], &mut decoded);
            squares.add(numbers, &decoded);
        }
        (bytes, squares)
    })?;
    let (bytes, squares): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let error = squares.into_iter().sum::<SquaredError>().relative_error();
    match error.is_finite() {
        true => Ok((bytes.concat(), error)),
        false => Err(Error::input(
            &entry.name,
            format!("it contains values beyond the range of {}", kind.name()),
        )),
    }
}
