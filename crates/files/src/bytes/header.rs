//! The header of a safetensors file: eight bytes with its length, then JSON with each tensor's location.
//!
//! Accepts the same files as the `safetensors` crate (a test compares them), but messages name the tensor and the offending
//! value. Two more kinds of files are refused: duplicate names, for which the crate silently keeps the last tensor, and
//! empty tensors whose other dimensions overflow, because their strides would overflow too.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo as RawInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::foreign;
use super::positioned::PositionedFile;
use candle_blocks_base::{Error, Result};

/// The format's limit, which the `safetensors` crate applies too.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;

/// A checked header.
pub(crate) struct Header {
    /// Tensors in the file's order.
    pub(crate) tensors: Vec<HeaderEntry>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A tensor in a checked header.
pub(crate) struct HeaderEntry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Offset from the file's start.
    pub(crate) offset: u64,
    pub(crate) n_bytes: usize,
    /// Strides in elements, if the elements are not contiguous.
    pub(crate) strides: Option<Arc<[usize]>>,
}

/// Reads and checks a file's header.
pub(crate) fn read(file: &PositionedFile) -> Result<Header> {
    let invalid = |reason: String| Error::damaged(file.path(), reason);
    let mut start = Vec::with_capacity(LENGTH_BYTES as usize);
    read_bytes(file, &mut start, LENGTH_BYTES.min(file.len()), 0)?;
    // Another format appears as an implausible length or as a header that is not JSON.
    let not_a_header = |reason| match foreign::explain_file(file.path()) {
        Some(reason) => Error::NotSafetensors {
            path: file.path().to_path_buf(),
            reason,
        },
        None => invalid(reason),
    };

    let header_bytes = header_length(&start, file.len()).map_err(not_a_header)?;
    let mut json = Vec::new();
    read_bytes(file, &mut json, header_bytes, LENGTH_BYTES)?;
    let json = std::str::from_utf8(&json)
        .map_err(|error| not_a_header(format!("its header is not UTF-8: {error}")))?;
    let mut raw: RawHeader = serde_json::from_str(json)
        .map_err(|error| not_a_header(format!("its header is malformed: {error}")))?;

    raw.tensors.sort_by_key(|(_, info)| info.data_offsets);
    let data_start = LENGTH_BYTES + header_bytes;
    check_places(&raw.tensors, file.len() - data_start).map_err(invalid)?;
    let place = |(name, info): (String, RawInfo)| HeaderEntry {
        name,
        dtype: info.dtype,
        shape: info.shape,
        offset: data_start + info.data_offsets.0 as u64,
        n_bytes: info.data_offsets.1 - info.data_offsets.0,
        strides: None,
    };
    Ok(Header {
        tensors: raw.tensors.into_iter().map(place).collect(),
        metadata: raw.metadata,
    })
}

/// Returns the header's length from the first bytes, if a file with `file_len` bytes can contain it.
fn header_length(start: &[u8], file_len: u64) -> std::result::Result<u64, String> {
    let bytes = start.try_into().map_err(|_| {
        format!("it has {file_len} bytes; the length of the header alone takes {LENGTH_BYTES}")
    })?;
    let length = u64::from_le_bytes(bytes);
    let rest = file_len - LENGTH_BYTES;
    if length > rest {
        return Err(format!(
            "its header should have {length} bytes, but only {rest} follow"
        ));
    }
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "its header has {length} bytes; the format allows {MAX_HEADER_BYTES}"
        ));
    }
    Ok(length)
}

/// Checks that tensors, sorted by offset, fill the data exactly: no gap, no overlap, no remainder.
fn check_places(tensors: &[(String, RawInfo)], data_len: u64) -> std::result::Result<(), String> {
    let mut filled = 0;
    let mut previous = "";
    for (name, info) in tensors {
        let (begin, end) = info.data_offsets;
        let n_bytes = n_bytes(info).map_err(|reason| format!("tensor {name:?}: {reason}"))?;
        if end < begin {
            return Err(format!(
                "tensor {name:?} ends at byte {end}, before its start at {begin}"
            ));
        }
        if end - begin != n_bytes {
            let (dtype, shape, given) = (info.dtype, &info.shape, end - begin);
            return Err(format!(
                "tensor {name:?} has {given} bytes, but {dtype:?} of shape {shape:?} takes {n_bytes}"
            ));
        }
        if begin < filled {
            return Err(format!(
                "tensors {previous:?} and {name:?} overlap at byte {begin}"
            ));
        }
        if begin > filled {
            return Err(format!(
                "bytes {filled} to {begin}, before tensor {name:?}, belong to no tensor"
            ));
        }
        (filled, previous) = (end, name);
    }
    let filled = filled as u64;
    if data_len < filled {
        return Err(format!(
            "it is cut short: its tensors take {filled} bytes, but only {data_len} follow the header"
        ));
    }
    if data_len > filled {
        let extra = data_len - filled;
        return Err(format!("{extra} bytes at its end belong to no tensor"));
    }
    Ok(())
}

/// Returns the size in bytes of a tensor with this dtype and shape.
fn n_bytes(info: &RawInfo) -> std::result::Result<usize, String> {
    let shape = &info.shape;
    // A zero counts as one here, so that no partial product (a stride) can overflow later.
    let bits = shape
        .iter()
        .try_fold(info.dtype.bitsize() as u64, |n, &dim| {
            n.checked_mul(dim.max(1) as u64)
        })
        .filter(|&bits| usize::try_from(bits / 8).is_ok())
        .ok_or_else(|| format!("its size overflows: {:?} of shape {shape:?}", info.dtype))?;
    if shape.contains(&0) {
        return Ok(0);
    }
    if bits % 8 != 0 {
        let dtype = info.dtype;
        return Err(format!(
            "{dtype:?} of shape {shape:?} does not fill whole bytes"
        ));
    }
    Ok((bits / 8) as usize)
}

/// Reads `n` bytes; the caller has checked that the file is long enough.
fn read_bytes(file: &PositionedFile, bytes: &mut Vec<u8>, n: u64, offset: u64) -> Result<()> {
    let n = n as usize;
    bytes
        .try_reserve_exact(n)
        .map_err(std::io::Error::from)
        .and_then(|()| file.append(bytes, n, offset))
        .map_err(|source| Error::io(file.path(), "read", source))
}

/// The header as written, in its own order.
#[derive(Default)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawInfo)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object that maps tensor names to dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("{name:?} occurs twice")));
            }
            if name == "__metadata__" {
                header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
            } else {
                let info = map
                    .next_value()
                    .map_err(|error| A::Error::custom(format_args!("tensor {name:?}: {error}")))?;
                header.tensors.push((name, info));
            }
        }
        Ok(header)
    }
}
