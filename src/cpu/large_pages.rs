//! Memory of many weights, or keys and values, side by side, on large pages.
//!
//! A step of decoding reads every weight once. On pages of 4 KiB the CPU looks each one's place up, and its prefetch stops at
//! each one's end; on pages of 2 MiB a thread reads a third faster. Memory that the allocator gives out again has its small
//! pages already, and a weight of its own mapping is not a multiple of 2 MiB long. So weights that are packed together share mappings
//! that nobody has used before.

use std::{
    fmt,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use memmap2::MmapMut;

/// Where weights that live together take their memory from. Clones take from the same.
#[derive(Clone, Default)]
pub struct LargePages(Arc<Mutex<Open>>);

/// The mapping that is given out now.
#[derive(Default)]
struct Open {
    mapping: Option<Arc<Mapping>>,
    /// Bytes of it that are given out.
    used: usize,
    /// Bytes that were given out of all mappings.
    total: usize,
}

/// A piece of a mapping, which nobody else has; zeros at first. The mapping ends with its last piece.
pub struct Piece {
    start: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

/// Smaller pieces have no part in this.
const LEAST: usize = 64 << 10;

/// The most that a mapping is made for, beyond a piece that is longer.
const MOST: usize = 64 << 20;

/// A large page.
const LARGE: usize = 2 << 20;

/// A page, or several: what pieces are multiples of.
const PAGE: usize = 4 << 10;

impl fmt::Debug for LargePages {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("LargePages").finish_non_exhaustive()
    }
}

impl LargePages {
    /// So many bytes of zeros; `None` if they are few, or the system gives none.
    pub fn take(&self, bytes: usize) -> Option<Piece> {
        if bytes < LEAST {
            return None;
        }
        let len = bytes.checked_next_multiple_of(PAGE)?;
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = match &open.mapping {
            Some(mapping) if mapping.len - open.used >= len => mapping.clone(),
            _ => {
                // As much again as all before: a lone weight has no more than it needs, and many have few mappings. What is
                // never touched takes no memory.
                let mapping = Arc::new(Mapping::new(open.total.min(MOST).max(len))?);
                open.mapping = Some(mapping.clone());
                open.used = 0;
                mapping
            }
        };
        // SAFETY: the mapping has `len` bytes behind those that are used.
        let start = unsafe { mapping.start.add(open.used) };
        open.used += len;
        open.total += len;
        Some(Piece {
            start,
            len: bytes,
            _mapping: mapping,
        })
    }
}

impl Piece {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, which lives as long, given out once, and initialised by the system.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: it owns its bytes as a vector does; the mapping is only held.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// Memory of the system's, which it takes back at the end.
struct Mapping {
    /// The first large page's start, within `_all`.
    start: NonNull<u8>,
    /// From `start` on.
    len: usize,
    _all: MmapMut,
}

// SAFETY: an address within memory that it owns; nothing is read or written through it but by pieces.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Option<Self> {
        let mut all = MmapMut::map_anon(len.checked_add(LARGE)?).ok()?;
        let skipped = all.as_ptr().align_offset(LARGE);
        // What it returns is no matter: a system without large pages goes on with small ones.
        #[cfg(target_os = "linux")]
        let _ = all.advise_range(memmap2::Advice::HugePage, skipped, len);
        Some(Self {
            start: NonNull::from(&mut all[skipped..][..len]).cast(),
            len,
            _all: all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeros_apart_and_outlive_what_gave_them() {
        let pages = LargePages::default();
        let sizes = [LEAST, LEAST + 1, 5 << 20, 100 << 10, MOST + 3, LEAST];
        let mut pieces: Vec<Piece> = sizes.iter().filter_map(|&len| pages.take(len)).collect();
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
    fn few_bytes_have_no_mapping() {
        assert!(LargePages::default().take(LEAST - 1).is_none());
        assert!(LargePages::default().take(0).is_none());
    }
}
