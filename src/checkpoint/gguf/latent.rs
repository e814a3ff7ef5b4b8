//! The two tensors that llama.cpp's converter makes from `kv_b_proj` in latent attention: for keys, transposed, and for
//! the values.

use std::ops::Range;
use std::sync::Arc;

use super::{BlockTensor, ConversionStep};
use crate::checkpoint::files::{Compute, StoredForm, TensorFiles};
use crate::error::Result;
use candle_blocks_files::gguf::GgufTensor;

/// All heads' rows: for each, its key's and then its value's.
#[derive(Debug)]
struct KeyValue {
    /// `[n_heads, rank, key_rows]`.
    key: BlockTensor,
    /// `[n_heads, value_rows, rank]`.
    value: BlockTensor,
}

/// Adds the tensor that a block's `attn_k_b` and `attn_v_b` were made from, and returns whether this is either.
///
/// # Errors
/// If their shapes do not fit each other.
pub(super) fn add(files: &mut TensorFiles, tensor: &GgufTensor) -> Result<bool> {
    if let Some(block) = tensor.name.strip_suffix(".attn_v_b.weight") {
        // The key's tensor takes it.
        let key_name = format!("{block}.attn_k_b.weight");
        return Ok(files.gguf().is_some_and(|gguf| gguf.has(&key_name)));
    }
    let Some(block) = tensor.name.strip_suffix(".attn_k_b.weight") else {
        return Ok(false);
    };
    let Some(number) = block.strip_prefix("blk.") else {
        return Ok(false);
    };
    let value_name = format!("{block}.attn_v_b.weight");
    let found = files.gguf().and_then(|gguf| {
        let mut all = gguf.tensors.iter();
        all.find(|other| other.name == value_name).cloned()
    });
    let (Some(value), Some(part)) = (found, files.take(&tensor.name)) else {
        return Ok(false);
    };
    let key = BlockTensor::new(tensor, part, ConversionStep::None);
    let Some(part) = files.take(&value_name) else {
        return Ok(false);
    };
    let value = BlockTensor::new(&value, part, ConversionStep::None);
    let ([n_heads, rank, key_rows], [of_heads, value_rows, width]) =
        (&key.shape[..], &value.shape[..])
    else {
        return Err(key.part.error(format!(
            "its shape is {:?}, expected three dimensions",
            key.shape
        )));
    };
    if (n_heads, rank) != (of_heads, width) {
        let reason = format!(
            "its shape {:?} does not fit {:?}, that of {value_name}",
            key.shape, value.shape
        );
        return Err(key.part.error(reason));
    }
    let shape = vec![n_heads * (key_rows + value_rows), *rank];
    let name = format!("model.layers.{number}.self_attn.kv_b_proj.weight");
    let parts = [key.part.clone(), value.part.clone()];
    files.add_computed(
        name,
        shape,
        &[&parts[0], &parts[1]],
        Arc::new(KeyValue { key, value }),
    );
    Ok(true)
}

impl Compute for KeyValue {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        let (key_rows, value_rows) = (self.key.shape[2], self.value.shape[1]);
        let (rank, head) = (self.key.shape[1], key_rows + value_rows);
        let mut found = Vec::with_capacity(rows.len() * rank);
        for i in rows.start / head..rows.end.div_ceil(head) {
            let key = self
                .key
                .numbers(files, i * rank * key_rows..(i + 1) * rank * key_rows)?;
            let value = i * value_rows * rank..(i + 1) * value_rows * rank;
            let value = self.value.numbers(files, value)?;
            let head_rows = rows.start.max(i * head)..rows.end.min((i + 1) * head);
            for row in head_rows.map(|row| row - i * head) {
                match row.checked_sub(key_rows) {
                    None => found.extend((0..rank).map(|column| key[column * key_rows + row])),
                    Some(row) => found.extend_from_slice(&value[row * rank..][..rank]),
                }
            }
        }
        Ok(found)
    }

    fn stored_form(&self) -> StoredForm {
        let name = self.key.kind.name().to_string();
        match self.key.kind.is_quantized() {
            true => StoredForm::Unpackable(name),
            false => StoredForm::Elements(name),
        }
    }

    fn is_of_codes(&self) -> bool {
        false
    }
}
