//! Arm's dot products: four bytes (`udot`), or two bfloat16 (`bfdot`). Rust 1.89 has no intrinsics for them.
//!
//! **bfloat16 products have different bits on Arm.** `vdpbf16ps` and multiply-adds add one product after the other
//! to a sum. `bfdot` first adds the two products to each other, then their sum to the accumulator. Both additions
//! round to odd: an inexact result is truncated, and its last bit set. The error is up to one f32 unit in the last
//! place rather than a half, far below the operands' 2⁻⁹. Subnormal operands and results are zeros, as with
//! `vdpbf16ps`. Every NaN becomes the default NaN. With the extension `EBF16`, a process can switch to one rounding
//! to nearest in its control register. No process does so by default.

use std::arch::{aarch64::*, asm};

use half::bf16;

use super::group_scales::E2M1;
use super::neon_matrices::{Matrices, add_groups};
use super::quantized::Quantized;
use super::quantized_dots::short_quantized_dots;
use crate::products::format::Tile;
use crate::products::formats::{bf16 as pairs, int8};
use crate::products::{Dots, Format, WIDTH, WidenedWords, dots};
use crate::vectors::neon::{Neon, NeonBf16, NeonDotprod};
use crate::vectors::{Vectors, Words};

type U32x8 = [uint32x4_t; 2];

/// An instruction that adds two registers' products to a third. Without `pure`, the compiler does not move it.
macro_rules! accumulate {
    ($instruction:literal, $sum:expr, $a:expr, $b:expr) => {
        accumulate!($instruction, $sum, $a, $b; pure)
    };
    ($instruction:literal, $sum:expr, $a:expr, $b:expr; $($pure:ident)?) => {{
        let mut sum: uint32x4_t = $sum;
        asm!(
            $instruction,
            sum = inout(vreg) sum,
            a = in(vreg) $a,
            b = in(vreg) $b,
            options($($pure,)? nomem, nostack, preserves_flags),
        );
        sum
    }};
}

impl NeonBf16 {
    /// Stores eight consecutive values as four pairs, rounded like [`pairs::pack_pairs`].
    ///
    /// # Safety
    /// Four words can be written at `words`.
    #[inline(always)]
    pub unsafe fn store_pairs(self, [low, high]: [float32x4_t; 2], words: *mut u32) {
        // SAFETY: the token proves the instructions; the caller promises the memory.
        unsafe {
            let mut terms: uint32x4_t;
            asm!(
                "bfcvtn {terms:v}.4h, {low:v}.4s",
                "bfcvtn2 {terms:v}.8h, {high:v}.4s",
                terms = out(vreg) terms,
                low = in(vreg) low,
                high = in(vreg) high,
                options(pure, nomem, nostack, preserves_flags),
            );
            vst1q_u32(words, terms);
        }
    }
}

impl Dots<bf16> for NeonBf16 {
    type Vectors = Neon;
    type Left = uint32x4_t;
    type Right = U32x8;
    /// The bits of f32.
    type Sum = U32x8;
    type Scales = ();
    const ROWS: usize = <Neon as Vectors<f32>>::ROWS;
    const ROW_WORDS: usize = pairs::PAIR_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        let (blocks, rest) = row.as_chunks::<8>();
        for (block, words) in blocks.iter().zip(words.chunks_exact_mut(4)) {
            // SAFETY: a block is a vector, and its pairs fit 4 words.
            unsafe {
                let terms = Vectors::<f32>::load(self.neon(), block.as_ptr());
                self.store_pairs(terms, words.as_mut_ptr());
            }
        }
        pairs::pack_pairs(rest, &mut words[4 * blocks.len()..]);
    }

    #[inline(always)]
    unsafe fn add_groups<const ROWS: usize>(
        self,
        rows: *const u32,
        values: *const u32,
        groups: usize,
        sums: &mut [[U32x8; WIDTH]; ROWS],
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe { add_groups::<bf16, _, ROWS>(self, rows, values, groups, sums) }
    }

    dots! {
        fn vectors(self) -> Neon { self.neon() }
        fn dot(self, left: uint32x4_t, right: U32x8, sum: U32x8) -> U32x8 {
            // SAFETY: the token proves the instruction; any bits are bfloat16, and f32.
            unsafe { [
                accumulate!("bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h", sum[0], right[0], left),
                accumulate!("bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h", sum[1], right[1], left),
            ] }
        }
        // A group is one word.
        unsafe fn left(self, row: *const u32, group: usize) -> uint32x4_t { vld1q_dup_u32(row.add(group)) }
        unsafe fn right(self, from: *const u32, _: usize) -> U32x8 { self.neon().load_words(from) }
        unsafe fn start(self, _: *const u32, _: *const u32) -> U32x8 { [vdupq_n_u32(0); 2] }
        unsafe fn scales(self, _: (), _: [*const u32; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
        unsafe fn to_floats(self, sum: U32x8, _: *const u32, _: usize, _: ()) -> [float32x4_t; 2] {
            [vreinterpretq_f32_u32(sum[0]), vreinterpretq_f32_u32(sum[1])]
        }
    }
}

impl Matrices<bf16> for NeonBf16 {
    const SCALE_WORDS: usize = 0;

    #[inline(always)]
    fn multiply_matrices(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the instruction; any bits are bfloat16, and f32.
        unsafe { accumulate!("bfmmla {sum:v}.4s, {a:v}.8h, {b:v}.8h", sum, a, b;) }
    }
}

/// Dot products for bytes. `NeonBf16` has matrix products as well.
macro_rules! dots_of_bytes {
    ($level:ty; $($own:item)*) => {
        impl Dots<i8> for $level {
            type Vectors = Neon;
            type Left = uint32x4_t;
            type Right = U32x8;
            type Sum = U32x8;
            type Scales = U32x8;
            const ROWS: usize = <Neon as Vectors<f32>>::ROWS;
            const ROW_WORDS: usize = int8::QUAD_ROW_WORDS;

            #[inline(always)]
            fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
                int8::pack_quads(row, int8::OFFSET, words);
            }

            $($own)*

            dots! {
                fn vectors(self) -> Neon { self.neon() }
                fn dot(self, left: uint32x4_t, right: U32x8, sum: U32x8) -> U32x8 {
                    // SAFETY: the token proves the instruction.
                    unsafe { [
                        accumulate!("udot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum[0], right[0], left),
                        accumulate!("udot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum[1], right[1], left),
                    ] }
                }
                // A group is one word.
                unsafe fn left(self, row: *const u32, group: usize) -> uint32x4_t {
                    vld1q_dup_u32(row.add(int8::QUAD_SCALE_WORDS + group))
                }
                unsafe fn right(self, from: *const u32, _: usize) -> U32x8 { self.neon().load_words(from) }
                // `start` and `center` are words 1 and 2 in a packed row.
                unsafe fn start(self, row: *const u32, scales: *const u32) -> U32x8 {
                    let (start, center) = (vdupq_n_s32(*row.add(1) as i32), *row.add(2) as i16);
                    self.neon().load_words(scales).map(|scales| {
                        // The sums of the columns' integers, the lower halves, with their signs.
                        let sums = vshrq_n_s32::<16>(vreinterpretq_s32_u32(vshlq_n_u32::<16>(scales)));
                        vreinterpretq_u32_s32(vmlaq_n_s32(start, sums, center.into()))
                    })
                }
                unsafe fn scales(self, _: (), [a, b]: [*const u32; WIDTH], _: usize) -> [U32x8; WIDTH] {
            [self.neon().load_words(a), self.neon().load_words(b)]
        }
                unsafe fn to_floats(self, sum: U32x8, row: *const u32, _: usize, scales: U32x8) -> [float32x4_t; 2] {
                    int8::to_floats(self.neon(), sum, row, scales)
                }
            }
        }
    };
}

dots_of_bytes! { NeonDotprod; }
dots_of_bytes! {
    NeonBf16;
    #[inline(always)]
    unsafe fn add_groups<const ROWS: usize>(
        self,
        rows: *const u32,
        values: *const u32,
        groups: usize,
        sums: &mut [[U32x8; WIDTH]; ROWS],
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe { add_groups::<i8, _, ROWS>(self, rows, values, groups, sums) }
    }
}

/// Dot products for 4- to 6-bit weights, whose values fit in a signed byte.
macro_rules! neon_quantized_dots {
    ($($level:ty: [$($code:tt)*])*) => {
        $($(short_quantized_dots! {
            impl[] for $level, $code;
            (self) -> Neon { self.neon() }
            // Leaves registers for eight vectors with widened values.
            rows Neon::WIDENED_ROWS;
            widened Neon::WIDENED_ONCE;
            dot(left, right, sum) {
                // No closure: where it is not inlined, its instructions are not enabled.
                // SAFETY: the token proves the instruction.
                unsafe {
                    let first = accumulate!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum[0], right[0][0], left[0][0]);
                    let last = accumulate!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum[1], right[0][1], left[0][1]);
                    [
                        accumulate!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", first, right[1][0], left[1][0]),
                        accumulate!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", last, right[1][1], left[1][1]),
                    ]
                }
            }
        })*)*
    };
}

neon_quantized_dots! { NeonDotprod: [2 3 4 E2M1 5 6] NeonBf16: [2 3 4 E2M1 5 6] }

impl Matrices<i8> for NeonBf16 {
    const SCALE_WORDS: usize = int8::QUAD_SCALE_WORDS;

    #[inline(always)]
    fn multiply_matrices(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the instruction.
        unsafe { accumulate!("ummla {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum, a, b;) }
    }
}
