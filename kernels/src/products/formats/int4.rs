//! int4: half the memory of int8. Codes of 4 bits, with a scale and a minimum for each group of 32, 64 or 128 terms.
//!
//! **What is stored.** In each group of a column, codes `q` of 0 to 15, a scale `s` and a minimum `m`, of which a weight is
//! `q·s + m`; [`codes`] searches these. In each group of a row, quantized when the row is packed, the integers
//! `round(a / t)` with the scale `t = max|a| / 127`. Groups whose largest magnitude is below `2⁻¹⁰⁰` count as zeros. A chunk is
//! a group: 4 + 32 / group bits for a weight.
//!
//! **Scale and minimum are f16**, which loses nothing of what a group of GGUF's Q4_0 (minimum `-8·s`) or Q4_1 has. A group of
//! GPTQ or AWQ has a whole zero point `z` of up to 5 bits instead, and `-z·s` may have more digits than f16: its head would hold
//! `z`, of which `-(z·s)` is exact in f32. What neither can hold, such as a scale in f32, would take a head of two words.
//! [`Heads`] is the one place that would know.
//!
//! **How exact.** A weight of normally distributed ones errs by 7.3 % of their deviation in groups of 32, by 8.4 % in those of
//! 64, and by 9.3 % in those of 128; a row's number by about 0.5 %.
//!
//! **What is computed.** `Σ a·w = t · (s·Σ n·q + m·Σ n)` for the integers `n` of the row. Both sums are below `2²³`, and so exact
//! in f32, whatever the instructions; `t·Σ n` is in the packed row. The first is multiplied by `t`, then by `s`; the
//! second's product with `m` is added to it, and the sum to the f32 total of the preceding groups, each with one rounding. So
//! the bits are the same at every level. A group with a NaN or an infinity has the scale NaN.
//!
//! **How.** A word has eight consecutive codes, the first four in the lower halves of its bytes: a load and a broadcast of eight
//! terms of the row serve all columns of a vector. Codes are widened to bytes in registers, once for all rows of a tile, and
//! multiplied by signed bytes (`vpdpbusd`, `sdot`; without these `vpmaddubsw`, whose pairs of products, at most 4 · 15 · 127
//! together, do not saturate).
//!
//! ```text
//! column's group:   head (f16 scale | f16 minimum)  word: codes 0 and 4, 1 and 5, 2 and 6, 3 and 7  ..
//! row:              f32 scale  f32 scale · Σ n      words: 4 bytes n, 4 bytes n                     ..
//! ```
//!
//! In a panel, the scales of a vector's columns lie before their minima, as the instructions that widen a whole vector read
//! them.

use half::f16;

use super::{codes, f16::HalvesApart, int8::Quantizer};
use crate::products::{CHUNK, Dots, Format, dots};
use crate::vectors::{Level, Vectors, Words};

/// Weights of 4 bits in groups of so many terms.
#[derive(Clone, Copy, Debug)]
pub struct Int4<const GROUP: usize>;

// A row's integers have |n| <= 127, a column's codes q <= 15.
const _: () = assert!(CHUNK * 127 * 15 < 1 << 23);

/// Terms in a word.
const TERMS: usize = 8;

impl<const GROUP: usize> Format for Int4<GROUP> {
    type Number = f32;
    type Word = u32;
    const GROUP: usize = TERMS;
    const CHUNK: usize = GROUP;
    const HEAD: usize = 1;
    // A page, at whose end the hardware stops. A step of a Llama of 134 million weights takes 0.92 of the time without, in groups
    // of 32 and 64, and 0.97 in those of 128 (one thread of Zen 5).
    const AHEAD: usize = 4 << 10;

    #[inline(always)]
    fn pack_column(terms: &[f32], words: &mut [u32]) {
        // A depth of zero still has one chunk, which is its head.
        for (chunk, words) in words.chunks_mut(Self::CHUNK_WORDS).enumerate() {
            let (from, to) = (chunk * GROUP, (chunk + 1) * GROUP);
            let group = codes::quantize::<GROUP>(&terms[from..to.min(terms.len())]);
            let [head, words @ ..] = words else {
                panic!("a chunk without a head");
            };
            let [scale, minimum] = [group.scale, group.minimum].map(|x| u32::from(x.to_bits()));
            *head = scale | minimum << 16;
            let (eights, _) = group.codes.as_chunks::<TERMS>();
            for (word, eight) in words.iter_mut().zip(eights) {
                *word = u32::from_le_bytes(std::array::from_fn(|i| eight[i] | eight[i + 4] << 4));
            }
        }
    }

    fn unpack_column(words: &[u32], terms: &mut [f32]) {
        let chunks = words.chunks(Self::CHUNK_WORDS);
        for (words, terms) in chunks.zip(terms.chunks_mut(GROUP)) {
            let [scale, minimum] =
                [words[0], words[0] >> 16].map(|half| f16::from_bits(half as u16).to_f32());
            for (i, term) in terms.iter_mut().enumerate() {
                let byte = words[1 + i / TERMS].to_le_bytes()[i % 4];
                let code = byte >> (i % TERMS / 4 * 4) & 15;
                *term = f32::from(code) * scale + minimum;
            }
        }
    }
}

/// Words before the terms of a packed row: scale, and its product with the sum of the integers.
const ROW_HEAD: usize = 2;

/// Words of a packed row.
pub const fn row_words(group: usize) -> usize {
    ROW_HEAD + group / 4
}

/// Packs a row, at most a chunk of terms.
#[inline(always)]
pub fn pack_row(row: &[f32], words: &mut [u32]) {
    let mut terms = [0i8; CHUNK];
    // Compared without their signs, the bits of floats are in the floats' order; NaN lies beyond infinity.
    let largest = row.iter().fold(0, |largest, x| {
        let magnitude = x.to_bits() & !(1 << 31);
        if magnitude > largest {
            magnitude
        } else {
            largest
        }
    });
    let largest = f32::from_bits(largest);
    let scale = Quantizer::new(largest, largest / 127.0);
    let mut sum = 0i32;
    for (term, &x) in terms.iter_mut().zip(row) {
        *term = scale.quantize(x) as i8;
        sum += i32::from(*term);
    }
    words[0] = scale.step.to_bits();
    words[1] = (scale.step * sum as f32).to_bits();
    let quads = bytemuck::cast::<_, [u32; CHUNK / 4]>(terms);
    let words = &mut words[ROW_HEAD..];
    let n_words = words.len().min(quads.len());
    words[..n_words].copy_from_slice(&quads[..n_words]);
}

/// The two words of a packed row that hold a group of its terms.
///
/// # Safety
/// `row` points to a packed row that has this group.
#[inline(always)]
pub unsafe fn left<W: Words>(v: W, row: *const u32, group: usize) -> [W::Words; 2] {
    // SAFETY: the caller's promise.
    let quads = unsafe { *row.add(ROW_HEAD + 2 * group).cast::<[u32; 2]>() };
    quads.map(|quad| v.splat_word(quad))
}

/// Scales and minima of a vector of columns.
struct Heads<V> {
    scales: V,
    minima: V,
}

/// The heads of a vector of columns.
///
/// # Safety
/// `heads` points to a vector of arranged head words.
#[inline(always)]
unsafe fn read_heads<V: Words>(v: V, heads: *const u32) -> Heads<V::Vector> {
    let halves = heads.cast::<f16>();
    // SAFETY: the caller's promise: there are two halves for each lane.
    unsafe {
        Heads {
            scales: v.load_half(halves),
            minima: v.load_half(halves.add(<V as Vectors<f32>>::LANES)),
        }
    }
}

/// The number that the integer sums of a chunk stand for.
///
/// # Safety
/// `row` points to a packed row, and `heads` to the arranged head words of a vector of columns.
#[inline(always)]
pub unsafe fn numbers<V: Words>(
    v: V,
    sum: V::Words,
    row: *const u32,
    heads: *const u32,
) -> V::Vector {
    // SAFETY: the caller's promise.
    let ([step, row_sum], heads) = unsafe { (*row.cast::<[f32; 2]>(), read_heads(v, heads)) };
    let in_steps = v.multiply(v.integers(sum), v.splat(step));
    let of_codes = v.multiply(in_steps, heads.scales);
    v.add(of_codes, v.multiply(v.splat(row_sum), heads.minima))
}

/// The dot products of a level, by how many rows a tile has and what adds the products of widened codes.
macro_rules! dots_of_codes {
    (
        impl[$($generics:tt)*] for $level:ty;
        ($self:ident) -> $V:ty { $vectors:expr }
        rows $rows:expr;
        dot($left:ident, $right:ident, $sum:ident) $dot:block
    ) => {
        impl<$($generics)* const GROUP: usize> Dots<Int4<GROUP>> for $level {
            type Vectors = $V;
            type Left = [<$V as Words>::Words; 2];
            type Right = [<$V as Words>::Words; 2];
            type Sum = <$V as Words>::Words;
            const ROWS: usize = $rows;
            const ROW_WORDS: usize = $crate::products::formats::int4::row_words(GROUP);

            #[inline(always)]
            fn pack_row(self, row: &[f32], words: &mut [u32]) {
                $crate::products::formats::int4::pack_row(row, words);
            }

            #[inline(always)]
            fn arrange(self, word: usize, vector: &mut [u32]) {
                if word % <Int4<GROUP> as Format>::CHUNK_WORDS == 0 {
                    HalvesApart::arrange(vector);
                }
            }

            #[inline(always)]
            fn arranged(word: usize, vector: &[u32], lane: usize) -> u32 {
                match word % <Int4<GROUP> as Format>::CHUNK_WORDS {
                    0 => HalvesApart::arranged(vector, lane),
                    _ => vector[lane],
                }
            }

            dots! {
                fn vectors($self) -> $V { $vectors }
                fn dot($self, $left: Self::Left, $right: Self::Right, $sum: Self::Sum) -> Self::Sum $dot
                // A group is two words.
                unsafe fn left($self, row: *const u32, group: usize) -> Self::Left {
                    $crate::products::formats::int4::left($vectors, row, group)
                }
                unsafe fn right($self, from: *const u32) -> Self::Right {
                    let codes = $vectors.load_words(from);
                    $vectors.halves_of_bytes(codes)
                }
                unsafe fn start($self, _: *const u32, _: *const u32) -> Self::Sum { $vectors.splat_word(0) }
                unsafe fn numbers(
                    $self,
                    sum: Self::Sum,
                    row: *const u32,
                    heads: *const u32
                ) -> <$V as Vectors<f32>>::Vector {
                    $crate::products::formats::int4::numbers($vectors, sum, row, heads)
                }
            }
        }
    };
}
pub(super) use dots_of_codes;

dots_of_codes! {
    impl[V: Level,] for V;
    (self) -> V { self }
    rows V::BYTE_ROWS;
    dot(left, right, sum) { self.add_products_of_bytes(sum, right, left) }
}
