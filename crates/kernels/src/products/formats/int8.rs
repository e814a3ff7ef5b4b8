//! int8: a quarter of f32's memory, and up to four times its products per instruction.
//!
//! **Storage.** A column chunk has the integers `round(w / s)` with the scale `s = max|w| / 127`, rounded up to
//! bfloat16. The quantization is symmetric, from -127 to 127. A row chunk, quantized when the row is packed, has the
//! integers `round(a / t)` with the scale `t = (max(a, 0) - min(a, 0)) / 254`: 254 steps over a range that includes
//! zero. Values with one sign, as a GELU's outputs nearly are, get twice a symmetric scale's resolution. An outlier
//! costs precision only in its own chunk. Chunks whose largest magnitude (in a row: whose range) is below `2⁻¹⁰⁰`
//! become zero. Rows with values above `2¹⁰⁰` may overflow, because the column's scale is applied last.
//!
//! **Accuracy.** A value's error is at most half its chunk's scale. Errors are independent, so that a product's
//! error is about `√(Σ (a·s)² + (w·t)²) / √12`.
//!
//! **Computation.** The sum of a chunk's integer products is below `2²³` in magnitude, and so exact in f32 on every
//! instruction set. It is multiplied by the row's scale, then by the column's, and added to the f32 total from
//! preceding chunks. Each step rounds once, so that all instruction sets give the same bits, and no depth overflows
//! an accumulator. A chunk with a NaN or an infinity has the scale NaN.
//!
//! **Implementation.** `vpdpbusd` multiplies unsigned by signed bytes. Columns are therefore stored with 128 added,
//! and rows with their zero point `c`, the middle of their integers' range, subtracted. The exact sum is `Σ a·w = Σ
//! (a - c)(w + 128) - 128 Σ (a - c) + c Σ w`. The accumulator starts with the last two terms: the packed row stores
//! the first, and the column's scale word stores `Σ w`. Arm's `udot` and `ummla` multiply unsigned bytes only, so
//! that rows are stored with 128 added as well, and `c` is 128 less. Without such an instruction, bytes are widened
//! to 16 bits, where two products and their sum cannot saturate. Rows are then stored without subtraction, and `c`
//! is 0.
//!
//! ```text
//! column's chunk:   scale word (bf16 scale | i16 Σ w)  word: 4 bytes w + 128  ..
//! row, VNNI:        f32 scale  start  c          word: 4 bytes a - c    ..
//! row, Arm:         f32 scale  start  c - 128    word: 4 bytes a - c + 128  ..
//! row, widened:     f32 scale  start             words: i16 values 0, 2  i16 values 1, 3  ..
//! ```

use crate::products::{CHUNK, Dots, Format, WIDTH, dots};
use crate::vectors::{Level, Vectors, Words};

// A row's integers have |a| <= 255, a column's |w| <= 127.
const _: () = assert!(CHUNK * 255 * 127 < 1 << 23);

/// The offset added to a column's integers, which makes them unsigned bytes.
pub const OFFSET: u8 = 128;

impl Format for i8 {
    type Element = f32;
    type Word = u32;
    type Layout = ();
    const GROUP: usize = 4;
    // A row has one scale for each chunk: longer chunks would have larger errors.
    const CHUNK: usize = CHUNK;
    const SCALE_WORDS: usize = 1;

    #[inline(always)]
    fn pack_column((): (), terms: &[f32], words: &mut [u32]) {
        // Depth zero still has one chunk, with a scale word only.
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

/// Packs one column chunk. The scale word has the scale as a bfloat16 in its upper half, and the integers' sum in
/// its lower half.
#[inline(always)]
fn pack_column_chunk(terms: &[f32], words: &mut [u32]) {
    // Without the sign bit, floats compare like their bits. NaN is the largest.
    let bits = terms.iter().map(|w| w.to_bits() & !SIGN);
    let largest = f32::from_bits(bits.fold(0, u32::max));
    let above = ((largest / 127.0).to_bits() + 0xffff) & !0xffff;
    let scale = Quantizer::new(largest, f32::from_bits(above));
    let [scale_word, words @ ..] = words else {
        panic!("a chunk without a scale word");
    };
    let bytes = bytemuck::cast_slice_mut::<u32, u8>(words);
    let mut sum = 0;
    for (byte, term) in bytes.iter_mut().zip(terms) {
        let integer = scale.quantize(*term);
        // If the scale is NaN, the integers are meaningless, but every product is NaN anyway.
        sum += integer as i8 as i32;
        *byte = (integer as u8).wrapping_add(OFFSET);
    }
    bytes[terms.len()..].fill(OFFSET);
    *scale_word = halves(scale.step.to_bits() >> 16, sum);
}

/// Returns a word with two 16-bit halves. `lower`'s upper 16 bits are dropped.
#[inline(always)]
fn halves(upper: u32, lower: i32) -> u32 {
    upper << 16 | u32::from(lower as u16)
}

/// An f32's sign bit.
const SIGN: u32 = 1 << 31;

/// A quantization scale, which converts floats to integers.
pub struct Quantizer {
    /// The value that the integer 1 represents.
    pub step: f32,
    /// `1 / step`.
    per_unit: f32,
}

impl Quantizer {
    /// Creates a quantizer with this step. `largest` is the values' largest magnitude, or the width of their range.
    #[inline(always)]
    pub fn new(largest: f32, step: f32) -> Self {
        // The reciprocal for a step below some 2⁻¹⁰⁰ is not finite.
        let (step, per_unit) = if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < f32::from_bits(27 << 23) {
            (0.0, 0.0)
        } else {
            (step, 1.0 / step)
        };
        Self { step, per_unit }
    }

    /// Returns the nearest integer, ties to even. Meaningless if the step is NaN.
    #[inline(always)]
    pub fn quantize(&self, x: f32) -> i32 {
        // 1.5 · 2²³: adding it to a small value leaves the nearest integer in the mantissa's lowest bits.
        const UNITS: f32 = (3 << 22) as f32;
        let bits = (x * self.per_unit + UNITS).to_bits();
        bits.wrapping_sub(UNITS.to_bits()) as i32
    }
}

/// A row's quantized chunk.
struct QuantizedChunk {
    /// The value that the integer 1 represents.
    step: f32,
    /// The zero point: the middle of the integers' range.
    center: i32,
    /// The integers minus `center`, with zeros after the last value.
    terms: [i8; CHUNK],
    /// `terms` summed up.
    sum: i32,
}

impl QuantizedChunk {
    #[inline(always)]
    fn new(row: &[f32]) -> Self {
        match row.try_into() {
            // A length known at compile time gives loops without remainders.
            Ok(chunk) => Self::of(chunk, CHUNK),
            Err(_) => {
                let mut chunk = [0.0; CHUNK];
                chunk[..row.len()].copy_from_slice(row);
                Self::of(&chunk, row.len())
            }
        }
    }

    /// Quantizes the first `len` values. The rest are zeros.
    #[inline(always)]
    fn of(row: &[f32; CHUNK], len: usize) -> Self {
        // As signed integers, positive floats' bits sort like the floats, and negative floats' bits are below zero.
        // As unsigned integers, negative floats' bits are above all others, and grow with the magnitude. NaN is
        // beyond infinity on both sides.
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
        let center = scale.quantize(lowest).wrapping_add(128);
        let mut terms = [0; CHUNK];
        let mut sum = 0i32;
        for (term, &x) in terms.iter_mut().zip(row).take(len) {
            *term = scale.quantize(x).wrapping_sub(center) as i8;
            sum += i32::from(*term);
        }
        Self {
            step: scale.step,
            center,
            terms,
            sum,
        }
    }
}

/// Returns the accumulator's initial value that corrects the columns' offset, given the sum of a row's stored
/// values.
#[inline(always)]
fn start(sum: i32) -> u32 {
    sum.wrapping_mul(-i32::from(OFFSET)) as u32
}

/// Packs a row for a byte instruction: scale, start, center, then four values per word. The values are signed if
/// `offset` is 0 (x86), and unsigned if it is [`OFFSET`] (Arm). The center is reduced by the offset.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub fn pack_quads(row: &[f32], offset: u8, words: &mut [u32]) {
    let len = row.len();
    let mut row = QuantizedChunk::new(row);
    for term in &mut row.terms[..len] {
        *term = term.wrapping_add(offset as i8);
    }
    let added = i32::from(offset);
    words[0] = row.step.to_bits();
    words[1] = start(row.sum.wrapping_add(added * len as i32));
    words[2] = halves(0, row.center.wrapping_sub(added));
    let quads = bytemuck::cast::<_, [u32; CHUNK / 4]>(row.terms);
    words[QUAD_SCALE_WORDS..QUAD_ROW_WORDS].copy_from_slice(&quads);
}

/// Words before the values in a row packed by [`pack_quads`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const QUAD_SCALE_WORDS: usize = 3;

/// Words in a row packed by [`pack_quads`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const QUAD_ROW_WORDS: usize = QUAD_SCALE_WORDS + CHUNK / 4;

/// Words before the values in a row that is packed widened: scale and start.
const SCALE_WORDS: usize = 2;

/// Dot products with 16-bit multiply-adds, for instruction sets without an instruction for bytes. Rows are widened
/// when they are packed, columns in registers.
impl<V: Level> Dots<i8> for V {
    type Vectors = V;
    /// A group's values 0 and 2, and values 1 and 3.
    type Left = [V::Pairs; 2];
    type Right = [V::Pairs; 2];
    type Sum = V::Words;
    type Scales = V::Words;
    const ROWS: usize = V::BYTE_ROWS;
    const ROW_WORDS: usize = SCALE_WORDS + CHUNK / 2;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        let len = row.len();
        let row = QuantizedChunk::new(row);
        let mut terms = [0i16; CHUNK];
        for (wide, term) in terms.iter_mut().zip(row.terms).take(len) {
            *wide = i16::from(term).wrapping_add(row.center as i16);
        }
        words[0] = row.step.to_bits();
        words[1] = start(row.sum.wrapping_add(row.center.wrapping_mul(len as i32)));
        let (quads, _) = terms.as_chunks::<4>();
        let (pairs, _) = words[SCALE_WORDS..].as_chunks_mut::<2>();
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
            let [even, odd] = *row.add(SCALE_WORDS + 2 * group).cast::<[u32; 2]>();
            [self.splat_pair(even), self.splat_pair(odd)]
        }
        unsafe fn right(self, from: *const u32, _: usize) -> [V::Pairs; 2] {
            let quads = self.load_words(from);
            [self.even_bytes(quads), self.odd_bytes(quads)]
        }
        unsafe fn start(self, row: *const u32, _: *const u32) -> V::Words { self.splat_word(*row.add(1)) }
        unsafe fn scales(self, _: (), [a, b]: [*const u32; WIDTH], _: usize) -> [V::Words; WIDTH] {
            [self.load_words(a), self.load_words(b)]
        }
        unsafe fn to_floats(self, sum: V::Words, row: *const u32, _: usize, scales: V::Words) -> <V as Vectors<f32>>::Vector {
            to_floats(self, sum, row, scales)
        }
    }
}

/// Multiplies a chunk's integer sums by the row's scale, then by the columns' scales.
///
/// # Safety
/// `row` points to a packed row.
#[inline(always)]
pub unsafe fn to_floats<V: Words>(
    v: V,
    sum: V::Words,
    row: *const u32,
    scales: V::Words,
) -> V::Vector {
    // SAFETY: the caller's promise.
    let step = f32::from_bits(unsafe { *row });
    let in_steps = v.multiply(v.integers(sum), v.splat(step));
    v.multiply(in_steps, v.high_halves(scales))
}
