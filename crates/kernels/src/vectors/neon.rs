//! NEON: 32 registers with 128 bits. A vector is two registers, so that a single row's accumulators do not wait for
//! each other. According to Arm's guides for Neoverse N1 and V1, a multiply-add has a latency of four cycles, and
//! two to four start in each cycle.

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

use super::level::{instructions, token};
use super::{Level, Lookup, TABLE_LEN, Vectors, Widening, Words};

type F32x8 = [float32x4_t; 2];
type F64x4 = [float64x2_t; 2];
type U32x8 = [uint32x4_t; 2];
type I16x16 = [int16x8_t; 2];

token! {
    /// Proves that the CPU has NEON, as every CPU for Rust's 64-bit Arm targets has.
    Neon: is_aarch64_feature_detected "neon"
}

token! {
    /// Proves that the CPU has int8 dot products (from Armv8.4 on, and in most Armv8.2 CPUs: Neoverse N1, Apple M1).
    NeonDotprod: is_aarch64_feature_detected "dotprod" "neon"
}

token! {
    /// Proves that the CPU has int8 and bfloat16 dot products, and small matrix products for both (from Armv8.6 on:
    /// Neoverse V1 and N2, Apple M2).
    NeonBf16: is_aarch64_feature_detected "bf16" "i8mm" "dotprod" "neon"
}

impl NeonDotprod {
    /// Returns the instruction set without these dot products.
    #[inline(always)]
    pub fn neon(self) -> Neon {
        Neon { found: () }
    }
}

impl NeonBf16 {
    /// Returns the instruction set with int8 dot products only.
    #[inline(always)]
    pub fn dotprod(self) -> NeonDotprod {
        NeonDotprod { found: () }
    }

    /// Returns the instruction set without these products.
    #[inline(always)]
    pub fn neon(self) -> Neon {
        Neon { found: () }
    }
}

impl Level for Neon {}

impl Vectors<f32> for Neon {
    type Vector = F32x8;
    const LANES: usize = 8;
    type Transposer = Self;
    // 32 registers: 24 sums, 4 for columns, up to 4 broadcasts of rows.
    const ROWS: usize = 6;

    instructions! {
        fn splat(x: f32) -> F32x8 { [vdupq_n_f32(x); 2] }
        fn add(a: F32x8, b: F32x8) -> F32x8 { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
        fn multiply(a: F32x8, b: F32x8) -> F32x8 { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
        fn multiply_add(a: F32x8, b: F32x8, c: F32x8) -> F32x8 { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
        unsafe fn load(from: *const f32) -> F32x8 { [vld1q_f32(from), vld1q_f32(from.add(4))] }
        unsafe fn store(vector: F32x8, to: *mut f32) {
            vst1q_f32(to, vector[0]);
            vst1q_f32(to.add(4), vector[1]);
        }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f32,
        stride: usize,
        mut each: impl FnMut(usize, F32x8),
    ) {
        // The four columns in rows i to i + 3.
        let square = |i: usize| {
            // SAFETY: the token proves NEON; the caller promises 4 elements in each of 8 rows.
            unsafe {
                let row = |i: usize| vld1q_f32(from.add(i * stride));
                let (row0, row1, row2, row3) = (row(i), row(i + 1), row(i + 2), row(i + 3));
                let even01 = vreinterpretq_f64_f32(vtrn1q_f32(row0, row1));
                let odd01 = vreinterpretq_f64_f32(vtrn2q_f32(row0, row1));
                let even23 = vreinterpretq_f64_f32(vtrn1q_f32(row2, row3));
                let odd23 = vreinterpretq_f64_f32(vtrn2q_f32(row2, row3));
                [
                    vreinterpretq_f32_f64(vtrn1q_f64(even01, even23)),
                    vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23)),
                    vreinterpretq_f32_f64(vtrn2q_f64(even01, even23)),
                    vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23)),
                ]
            }
        };
        let (low, high) = (square(0), square(4));
        for (j, column) in low.into_iter().zip(high).enumerate() {
            each(j, column.into());
        }
    }
}

impl Vectors<f64> for Neon {
    type Vector = F64x4;
    const LANES: usize = 4;
    type Transposer = Self;
    const ROWS: usize = 6;

    instructions! {
        fn splat(x: f64) -> F64x4 { [vdupq_n_f64(x); 2] }
        fn add(a: F64x4, b: F64x4) -> F64x4 { [vaddq_f64(a[0], b[0]), vaddq_f64(a[1], b[1])] }
        fn multiply(a: F64x4, b: F64x4) -> F64x4 { [vmulq_f64(a[0], b[0]), vmulq_f64(a[1], b[1])] }
        fn multiply_add(a: F64x4, b: F64x4, c: F64x4) -> F64x4 { [vfmaq_f64(c[0], a[0], b[0]), vfmaq_f64(c[1], a[1], b[1])] }
        unsafe fn load(from: *const f64) -> F64x4 { [vld1q_f64(from), vld1q_f64(from.add(2))] }
        unsafe fn store(vector: F64x4, to: *mut f64) {
            vst1q_f64(to, vector[0]);
            vst1q_f64(to.add(2), vector[1]);
        }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f64,
        stride: usize,
        mut each: impl FnMut(usize, F64x4),
    ) {
        // SAFETY: the token proves NEON; the caller promises 2 elements in each of 4 rows.
        let rows = [0, 1, 2, 3].map(|i| unsafe { vld1q_f64(from.add(i * stride)) });
        // SAFETY: the token proves NEON.
        each(0, unsafe {
            [vtrn1q_f64(rows[0], rows[1]), vtrn1q_f64(rows[2], rows[3])]
        });
        // SAFETY: the token proves NEON.
        each(1, unsafe {
            [vtrn2q_f64(rows[0], rows[1]), vtrn2q_f64(rows[2], rows[3])]
        });
    }
}

impl Widening for Neon {
    instructions! {
        unsafe fn load_single(from: *const f32) -> F64x4 {
            let single = vld1q_f32(from);
            [
                vcvt_f64_f32(vget_low_f32(single)),
                vcvt_high_f64_f32(single),
            ]
        }
        unsafe fn store_single(vector: F64x4, to: *mut f32) {
            let low = vcvt_f32_f64(vector[0]);
            vst1q_f32(to, vcvt_high_f32_f64(low, vector[1]));
        }
    }
}

impl Lookup for Neon {
    /// The values' bytes, because NEON has byte lookups only.
    type Table<'a> = uint8x16x4_t;

    instructions! {
        fn table(numbers: &[f32; TABLE_LEN]) -> uint8x16x4_t { vld1q_u8_x4(numbers.as_ptr().cast()) }
        fn look_up(table: uint8x16x4_t, places: F32x8) -> F32x8 {
            places.map(|places| {
                let place = vandq_u32(vreinterpretq_u32_f32(places), vdupq_n_u32(15));
                // The indices for a value's four bytes.
                let first = vmulq_u32(place, vdupq_n_u32(0x0404_0404));
                let bytes = vorrq_u32(first, vdupq_n_u32(0x0302_0100));
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            })
        }
        fn absolute(x: F32x8) -> F32x8 { [vabsq_f32(x[0]), vabsq_f32(x[1])] }
        fn with_sign_of(a: F32x8, b: F32x8) -> F32x8 {
            let turned = |a, b| {
                let sign = vandq_u32(vreinterpretq_u32_f32(b), vdupq_n_u32(1 << 31));
                vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign))
            };
            [turned(a[0], b[0]), turned(a[1], b[1])]
        }
        fn least(a: F32x8, b: F32x8) -> F32x8 {
            // The minimum instructions return NaN if either operand is NaN.
            let least = |a, b| vbslq_f32(vcltq_f32(a, b), a, b);
            [least(a[0], b[0]), least(a[1], b[1])]
        }
    }
}

impl Words for Neon {
    type Words = U32x8;
    /// All lower halves in one register, and all upper halves in another: a product's two values are in the same
    /// lane.
    type Pairs = I16x16;
    // 32 registers: 20 sums, 8 for widened columns, 2 to 4 broadcasts of a row.
    const WIDENED_ROWS: usize = 5;

    instructions! {
        fn splat_word(word: u32) -> U32x8 { [vdupq_n_u32(word); 2] }
        fn low_halves(words: U32x8) -> F32x8 { words.map(|words| vreinterpretq_f32_u32(vshlq_n_u32::<16>(words))) }
        fn low_f16(words: U32x8) -> F32x8 {
            let [first, last] = words.map(|words| vreinterpretq_u16_u32(words));
            widened(vuzp1q_u16(first, last))
        }
        fn high_halves(words: U32x8) -> F32x8 {
            words.map(|words| {
                vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff_0000)))
            })
        }
        fn splat_pair(word: u32) -> I16x16 {
            let pair = vreinterpret_s16_u32(vdup_n_u32(word));
            [vdupq_lane_s16::<0>(pair), vdupq_lane_s16::<1>(pair)]
        }
        fn even_bytes(words: U32x8) -> I16x16 { apart(words.map(|words| vandq_u32(words, vdupq_n_u32(0x00ff_00ff)))) }
        fn odd_bytes(words: U32x8) -> I16x16 {
            let shifted = words.map(|words| {
                vreinterpretq_u32_u16(vshrq_n_u16::<8>(vreinterpretq_u16_u32(words)))
            });
            apart(shifted)
        }
        fn add_products_of_pairs(sum: U32x8, a: I16x16, b: I16x16) -> U32x8 {
            let [mut first, mut last] = sum.map(|sum| vreinterpretq_s32_u32(sum));
            for (a, b) in a.into_iter().zip(b) {
                first = vmlal_s16(first, vget_low_s16(a), vget_low_s16(b));
                last = vmlal_high_s16(last, a, b);
            }
            [vreinterpretq_u32_s32(first), vreinterpretq_u32_s32(last)]
        }
        fn halves_of_bytes(words: U32x8) -> [U32x8; 2] {
            let bytes = words.map(|words| vreinterpretq_u8_u32(words));
            [
                bytes.map(|bytes| vreinterpretq_u32_u8(vandq_u8(bytes, vdupq_n_u8(0x0f)))),
                bytes.map(|bytes| vreinterpretq_u32_u8(vshrq_n_u8::<4>(bytes))),
            ]
        }
        fn look_up_bytes(words: U32x8, table: &[u8; TABLE_LEN]) -> U32x8 {
            let table = vld1q_u8(table.as_ptr());
            words.map(|words| vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(words))))
        }
        fn add_products_of_bytes(sum: U32x8, a: [U32x8; 2], b: [U32x8; 2]) -> U32x8 {
            let signed = |words: U32x8, i: usize| vreinterpretq_s8_u32(words[i]);
            std::array::from_fn(|i| {
                let (a, b) = ([signed(a[0], i), signed(a[1], i)], [signed(b[0], i), signed(b[1], i)]);
                let first = vmull_s8(vget_low_s8(a[0]), vget_low_s8(b[0]));
                let first = vmlal_s8(first, vget_low_s8(a[1]), vget_low_s8(b[1]));
                let last = vmlal_high_s8(vmull_high_s8(a[0], b[0]), a[1], b[1]);
                // A word's two halves are sums of four products each.
                let sum = vpadalq_s16(vreinterpretq_s32_u32(sum[i]), vpaddq_s16(first, last));
                vreinterpretq_u32_s32(sum)
            })
        }
        fn integers(words: U32x8) -> F32x8 { words.map(|words| vcvtq_f32_s32(vreinterpretq_s32_u32(words))) }
        fn add_words(a: U32x8, b: U32x8) -> U32x8 { [vaddq_u32(a[0], b[0]), vaddq_u32(a[1], b[1])] }
        fn and_words(a: U32x8, b: U32x8) -> U32x8 { [vandq_u32(a[0], b[0]), vandq_u32(a[1], b[1])] }
        fn xor_words(a: U32x8, b: U32x8) -> U32x8 { [veorq_u32(a[0], b[0]), veorq_u32(a[1], b[1])] }
        fn rotate_words(words: U32x8, by: u32) -> U32x8 {
            // A negative shift is a right shift.
            let (up, down) = (vdupq_n_s32(by as i32), vdupq_n_s32(by as i32 - 32));
            words.map(|words| vorrq_u32(vshlq_u32(words, up), vshlq_u32(words, down)))
        }
        unsafe fn load_words(from: *const u32) -> U32x8 { [vld1q_u32(from), vld1q_u32(from.add(4))] }
        unsafe fn store_words(words: U32x8, to: *mut u32) {
            vst1q_u32(to, words[0]);
            vst1q_u32(to.add(4), words[1]);
        }
        unsafe fn load_half(from: *const f16) -> F32x8 { widened(vld1q_u16(from.cast())) }
    }
}

/// Returns all words' lower halves, and their upper halves.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn apart(words: U32x8) -> I16x16 {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, last] = words.map(|words| vreinterpretq_s16_u32(words));
        [vuzp1q_s16(first, last), vuzp2q_s16(first, last)]
    }
}

/// Converts eight f16 values to f32. Rust 1.89 has no intrinsic for the instruction, which all 64-bit Arm CPUs have.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn widened(halves: uint16x8_t) -> F32x8 {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: the caller's promise; the instructions access no memory.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}
