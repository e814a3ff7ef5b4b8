//! Finds tensors that change between a forward pass and the backward pass that reads them.
//!
//! An optimizer's step and candle's `Var::set` write into a variable's memory, which a backward pass reads again.
//! PyTorch counts the writes to each tensor and refuses such a pass ("modified by an inplace operation"). candle counts
//! nothing. This crate counts its own writes, and keeps the last one to each memory, which views share. A write by candle
//! shows in the elements that a `Version` compares. On a device no elements are compared.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor, TensorId, Var};

/// The reason in the error for a tensor that changed. Its subject is the tensor.
#[doc(hidden)]
pub const CHANGED: &str = "it was modified by an in-place operation (an optimizer's update, AdamW::restore, \
     Lora::merge or Var::set) after the forward pass whose backward pass reads it, so the gradients would be of neither \
     its old nor its new values; run all backward passes before the update, or repeat the forward pass after it";

/// The number of the latest write.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The last write to each tensor's memory, by address. A freed tensor's entry stays until its address is in use again.
/// It is then older than any version of the new tensor.
static WRITES: Mutex<BTreeMap<usize, Write>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Write {
    number: u64,
    /// The number in the id of a tensor that was made at that time.
    at: Option<u64>,
}

fn writes() -> MutexGuard<'static, BTreeMap<usize, Write>> {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the last write to a tensor's memory.
fn last_write(of: &Tensor) -> Option<Write> {
    writes().get(&address(of)).copied()
}

/// Returns the address of a tensor's storage, which its views share.
fn address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}

/// Returns whether two tensors share their memory.
#[doc(hidden)]
pub fn share_memory(a: &Tensor, b: &Tensor) -> bool {
    address(a) == address(b)
}

/// Notes that tensors are about to change in place.
pub(super) fn changes<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> Result<()> {
    let at = made_as(Tensor::zeros(0, DType::U8, &Device::Cpu)?.id());
    let mut writes = writes();
    let number = LATEST.load(Ordering::Acquire) + 1;
    let written = |tensor| (address(tensor), Write { number, at });
    writes.extend(tensors.into_iter().map(written));
    LATEST.store(number, Ordering::Release);
    Ok(())
}

/// Copies a tensor to a variable with the same shape and type.
#[doc(hidden)]
pub fn store(variable: &Var, values: &Tensor) -> Result<()> {
    changes([variable.as_tensor()])?;
    variable.set(values)
}

/// Returns the number in a tensor's id. candle counts tensors in the order in which they are made, and shows the number
/// only in this form.
fn made_as(id: TensorId) -> Option<u64> {
    let shown = format!("{id:?}");
    shown
        .trim_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()
}

/// Returns the first variable that changed in place after `loss` was computed and whose gradient `is_candles`: one that
/// candle's own operations read. Variables that only a tape reads are left to the tape.
#[doc(hidden)]
pub fn changed_after(loss: &Tensor, is_candles: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
    if LATEST.load(Ordering::Acquire) == 0 {
        return None;
    }
    let made = made_as(loss.id())?;
    let is_after = |write: Write| write.at.is_some_and(|at| at > made);
    // In most training steps there is none, and nothing is searched.
    if !writes().values().any(|&write| is_after(write)) {
        return None;
    }
    let nodes = loss.sorted_nodes();
    let variables = nodes
        .into_iter()
        .filter(|node| node.is_variable() && is_candles(node));
    let mut changed = variables.filter(|variable| last_write(variable).is_some_and(is_after));
    changed.next().cloned()
}

/// The number of elements that a version compares.
const N_COMPARED: usize = 8;
/// The golden ratio's fraction: its multiples spread evenly over a tensor, and over the columns of a matrix.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A tensor's memory as a forward pass found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    /// The number of the latest write to any tensor.
    latest: u64,
    /// A hash of some elements.
    elements: u64,
}

impl Version {
    pub fn of(tensor: &Tensor) -> Self {
        Self {
            latest: LATEST.load(Ordering::Acquire),
            elements: elements(tensor),
        }
    }

    /// Returns whether the tensor has not changed since.
    pub fn is_current(self, tensor: &Tensor) -> bool {
        let is_written = LATEST.load(Ordering::Acquire) != self.latest
            && last_write(tensor).is_some_and(|write| write.number > self.latest);
        !is_written && elements(tensor) == self.elements
    }
}

/// Returns a hash of some elements, or 0 for a tensor that is not on the CPU.
#[doc(hidden)]
pub fn elements(tensor: &Tensor) -> u64 {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return 0;
    };
    match storage {
        CpuStorage::F32(of) => hashed(layout, |i| of[i].to_bits().into()),
        CpuStorage::F64(of) => hashed(layout, |i| of[i].to_bits()),
        CpuStorage::F16(of) => hashed(layout, |i| of[i].to_bits().into()),
        CpuStorage::BF16(of) => hashed(layout, |i| of[i].to_bits().into()),
        _ => 0,
    }
}

fn hashed(layout: &Layout, bits: impl Fn(usize) -> u64) -> u64 {
    let n = layout.shape().elem_count();
    let index = |k: usize| match n <= N_COMPARED {
        true => k,
        false => ((u128::from((k as u64).wrapping_mul(GOLDEN)) * n as u128) >> 64) as usize,
    };
    (0..n.min(N_COMPARED)).fold(0, |hash: u64, k| {
        (hash.rotate_left(5) ^ bits(offset(layout, index(k)))).wrapping_mul(GOLDEN)
    })
}

/// Returns the offset of an element in the storage.
fn offset(layout: &Layout, mut index: usize) -> usize {
    let dims = layout.dims().iter().zip(layout.stride()).rev();
    dims.fold(layout.start_offset(), |at, (dim, stride)| {
        let along = index % dim;
        index /= dim;
        at + along * stride
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(n: usize) -> Var {
        let values = Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap();
        Var::from_tensor(&values).unwrap()
    }

    #[test]
    fn candle_counts_tensors_in_the_order_in_which_they_are_made() {
        let order = [0; 3].map(|_| made_as(variable(1).id()).unwrap());
        assert!(order[0] < order[1] && order[1] < order[2], "{order:?}");
    }

    #[test]
    fn a_write_is_seen_through_every_view_and_on_no_other_tensor() {
        let (written, other) = (variable(24), variable(24));
        let view = written.reshape((4, 6)).unwrap().t().unwrap();
        let detached = written.as_detached_tensor();
        let tensors = [written.as_tensor(), &view, &detached, other.as_tensor()];
        let before = tensors.map(Version::of);
        // The same values: only the number of the write shows.
        store(&written, &variable(24)).unwrap();
        let is_current = [0, 1, 2, 3].map(|i: usize| before[i].is_current(tensors[i]));
        assert_eq!(is_current, [false, false, false, true]);
        assert!(tensors.into_iter().all(|t| Version::of(t).is_current(t)));
    }

    #[test]
    fn candles_own_writes_show_in_the_elements_of_any_type_and_layout() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for n in [1, 7, 16, 17, 600] {
                let ones = Tensor::ones((n, 2), dtype, &Device::Cpu).unwrap();
                let variable = Var::from_tensor(&ones).unwrap();
                let view = variable.narrow(1, 1, 1).unwrap();
                let before = Version::of(&view);
                assert!(before.is_current(&view));
                variable.set(&(ones * 0.5).unwrap()).unwrap();
                assert!(!before.is_current(&view), "{dtype:?} {n}");
            }
        }
        let none = Var::zeros((0, 3), DType::F32, &Device::Cpu).unwrap();
        assert!(Version::of(&none).is_current(&none));
    }
}
