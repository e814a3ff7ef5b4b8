//! Quantized weights in 2 to 6 or 8 bits with a scale and an offset for each group: int4, and weights from
//! quantized files. The values are integers, or 4-bit places in a [table](table) of integers: E2M1 floats, whose doubles
//! plus 12 are integers, and the values of GGUF's IQ4_NL and IQ4_XS.
//!
//! **Storage.** A column is divided into parts with 16 to 128 values along `k`. A part has integers `q`, a scale `s`
//! and an offset `o`. A weight is `q·s + o`. [`GroupScales`](super::group_scales::GroupScales) lists how scales and offsets are stored.
//! int4 uses a scale and a minimum in f16, which [`int4_search`] finds by search. A row is quantized when it is packed:
//! each part has the integers `round(a / t)` with the scale `t = max|a| / 127`. A part whose largest magnitude is
//! below `2⁻¹⁰⁰` becomes zero. A 256-value chunk has 2 to 16 parts, and its scale words precede its values.
//!
//! **Accuracy.** A file's weights are reproduced exactly. For int4, the relative RMS error for normally distributed
//! weights is 7.3 % with group size 32, 8.4 % with 64, and 9.3 % with 128. A row value's error is about 0.5 %.
//!
//! **Computation.** `Σ a·w = t · (s·Σ n·q + o·Σ n)` for the row's integers `n`. Both integer sums are below `2²³`,
//! and so exact in f32 on every instruction set. `t·Σ n` is stored in the packed row. The first sum is multiplied by
//! `t`, then by `s`. The second, times `o`, is added to it, and the result is added to the f32 total from preceding
//! parts. Each step rounds once, so that all instruction sets give the same bits. A part with a NaN or an infinity
//! has the scale NaN.
//!
//! **Implementation.** 4-bit values are stored in pairs, the first four out of eight in the lower half bytes. Longer
//! values have their upper bits in a separate word. One load and one broadcast serve all columns in a vector. Values
//! are widened to bytes in registers, once for all rows in a tile, and multiplied by signed bytes: with `vpdpbusd`
//! or `sdot`, or else with `vpmaddubsw`, whose product pairs, at most 4 · 63 · 127 together, do not saturate. Without
//! `vpdpbusd`, 8-bit values and those of IQ4_NL are multiplied by rows widened to 16 bits. On AVX2, several tiles share
//! a chunk that [`Widen`](crate::products::widen::Widen) has widened.
//!
//! ```text
//! column's chunk, 4 bits:  scale words  word: values 0 and 4, 1 and 5, 2 and 6, 3 and 7  ..
//! 2 bits:                  scale words  word: values 0, 4, 8 and 12, 1, 5, 9 and 13, ..  ..
//! 3 bits:                  scale words  two such words  word: upper bit of 32 values  ..
//! 6 bits:                  scale words  two words of 4 bits  word: upper two bits of 16 values  ..
//! 5 bits:                  scale words  four words of 4 bits  word: upper bit of 32 values  ..
//! 8 bits:                  scale words  word: 4 values  ..
//! row:                     f32 scale  f32 scale · Σ n, for each part     words: 4 bytes n, 4 bytes n  ..
//! row, widened:            the same                words: i16 values 0, 2  i16 values 1, 3  ..
//! ```

use super::group_scales::{CHUNK, ColumnScales, E2M1, NON_LINEAR, ScaleLayout};
use super::int4_search;
use crate::products::{Format, parts};

/// A format for integers with `CODE` bits, or for [`E2M1`] or [`NON_LINEAR`] values. A part's length is known at run
/// time only: one function for all lengths is as fast as one for each, and reduces the crate's compile time by a
/// quarter.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<const CODE: usize>;

/// Returns the bits in which a value is stored.
pub(super) const fn bits(code: usize) -> usize {
    match code {
        E2M1 | NON_LINEAR => 4,
        bits => bits,
    }
}

/// Returns the integers for which 4-bit values stand, if these are places in a table: each E2M1 value doubled, plus
/// [`E2M1_ZERO`](super::group_scales::E2M1_ZERO), and each of ggml's `kvalues_iq4nl` plus [`NON_LINEAR_ZERO`](super::group_scales::NON_LINEAR_ZERO).
/// <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>
pub(in crate::products) const fn table(code: usize) -> Option<&'static [u8; 16]> {
    match code {
        E2M1 => Some(&[12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0]),
        NON_LINEAR => Some(&[
            0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240,
        ]),
        _ => None,
    }
}

/// The maximum part length.
pub(super) const MAX_PART: usize = 128;

// A row's integers have |n| <= 127, a column's values q <= 255.
const _: () = assert!(MAX_PART * 127 * 255 < 1 << 23);

/// Returns the bits of a value that are in one word with those of other values. Longer values have their upper bits in a
/// word of their own.
pub(super) const fn low_bits(code: usize) -> usize {
    match bits(code) {
        2 | 3 => 2,
        8 => 8,
        _ => 4,
    }
}

/// Returns how many values are in a group: those in a word, or in the words that share one word with upper bits. Two
/// groups of 3-bit values share that word.
pub(super) const fn group(code: usize) -> usize {
    match bits(code) {
        8 => 4,
        4 => 8,
        2 | 3 | 6 => 16,
        _ => 32,
    }
}

/// Returns the minimum part length for a code's values.
pub(super) const fn least_part(code: usize) -> usize {
    match code {
        2 | 3 | 6 => 16,
        _ => 32,
    }
}

/// Returns whether `part` is a supported part length for a code's values.
pub(super) const fn is_part(code: usize, part: usize) -> bool {
    match code {
        4 => matches!(part, 32 | 64 | 128),
        8 => matches!(part, 32 | 128),
        _ => part == least_part(code),
    }
}

/// At most this many four-byte words hold a widened group.
pub(super) const MAX_QUADS: usize = 8;

impl<const CODE: usize> Format for Quantized<CODE> {
    type Element = f32;
    type Word = u32;
    type Layout = ScaleLayout;
    const GROUP: usize = group(CODE);
    const GROUPS: usize = if CODE == 3 { 2 } else { 1 };
    const GROUP_WORDS: usize = match CODE {
        3 | 6 => 3,
        5 => 5,
        _ => 1,
    };
    const CHUNK: usize = CHUNK;
    const MOST_PARTS: usize = parts(CHUNK, least_part(CODE));
    // Crosses a page's end, where the hardware prefetcher stops. Among 2 to 6 KB, 4 KB was the best or within 3 %
    // for every bit width, and up to 1.45 times as fast as no prefetch (two Zen 5 threads, 200 MB weights).
    const AHEAD: usize = 4 << 10;
    // The search for scales supports int4 only.
    const FROM_FLOATS: bool = CODE == 4;

    #[inline(always)]
    fn part(layout: ScaleLayout) -> usize {
        match CODE {
            4 | 8 => layout.part,
            // The only supported length.
            _ => least_part(CODE),
        }
    }

    #[inline(always)]
    fn scale_words(layout: ScaleLayout, terms: usize) -> usize {
        layout.words(parts(terms, layout.part))
    }

    #[inline(always)]
    fn pack_column(layout: ScaleLayout, terms: &[f32], words: &mut [u32]) {
        let (mut all, mut scales, mut minima) = (Vec::new(), Vec::new(), Vec::new());
        for terms in terms.chunks(layout.part) {
            let part = match layout.part {
                32 => int4_search::quantize::<32>(terms),
                64 => int4_search::quantize::<64>(terms),
                _ => int4_search::quantize::<MAX_PART>(terms),
            };
            all.extend_from_slice(&part.values[..terms.len()]);
            scales.push(part.scale.to_f32());
            minima.push(part.minimum.to_f32());
        }
        let column = ColumnScales {
            scales: &scales,
            offsets: &minima,
            shared: &[],
        };
        Self::pack_quantized(layout, &all, &column, words);
    }

    fn unpack_column(layout: ScaleLayout, words: &[u32], terms: &mut [f32]) {
        let n_words = Self::chunk_words(layout, CHUNK);
        for (words, terms) in words.chunks(n_words).zip(terms.chunks_mut(CHUNK)) {
            let (scales, words) = words.split_at(Self::scale_words(layout, terms.len()));
            for (group, terms) in terms.chunks_mut(Self::GROUP).enumerate() {
                let [scale, offset] = layout.unpack(scales, group * Self::GROUP / layout.part);
                let words = &words[group / Self::GROUPS * Self::GROUP_WORDS..];
                for (i, term) in terms.iter_mut().enumerate() {
                    let value = value::<CODE>(words, group % Self::GROUPS * Self::GROUP + i);
                    let whole = table(CODE).map_or(value, |table| table[usize::from(value)]);
                    *term = f32::from(whole) * scale + offset;
                }
            }
        }
    }
}

impl<const CODE: usize> Quantized<CODE> {
    /// Returns the same scales, after a check that these columns support them. The compiler then omits the code for
    /// other layouts.
    ///
    /// # Panics
    /// If the columns do not support these scales.
    #[inline(always)]
    pub fn known(layout: ScaleLayout) -> ScaleLayout {
        assert!(layout.scales.support(CODE));
        layout
    }

    /// Packs a column's quantized values and scales into its [words](Format::column_words).
    pub fn pack_quantized(
        layout: ScaleLayout,
        values: &[u8],
        column: &ColumnScales,
        words: &mut [u32],
    ) {
        let layout = Self::known(layout);
        let n_words = Self::chunk_words(layout, CHUNK);
        // Depth zero still has one chunk, with scale words only.
        for (chunk, words) in words.chunks_mut(n_words).enumerate() {
            let values = &values[chunk * CHUNK..values.len().min((chunk + 1) * CHUNK)];
            let (scales, words) = words.split_at_mut(Self::scale_words(layout, values.len()));
            layout
                .scales
                .pack(column, chunk, layout.part * layout.parts, scales);
            let groups = words.chunks_exact_mut(Self::GROUP_WORDS);
            for (words, values) in groups.zip(values.chunks(Self::GROUP * Self::GROUPS)) {
                let mut group = [0; 4 * MAX_QUADS];
                group[..values.len()].copy_from_slice(values);
                pack_group::<CODE>(&group, words);
            }
        }
    }
}

/// Packs the values of groups that share words. [`value`] reverses it.
#[inline(always)]
fn pack_group<const CODE: usize>(values: &[u8; 4 * MAX_QUADS], words: &mut [u32]) {
    let (low, in_word) = (low_bits(CODE), 32 / low_bits(CODE));
    // Each byte of a word has the same bits of every fourth value.
    let word = |values: &[u8], first: usize, bits: usize| {
        u32::from_le_bytes(std::array::from_fn(|byte| {
            let quads = values.as_chunks::<4>().0.iter().enumerate();
            quads.fold(0, |all, (i, quad)| {
                all | (quad[byte] >> first & u8::MAX >> (8 - bits)) << (bits * i)
            })
        }))
    };
    let mut to = words.iter_mut();
    let n_low = group(CODE) * Quantized::<CODE>::GROUPS / in_word;
    for (to, values) in to.by_ref().take(n_low).zip(values.chunks_exact(in_word)) {
        *to = word(values, 0, low);
    }
    if let Some(to) = to.next() {
        *to = word(&values[..n_low * in_word], low, bits(CODE) - low);
    }
}

/// Returns value number `i` in the words of a group, or of groups that share words.
fn value<const CODE: usize>(words: &[u32], i: usize) -> u8 {
    let (low, in_word) = (low_bits(CODE), 32 / low_bits(CODE));
    let bits_at = |word: usize, i: usize, bits: usize| {
        words[word].to_le_bytes()[i % 4] >> (bits * (i / 4)) & u8::MAX >> (8 - bits)
    };
    let low_bits = bits_at(i / in_word, i % in_word, low);
    match bits(CODE) - low {
        0 => low_bits,
        upper => low_bits | bits_at(Quantized::<CODE>::GROUP_WORDS - 1, i, upper) << low,
    }
}

/// A format whose columns can be packed from quantized values.
pub trait PackQuantized: Format<Element = f32, Word = u32, Layout = ScaleLayout> {
    /// The largest quantized value.
    const LARGEST: u8;

    /// Packs a column, as [`Quantized::pack_quantized`] does.
    fn pack_column_values(
        layout: ScaleLayout,
        values: &[u8],
        column: &ColumnScales,
        words: &mut [u32],
    );
}

impl<const CODE: usize> PackQuantized for Quantized<CODE> {
    const LARGEST: u8 = (u8::MAX as usize >> (8 - bits(CODE))) as u8;

    fn pack_column_values(
        layout: ScaleLayout,
        values: &[u8],
        column: &ColumnScales,
        words: &mut [u32],
    ) {
        Self::pack_quantized(layout, values, column, words);
    }
}
