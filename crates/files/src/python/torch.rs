//! PyTorch files (`torch.save`): a zip archive. Its `data.pkl` is a pickle with a dict of tensors, which are views of
//! storages; the files `data/KEY` contain the storages' bytes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::pickle::{Pickle, PickleValue, Result, StridedView};
use super::torch_functions::SAVE_TENSORS;
use super::zip::{self, StoredEntry, ZipFailure};
use crate::bytes::header::{Header, HeaderEntry};
use crate::bytes::positioned::PositionedFile;
use crate::bytes::strided::{is_contiguous, reach};
use candle_blocks_base as error;

const FORMAT: &str = "a PyTorch file";
#[doc(hidden)]
pub const PICKLE: &str = "/data.pkl";
/// Memory for the values in a small file's pickle.
const SMALL_BUDGET: u64 = 1 << 20;

/// Returns whether an archive was written by `torch.save`.
pub(crate) fn is_one(entries: &BTreeMap<String, StoredEntry>) -> bool {
    root(entries).is_some()
}

/// Returns the folder in the archive that contains everything.
fn root(entries: &BTreeMap<String, StoredEntry>) -> Option<&str> {
    let roots = entries.keys().filter_map(|name| name.strip_suffix(PICKLE));
    roots.min_by_key(|root| root.len())
}

/// Reads the headers of a file's tensors.
pub(crate) fn read(
    file: &PositionedFile,
    entries: &BTreeMap<String, StoredEntry>,
) -> error::Result<Header> {
    tensors(file, entries).map_err(|failure| failure.of(file, FORMAT))
}

fn tensors(
    file: &PositionedFile,
    entries: &BTreeMap<String, StoredEntry>,
) -> std::result::Result<Header, ZipFailure> {
    let root = root(entries).unwrap_or_default();
    let entry = |name: &str| entries.get(&format!("{root}{name}")).copied();
    if entry("/constants.pkl").is_some() {
        return Err(ZipFailure::Content(format!(
            "it is a TorchScript archive, which contains code; {SAVE_TENSORS}"
        )));
    }
    if let Some(order) = entry("/byteorder")
        && zip::bytes(file, order)? != b"little"
    {
        return Err(ZipFailure::Content(format!(
            "its byteorder is not \"little\"; load it in PyTorch, and {SAVE_TENSORS}"
        )));
    }
    let bytes = match entry(PICKLE) {
        Some(found) => zip::bytes(file, found)?,
        None => Vec::new(),
    };
    let budget = file.len().saturating_mul(2).saturating_add(SMALL_BUDGET);
    let (pickle, value) = Pickle::read(&bytes, usize::try_from(budget).unwrap_or(usize::MAX))?;
    let PickleValue::Dict(dict) = value else {
        return Err(ZipFailure::Content(format!(
            "it contains {}, expected a dict of tensors; {SAVE_TENSORS}",
            value.kind()
        )));
    };
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for pair in pickle.lists[dict].chunks_exact(2) {
        let name = pickle.text(pair[0]);
        let name = name.ok_or_else(|| {
            format!(
                "its dict has {} as a key, expected a name; {SAVE_TENSORS}",
                pair[0].kind()
            )
        })?;
        let PickleValue::Tensor(view) = pair[1] else {
            let kind = pair[1].kind();
            return Err(ZipFailure::Content(match pair[1] {
                PickleValue::Dict(_) => format!(
                    "its key {name:?} contains a dict instead of a tensor, which transformers does \
                     not read either; save that dict alone, with \
                     `torch.save(torch.load(file)[{name:?}], file)`"
                ),
                _ => format!("its key {name:?} contains {kind}, expected a tensor; {SAVE_TENSORS}"),
            }));
        };
        if !names.insert(name) {
            return Err(ZipFailure::Content(format!("tensor {name:?} occurs twice")));
        }
        let view = &pickle.views[view];
        let (key, n) = pickle.storages[view.storage].key;
        let key = pickle.text(key).unwrap_or_default();
        let stored = entry(&format!("/data/{key}")).ok_or_else(|| {
            format!(
                "tensor {name:?} is in the entry data/{key}, which does not \
             exist; download it again"
            )
        })?;
        let bits = pickle.storages[view.storage]
            .dtype
            .map_or(8, |dtype| dtype.bitsize());
        let n_bytes = n
            .checked_mul(bits / 8)
            .filter(|&n_bytes| n_bytes as u64 <= stored.n_bytes);
        let n_bytes = n_bytes.ok_or_else(|| {
            format!("the storage of tensor {name:?} should have {n} elements, but its entry data/{key} has {} bytes", stored.n_bytes)
        })?;
        tensors.push(
            placed(name, view, stored.offset, n_bytes)
                .map_err(|reason| format!("tensor {name:?}: {reason}"))?,
        );
    }
    // transformers marks its safetensors files like this, and requires the mark.
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    Ok(Header { tensors, metadata })
}

/// Returns a tensor in a storage with `n_bytes` at byte `offset`.
fn placed(name: &str, view: &StridedView, offset: u64, n_bytes: usize) -> Result<HeaderEntry> {
    let StridedView {
        shape,
        strides,
        dtype,
        ..
    } = view;
    let size = dtype.bitsize() / 8;
    if shape.len() != strides.len() {
        return Err(format!("it has shape {shape:?} and strides {strides:?}"));
    }
    // A zero counts as one here, so that no partial product can overflow later.
    let n = shape
        .iter()
        .try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1)));
    let end = reach(shape, strides).and_then(|reach| view.first.checked_add(reach));
    let (n, end) = match shape.contains(&0) {
        true => (n.map(|_| 0), Some(0)),
        false => (n, end),
    };
    let fits = |elements: Option<usize>| {
        elements
            .and_then(|n| n.checked_mul(size))
            .filter(|&n| n <= n_bytes)
    };
    fits(end).ok_or_else(|| {
        format!(
            "shape {shape:?} with strides {strides:?} ends beyond its storage of {n_bytes} bytes"
        )
    })?;
    let n_taken = fits(n).ok_or_else(|| {
        format!("shape {shape:?} with strides {strides:?} repeats elements of its storage of {n_bytes} bytes; save its `contiguous()` copy")
    })?;
    let is_view = !is_contiguous(shape, strides);
    let first = if n_taken == 0 { 0 } else { view.first * size };
    Ok(HeaderEntry {
        name: name.to_string(),
        dtype: *dtype,
        shape: shape.clone(),
        offset: offset + first as u64,
        n_bytes: n_taken,
        strides: is_view.then(|| Arc::from(&strides[..])),
    })
}
