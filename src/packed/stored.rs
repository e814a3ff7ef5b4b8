//! Weights that are packed from the codes of a file, without ever being numbers in memory.
//!
//! Layers ask a `VarBuilder` for tensors, which cannot hold codes. Where these are wanted, the loader answers with a stand-in of
//! the right shape that takes no memory: all its elements are one number, by which the codes are found. Its type is U32, so
//! that no product, norm or table can take it for a weight.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candle_blocks_kernels::products::{CodeFormat, CodedRows, PackedWeight};
use candle_core::{DType, Device, Result, Tensor, bail};

use super::Packing;
use crate::error::Error;
use crate::memory::check_packing;

/// A weight `[d_out, d_in]` whose file has it in codes.
pub(crate) trait StoredWeight: Send + Sync {
    /// `[d_out, d_in]`.
    fn shape(&self) -> [usize; 2];
    /// How its codes are packed.
    fn format(&self) -> CodeFormat;
    /// The order in which its inputs are packed, if it is another.
    fn order(&self) -> Option<&Arc<[u32]>>;
    /// Some of its rows.
    fn rows(&self, rows: Range<usize>) -> std::result::Result<CodedRows, Error>;
    /// The numbers that the codes stand for.
    fn numbers(&self) -> std::result::Result<Tensor, Error>;
    /// An error that names the tensor.
    fn error(&self, reason: String) -> Error;
}

/// The weights that have stand-ins, as long as someone holds them.
static STORED: Mutex<BTreeMap<u32, Weak<dyn StoredWeight>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A tensor that stands for a weight for as long as that is held.
pub(crate) fn stand_in(weight: &Arc<dyn StoredWeight>) -> Result<Tensor> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    stored.retain(|_, weight| weight.strong_count() > 0);
    stored.insert(number, Arc::downgrade(weight));
    Tensor::new(number, &Device::Cpu)?.broadcast_as(&weight.shape()[..])
}

/// Whether a tensor stands for a weight.
pub(crate) fn is_stand_in(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::U32
}

/// The weight that a tensor stands for, if it does.
pub(super) fn stood_for(tensor: &Tensor) -> Result<Option<Arc<dyn StoredWeight>>> {
    if !is_stand_in(tensor) || tensor.elem_count() == 0 {
        return Ok(None);
    }
    let number: u32 = tensor.get(0)?.get(0)?.to_scalar()?;
    let stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
    match stored.get(&number).and_then(Weak::upgrade) {
        Some(weight) if weight.shape() == tensor.dims() => Ok(Some(weight)),
        _ => bail!("pack: a weight of codes whose checkpoint is closed, or a part of one"),
    }
}

/// Whether two weights that have the same input can be packed as one.
pub(super) fn are_alike(a: &Arc<dyn StoredWeight>, b: &Arc<dyn StoredWeight>) -> bool {
    (a.format(), a.order()) == (b.format(), b.order())
}

/// Packs weights that [are alike](are_alike) as one, their outputs side by side; or the two of a gated feed-forward.
pub(super) fn pack_codes(
    packing: &Packing,
    weights: &[Arc<dyn StoredWeight>],
    is_gated: bool,
) -> Result<PackedWeight> {
    let d_outs = weights.iter().map(|weight| weight.shape()[0]);
    let d_out = if is_gated {
        d_outs.max()
    } else {
        Some(d_outs.sum())
    };
    let shape = [d_out.unwrap_or(0), weights[0].shape()[1]];
    let format = weights[0].format();
    let mut read = |matrix: usize, rows: Range<usize>| {
        check_packing(2 * rows.len() * shape[1])?; // a byte for each code, beside what they are read from
        if is_gated {
            return weights[matrix].rows(rows);
        }
        let (mut all, mut first) = (CodedRows::default(), 0);
        for weight in weights {
            let end = first + weight.shape()[0];
            let part = rows.start.clamp(first, end) - first..rows.end.clamp(first, end) - first;
            if !part.is_empty() {
                all.append(weight.rows(part)?);
            }
            first = end;
        }
        Ok(all)
    };
    let refuse = |matrix: usize, reason: String| weights[matrix].error(reason);
    let cpu = packing.cpu;
    let n_weights = shape[0] * shape[1] * if is_gated { 2 } else { 1 };
    check_packing(n_weights * format.bits_by_group.0 / 8)?;
    packing.note_codes();
    let packed = PackedWeight::of_codes(
        cpu,
        format,
        (shape, is_gated),
        &packing.pages,
        &mut read,
        refuse,
    )?;
    Ok(packed.with_order(weights[0].order().cloned()))
}
