//! PyTorch files (`torch.save`): a zip archive. Its `data.pkl` is a pickle with a dict of tensors, which are views of
//! storages; the files `data/KEY` contain the storages' bytes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use safetensors::Dtype;

use super::pickle::{Pickle, PickleValue, Result};
use super::zip::{self, StoredEntry, ZipFailure};
use crate::tensors::header::{Header, HeaderEntry};
use crate::tensors::positioned::PositionedFile;
use crate::tensors::strided::{is_contiguous, reach};
use candle_blocks_base as error;

const FORMAT: &str = "a PyTorch file";
#[doc(hidden)]
pub const PICKLE: &str = "/data.pkl";
/// The cure for a file that contains more than tensors.
pub(super) const SAVE_TENSORS: &str = "save the tensors alone, with `torch.save(model.state_dict(), file)` or `safetensors.torch.save_file`";
/// Memory for the values in a small file's pickle.
const SMALL_BUDGET: u64 = 1 << 20;

/// A PyTorch function, class or type that pickles of tensors name.
#[derive(Clone, Copy, Debug)]
pub(super) enum TorchFunction {
    OrderedDict,
    /// Builds a tensor with the storage's dtype.
    Tensor,
    /// Builds a tensor with a given dtype.
    TypedTensor,
    Parameter,
    /// Calls the given function.
    FromType,
    /// A class for [`Self::FromType`], which only adds attributes.
    Class,
    /// A tensor's dtype.
    Type(Dtype),
    /// A storage whose elements have this dtype.
    Storage(Dtype),
    /// A storage of bytes, for elements of any dtype.
    BytesStorage,
}

impl TorchFunction {
    /// # Errors
    /// If tensors do not need this name: a pickle that calls other functions could do anything.
    pub fn named(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Self::Tensor,
            ("torch._utils", "_rebuild_tensor_v3") => Self::TypedTensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Self::Parameter
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Self::FromType,
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Self::Class,
            ("torch.storage", "UntypedStorage") => Self::BytesStorage,
            ("torch", "DoubleStorage") => Self::Storage(Dtype::F64),
            ("torch", "FloatStorage") => Self::Storage(Dtype::F32),
            ("torch", "HalfStorage") => Self::Storage(Dtype::F16),
            ("torch", "BFloat16Storage") => Self::Storage(Dtype::BF16),
            ("torch", "LongStorage") => Self::Storage(Dtype::I64),
            ("torch", "IntStorage") => Self::Storage(Dtype::I32),
            ("torch", "ShortStorage") => Self::Storage(Dtype::I16),
            ("torch", "CharStorage") => Self::Storage(Dtype::I8),
            ("torch", "ByteStorage") => Self::Storage(Dtype::U8),
            ("torch", "BoolStorage") => Self::Storage(Dtype::BOOL),
            ("torch", "float8_e4m3fn") => Self::Type(Dtype::F8_E4M3),
            ("torch", "float8_e5m2") => Self::Type(Dtype::F8_E5M2),
            ("torch", "float8_e8m0fnu") => Self::Type(Dtype::F8_E8M0),
            ("torch", "uint16") => Self::Type(Dtype::U16),
            ("torch", "uint32") => Self::Type(Dtype::U32),
            ("torch", "uint64") => Self::Type(Dtype::U64),
            _ => {
                return Err(format!(
                    "its pickle names \"{module}.{name}\", which no tensor needs, and nothing in a \
                     pickle is executed here; {SAVE_TENSORS}"
                ));
            }
        })
    }
}

/// The storage of one or more tensors.
#[derive(Debug)]
pub(super) struct Storage {
    /// The name of its archive entry.
    key: (PickleValue, usize),
    /// `None`: bytes for any dtype.
    dtype: Option<Dtype>,
}

/// A tensor as a strided view of a storage.
#[derive(Debug)]
pub(super) struct StridedView {
    storage: usize,
    dtype: Dtype,
    /// The index of the first element.
    first: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Pickle<'_> {
    /// Returns the storage for this persistent id: `("storage", type, key, device, number of elements)`.
    pub fn storage(&mut self, id: PickleValue) -> Result<PickleValue> {
        let wrong = || {
            format!(
                "its pickle refers to {} outside of it, expected a storage",
                id.kind()
            )
        };
        let PickleValue::Tuple(list) = id else {
            return Err(wrong());
        };
        let [
            kind,
            PickleValue::Function(class),
            key,
            _,
            PickleValue::Int(n),
        ] = self.lists[list][..]
        else {
            return Err(wrong());
        };
        let dtype = match class {
            TorchFunction::Storage(dtype) => Some(dtype),
            TorchFunction::BytesStorage => None,
            _ => return Err(wrong()),
        };
        if self.text(kind) != Some("storage") {
            return Err(wrong());
        }
        let n =
            usize::try_from(n).map_err(|_| format!("its pickle has a storage of {n} elements"))?;
        self.take(size_of::<Storage>())?;
        self.storages.push(Storage {
            key: (key, n),
            dtype,
        });
        Ok(PickleValue::Storage(self.storages.len() - 1))
    }

    /// Returns the result of a call, computed here.
    pub fn call(&mut self, function: PickleValue, arguments: PickleValue) -> Result<PickleValue> {
        let (mut function, mut arguments) = (function, arguments);
        if let (PickleValue::Function(TorchFunction::FromType), PickleValue::Tuple(list)) =
            (function, arguments)
            && let [
                inner,
                PickleValue::Function(TorchFunction::Class),
                of_inner @ PickleValue::Tuple(_),
                _,
            ] = self.lists[list][..]
        {
            (function, arguments) = (inner, of_inner);
        }
        let PickleValue::Tuple(list) = arguments else {
            return Err(format!(
                "its pickle calls a function with {}, expected a tuple",
                arguments.kind()
            ));
        };
        let PickleValue::Function(function) = function else {
            return Err(format!("its pickle calls {}", function.kind()));
        };
        // The last argument says whether to negate or conjugate values; an empty dict says no.
        let is_plain = |rest: &[PickleValue]| match rest {
            [] => true,
            [PickleValue::Dict(with)] => self.lists[*with].is_empty(),
            _ => false,
        };
        let found = match (function, &self.lists[list][..]) {
            (TorchFunction::OrderedDict, []) => {
                return self.new_list(Vec::new()).map(PickleValue::Dict);
            }
            (TorchFunction::Parameter, [tensor @ PickleValue::Tensor(_), ..]) => {
                return Ok(*tensor);
            }
            (
                TorchFunction::Tensor,
                [
                    PickleValue::Storage(of),
                    first,
                    shape,
                    strides,
                    _,
                    _,
                    rest @ ..,
                ],
            ) if is_plain(rest) => {
                let dtype = self.storages[*of].dtype;
                dtype.map(|dtype| (*of, dtype, [*first, *shape, *strides]))
            }
            (
                TorchFunction::TypedTensor,
                [
                    PickleValue::Storage(of),
                    place @ ..,
                    PickleValue::Function(TorchFunction::Type(dtype)),
                ],
            ) if place.len() == 5 => Some((*of, *dtype, [place[0], place[1], place[2]])),
            _ => None,
        };
        let (storage, dtype, [first, shape, strides]) = found.ok_or_else(|| {
            format!(
                "its pickle calls {function:?} with arguments that make no plain tensor; {SAVE_TENSORS}"
            )
        })?;
        let PickleValue::Int(first) = first else {
            return Err("a tensor in its pickle has no beginning".into());
        };
        let view = StridedView {
            storage,
            dtype,
            first: usize::try_from(first)
                .map_err(|_| format!("a tensor in its pickle begins at element {first}"))?,
            shape: self.sizes(shape)?,
            strides: self.sizes(strides)?,
        };
        self.take(size_of::<StridedView>())?;
        self.views.push(view);
        Ok(PickleValue::Tensor(self.views.len() - 1))
    }

    /// Reads a tuple of non-negative integers.
    fn sizes(&mut self, tuple: PickleValue) -> Result<Vec<usize>> {
        let PickleValue::Tuple(list) = tuple else {
            return Err(format!(
                "a tensor in its pickle has {} for sizes or strides, expected a tuple",
                tuple.kind()
            ));
        };
        // Many tensors may refer to the same tuple.
        self.take(self.lists[list].len() * size_of::<usize>())?;
        let size = |value: &PickleValue| match value {
            PickleValue::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        let sizes: Option<Vec<usize>> = self.lists[list].iter().map(size).collect();
        sizes.ok_or_else(|| "a tensor in its pickle has invalid sizes or strides".into())
    }
}

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
