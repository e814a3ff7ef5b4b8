//! Prefetch hints. Any address is allowed, and a hint changes no result.

/// Bytes per cache line.
pub const LINE: usize = 64;

/// Prefetches a cache line into L1.
#[inline(always)]
pub fn near<T>(from: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: every 64-bit Arm CPU has the instruction, and it accepts any address.
    unsafe {
        use std::arch::asm;
        asm!("prfm pldl1keep, [{}]", in(reg) from.addr(), options(nomem, nostack, preserves_flags));
    }
    let _ = from;
}

/// Prefetches a cache line into L2.
#[inline(always)]
pub fn far<T>(from: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as in `near`.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as in `near`.
    unsafe {
        use std::arch::asm;
        asm!("prfm pldl2keep, [{}]", in(reg) from.addr(), options(nomem, nostack, preserves_flags));
    }
    let _ = from;
}

/// Prefetches `bytes` bytes into L1, starting at an address.
#[inline(always)]
pub fn bytes<T>(from: *const T, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        near(from.cast::<u8>().wrapping_add(at));
    }
}

/// Prefetches a slice into L1.
#[inline(always)]
pub fn all<T>(numbers: &[T]) {
    bytes(numbers.as_ptr(), size_of_val(numbers));
}
