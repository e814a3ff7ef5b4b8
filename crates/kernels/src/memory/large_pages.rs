//! Memory on large pages for weights, keys and values, side by side.
//!
//! A decoding step reads every weight once. With 4 KiB pages, each one costs an address translation, and the
//! hardware prefetcher stops at its end. With 2 MiB pages a thread reads a third faster. Memory that the allocator
//! reuses already has small pages, and a single weight's mapping is not a multiple of 2 MiB. Weights that are packed
//! together therefore share mappings that come directly from the system.
//!
//! ```text
//! mapping  | piece | piece |    piece    | untouched, takes no memory |
//!          ^ a multiple of 2 MiB; pieces start at multiples of 4 KiB
//! ```

use std::{
    fmt,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use memmap2::MmapMut;

/// An allocator for weights that live together. Clones share the same mappings.
#[derive(Clone, Default)]
pub struct LargePages(Arc<Mutex<Open>>);

/// The mapping from which pieces are taken.
#[derive(Default)]
struct Open {
    mapping: Option<Arc<Mapping>>,
    /// Bytes taken from the current mapping.
    used: usize,
    /// Bytes taken from all mappings so far.
    total: usize,
}

/// A piece of a mapping with exclusive access, initially zero. The mapping is freed with its last piece.
pub struct MappedPiece {
    start: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

/// Size in bytes below which the general allocator is used.
const MIN_PIECE: usize = 64 << 10;

/// The maximum mapping size in bytes, unless a single piece is larger.
const MAX_MAPPING: usize = 256 << 20;

/// Bytes per large page.
const LARGE: usize = 2 << 20;

/// The alignment of pieces in bytes: a small page.
const PAGE: usize = 4 << 10;

impl fmt::Debug for LargePages {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("LargePages").finish_non_exhaustive()
    }
}

impl LargePages {
    /// Allocates `bytes` zeroed bytes. Returns `None` for small sizes, or if the system has little memory left.
    pub fn take(&self, bytes: usize) -> Option<MappedPiece> {
        if bytes < MIN_PIECE {
            return None;
        }
        let len = bytes.checked_next_multiple_of(PAGE)?;
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = match &open.mapping {
            Some(mapping) if mapping.len - open.used >= len => mapping.clone(),
            _ => {
                // As long as all pieces so far together: a single weight maps no more than it needs, and many
                // weights need few mappings. Untouched memory is not used, but counts where the system limits
                // mappings: near such a limit, returns `None`.
                let len = open.total.min(MAX_MAPPING).max(len);
                let is_there = is_there(len.saturating_mul(2));
                let mapping = is_there.then(|| Mapping::new(len, Pages::Large));
                let mapping = Arc::new(mapping.flatten()?);
                open.mapping = Some(mapping.clone());
                open.used = 0;
                mapping
            }
        };
        // SAFETY: the mapping has `len` bytes after the `used` ones.
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

/// The page size requested from the system.
#[derive(PartialEq)]
enum Pages {
    Large,
    /// The default pages. Only written ones take memory.
    Small,
}

impl MappedPiece {
    /// Allocates `bytes` zeroed bytes on separate small pages. Returns `None` for small sizes, or if the system has
    /// no memory left.
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

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, which is kept alive; taken once; initialized by the system.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: it owns its bytes like a vector does; the mapping is only kept alive.
unsafe impl Send for MappedPiece {}
// SAFETY: as above.
unsafe impl Sync for MappedPiece {}

/// Anonymous memory from the system, returned on drop.
struct Mapping {
    /// The first large page within `_all`.
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

/// Returns how many bytes must be there before a pass allocates `bytes`: also some for small allocations, which cannot
/// fail. 0 if the allocation is small itself, and the system need not be tried.
pub fn tried_in_a_pass(bytes: usize) -> usize {
    const SMALL: usize = 1 << 20;
    const BESIDE: usize = 8 << 20;
    match bytes {
        ..SMALL => 0,
        _ => bytes.saturating_add(BESIDE),
    }
}

/// Returns whether the system or the allocator would provide this many bytes now. None are kept. Asks the system
/// first, because an allocator may change its strategy when large memory is returned to it.
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
    #[cfg_attr(
        target_family = "wasm",
        ignore = "WebAssembly maps no memory: `take` returns `None`"
    )]
    fn pieces_are_zeroed_disjoint_and_outlive_their_allocator() {
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
    fn sizes_that_no_system_has_are_unavailable() {
        assert!(is_there(0) && is_there(1 << 20));
        let is_small = usize::BITS < 64; // a system may have all that such a process addresses
        assert!(!is_there(usize::MAX) && (is_small || !is_there(usize::MAX >> 4)));
    }

    #[test]
    fn few_bytes_have_no_mapping() {
        assert!(LargePages::default().take(MIN_PIECE - 1).is_none());
        assert!(LargePages::default().take(0).is_none());
    }
}
