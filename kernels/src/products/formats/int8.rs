//! int8: a quarter of the memory of f32, and up to four times its products per instruction.
//!
//! **What is stored.** In each chunk of a column, the integers `round(w / s)` with the quantization scale
//! `s = max|w| / 127`, rounded up to bfloat16: symmetric, in -127 to 127. In each chunk of a row, quantized when
//! the row is packed, the integers `round(a / t)` with the scale `t = (max(a, 0) - min(a, 0)) / 254`: 254 steps
//! over the range of the numbers and zero. Numbers of one sign, which those behind a GELU nearly are, are thereby
//! resolved twice as finely as by a symmetric scale. An outlier costs precision only in its own chunk, of a weight
//! as of a row. Chunks whose largest magnitude (of a row: whose range) is below `2⁻¹⁰⁰` count as zeros; rows with
//! numbers above `2¹⁰⁰` may overflow, as the column's scale is applied last.
//!
//! **How exact.** A term errs by at most half its chunk's scale. As these errors are independent of each other,
//! that of a product is about `√(Σ (a·s)² + (w·t)²) / √12`.
//!
//! **What is computed.** The sum of a chunk's integer products is below `2²³` in magnitude, and so exact in
//! f32, whatever the instructions. It is multiplied by the row's scale, then by the column's, and added to the
//! f32 total of the preceding chunks, each with one rounding. So the bits are the same at every level, and no
//! depth overflows an accumulator. A chunk with a NaN or an infinity has the scale NaN.
//!
//! **How.** The instruction (`vpdpbusd`) multiplies unsigned by signed bytes. Columns are therefore stored with
//! 128 added, and rows with their zero point `c`, the middle of the range of their integers, subtracted. The
//! exact sum is recovered by `Σ a·w = Σ (a - c)(w + 128) - 128 Σ (a - c) + c Σ w`, and the accumulator starts
//! at the last two terms: the first of them is kept in the packed row, and `Σ w` in the column's head. Without
//! Arm's (`udot`, `ummla`) multiply unsigned bytes alone, so that rows are stored with 128 added as well, and `c` is 128 less. Without
//! an instruction, bytes are widened to 16 bits, where two products and their sum cannot saturate; rows are
//! then stored without subtraction, so that `c` is 0.
//!
//! ```text
//! column's chunk:   head (bf16 scale | i16 Σ w)  word: 4 bytes w + 128  ..
//! row, VNNI:        f32 scale  start  c          word: 4 bytes a - c    ..
//! row, Arm:         f32 scale  start  c - 128    word: 4 bytes a - c + 128  ..
//! row, widened:     f32 scale  start             words: i16 terms 0, 2  i16 terms 1, 3  ..
//! ```

use crate::products::{CHUNK, Dots, Format, dots};
use crate::vectors::{Level, Vectors, Words};

// A row's integers have |a| <= 255, a column's |w| <= 127.
const _: () = assert!(CHUNK * 255 * 127 < 1 << 23);

/// Added to a column's integers, so that they are unsigned bytes.
pub const OFFSET: u8 = 128;

impl Format for i8 {
    type Number = f32;
    type Word = u32;
    type Layout = ();
    const GROUP: usize = 4;
    // A row has one scale for each chunk: longer chunks would have larger errors.
    const CHUNK: usize = CHUNK;
    const HEAD: usize = 1;

    #[inline(always)]
    fn pack_column((): (), terms: &[f32], words: &mut [u32]) {
        // A depth of zero still has one chunk, which is its head.
        for (chunk, words) in words.chunks_mut(Self::chunk_words((), CHUNK)).enumerate() {
            let (from, to) = (chunk * CHUNK, (chunk + 1) * CHUNK);
            pack_column_chunk(&terms[from..to.min(terms.len())], words);
        }
    }

    fn unpack_column((): (), words: &[u32], terms: &mut [f32]) {
        let chunks = words.chunks(Self::chunk_words((), CHUNK));
        for (words, terms) in chunks.zip(terms.chunks_mut(CHUNK)) {
            let step = f32::from_bits(words[0] & !0xffff);
            let bytes: &[u8] = bytemuck::cast_slice(&words[1..]);
            for (term, &byte) in terms.iter_mut().zip(bytes) {
                *term = f32::from(byte.wrapping_sub(OFFSET) as i8) * step;
            }
        }
    }
}

/// Packs one chunk of a column. The head has the scale as a bfloat16 in its upper half, and the sum of the
/// integers in its lower half.
#[inline(always)]
fn pack_column_chunk(terms: &[f32], words: &mut [u32]) {
    // Without their signs, the bits of floats are ordered as the floats' magnitudes, with NaN above all.
    let bits = terms.iter().map(|w| w.to_bits() & !SIGN);
    let largest = f32::from_bits(bits.fold(0, u32::max));
    let above = ((largest / 127.0).to_bits() + 0xffff) & !0xffff;
    let scale = Quantizer::new(largest, f32::from_bits(above));
    let [head, words @ ..] = words else {
        panic!("a chunk without a head");
    };
    let bytes = bytemuck::cast_slice_mut::<u32, u8>(words);
    let mut sum = 0;
    for (byte, term) in bytes.iter_mut().zip(terms) {
        let integer = scale.quantize(*term);
        // Where the scale is NaN these are meaningless, but so is every product.
        sum += integer as i8 as i32;
        *byte = (integer as u8).wrapping_add(OFFSET);
    }
    bytes[terms.len()..].fill(OFFSET);
    *head = halves(scale.step.to_bits() >> 16, sum);
}

/// A word of two 16-bit halves; the upper 16 bits of `lower` are dropped.
#[inline(always)]
fn halves(upper: u32, lower: i32) -> u32 {
    upper << 16 | u32::from(lower as u16)
}

/// The sign bit of an f32.
const SIGN: u32 = 1 << 31;

/// A quantization scale: how numbers become integers.
pub struct Quantizer {
    /// The number that the integer 1 stands for.
    pub step: f32,
    /// `1 / step`.
    per_unit: f32,
}

impl Quantizer {
    /// With this step; `largest` is the largest magnitude of the numbers, or the width of their range.
    #[inline(always)]
    pub fn new(largest: f32, step: f32) -> Self {
        // Below 2⁻¹⁰⁰ there is a point where the reciprocal of the step is no longer finite.
        let (step, per_unit) = if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < f32::from_bits(27 << 23) {
            (0.0, 0.0)
        } else {
            (step, 1.0 / step)
        };
        Self { step, per_unit }
    }

    /// The nearest integer, ties to even; meaningless where the step is NaN.
    #[inline(always)]
    pub fn quantize(&self, x: f32) -> i32 {
        // 1.5 · 2²³: adding it to a small number leaves the nearest integer in the lowest bits of the mantissa.
        const UNITS: f32 = (3 << 22) as f32;
        let bits = (x * self.per_unit + UNITS).to_bits();
        bits.wrapping_sub(UNITS.to_bits()) as i32
    }
}

/// A quantized chunk of a row.
struct Quantized {
    /// The number that the integer 1 stands for.
    step: f32,
    /// The zero point: the middle of the range of the integers.
    centre: i32,
    /// The integers less `centre`; zeros behind the last term.
    terms: [i8; CHUNK],
    /// The sum of `terms`.
    sum: i32,
}

impl Quantized {
    #[inline(always)]
    fn new(row: &[f32]) -> Self {
        match row.try_into() {
            // A length known at compile time makes loops without remainders.
            Ok(chunk) => Self::of(chunk, CHUNK),
            Err(_) => {
                let mut chunk = [0.0; CHUNK];
                chunk[..row.len()].copy_from_slice(row);
                Self::of(&chunk, row.len())
            }
        }
    }

    /// Quantises the first `len` of these numbers, behind which there are zeros.
    #[inline(always)]
    fn of(row: &[f32; CHUNK], len: usize) -> Self {
        // Compared as signed integers, the bits of positive floats are in the floats' order, and those of
        // negative floats are all below zero. Compared as unsigned integers, the bits of negative floats are
        // above all others, and grow with the magnitude. NaN lies beyond infinity on both sides.
        let (mut above, mut below) = (0i32, 0u32);
        for x in row {
            above = above.max(x.to_bits() as i32);
            below = below.max(x.to_bits());
        }
        let highest = f32::from_bits(above as u32);
        let lowest = if below < SIGN {
            0.0
        } else {
            f32::from_bits(below)
        };
        let span = highest - lowest;
        let scale = Quantizer::new(span, span / 254.0);
        let centre = scale.quantize(lowest).wrapping_add(128);
        let mut terms = [0; CHUNK];
        let mut sum = 0i32;
        for (term, &x) in terms.iter_mut().zip(row).take(len) {
            *term = scale.quantize(x).wrapping_sub(centre) as i8;
            sum += i32::from(*term);
        }
        Self {
            step: scale.step,
            centre,
            terms,
            sum,
        }
    }
}

/// The correction that an accumulator starts at for the columns' offset, from the sum of a row's stored terms.
#[inline(always)]
fn start(sum: i32) -> u32 {
    sum.wrapping_mul(-i32::from(OFFSET)) as u32
}

/// Packs a row for an instruction: scale, start, centre, then four terms in each word. The terms are signed where
/// `offset` is 0 (x86), and unsigned where it is [`OFFSET`] (Arm); the centre is that much less.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub fn pack_quads(row: &[f32], offset: u8, words: &mut [u32]) {
    let len = row.len();
    let mut row = Quantized::new(row);
    for term in &mut row.terms[..len] {
        *term = term.wrapping_add(offset as i8);
    }
    let added = i32::from(offset);
    words[0] = row.step.to_bits();
    words[1] = start(row.sum.wrapping_add(added * len as i32));
    words[2] = halves(0, row.centre.wrapping_sub(added));
    let quads = bytemuck::cast::<_, [u32; CHUNK / 4]>(row.terms);
    words[QUAD_HEAD..QUAD_ROW_WORDS].copy_from_slice(&quads);
}

/// Words before the terms of a row packed by [`pack_quads`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const QUAD_HEAD: usize = 3;

/// Words of a row packed by [`pack_quads`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const QUAD_ROW_WORDS: usize = QUAD_HEAD + CHUNK / 4;

/// Words before the terms of a row that is packed widened: scale and start.
const HEAD: usize = 2;

/// Dot products from 16-bit multiply-adds, for levels without an instruction for bytes: rows are packed already
/// widened, columns are widened in registers.
impl<V: Level> Dots<i8> for V {
    type Vectors = V;
    /// Terms 0 and 2 of a group, and its terms 1 and 3.
    type Left = [V::Pairs; 2];
    type Right = [V::Pairs; 2];
    type Sum = V::Words;
    type Heads = V::Words;
    const ROWS: usize = V::BYTE_ROWS;
    const ROW_WORDS: usize = HEAD + CHUNK / 2;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        let len = row.len();
        let row = Quantized::new(row);
        let mut terms = [0i16; CHUNK];
        for (wide, term) in terms.iter_mut().zip(row.terms).take(len) {
            *wide = i16::from(term).wrapping_add(row.centre as i16);
        }
        words[0] = row.step.to_bits();
        words[1] = start(row.sum.wrapping_add(row.centre.wrapping_mul(len as i32)));
        let (quads, _) = terms.as_chunks::<4>();
        let (pairs, _) = words[HEAD..].as_chunks_mut::<2>();
        let pair = |low: i16, high: i16| halves(high as u32, low.into());
        for ([even, odd], quad) in pairs.iter_mut().zip(quads) {
            *even = pair(quad[0], quad[2]);
            *odd = pair(quad[1], quad[3]);
        }
    }

    dots! {
        fn vectors(self) -> V { self }
        fn dot(self, left: [V::Pairs; 2], right: [V::Pairs; 2], sum: V::Words) -> V::Words {
            let sum = self.add_products_of_pairs(sum, left[0], right[0]);
            self.add_products_of_pairs(sum, left[1], right[1])
        }
        // A group is two words.
        unsafe fn left(self, row: *const u32, group: usize) -> [V::Pairs; 2] {
            let [even, odd] = *row.add(HEAD + 2 * group).cast::<[u32; 2]>();
            [self.splat_pair(even), self.splat_pair(odd)]
        }
        unsafe fn right(self, from: *const u32) -> [V::Pairs; 2] {
            let quads = self.load_words(from);
            [self.even_bytes(quads), self.odd_bytes(quads)]
        }
        unsafe fn start(self, row: *const u32, _: *const u32) -> V::Words { self.splat_word(*row.add(1)) }
        unsafe fn heads(self, _: (), heads: *const u32, _: usize) -> V::Words { self.load_words(heads) }
        unsafe fn numbers(self, sum: V::Words, row: *const u32, _: usize, heads: V::Words) -> <V as Vectors<f32>>::Vector {
            numbers(self, sum, row, heads)
        }
    }
}

/// Multiplies the integer sums of a chunk by the row's scale, then by the columns' scales, which are in their heads.
///
/// # Safety
/// `row` points to a packed row.
#[inline(always)]
pub unsafe fn numbers<V: Words>(
    v: V,
    sum: V::Words,
    row: *const u32,
    heads: V::Words,
) -> V::Vector {
    // SAFETY: the caller's promise.
    let step = f32::from_bits(unsafe { *row });
    let in_steps = v.multiply(v.integers(sum), v.splat(step));
    v.multiply(in_steps, v.high_halves(heads))
}
