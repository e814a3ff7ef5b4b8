//! Plain Rust: the fallback, the version to read first, and the version that Miri runs.

use std::array::from_fn;

use half::f16;

use super::{
    Element, Instructions, Level, Lookup, Real, TABLE_LEN, Task, Vectors, Widening, Words,
    columns_at_once, level::instructions,
};

/// The token for the portable instruction set, which every CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// 128 bits in f32, the narrowest vector unit in common use.
const LANES: usize = 4;

type F32x4 = [f32; LANES];
type F64x4 = [f64; LANES];
type U32x4 = [u32; LANES];

impl Instructions for Portable {
    // A call, as for other instruction sets: code that does not depend on a format is then compiled once for all
    // formats.
    fn enter<O>(self, task: impl Task<Self, O>) -> O {
        task.compute(self)
    }
}

impl Level for Portable {
    const HAS_FUSED: bool = false;
}

impl<T: Real> Vectors<T> for Portable {
    type Vector = [T; LANES];
    const LANES: usize = LANES;
    type Transposer = Self;
    const ROWS: usize = 4;

    instructions! {
        fn splat(x: T) -> Self::Vector { [x; LANES] }
        fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector { from_fn(|i| a[i] + b[i]) }
        fn multiply(a: Self::Vector, b: Self::Vector) -> Self::Vector { from_fn(|i| a[i] * b[i]) }
        // Two roundings: without an FMA instruction, a fused one would be a library call.
        fn multiply_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector { from_fn(|i| a[i] * b[i] + c[i]) }
        unsafe fn load(from: *const T) -> Self::Vector { *from.cast() }
        unsafe fn store(vector: Self::Vector, to: *mut T) { *to.cast() = vector }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const T,
        stride: usize,
        mut each: impl FnMut(usize, Self::Vector),
    ) {
        for j in 0..columns_at_once::<T>() {
            // SAFETY: the caller promises `columns_at_once` elements in each of LANES rows.
            each(j, from_fn(|i| unsafe { *from.add(i * stride + j) }));
        }
    }
}

impl Widening for Portable {
    instructions! {
        unsafe fn load_single(from: *const f32) -> F64x4 { (*from.cast::<F32x4>()).map(f64::from) }
        unsafe fn store_single(vector: F64x4, to: *mut f32) { *to.cast() = vector.map(|x| x as f32) }
    }
}

impl Lookup for Portable {
    type Table<'a> = &'a [f32; TABLE_LEN];

    instructions! {
        fn table(numbers: &[f32; TABLE_LEN]) -> Self::Table<'_> { numbers }
        fn look_up(table: Self::Table<'_>, places: F32x4) -> F32x4 { places.map(|place| table[place.to_bits() as usize % TABLE_LEN]) }
        fn absolute(x: F32x4) -> F32x4 { x.map(f32::abs) }
        fn with_sign_of(a: F32x4, b: F32x4) -> F32x4 {
            let sign = |x: f32| x.to_bits() & 1 << 31;
            from_fn(|i| f32::from_bits(a[i].to_bits() ^ sign(b[i])))
        }
        fn least(a: F32x4, b: F32x4) -> F32x4 { from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] }) }
    }
}

impl Words for Portable {
    type Words = U32x4;
    type Pairs = U32x4;
    const WIDENED_ROWS: usize = 2;
    // With more rows, the compiler multiplies one value at a time.
    const BYTE_ROWS: usize = 1;

    instructions! {
        fn splat_word(word: u32) -> U32x4 { [word; LANES] }
        fn low_halves(words: U32x4) -> F32x4 { words.map(|word| f32::from_bits(word << 16)) }
        // By hand, because the array method was not inlined.
        fn low_f16(words: U32x4) -> F32x4 {
            let number = |i: usize| f16::from_bits(words[i] as u16).widen();
            [number(0), number(1), number(2), number(3)]
        }
        fn high_halves(words: U32x4) -> F32x4 { words.map(|word| f32::from_bits(word & 0xffff_0000)) }
        fn splat_pair(word: u32) -> U32x4 { [word; LANES] }
        fn even_bytes(words: U32x4) -> U32x4 { words.map(|word| word & 0x00ff_00ff) }
        fn odd_bytes(words: U32x4) -> U32x4 { words.map(|word| word >> 8 & 0x00ff_00ff) }
        fn halves_of_bytes(words: U32x4) -> [U32x4; 2] {
            [words.map(|word| word & 0x0f0f_0f0f), words.map(|word| word >> 4 & 0x0f0f_0f0f)]
        }
        fn look_up_bytes(words: U32x4, table: &[u8; TABLE_LEN]) -> U32x4 {
            words.map(|word| u32::from_le_bytes(word.to_le_bytes().map(|byte| table[usize::from(byte & 15)])))
        }
        fn add_products_of_bytes(sum: U32x4, a: [U32x4; 2], b: [U32x4; 2]) -> U32x4 {
            let bytes = |a: u32, b: u32| {
                let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                products.map(|(a, b)| i32::from(a) * i32::from(b as i8)).sum::<i32>()
            };
            from_fn(|i| sum[i].wrapping_add((bytes(a[0][i], b[0][i]) + bytes(a[1][i], b[1][i])) as u32))
        }
        fn integers(words: U32x4) -> F32x4 { words.map(|word| word as i32 as f32) }
        fn add_products_of_pairs(sum: U32x4, a: U32x4, b: U32x4) -> U32x4 {
            let low = |word: u32| i32::from(word as i16);
            let high = |word: u32| i32::from((word >> 16) as i16);
            from_fn(|i| {
                let products = low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]);
                sum[i].wrapping_add(products as u32)
            })
        }
        fn add_words(a: U32x4, b: U32x4) -> U32x4 { from_fn(|i| a[i].wrapping_add(b[i])) }
        fn and_words(a: U32x4, b: U32x4) -> U32x4 { from_fn(|i| a[i] & b[i]) }
        fn xor_words(a: U32x4, b: U32x4) -> U32x4 { from_fn(|i| a[i] ^ b[i]) }
        fn rotate_words(words: U32x4, by: u32) -> U32x4 { words.map(|word| word.rotate_left(by)) }
        unsafe fn load_words(from: *const u32) -> U32x4 { *from.cast() }
        unsafe fn store_words(words: U32x4, to: *mut u32) { *to.cast() = words; }
        unsafe fn load_half(from: *const f16) -> F32x4 { (*from.cast::<[f16; LANES]>()).map(f16::widen) }
    }
}
