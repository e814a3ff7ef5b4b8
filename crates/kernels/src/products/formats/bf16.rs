//! bfloat16: half of f32's memory, and twice its products per instruction on CPUs with bfloat16 instructions.
//!
//! A word holds two values, the first in its lower half. Their products are exact in f32. The second product is
//! added to the sum before the first, each with one rounding, like `vdpbf16ps` does. Without this instruction,
//! operands are widened in registers and multiplied in the same order. The bits are the same on both, except for
//! subnormal values, which `vdpbf16ps` treats as zeros. Arm's `bfdot` rounds differently (see `neon_dots.rs`), and
//! tile registers add in another order (see [`tiles`](crate::products::tiles)).

use bytemuck::cast_slice;
use half::bf16;

use crate::products::{Dots, Format, WIDTH, dots, tile};
use crate::vectors::{Level, Vectors};

/// A row's chunk has as many bytes as an f32 chunk.
const CHUNK: usize = 2 * tile::CHUNK;

impl Format for bf16 {
    type Element = f32;
    type Word = u32;
    type Layout = ();
    const GROUP: usize = 2;
    const CHUNK: usize = CHUNK;
    const PAIRED_ROWS: usize = 6;
    const BY_ROWS: bool = true;

    #[inline(always)]
    fn pack_column((): (), terms: &[f32], words: &mut [u32]) {
        pack_pairs(terms, words);
    }

    fn unpack_column((): (), words: &[u32], terms: &mut [f32]) {
        let halves: &[bf16] = cast_slice(words);
        for (term, half) in terms.iter_mut().zip(halves) {
            *term = half.to_f32();
        }
    }

    #[inline(always)]
    fn pack_word_row([first, second]: [&[f32]; 2], words: &mut [u32]) {
        let terms = first.iter().zip(second);
        for (word, (&first, &second)) in words.iter_mut().zip(terms) {
            *word = u32::from(round(first)) | u32::from(round(second)) << 16;
        }
    }
}

/// Packs consecutive values in pairs, each rounded to nearest, ties to even. An odd last value is paired with zero.
#[inline(always)]
pub fn pack_pairs(terms: &[f32], words: &mut [u32]) {
    let (pairs, last) = terms.as_chunks::<2>();
    for (word, [first, second]) in words.iter_mut().zip(pairs) {
        *word = u32::from(round(*first)) | u32::from(round(*second)) << 16;
    }
    if let [last] = last {
        words[pairs.len()] = round(*last).into();
    }
}

/// Words in a row packed by [`pack_pairs`] for a bfloat16 instruction.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const PAIR_ROW_WORDS: usize = CHUNK / 2;

/// Returns the nearest bfloat16's bits, ties to even, like `bf16::from_f32` but without branches.
#[inline(always)]
pub fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40; // A NaN whose payload is in the lower bits only must not become infinity.
    (if x.is_nan() { quiet } else { nearest }) as u16
}

/// The instruction set's f32 vector.
type Single<V> = <V as Vectors<f32>>::Vector;

/// Dot products with f32 multiply-adds, for instruction sets without bfloat16. Rows are widened when they are packed
/// (one value in each word's upper half, which makes it an f32), columns in registers.
impl<V: Level> Dots<bf16> for V {
    type Vectors = V;
    type Left = [Single<V>; 2];
    type Right = [Single<V>; 2];
    type Sum = Single<V>;
    type Scales = ();
    const ROWS: usize = V::WIDENED_ROWS;
    const ROW_WORDS: usize = CHUNK;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        for (word, &x) in words.iter_mut().zip(row) {
            *word = u32::from(round(x)) << 16;
        }
        if !row.len().is_multiple_of(2) {
            words[row.len()] = 0;
        }
    }

    dots! {
        fn vectors(self) -> V { self }
        fn dot(self, left: [Single<V>; 2], right: [Single<V>; 2], sum: Single<V>) -> Single<V> {
            let sum = Vectors::<f32>::multiply_add(self, left[1], right[1], sum);
            Vectors::<f32>::multiply_add(self, left[0], right[0], sum)
        }
        // A group is two words.
        unsafe fn left(self, row: *const u32, group: usize) -> [Single<V>; 2] {
            let [first, second] = *row.add(2 * group).cast::<[f32; 2]>();
            [self.splat(first), self.splat(second)]
        }
        unsafe fn right(self, from: *const u32, _: usize) -> [Single<V>; 2] {
            let pairs = self.load_words(from);
            [self.low_halves(pairs), self.high_halves(pairs)]
        }
        unsafe fn start(self, _: *const u32, _: *const u32) -> Single<V> { Vectors::<f32>::splat(self, 0.0) }
        unsafe fn scales(self, _: (), _: [*const u32; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
        unsafe fn to_floats(self, sum: Single<V>, _: *const u32, _: usize, _: ()) -> Single<V> { sum }
    }
}
