//! Codes of 4, 5, 6 or 8 bits, each times the scale of its part and with an offset: the form of int4 and of quantised files.
//! Or codes of E2M1, numbers of 4 bits, of which the double and 12 more is such a code.
//!
//! **What is stored.** In each part of a column, of 16 to 128 terms, codes `q`, a scale `s` and an offset `o`, of which a weight
//! is `q·s + o`. [`Heads`](super::heads::Heads) has the ways in which files store scales and offsets; that of int4 is a scale and a minimum
//! in f16, which [`codes`] searches. In each part of a row, quantized when the row is packed, the integers
//! `round(a / t)` with the scale `t = max|a| / 127`. Parts whose largest magnitude is below `2⁻¹⁰⁰` count as zeros. A chunk of
//! 256 terms is 2 to 16 parts, whose heads lie before its codes.
//!
//! **How exact.** Weights of a file are exactly its own. Of int4, a weight of normally distributed ones errs by 7.3 % of their
//! deviation in groups of 32, by 8.4 % in those of 64, and by 9.3 % in those of 128. A row's number errs by about 0.5 %.
//!
//! **What is computed.** `Σ a·w = t · (s·Σ n·q + o·Σ n)` for the integers `n` of the row. Both sums are below `2²³`, and so exact
//! in f32, whatever the instructions; `t·Σ n` is in the packed row. The first is multiplied by `t`, then by `s`; the
//! second's product with `o` is added to it, and the sum to the f32 total of the preceding parts, each with one rounding. So
//! the bits are the same at every level. A part with a NaN or an infinity has the scale NaN.
//!
//! **How.** Codes of 4 bits lie two in a byte, the first four of eight in the lower halves; of longer ones, the upper bits lie in a
//! word of their own behind some of these. A load and a broadcast serve all columns of a vector. Codes are widened to bytes in
//! registers, once for all rows of a tile, and multiplied by signed bytes (`vpdpbusd`, `sdot`; without these `vpmaddubsw`,
//! whose pairs of products, at most 4 · 63 · 127 together, do not saturate; those of 8 bits by widened terms of 16).
//!
//! ```text
//! column's chunk, 4 bits:  head words  word: codes 0 and 4, 1 and 5, 2 and 6, 3 and 7  ..
//! 6 bits:                  head words  two such words  word: upper two bits of 16 codes  ..
//! 5 bits:                  head words  four such words  word: upper bit of 32 codes  ..
//! 8 bits:                  head words  word: 4 codes  ..
//! row:                     f32 scale  f32 scale · Σ n, for each part     words: 4 bytes n, 4 bytes n  ..
//! row, widened:            the same                words: i16 terms 0, 2  i16 terms 1, 3  ..
//! ```

use super::codes;
use super::heads::{CHUNK, ColumnHeads, GroupHeads};
use crate::products::{Format, parts};

/// Codes of so many bits; whole numbers, or numbers of E2M1. How many terms a part has is known at run time: one body for all
/// lengths is as fast as one for each, and the crate compiles in three quarters of the time.
#[derive(Clone, Copy, Debug)]
pub struct Coded<const BITS: usize, const E2M1: bool = false>;

/// The double of each number of E2M1, and [`E2M1_ZERO`](super::heads::E2M1_ZERO) more.
/// <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>
pub(in crate::products) const DOUBLES: [u8; 16] =
    [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The most terms of a part.
pub(super) const MAX_PART: usize = 128;

// A row's integers have |n| <= 127, a column's codes q <= 255.
const _: () = assert!(MAX_PART * 127 * 255 < 1 << 23);

/// Terms of a word, or of the words that have their bits together.
pub(super) const fn group(bits: usize) -> usize {
    match bits {
        8 => 4,
        4 => 8,
        6 => 16,
        _ => 32,
    }
}

/// The fewest terms of a part of codes of so many bits.
pub(super) const fn least_part(bits: usize) -> usize {
    match bits {
        6 => 16,
        _ => 32,
    }
}

/// Whether a part can have so many terms.
pub(super) const fn is_part(bits: usize, e2m1: bool, part: usize) -> bool {
    match (bits, e2m1) {
        (4, false) => matches!(part, 32 | 64 | 128),
        (8, _) => matches!(part, 32 | 128),
        _ => part == least_part(bits),
    }
}

/// The most words with four codes each that a group is widened to.
pub(super) const MAX_QUADS: usize = 8;

impl<const BITS: usize, const E2M1: bool> Format for Coded<BITS, E2M1> {
    type Number = f32;
    type Word = u32;
    type Layout = GroupHeads;
    const GROUP: usize = group(BITS);
    const GROUP_WORDS: usize = match BITS {
        6 => 3,
        5 => 5,
        _ => 1,
    };
    const CHUNK: usize = CHUNK;
    const MOST_PARTS: usize = parts(CHUNK, least_part(BITS));
    // Over a page's end, at which the hardware stops. Of 2 to 6 KB the best or within 3 % of it, in every width of codes, and up to
    // 1.45 times as fast as without (two threads of Zen 5, 200 MB of weights).
    const AHEAD: usize = 4 << 10;
    // The search is for codes of int4.
    const OF_NUMBERS: bool = BITS == 4 && !E2M1;

    #[inline(always)]
    fn part(heads: GroupHeads) -> usize {
        match (BITS, E2M1) {
            (4, false) | (8, _) => heads.part,
            // The only one that there is.
            _ => least_part(BITS),
        }
    }

    #[inline(always)]
    fn head_words(heads: GroupHeads, terms: usize) -> usize {
        heads.words(parts(terms, heads.part))
    }

    #[inline(always)]
    fn pack_column(heads: GroupHeads, terms: &[f32], words: &mut [u32]) {
        let (mut all, mut scales, mut minima) = (Vec::new(), Vec::new(), Vec::new());
        for terms in terms.chunks(heads.part) {
            let part = match heads.part {
                32 => codes::quantize::<32>(terms),
                64 => codes::quantize::<64>(terms),
                _ => codes::quantize::<MAX_PART>(terms),
            };
            all.extend_from_slice(&part.codes[..terms.len()]);
            scales.push(part.scale.to_f32());
            minima.push(part.minimum.to_f32());
        }
        let column = ColumnHeads {
            scales: &scales,
            offsets: &minima,
            shared: &[],
        };
        Self::pack_codes(heads, &all, &column, words);
    }

    fn unpack_column(heads: GroupHeads, words: &[u32], terms: &mut [f32]) {
        let n_words = Self::chunk_words(heads, CHUNK);
        for (words, terms) in words.chunks(n_words).zip(terms.chunks_mut(CHUNK)) {
            let (head, words) = words.split_at(Self::head_words(heads, terms.len()));
            let groups = words.chunks_exact(Self::GROUP_WORDS);
            for (group, (words, terms)) in groups.zip(terms.chunks_mut(Self::GROUP)).enumerate() {
                let [scale, offset] = heads.unpack(head, group * Self::GROUP / heads.part);
                for (i, term) in terms.iter_mut().enumerate() {
                    let code = code::<BITS>(words, i);
                    let whole = if E2M1 {
                        DOUBLES[usize::from(code)]
                    } else {
                        code
                    };
                    *term = f32::from(whole) * scale + offset;
                }
            }
        }
    }
}

impl<const BITS: usize, const E2M1: bool> Coded<BITS, E2M1> {
    /// The same heads, which such columns can have: what reads others is not compiled.
    ///
    /// # Panics
    /// If they cannot.
    #[inline(always)]
    pub fn known(heads: GroupHeads) -> GroupHeads {
        assert!(heads.heads.are_of(BITS, E2M1));
        heads
    }

    /// Packs a column's codes and heads into its [words](Format::column_words).
    pub fn pack_codes(heads: GroupHeads, codes: &[u8], column: &ColumnHeads, words: &mut [u32]) {
        let heads = Self::known(heads);
        let n_words = Self::chunk_words(heads, CHUNK);
        // A depth of zero still has one chunk, which is its head.
        for (chunk, words) in words.chunks_mut(n_words).enumerate() {
            let codes = &codes[chunk * CHUNK..codes.len().min((chunk + 1) * CHUNK)];
            let (head, words) = words.split_at_mut(Self::head_words(heads, codes.len()));
            heads
                .heads
                .pack(column, chunk, heads.part * heads.parts, head);
            let groups = words.chunks_exact_mut(Self::GROUP_WORDS);
            for (words, codes) in groups.zip(codes.chunks(Self::GROUP)) {
                let mut group = [0; 4 * MAX_QUADS];
                group[..codes.len()].copy_from_slice(codes);
                pack_group::<BITS>(&group, words);
            }
        }
    }
}

/// Packs the codes of a group; [`code`] is the opposite.
#[inline(always)]
fn pack_group<const BITS: usize>(codes: &[u8; 4 * MAX_QUADS], words: &mut [u32]) {
    if BITS == 8 {
        words[0] = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]);
        return;
    }
    let n_low = group(BITS) / 8;
    for (word, eight) in words[..n_low].iter_mut().zip(codes.as_chunks::<8>().0) {
        *word = u32::from_le_bytes(std::array::from_fn(|i| eight[i] & 15 | eight[i + 4] << 4));
    }
    if BITS > 4 {
        let upper = |byte: usize| {
            let quads = (0..group(BITS) / 4)
                .map(|quad| u32::from(codes[4 * quad + byte] >> 4) << ((BITS - 4) * quad));
            quads.fold(0, |all, bits| all | bits) as u8
        };
        words[n_low] = u32::from_le_bytes(std::array::from_fn(upper));
    }
}

/// Code number `i` of a group's words.
fn code<const BITS: usize>(words: &[u32], i: usize) -> u8 {
    if BITS == 8 {
        return words[0].to_le_bytes()[i];
    }
    let low = words[i / 8].to_le_bytes()[i % 4] >> (i % 8 / 4 * 4) & 15;
    if BITS == 4 {
        return low;
    }
    let upper = words[group(BITS) / 8].to_le_bytes()[i % 4] >> ((BITS - 4) * (i / 4));
    low | (upper & ((1 << (BITS - 4)) - 1)) << 4
}

/// A weight's columns in codes, as [`Coded::pack_codes`] takes them.
pub trait OfCodes: Format<Number = f32, Word = u32, Layout = GroupHeads> {
    /// The largest code.
    const LARGEST: u8;

    /// Packs a column.
    fn pack_coded(heads: GroupHeads, codes: &[u8], column: &ColumnHeads, words: &mut [u32]);
}

impl<const BITS: usize, const E2M1: bool> OfCodes for Coded<BITS, E2M1> {
    const LARGEST: u8 = (u8::MAX as usize >> (8 - BITS)) as u8;

    fn pack_coded(heads: GroupHeads, codes: &[u8], column: &ColumnHeads, words: &mut [u32]) {
        Self::pack_codes(heads, codes, column, words);
    }
}
