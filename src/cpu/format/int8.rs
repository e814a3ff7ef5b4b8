//! int8: a quarter of the memory of f32, and up to four times the products.
//!
//! **What is stored.** A column's terms as `round(w / s)` with one scale `s = max|w| / 127` per column; a
//! row's terms likewise with one scale per row and chunk, taken when the row is packed. An outlier so
//! takes the digits of its own chunk only. Chunks and columns without a number of `2⁻¹⁰⁰` or
//! more count as zeros; rows with numbers above `2¹⁰⁰` may overflow, as the column's scale comes last.
//!
//! **What is computed.** A chunk's sum of products is an integer below `2²⁴`, and so exact whatever the
//! instructions; it is multiplied by the row's scale, added to the f32 total of the chunks before, and
//! the total at last multiplied by the column's scale, each with one rounding. So the bits are the same
//! at every level, and no depth overflows. A chunk with NaN or an infinity has the scale NaN.
//!
//! **How.** The instruction multiplies unsigned by signed bytes: columns are stored with 128 added, and
//! the sum starts at `-128 Σ a`. Without the instruction, bytes are widened to 16 bits, where two
//! products and their sum cannot saturate.

use std::cell::Cell;

use super::{
    super::{
        arch::{Vectors, Words},
        element::Element,
        isa::Isa,
        scratch::{Aligned, Scratch},
        tile::CHUNK,
    },
    DotTask, Dots, Format, Within, word_scratch,
};

// |a|, |w| <= 127.
const _: () = assert!(CHUNK * 127 * 127 < 1 << 24);

/// Added to a column's terms.
const OFFSET: u8 = 128;

/// Words of a packed row before its terms: the scale, and what the sum starts at.
pub const HEAD: usize = 2;

impl Format for i8 {
    type Number = f32;
    type Word = u32;
    const GROUP: usize = 4;
    // A row has a scale for each chunk: longer ones would err more.
    const CHUNK: usize = CHUNK;

    fn run(isa: Isa, task: impl DotTask<Self>) {
        match isa {
            Isa::Portable(level) => task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(level) => task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(level) => match level.vnni() {
                Some(dots) => task.run(dots),
                None => task.run(level),
            },
        }
    }

    word_scratch!(u32);

    // The last is the scale.
    fn column_words(depth: usize) -> usize {
        depth.div_ceil(Self::GROUP) + 1
    }

    #[inline(always)]
    fn pack_column<S: Element<Acc = f32>>(terms: &[S], words: &mut [u32]) {
        let scale = Scale::of(terms);
        let (last, words) = words.split_last_mut().expect("a word for the scale");
        *last = scale.step.to_bits();
        let bytes = bytemuck::cast_slice_mut::<u32, u8>(words);
        for (byte, term) in bytes.iter_mut().zip(terms) {
            *byte = (scale.quantise(term.widen()) as u8).wrapping_add(OFFSET);
        }
        bytes[terms.len()..].fill(OFFSET);
    }

    #[inline(always)]
    fn finish(last: &[u32], totals: &mut [f32]) {
        let scales = bytemuck::cast_slice::<u32, f32>(last);
        for totals in totals.chunks_exact_mut(scales.len()) {
            for (total, scale) in totals.iter_mut().zip(scales) {
                *total *= scale;
            }
        }
    }
}

/// How numbers become integers.
struct Scale {
    /// What 1 stands for.
    step: f32,
    /// Its inverse.
    per_unit: f32,
}

impl Scale {
    /// That of these numbers.
    #[inline(always)]
    fn of<S: Element<Acc = f32>>(numbers: &[S]) -> Self {
        // Without their signs, bits have the order of what they stand for, NaN above all.
        let bits = numbers.iter().map(|x| x.widen().to_bits() & 0x7fff_ffff);
        let largest = f32::from_bits(bits.fold(0, u32::max));
        // Of lesser numbers than the second, the inverse is none.
        let (step, per_unit) = if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < f32::from_bits(27 << 23) {
            (0.0, 0.0)
        } else {
            (largest / 127.0, 127.0 / largest)
        };
        Self { step, per_unit }
    }

    /// The nearest integer, ties to even, from -127 to 127; anything where the step is NaN.
    #[inline(always)]
    fn quantise(&self, x: f32) -> i32 {
        // Added to this, a number's units are the lowest bits.
        const UNITS: f32 = (3 << 22) as f32;
        let bits = (x * self.per_unit + UNITS).to_bits();
        bits.wrapping_sub(UNITS.to_bits()) as i32
    }
}

/// Packs the head of a row; returns its terms as integers, zeros after them.
#[inline(always)]
fn quantise_row(row: &[f32], words: &mut [u32]) -> [i8; CHUNK] {
    match row.try_into() {
        Ok(chunk) => quantise_chunk(chunk, words),
        Err(_) => {
            let mut chunk = [0.0; CHUNK];
            chunk[..row.len()].copy_from_slice(row);
            quantise_chunk(&chunk, words)
        }
    }
}

/// As [`quantise_row`]; a length that is known makes loops without remainders.
#[inline(always)]
fn quantise_chunk(row: &[f32; CHUNK], words: &mut [u32]) -> [i8; CHUNK] {
    let scale = Scale::of(row);
    let mut terms = [0; CHUNK];
    let mut sum = 0i32;
    for (term, &x) in terms.iter_mut().zip(row) {
        let integer = scale.quantise(x);
        *term = integer as i8;
        // Wraps where the step is NaN, and with it every product.
        sum = sum.wrapping_add(integer);
    }
    words[0] = scale.step.to_bits();
    words[1] = sum.wrapping_mul(-i32::from(OFFSET)) as u32;
    terms
}

/// A packed row for the instruction: four terms in a word.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn pack_quads(row: &[f32], words: &mut [u32]) {
    let terms = quantise_row(row, words);
    let quads = &mut words[HEAD..QUAD_ROW_WORDS];
    quads.copy_from_slice(bytemuck::cast_slice(
        &bytemuck::cast::<_, [u32; CHUNK / 4]>(terms),
    ));
}

/// Words of a row packed by [`pack_quads`].
#[cfg(target_arch = "x86_64")]
pub const QUAD_ROW_WORDS: usize = HEAD + CHUNK / 4;

/// Products of 16 bits where there is no instruction for bytes: rows are packed widened, columns are
/// widened in registers.
impl<V: Words> Dots<i8> for V {
    type Vectors = V;
    /// Terms 0 and 2, and terms 1 and 3.
    type Left = [V::Words; 2];
    type Right = [V::Words; 2];
    type Sum = V::Words;
    const ROWS: usize = V::WIDENED_ROWS;
    const ROW_WORDS: usize = HEAD + CHUNK / 2;

    fn run(self, task: impl DotTask<i8>) {
        Vectors::<f32>::run(self, Within::new(self, task));
    }

    #[inline(always)]
    fn vectors(self) -> V {
        self
    }

    #[inline(always)]
    fn pack_row(self, row: &[f32], words: &mut [u32]) {
        let terms = quantise_row(row, words);
        let (quads, _) = terms.as_chunks::<4>();
        let (pairs, _) = words[HEAD..].as_chunks_mut::<2>();
        let pair = |low: i8, high: i8| (low as i16 as u16 as u32) | (high as i16 as u32) << 16;
        for ([even, odd], quad) in pairs.iter_mut().zip(quads) {
            *even = pair(quad[0], quad[2]);
            *odd = pair(quad[1], quad[3]);
        }
    }

    #[inline(always)]
    unsafe fn left(self, row: *const u32, group: usize) -> [V::Words; 2] {
        // SAFETY: the caller's promise, with two words per group.
        let [even, odd] = unsafe { *row.add(HEAD + 2 * group).cast::<[u32; 2]>() };
        [self.splat_word(even), self.splat_word(odd)]
    }

    #[inline(always)]
    unsafe fn right(self, from: *const u32) -> [V::Words; 2] {
        // SAFETY: the caller's promise.
        let quads = unsafe { self.load_words(from) };
        [self.even_bytes(quads), self.odd_bytes(quads)]
    }

    #[inline(always)]
    unsafe fn start(self, row: *const u32) -> V::Words {
        // SAFETY: the caller's promise.
        self.splat_word(unsafe { *row.add(1) })
    }

    #[inline(always)]
    fn dot(self, left: [V::Words; 2], right: [V::Words; 2], sum: V::Words) -> V::Words {
        let sum = self.add_products_of_pairs(sum, left[0], right[0]);
        self.add_products_of_pairs(sum, left[1], right[1])
    }

    #[inline(always)]
    unsafe fn numbers(self, sum: V::Words, row: *const u32) -> V::Vector {
        // SAFETY: the caller's promise.
        unsafe { numbers(self, sum, row) }
    }
}

/// Multiplies a chunk's sum by the row's scale.
///
/// # Safety
/// `row` starts a packed row.
#[inline(always)]
pub unsafe fn numbers<V: Words>(v: V, sum: V::Words, row: *const u32) -> V::Vector {
    // SAFETY: the caller's promise.
    let step = f32::from_bits(unsafe { *row });
    v.multiply_add(v.integers(sum), v.splat(step), v.splat(0.0))
}
