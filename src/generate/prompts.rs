//! Prompts with different lengths as one batch.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::model::ModelInput;

/// Returns the prompts in `input_ids` `[batch, seq]`, without the padding that `attention_mask` `[batch, seq]` masks before
/// or after them.
///
/// # Errors
/// If these are not integers with the same shape, or the mask excludes a token between two others.
pub fn prompts(input_ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Vec<Vec<u32>>> {
    let ids = rows("input_ids", input_ids)?;
    let Some(mask) = attention_mask else {
        return Ok(ids);
    };
    if mask.dims() != input_ids.dims() {
        return Err(Error::input(
            "attention_mask",
            format!(
                "has shape {:?}, expected {:?} of input_ids",
                mask.dims(),
                input_ids.dims()
            ),
        ));
    }
    let kept = |(i, (ids, marks)): (usize, (Vec<u32>, Vec<u32>))| {
        let first = marks.iter().position(|&mark| mark != 0).unwrap_or(0);
        let end = marks
            .iter()
            .rposition(|&mark| mark != 0)
            .map_or(first, |last| last + 1);
        match marks[first..end].contains(&0) {
            true => Err(Error::input(
                "attention_mask",
                format!(
                    "masks a token in the middle of prompt {i}; padding must be before or after it"
                ),
            )),
            false => Ok(ids[first..end].to_vec()),
        }
    };
    let marks = rows("attention_mask", mask)?;
    ids.into_iter().zip(marks).enumerate().map(kept).collect()
}

fn rows(name: &str, tensor: &Tensor) -> Result<Vec<Vec<u32>>> {
    let (found, dtype) = (tensor.dims(), tensor.dtype());
    if found.len() != 2 || dtype.is_float() {
        let reason = format!("is {dtype:?} of shape {found:?}, expected integers [batch, seq]");
        return Err(Error::input(name, reason));
    }
    let rows = tensor.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
    let row = |row: Vec<i64>| {
        let token = |id: i64| {
            let reason = || format!("contains {id}, expected 0 to {}", u32::MAX);
            u32::try_from(id).map_err(|_| Error::input(name, reason()))
        };
        row.into_iter().map(token).collect()
    };
    rows.to_vec2::<i64>()?.into_iter().map(row).collect()
}

/// Returns sequences as one batch: padded on the left if their lengths differ, with the mask and the positions that
/// transformers' `generate` makes.
pub(super) fn left_padded(sequences: &[&[u32]]) -> candle_core::Result<ModelInput> {
    let batch = sequences.len();
    let seq = sequences
        .iter()
        .map(|tokens| tokens.len())
        .max()
        .unwrap_or(0);
    let mut ids = Vec::with_capacity(batch * seq);
    let mut marks = Vec::with_capacity(batch * seq);
    let mut positions = Vec::with_capacity(batch * seq);
    for tokens in sequences {
        let padding = seq - tokens.len();
        // Any token will do: no other token attends to it.
        ids.extend(vec![tokens.first().copied().unwrap_or(0); padding]);
        ids.extend(*tokens);
        marks.extend((0..seq).map(|i| u8::from(i >= padding)));
        positions.extend((0..seq).map(|i| i.saturating_sub(padding) as u32));
    }
    let tensor = |rows: Vec<u32>| Tensor::from_vec(rows, (batch, seq), &Device::Cpu);
    let input = ModelInput::tokens(&tensor(ids)?);
    if !marks.contains(&0) {
        return Ok(input);
    }
    let marks = Tensor::from_vec(marks, (batch, seq), &Device::Cpu)?;
    Ok(input.with_mask(&marks).with_positions(&tensor(positions)?))
}

/// Returns only the last token of each sequence.
pub(super) fn last_tokens(
    sequences: &[&[u32]],
    is_padded: bool,
) -> candle_core::Result<ModelInput> {
    let last = sequences.iter().filter_map(|tokens| tokens.last().copied());
    let column = |of: Vec<u32>| Tensor::from_vec(of, (sequences.len(), 1), &Device::Cpu);
    let input = ModelInput::tokens(&column(last.collect())?);
    if !is_padded {
        return Ok(input);
    }
    let positions = sequences.iter().map(|tokens| tokens.len() as u32 - 1);
    Ok(input.with_positions(&column(positions.collect())?))
}
