//! Memory on large pages for many weights, or keys and values, side by side.
//!
//! A step of decoding reads every weight once. With pages of 4 KiB, each one costs an address translation, and
//! the hardware prefetcher stops at its end; with pages of 2 MiB a thread reads a third faster. Memory that the
//! allocator reuses has its small pages already, and the mapping of a single weight is not a multiple of 2 MiB
//! long. So weights that are packed together share mappings that are fresh from the system.
//!
//! ```text
//! mapping  | piece | piece |    piece    | not touched yet, no memory |
//!          ^ a multiple of 2 MiB; pieces start at multiples of 4 KiB
//! ```

use std::{
    fmt,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use memmap2::MmapMut;

/// Where weights that live together take their memory from. Clones take from the same mappings.
#[derive(Clone, Default)]
pub struct LargePages(Arc<Mutex<Open>>);

/// The mapping that pieces are taken from at present.
#[derive(Default)]
struct Open {
    mapping: Option<Arc<Mapping>>,
    /// Bytes of it that are taken.
    used: usize,
    /// Bytes taken of all mappings so far.
    total: usize,
}

/// A part of a mapping that nobody else has; zeros at first. The mapping ends with the last of its pieces.
pub struct MappedPiece {
    start: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

/// Bytes below which a piece is left to the allocator.
const MIN_PIECE: usize = 64 << 10;

/// The largest mapping in bytes, unless a single piece is longer.
const MAX_MAPPING: usize = 256 << 20;

/// Bytes of a large page.
const LARGE: usize = 2 << 20;

/// Bytes that pieces start at multiples of: a small page.
const PAGE: usize = 4 << 10;

impl fmt::Debug for LargePages {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("LargePages").finish_non_exhaustive()
    }
}

impl LargePages {
    /// `bytes` bytes of zeros; `None` if that is too few, or the system has little memory left.
    pub fn take(&self, bytes: usize) -> Option<MappedPiece> {
        if bytes < MIN_PIECE {
            return None;
        }
        let len = bytes.checked_next_multiple_of(PAGE)?;
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = match &open.mapping {
            Some(mapping) if mapping.len - open.used >= len => mapping.clone(),
            _ => {
                // As long as all pieces so far together: a lone weight maps no more than it needs, and many
                // weights need few mappings. What is never touched takes no memory, but is counted where the system
                // limits what is mapped: near such a limit there are none.
                let len = open.total.min(MAX_MAPPING).max(len);
                let is_there = is_there(len.saturating_mul(2));
                let mapping = is_there.then(|| Mapping::new(len, Pages::Large));
                let mapping = Arc::new(mapping.flatten()?);
                open.mapping = Some(mapping.clone());
                open.used = 0;
                mapping
            }
        };
        // SAFETY: the mapping has `len` bytes behind the `used` ones.
        let start = unsafe { mapping.start.add(open.used) };
        open.used += len;
        open.total += len;
        Some(MappedPiece {
            start,
            len: bytes,
            _mapping: mapping,
        })
    }
}

/// What a mapping asks of the system.
#[derive(PartialEq)]
enum Pages {
    Large,
    /// The usual ones, of which only those that are written to take memory.
    Small,
}

impl MappedPiece {
    /// `bytes` bytes of zeros on small pages of their own; `None` if that is too few, or the system has no memory left.
    pub fn on_small_pages(bytes: usize) -> Option<Self> {
        if bytes < MIN_PIECE {
            return None;
        }
        let mapping = Mapping::new(bytes, Pages::Small)?;
        Some(Self {
            start: mapping.start,
            len: bytes,
            _mapping: Arc::new(mapping),
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, which is kept alive; taken once; initialised by the system.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its bytes, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: it owns its bytes as a vector does; the mapping is only kept alive.
unsafe impl Send for MappedPiece {}
// SAFETY: as above.
unsafe impl Sync for MappedPiece {}

/// Anonymous memory of the system, returned to it on drop.
struct Mapping {
    /// The start of the first large page within `_all`.
    start: NonNull<u8>,
    /// Bytes from `start` on.
    len: usize,
    _all: MmapMut,
}

// SAFETY: an address within memory that it owns, through which only pieces read and write.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, pages: Pages) -> Option<Self> {
        let mut all = MmapMut::map_anon(len.checked_add(LARGE)?).ok()?;
        let skipped = all.as_ptr().align_offset(LARGE);
        // The result does not matter: without large pages the mapping has small ones.
        if pages == Pages::Large {
            #[cfg(target_os = "linux")]
            let _ = all.advise_range(memmap2::Advice::HugePage, skipped, len);
        }
        Some(Self {
            start: NonNull::from(&mut all[skipped..][..len]).cast(),
            len,
            _all: all,
        })
    }
}

/// Whether the system or the allocator would give so many bytes now; none are kept. Asked of the system first, as an
/// allocator takes what is given back to it for a reason to change its ways.
pub fn is_there(bytes: usize) -> bool {
    bytes < MIN_PIECE || MmapMut::map_anon(bytes.saturating_add(PAGE)).is_ok() || {
        let mut room = Vec::<u8>::new();
        let is_reserved = room.try_reserve_exact(bytes).is_ok();
        std::hint::black_box(&room);
        is_reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeros_apart_and_outlive_what_gave_them() {
        let pages = LargePages::default();
        let sizes = [
            MIN_PIECE,
            MIN_PIECE + 1,
            5 << 20,
            100 << 10,
            MAX_MAPPING + 3,
            MIN_PIECE,
        ];
        let mut pieces: Vec<MappedPiece> =
            sizes.iter().filter_map(|&len| pages.take(len)).collect();
        drop(pages);
        assert_eq!(pieces.len(), sizes.len());
        for (i, (piece, len)) in (1u8..).zip(pieces.iter_mut().zip(sizes)) {
            assert_eq!(piece.bytes().len(), len);
            assert!(piece.bytes().iter().all(|&byte| byte == 0));
            piece.bytes_mut().fill(i);
        }
        for (i, piece) in (1u8..).zip(&pieces) {
            assert!(piece.bytes().iter().all(|&byte| byte == i));
            assert!(piece.start.addr().get().is_multiple_of(PAGE));
        }
    }

    #[test]
    fn what_no_system_has_is_not_there() {
        assert!(is_there(0) && is_there(1 << 20));
        assert!(!is_there(usize::MAX) && !is_there(1 << 60));
    }

    #[test]
    fn few_bytes_have_no_mapping() {
        assert!(LargePages::default().take(MIN_PIECE - 1).is_none());
        assert!(LargePages::default().take(0).is_none());
    }
}
