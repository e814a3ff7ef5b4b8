//! Intel AMX with bfloat16 (from Sapphire Rapids on), in inline assembly, because Rust has no stable intrinsics for
//! it.
//!
//! Compiled code does not use tile registers, so that one instruction's results are there for the next. Each
//! instruction still declares which tile it changes.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

use super::avx512::{Avx512, Avx512Bf16};
use super::tiles::{RIGHT, TileShapes, Tiles};

/// Proves that the CPU has AMX with bfloat16 and byte products, that the system permits this process to use it, and
/// that the CPU has AVX-512 with BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx {
    vectors: Avx512Bf16,
}

impl Amx {
    /// Returns the token, if the CPU has the instructions and the system permits them. Permission is requested once
    /// per process.
    pub fn new() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        let vectors = Avx512Bf16::new()?;
        let permitted = *PERMITTED.get_or_init(|| is_detected() && permission());
        permitted.then_some(Self { vectors })
    }

    /// Returns the vectors, with bfloat16 dot products.
    #[inline(always)]
    pub fn bf16(self) -> Avx512Bf16 {
        self.vectors
    }

    /// Returns the vectors.
    #[inline(always)]
    pub fn avx512(self) -> Avx512 {
        self.vectors.avx512()
    }
}

/// Returns whether the CPU has tiles with bfloat16 and byte products, and the system saves them. Requires AVX-512.
#[allow(unused_unsafe)] // newer compilers call `__cpuid_count` safe
fn is_detected() -> bool {
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const SHAPES_AND_TILES: u64 = 1 << 17 | 1 << 18;
    // SAFETY: a CPU with AVX-512 has this leaf.
    let features = unsafe { __cpuid_count(7, 0) }.edx;
    // SAFETY: a system that permits AVX-512 has `xgetbv`.
    let saved = unsafe { _xgetbv(0) };
    features & FEATURES == FEATURES && saved & SHAPES_AND_TILES == SHAPES_AND_TILES
}

/// Asks Linux for the memory in which a thread's tiles are saved: once, for all threads in the process.
#[cfg(all(target_os = "linux", not(miri)))]
fn permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILES: u64 = 18;
    let result: i64;
    // SAFETY: a system call changes the two named registers and `rax`. This one takes two numbers, and no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILES,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// The permission on other systems is not implemented.
#[cfg(any(not(target_os = "linux"), miri))]
fn permission() -> bool {
    false
}

/// Assembles an instruction that changes a tile, whose name is between two parts of the text.
macro_rules! changing {
    ($tile:expr, $before:literal, $after:expr, [$($operands:tt)*] $($options:ident)*) => {
        changing!(@of $tile, $before, $after, [$($operands)*] [$($options)*]
            0 "tmm0" 1 "tmm1" 2 "tmm2" 3 "tmm3" 4 "tmm4" 5 "tmm5" 6 "tmm6" 7 "tmm7")
    };
    (@of $tile:expr, $before:literal, $after:expr, $operands:tt $options:tt $($number:literal $name:tt)*) => {
        match $tile {
            $($number => changing!(@asm concat!($before, $name, $after), $operands $options $name),)*
            tile => panic!("tile {tile}"),
        }
    };
    (@asm $text:expr, [$($operands:tt)*] [$($options:ident)*] $name:tt) => {
        asm!($text, $($operands)* out($name) _, options(nostack, preserves_flags, $($options),*))
    };
}

/// A product of tile `$left` and [`RIGHT`]. The three tiles must differ, which the assembler checks.
macro_rules! product {
    ($name:literal, $sums:expr, $left:expr) => {
        product!(@of $name, $sums, $left,
            4: 0 "tmm0" 1 "tmm1" 2 "tmm2" 3 "tmm3";
            5: 2 "tmm2" 3 "tmm3";)
    };
    (@of $name:literal, $sums:expr, $left:expr, $($of_left:literal: $($number:literal $tile:tt)*;)*) => {
        match ($left, $sums) {
            $($(($of_left, $number) => changing!(
                @asm concat!($name, $tile, ", tmm", $of_left, ", tmm{right}"),
                [right = const RIGHT,] [nomem] $tile
            ),)*)*
            (left, sums) => panic!("no product for tiles {left}, {RIGHT} and {sums}"),
        }
    };
}

impl Tiles for Amx {
    #[inline(always)]
    unsafe fn configure(self, shapes: &TileShapes) {
        // SAFETY: the token proves AMX; the caller promises valid shapes.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]", shapes = in(reg) shapes,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    #[inline(always)]
    fn shapes(self) -> TileShapes {
        let mut shapes = TileShapes::NONE;
        // SAFETY: the token proves AMX, and `shapes` has the 64 bytes that the instruction writes.
        unsafe {
            asm!("sttilecfg [{to}]", to = in(reg) &raw mut shapes, options(nostack, preserves_flags));
        }
        shapes
    }

    #[inline(always)]
    fn release(self) {
        // SAFETY: the token proves AMX.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, nomem),
            );
        }
    }

    #[inline(always)]
    unsafe fn zero(self, tile: usize) {
        // SAFETY: the token proves AMX; the caller's promise.
        unsafe { changing!(tile, "tilezero ", "", [] nomem) }
    }

    #[inline(always)]
    unsafe fn load(self, tile: usize, from: *const u32, stride: usize) {
        // SAFETY: the token proves AMX; the caller's promise.
        unsafe {
            changing!(
                tile, "tileloadd ", ", [{from} + {stride}*1]",
                [from = in(reg) from, stride = in(reg) stride,] readonly
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, tile: usize, to: *mut u32, stride: usize) {
        macro_rules! store {
            ($($number:literal)*) => {
                match tile {
                    $($number => asm!(
                        concat!("tilestored [{to} + {stride}*1], tmm", $number),
                        to = in(reg) to, stride = in(reg) stride, options(nostack, preserves_flags),
                    ),)*
                    _ => panic!("tile {tile}"),
                }
            };
        }
        // SAFETY: the token proves AMX; the caller's promise.
        unsafe { store!(0 1 2 3 4 5 6 7) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, sums: usize, left: usize) {
        // SAFETY: the token proves AMX; the caller's promise.
        unsafe { product!("tdpbf16ps ", sums, left) }
    }

    #[inline(always)]
    unsafe fn multiply_add_bytes(self, sums: usize, left: usize) {
        // SAFETY: as above.
        unsafe { product!("tdpbsud ", sums, left) }
    }
}
