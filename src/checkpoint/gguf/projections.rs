//! Queries, keys and values that a file has apart where transformers' class has one tensor, or in one where it has three, and experts
//! whose gates are joined with their other projections. llama.cpp reads either form for every architecture (`create_tensor_qkv`).

use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};
use serde_json::Value;

use super::architecture::Architecture;
use super::{BlockTensor, ConversionStep};
use crate::checkpoint::files::{Coding, Compute, StoredForm, TensorFiles};
use crate::error::Result;
use candle_blocks_files::gguf::GgufTensor;

const FUSED: &str = "attn_qkv";
const APART: [&str; 3] = ["attn_q", "attn_k", "attn_v"];
/// A stack of experts whose gates are in front of their other projections (`create_tensor_gate_up_exps`).
const GATE_UP: &str = "ffn_gate_up_exps";
const HALVES: [&str; 2] = ["ffn_gate_exps", "ffn_up_exps"];

/// Adds the tensors of transformers' class that a projection in another form is part of, and returns whether there are any.
///
/// # Errors
/// If the tensor's rows cannot be divided among the heads, or its parts have different widths.
pub(super) fn add(
    entry: &Architecture,
    config: &Value,
    files: &mut TensorFiles,
    tensor: &GgufTensor,
) -> Result<bool> {
    let Some((module, parameter)) = tensor.name.rsplit_once('.') else {
        return Ok(false);
    };
    let Some((block, local)) = module.rsplit_once('.') else {
        return Ok(false);
    };
    let has = |module: &str| entry.modules.iter().any(|(known, _)| *known == module);
    let named = |module: &str| format!("{block}.{module}.{parameter}");
    if local == GATE_UP && !has(GATE_UP) && HALVES.iter().all(|half| has(half)) {
        return halved(entry, files, tensor, &HALVES.map(named));
    }
    // A gated delta rule has a tensor by that name too, in other layers than those with attention and gates.
    let of_mixer = entry.modules.get(FUSED);
    let of_mixer = of_mixer.is_some_and(|name| name.starts_with("linear_attn."));
    let convolution = format!("{block}.ssm_conv1d.weight");
    let is_mixer = || files.gguf().is_some_and(|gguf| gguf.has(&convolution));
    let is_parted = !has(FUSED) || of_mixer && !is_mixer();
    if local == FUSED && is_parted && APART.iter().all(|part| has(part)) {
        return part(entry, config, files, tensor, &APART.map(named), of_mixer);
    }
    if APART.contains(&local) && has(FUSED) && !APART.iter().any(|part| has(part)) {
        return join(entry, files, &APART.map(named), &named(FUSED));
    }
    Ok(false)
}

/// Divides a fused tensor among the heads; with gates, each query has one beside it.
fn part(
    entry: &Architecture,
    config: &Value,
    files: &mut TensorFiles,
    tensor: &GgufTensor,
    names: &[String; 3],
    has_gates: bool,
) -> Result<bool> {
    let size = |key: &str| config.get(key).and_then(Value::as_u64);
    let n_heads = size("num_attention_heads").unwrap_or(1).max(1) as usize;
    let n_kv_heads = size("num_key_value_heads").map_or(n_heads, |n| n.max(1) as usize);
    let Some(stored) = files.take(&tensor.name) else {
        return Ok(false);
    };
    let flat = BlockTensor::new(tensor, stored.clone(), ConversionStep::None).flattened();
    let n_rows = flat.shape.first().copied().unwrap_or(0);
    let n_heads = if has_gates { 2 * n_heads } else { n_heads };
    let all_heads = n_heads + 2 * n_kv_heads;
    if !n_rows.is_multiple_of(all_heads) {
        let reason = format!("its {n_rows} rows cannot be divided among {all_heads} heads");
        return Err(stored.error(reason));
    }
    let mut first_row = 0;
    for (name, heads) in names.iter().zip([n_heads, n_kv_heads, n_kv_heads]) {
        let rows = heads * (n_rows / all_heads);
        let mut shape = flat.shape.clone();
        shape[0] = rows;
        let part = BlockTensor {
            columns: if shape.len() == 1 { 1 } else { flat.columns },
            shape,
            first_row,
            ..BlockTensor::new(tensor, stored.clone(), entry.step(config, name))
        };
        first_row += rows;
        if let Some(name) = entry.translated(name) {
            part.add(name, files)?;
        }
    }
    Ok(true)
}

/// Divides each expert's rows in two halves.
fn halved(
    entry: &Architecture,
    files: &mut TensorFiles,
    tensor: &GgufTensor,
    names: &[String; 2],
) -> Result<bool> {
    let Some(stored) = files.take(&tensor.name) else {
        return Ok(false);
    };
    let [n_experts, n_rows, columns] = tensor.shape[..] else {
        let reason = format!("its shape is {:?}, expected three dimensions", tensor.shape);
        return Err(stored.error(reason));
    };
    let rows = n_rows / 2;
    for i in 0..n_experts {
        for (half, name) in names.iter().enumerate() {
            let part = BlockTensor {
                shape: vec![rows, columns],
                first_row: i * n_rows + half * rows,
                ..BlockTensor::new(tensor, stored.clone(), ConversionStep::None)
            };
            if let Some(name) = entry.translated(name) {
                part.add(name.replace("{e}", &i.to_string()), files)?;
            }
        }
    }
    Ok(true)
}

/// Joins a file's tensors for queries, keys and values, if it has all three.
fn join(
    entry: &Architecture,
    files: &mut TensorFiles,
    names: &[String; 3],
    fused: &str,
) -> Result<bool> {
    let Some(name) = entry.translated(fused) else {
        return Ok(false);
    };
    let tensors = files.gguf().map(|gguf| gguf.tensors.clone());
    let tensors = tensors.unwrap_or_default();
    if tensors.iter().any(|tensor| tensor.name == fused) {
        return Ok(false);
    }
    if files.contains(&name) {
        return Ok(true); // with the first of the three
    }
    let mut parts = Vec::new();
    for name in names {
        let found = tensors.iter().find(|tensor| tensor.name == *name);
        let Some((tensor, stored)) = found.zip(files.as_part(name)) else {
            return Ok(false);
        };
        parts.push(BlockTensor::new(tensor, stored, ConversionStep::None).flattened());
    }
    let widths = |part: &BlockTensor| part.shape.get(1..).map(<[usize]>::to_vec);
    if let Some(other) = parts.iter().find(|part| widths(part) != widths(&parts[0])) {
        let reason = format!(
            "its shape is {:?}, which does not fit {:?}, that of {}",
            other.shape, parts[0].shape, names[0]
        );
        return Err(other.part.error(reason));
    }
    let mut shape = parts[0].shape.clone();
    shape[0] = parts.iter().map(|part| part.shape[0]).sum();
    let stored: Vec<_> = names.iter().filter_map(|name| files.take(name)).collect();
    let stored: Vec<_> = stored.iter().collect();
    files.add_computed(name, shape, &stored, Arc::new(Joined { parts }));
    Ok(true)
}

/// Several tensors' rows, one tensor after another.
#[derive(Debug)]
struct Joined {
    parts: Vec<BlockTensor>,
}

impl Joined {
    /// Calls a function with each part that some of the rows are in, and the rows' indices there.
    fn each(
        &self,
        rows: Range<usize>,
        mut of: impl FnMut(&BlockTensor, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut before = 0;
        for part in &self.parts {
            let n = part.shape[0];
            let own = rows.start.max(before)..rows.end.min(before + n);
            if !own.is_empty() {
                of(part, own.start - before..own.end - before)?;
            }
            before += n;
        }
        Ok(())
    }

    fn is_of_one_kind(&self) -> bool {
        self.parts
            .iter()
            .all(|part| part.kind == self.parts[0].kind)
    }
}

impl Compute for Joined {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        let mut found = Vec::new();
        self.each(rows, |part, rows| {
            found.extend(part.rows(files, rows)?);
            Ok(())
        })?;
        Ok(found)
    }

    fn coding(&self, files: &TensorFiles) -> Result<Coding> {
        match self.is_of_one_kind() {
            true => self.parts[0].coding(files),
            false => Ok(Coding::Numbers),
        }
    }

    fn stored_form(&self) -> StoredForm {
        match self.is_of_one_kind() {
            true => self.parts[0].stored_form(),
            false => {
                let kinds: Vec<_> = self.parts.iter().map(|part| part.kind.name()).collect();
                StoredForm::Unpackable(kinds.join(", "))
            }
        }
    }

    fn coded_rows(
        &self,
        files: &TensorFiles,
        rows: Range<usize>,
        _: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        let mut coded = QuantizedWeightRows::default();
        self.each(rows, |part, rows| {
            part.append_codes(files, rows, &mut coded)
        })?;
        Ok(coded)
    }
}
