//! NumPy files: an array (`.npy`), or a zip archive with arrays (`.npz`).
//!
//! The format is described in <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use std::collections::BTreeMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::zip::{self, StoredEntry, ZipFailure};
use crate::bytes::header::{Header, HeaderEntry};
use crate::bytes::positioned::PositionedFile;
use crate::bytes::strided::is_contiguous;
use candle_blocks_base as error;

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
const FORMAT: &str = "a NumPy file";
const EXTENSION: &str = ".npy";
/// The size limit for an array's description, more than any supported array needs.
const MAX_DESCRIPTION_BYTES: u64 = 10_000;
const CURE: &str = "save it again, as a numeric array, with `numpy.save` or `numpy.savez`";

/// Dtypes by the characters after the byte order.
const TYPES: [(&str, Dtype); 12] = [
    ("f8", Dtype::F64),
    ("f4", Dtype::F32),
    ("f2", Dtype::F16),
    ("i8", Dtype::I64),
    ("i4", Dtype::I32),
    ("i2", Dtype::I16),
    ("i1", Dtype::I8),
    ("u8", Dtype::U64),
    ("u4", Dtype::U32),
    ("u2", Dtype::U16),
    ("u1", Dtype::U8),
    ("b1", Dtype::BOOL),
];

/// Returns whether an archive was written by `numpy.savez`.
pub(crate) fn is_one(entries: &BTreeMap<String, StoredEntry>) -> bool {
    !entries.is_empty() && entries.keys().all(|name| name.ends_with(EXTENSION))
}

/// Reads an array's header; the array's name is the file's.
pub(crate) fn read(file: &PositionedFile) -> error::Result<Header> {
    let name = file
        .path()
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let all = StoredEntry {
        offset: 0,
        n_bytes: file.len(),
    };
    of_arrays(file, [(&*name, all)].into_iter())
}

/// Reads the headers for an archive's arrays; their names are the entries'.
pub(crate) fn read_archive(
    file: &PositionedFile,
    entries: &BTreeMap<String, StoredEntry>,
) -> error::Result<Header> {
    let arrays = entries
        .iter()
        .map(|(name, place)| (name.strip_suffix(EXTENSION).unwrap_or(name), *place));
    of_arrays(file, arrays)
}

fn of_arrays<'n>(
    file: &PositionedFile,
    arrays: impl Iterator<Item = (&'n str, StoredEntry)>,
) -> error::Result<Header> {
    let arrays = arrays.map(|(name, place)| array(file, name, place));
    let tensors = arrays.collect::<std::result::Result<_, _>>();
    Ok(Header {
        tensors: tensors.map_err(|failure| failure.of(file, FORMAT))?,
        metadata: BTreeMap::new(),
    })
}

fn array(
    file: &PositionedFile,
    name: &str,
    place: StoredEntry,
) -> std::result::Result<HeaderEntry, ZipFailure> {
    let part = |offset: u64, n_bytes: u64| {
        let n_bytes = n_bytes.min(place.n_bytes.saturating_sub(offset));
        zip::bytes(
            file,
            StoredEntry {
                offset: place.offset + offset,
                n_bytes,
            },
        )
    };
    let wrong = |reason: &str| format!("array {name:?} {reason}; {CURE}");
    // The magic bytes, two bytes with the version, and the description's length: two bytes, or four from version 2 on.
    let start = part(0, 12)?;
    let version = start.get(6).filter(|_| start.starts_with(MAGIC));
    let (length_bytes, length) = match (version, start.get(8..)) {
        (Some(1), Some(&[a, b, ..])) => (2, u16::from_le_bytes([a, b]).into()),
        (Some(2 | 3), Some(&[a, b, c, d])) => (4, u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => return Err(wrong("does not begin like an array").into()),
    };
    if length > MAX_DESCRIPTION_BYTES {
        return Err(wrong(&format!("has a description of {length} bytes")).into());
    }
    let begin = 8 + length_bytes + length;
    let text = part(8 + length_bytes, length)?;
    let text = std::str::from_utf8(&text)
        .map_err(|error| wrong(&format!("has a description that is not UTF-8: {error}")))?;
    let value = |key: &str| {
        text.split_once(&format!("'{key}':"))
            .map(|(_, value)| value.trim_start())
    };
    let descr = value("descr")
        .and_then(|value| value.split_once(','))
        .map_or("", |(value, _)| value.trim());
    let kind = descr.trim_matches('\'');
    let found = TYPES
        .iter()
        .find(|(characters, dtype)| match kind.strip_suffix(characters) {
            Some("<") => true,
            Some("|") => dtype.bitsize() == 8,
            _ => false,
        });
    let &(_, dtype) =
        found.ok_or_else(|| wrong(&format!("has the dtype {descr}, which is not supported")))?;
    let is_fortran = match value("fortran_order") {
        Some(value) if value.starts_with("False") => false,
        Some(value) if value.starts_with("True") => true,
        _ => return Err(wrong("does not give its order").into()),
    };
    let shape = value("shape").and_then(|value| value.strip_prefix('(')?.split_once(')'));
    let dims = shape
        .map_or("?", |(dims, _)| dims)
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty());
    let shape: std::result::Result<Vec<usize>, _> = dims.map(str::parse).collect();
    let shape =
        shape.map_err(|error| wrong(&format!("has a shape that cannot be read ({error})")))?;
    let n = shape
        .iter()
        .try_fold(dtype.bitsize() / 8, |n, &dim| n.checked_mul(dim.max(1)));
    let n_bytes = if shape.contains(&0) { n.map(|_| 0) } else { n };
    let held = place.n_bytes.saturating_sub(begin);
    let n_bytes = n_bytes.filter(|&n_bytes| n_bytes as u64 == held).ok_or_else(|| {
        format!("array {name:?} of {dtype:?} and shape {shape:?} does not fill its {held} bytes: it is cut short or damaged; download it again")
    })?;
    let mut stride = 1;
    let fortran = shape.iter().map(|&dim| {
        let of_dim = stride;
        stride *= dim.max(1);
        of_dim
    });
    let fortran: Option<Vec<usize>> = is_fortran.then(|| fortran.collect());
    Ok(HeaderEntry {
        name: name.to_string(),
        dtype,
        strides: fortran
            .filter(|strides| !is_contiguous(&shape, strides))
            .map(Arc::from),
        shape,
        offset: place.offset + begin,
        n_bytes,
    })
}

/// Returns the bytes before an array's values, as `numpy.save` writes them; `None` for a dtype that NumPy does not have.
pub(crate) fn header(dtype: Dtype, shape: &[usize]) -> Option<Vec<u8>> {
    /// The values begin at a multiple of this.
    const ALIGNMENT: usize = 64;
    /// NumPy leaves space for a first dimension with this many digits.
    const DIGITS: usize = 21;
    let (characters, _) = TYPES.iter().find(|(_, known)| *known == dtype)?;
    let order = if dtype.bitsize() == 8 { '|' } else { '<' };
    let dims = match shape {
        [one] => format!("{one},"),
        _ => shape
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    };
    let space = shape.first().map_or(0, |n| DIGITS - n.to_string().len());
    let text = format!(
        "{{'descr': '{order}{characters}', 'fortran_order': False, 'shape': ({dims}), }}{:space$}",
        ""
    );
    let n_start = MAGIC.len() + 4;
    let n_padding = ALIGNMENT - (n_start + text.len() + 1) % ALIGNMENT;
    let length = u16::try_from(text.len() + n_padding + 1).ok()?;
    let mut bytes = [MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat();
    bytes.resize(bytes.len() + n_padding, b' ');
    bytes.push(b'\n');
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        // The beginnings of files by numpy.save (NumPy 2.4): the text, and the length of all.
        for (dtype, shape, text, length) in [
            (
                Dtype::F32,
                vec![4, 12],
                "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 12), }",
                128,
            ),
            (
                Dtype::I8,
                vec![100000, 384],
                "{'descr': '|i1', 'fortran_order': False, 'shape': (100000, 384), }",
                128,
            ),
            (
                Dtype::U8,
                vec![3],
                "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }",
                128,
            ),
            (
                Dtype::F64,
                vec![],
                "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
                128,
            ),
            (
                Dtype::I64,
                vec![0, 7],
                "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }",
                128,
            ),
            (
                Dtype::F32,
                vec![1234, 2, 3, 5, 6],
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1234, 2, 3, 5, 6), }",
                128,
            ),
        ] {
            let found = header(dtype, &shape).unwrap();
            assert_eq!(found.len(), length);
            let said = [
                MAGIC,
                &[1, 0],
                &(length as u16 - 10).to_le_bytes(),
                text.as_bytes(),
            ];
            let said = said.concat();
            assert_eq!(found[..said.len()], said);
            let (last, padding) = found[said.len()..].split_last().unwrap();
            assert!(*last == b'\n' && padding.iter().all(|&byte| byte == b' '));
        }
        assert_eq!(header(Dtype::BF16, &[2]), None);
    }
}
