//! A zip archive's directory: the location of each entry. `torch.save` and `numpy.savez` store entries uncompressed, so a
//! tensor can be read in place; compressed entries are refused. Checksums are not compared: PyTorch does not, and writes zeros
//! after `torch.serialization.set_crc32_options(False)`.
//!
//! The format is described in <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>.

use std::collections::BTreeMap;

use crate::bytes::header::MAX_HEADER_BYTES;
use crate::bytes::positioned::PositionedFile;
use candle_blocks_base::{Error, Result};

/// The first bytes of an archive, which begin its first entry.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";
const END: &[u8] = b"PK\x05\x06";
const END_BYTES: u64 = 22;
const END_64: &[u8] = b"PK\x06\x06";
const END_64_BYTES: u64 = 56;
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const LOCATOR_64_BYTES: u64 = 20;
const RECORD: &[u8] = b"PK\x01\x02";
const RECORD_BYTES: usize = 46;
const LOCAL_BYTES: u64 = 30;
/// The longest comment that may follow the end record.
const MAX_COMMENT_BYTES: u64 = 65_535;
/// The reason for a file without its end, where an archive has its directory.
const CUT: &str = "it is cut short or damaged; download it again";

/// The location of a stored entry's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredEntry {
    /// Offset from the file's start.
    pub offset: u64,
    pub n_bytes: u64,
}

/// Reads and checks an archive's directory: every entry must be uncompressed, inside the file and separate from the others.
pub(crate) fn read(file: &PositionedFile) -> Result<BTreeMap<String, StoredEntry>> {
    entries(file).map_err(|failure| failure.of(file, "a zip archive"))
}

/// The reason why an archive or an entry cannot be read.
pub(super) enum ZipFailure {
    System(std::io::Error),
    Content(String),
}

impl ZipFailure {
    /// Makes the error about `file`, which has this format.
    pub fn of(self, file: &PositionedFile, format: &'static str) -> Error {
        let path = file.path().to_path_buf();
        match self {
            Self::System(cause) => Error::io(path, "read", cause),
            Self::Content(reason) => Error::UnreadableWeights {
                path,
                format,
                reason,
            },
        }
    }
}

impl From<String> for ZipFailure {
    fn from(reason: String) -> Self {
        Self::Content(reason)
    }
}

impl From<std::io::Error> for ZipFailure {
    fn from(cause: std::io::Error) -> Self {
        Self::System(cause)
    }
}

fn entries(
    file: &PositionedFile,
) -> std::result::Result<BTreeMap<String, StoredEntry>, ZipFailure> {
    let (n_entries, directory) = directory(file)?;
    let bytes = bytes(file, directory)?;
    let mut found = BTreeMap::new();
    let mut places = Vec::new();
    let mut rest = &bytes[..];
    for _ in 0..n_entries {
        let record = Fields(rest);
        let (name, after) = record.name().ok_or_else(cut)?;
        let flags = record.u16(8).ok_or_else(cut)?;
        let method = record.u16(10).ok_or_else(cut)?;
        let EntrySizes {
            stored,
            unpacked,
            local,
        } = record.sizes().ok_or_else(cut)?;
        if method != 0 || flags & 1 != 0 || stored != unpacked {
            return Err(ZipFailure::Content(format!(
                "its entry {name:?} is compressed or encrypted, and only stored entries are read; save it again with `torch.save` \
                 or `numpy.savez`, which store them"
            )));
        }
        // The data follow the entry's own header, whose name and fields can have other lengths than in the directory.
        let header = bytes_at(file, local, LOCAL_BYTES, directory.offset)?;
        let header = Fields(&header);
        let lengths = header.u16(26).zip(header.u16(28));
        let (name_bytes, extra_bytes) = lengths
            .filter(|_| header.0.starts_with(MAGIC))
            .ok_or_else(cut)?;
        let offset = local + LOCAL_BYTES + u64::from(name_bytes) + u64::from(extra_bytes);
        let end = offset
            .checked_add(stored)
            .filter(|&end| end <= directory.offset);
        let end = end.ok_or_else(|| format!("its entry {name:?} should have {stored} bytes from {offset} on, beyond its place: {CUT}"))?;
        places.push((local, end));
        let entry = StoredEntry {
            offset,
            n_bytes: stored,
        };
        if found.insert(name.clone(), entry).is_some() {
            return Err(ZipFailure::Content(format!(
                "its entry {name:?} occurs twice"
            )));
        }
        rest = after;
    }
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(ZipFailure::Content(format!(
            "two of its entries overlap at byte {}: {CUT}",
            pair[1].0
        ))),
        None => Ok(found),
    }
}

/// Returns how many entries there are, and the directory's location.
fn directory(file: &PositionedFile) -> std::result::Result<(u64, StoredEntry), ZipFailure> {
    let len = file.len();
    let tail_bytes = len.min(END_BYTES + MAX_COMMENT_BYTES);
    let tail = bytes_at(file, len - tail_bytes, tail_bytes, len)?;
    let is_end = |at: &usize| {
        let comment = Fields(&tail[*at..]).u16(20).map(usize::from);
        tail[*at..].starts_with(END) && comment == Some(tail.len() - at - END_BYTES as usize)
    };
    let at = (0..(tail.len() + 1).saturating_sub(END_BYTES as usize))
        .rev()
        .find(is_end);
    let at = at.ok_or_else(|| format!("its directory should be at its end, and is not: {CUT}"))?;
    let end = Fields(&tail[at..]);
    let end_fields = || Some((end.u16(10)?, end.u32(12)?, end.u32(16)?));
    let (n_entries, n_bytes, offset) = end_fields().ok_or_else(cut)?;
    let end_at = len - tail_bytes + at as u64;
    let mut found = (u64::from(n_entries), u64::from(n_bytes), u64::from(offset));
    let mut ends = end_at;
    // Archives larger than 4 GB have a second end record with wider fields, and a record with its location.
    if n_entries == u16::MAX || n_bytes == u32::MAX || offset == u32::MAX {
        let at = end_at.checked_sub(LOCATOR_64_BYTES).ok_or_else(cut)?;
        let locator = bytes_at(file, at, LOCATOR_64_BYTES, end_at)?;
        let at = Fields(&locator)
            .u64(8)
            .filter(|_| locator.starts_with(LOCATOR_64));
        ends = at.ok_or_else(cut)?;
        let wide = bytes_at(file, ends, END_64_BYTES, end_at)?;
        let fields = Fields(&wide);
        let end_fields = || Some((fields.u64(32)?, fields.u64(40)?, fields.u64(48)?));
        found = end_fields()
            .filter(|_| wide.starts_with(END_64))
            .ok_or_else(cut)?;
    }
    let (n_entries, n_bytes, offset) = found;
    if offset.checked_add(n_bytes).is_none_or(|end| end > ends) {
        return Err(cut());
    }
    Ok((n_entries, StoredEntry { offset, n_bytes }))
}

/// Returns the bytes in an entry that describes other entries.
///
/// # Errors
/// If it is larger than such entries are, or cannot be read.
pub(super) fn bytes(
    file: &PositionedFile,
    entry: StoredEntry,
) -> std::result::Result<Vec<u8>, ZipFailure> {
    if entry.n_bytes > MAX_HEADER_BYTES {
        let n_bytes = entry.n_bytes;
        return Err(ZipFailure::Content(format!(
            "the description of its tensors has {n_bytes} bytes; the limit is {MAX_HEADER_BYTES}"
        )));
    }
    bytes_at(file, entry.offset, entry.n_bytes, file.len())
}

/// Returns `n` bytes at an offset, which must all be before `limit`.
fn bytes_at(
    file: &PositionedFile,
    offset: u64,
    n: u64,
    limit: u64,
) -> std::result::Result<Vec<u8>, ZipFailure> {
    if offset.checked_add(n).is_none_or(|end| end > limit) {
        return Err(cut());
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(n as usize)
        .map_err(std::io::Error::from)?;
    file.append(&mut bytes, n as usize, offset)?;
    Ok(bytes)
}

fn cut() -> ZipFailure {
    ZipFailure::Content(CUT.into())
}

/// An entry's sizes, and the location of its own header.
struct EntrySizes {
    stored: u64,
    unpacked: u64,
    local: u64,
}

/// Little-endian fields in a record.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Returns the name in a directory record, and the bytes after the record.
    fn name(&self) -> Option<(String, &'b [u8])> {
        let lengths = [self.u16(28)?, self.u16(30)?, self.u16(32)?].map(usize::from);
        let name = self.0.get(RECORD_BYTES..RECORD_BYTES + lengths[0])?;
        let after = self.0.get(RECORD_BYTES + lengths.iter().sum::<usize>()..)?;
        let name = self
            .0
            .starts_with(RECORD)
            .then(|| String::from_utf8_lossy(name).into_owned());
        Some((name?, after))
    }

    /// Returns the sizes in a directory record. Sizes above 32 bits are in a field after the name.
    fn sizes(&self) -> Option<EntrySizes> {
        let [name, extra] = [self.u16(28)?, self.u16(30)?].map(usize::from);
        let mut extra = self.0.get(RECORD_BYTES + name..)?.get(..extra)?;
        let mut wide = Fields(&[]);
        while extra.len() >= 4 {
            let (fields, length) = (Fields(extra), usize::from(Fields(extra).u16(2)?));
            let content = extra.get(4..)?.get(..length)?;
            if fields.u16(0)? == 1 {
                wide = Fields(content);
            }
            extra = &extra[4 + length..];
        }
        let mut n_wide = 0;
        let mut size = |at: usize| match self.u32(at)? {
            u32::MAX => {
                n_wide += 1;
                wide.u64((n_wide - 1) * 8)
            }
            narrow => Some(narrow.into()),
        };
        Some(EntrySizes {
            unpacked: size(24)?,
            stored: size(20)?,
            local: size(42)?,
        })
    }
}
