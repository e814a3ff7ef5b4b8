//! int8: a quarter of the memory of f32, and up to four times the products.
//!
//! **What is stored.** A column's terms as `round(w / s)` with a scale `s = max|w| / 127` for each chunk, rounded up to
//! bfloat16. A row's terms as `round(a / t)` with a scale `t = (max(a, 0) - min(a, 0)) / 254` for each chunk, taken when
//! the row is packed: what lies all on one side of zero, as behind a GELU, is told apart twice as well. An outlier so
//! takes the digits of its own chunk only, in a weight as in a row. Chunks without a number of `2⁻¹⁰⁰` or more count as
//! zeros; rows with numbers above `2¹⁰⁰` may overflow, as the column's scale comes last.
//!
//! **How exact.** A term errs by at most half its chunk's scale. As these errors know nothing of each other, a product's is
//! some `√(Σ (a·s)² + (w·t)²) / √12`.
//!
//! **What is computed.** A chunk's sum of products is an integer below `2²³`, and so exact whatever the
//! instructions; it is multiplied by the row's scale, then by the column's, and added to the f32 total of the chunks
//! before, each with one rounding. So the bits are the same at every level, and no depth overflows. A chunk with NaN or
//! an infinity has the scale NaN.
//!
//! **How.** The instruction multiplies unsigned by signed bytes: columns are stored with 128 added, and rows with the
//! middle `c` of their integers taken away. `Σ a·w = Σ (a - c)(w + 128) - 128 Σ (a - c) + c Σ w`, and the sum starts at
//! the last two. Without the instruction, bytes are widened to 16 bits, where two products and their sum cannot
//! saturate, and `c` is 0.

use std::cell::Cell;

use super::{
    super::{
        arch::{Vectors, Words},
        element::Element,
        isa::Isa,
        scratch::{Aligned, Scratch},
        tile::CHUNK,
    },
    DotTask, Dots, Format, Within, run_fastest, word_scratch,
};

// |a| <= 255, |w| <= 127.
const _: () = assert!(CHUNK * 255 * 127 < 1 << 23);

/// Added to a column's terms.
const OFFSET: u8 = 128;

impl Format for i8 {
    type Number = f32;
    type Word = u32;
    const GROUP: usize = 4;
    // A row has a scale for each chunk: longer ones would err more.
    const CHUNK: usize = CHUNK;
    const HEAD: usize = 1;

    fn run(isa: Isa, task: impl DotTask<Self>) {
        run_fastest!(isa, task, vnni);
    }

    word_scratch!(u32);

    #[inline(always)]
    fn pack_column<S: Element<Acc = f32>>(terms: &[S], words: &mut [u32]) {
        // Of no terms there is a head all the same.
        for (chunk, words) in words.chunks_mut(Self::CHUNK_WORDS).enumerate() {
            let (from, to) = (chunk * CHUNK, (chunk + 1) * CHUNK);
            pack_column_chunk(&terms[from..to.min(terms.len())], words);
        }
    }
}

/// One chunk: in the head's upper half the scale as a bfloat16, in the lower one the sum of the integers.
#[inline(always)]
fn pack_column_chunk<S: Element<Acc = f32>>(terms: &[S], words: &mut [u32]) {
    // Without their signs, bits have the order of what they stand for, NaN above all.
    let bits = terms.iter().map(|w| w.widen().to_bits() & !SIGN);
    let largest = f32::from_bits(bits.fold(0, u32::max));
    let above = ((largest / 127.0).to_bits() + 0xffff) & !0xffff;
    let scale = Scale::new(largest, f32::from_bits(above));
    let [head, words @ ..] = words else {
        panic!("a chunk without a head");
    };
    let bytes = bytemuck::cast_slice_mut::<u32, u8>(words);
    let mut sum = 0;
    for (byte, term) in bytes.iter_mut().zip(terms) {
        let integer = scale.quantise(term.widen());
        // Anything where the scale is NaN, and with it every product.
        sum += integer as i8 as i32;
        *byte = (integer as u8).wrapping_add(OFFSET);
    }
    bytes[terms.len()..].fill(OFFSET);
    *head = halves(scale.step.to_bits() >> 16, sum);
}

/// A word of two halves, of the second of which nothing but the lower half counts.
#[inline(always)]
fn halves(upper: u32, lower: i32) -> u32 {
    upper << 16 | u32::from(lower as u16)
}

/// Of an f32.
const SIGN: u32 = 1 << 31;

/// How numbers become integers.
struct Scale {
    /// What 1 stands for.
    step: f32,
    /// Its inverse.
    per_unit: f32,
}

impl Scale {
    /// With this step, of numbers of which this is the largest, or the span between two.
    #[inline(always)]
    fn new(largest: f32, step: f32) -> Self {
        // Of lesser numbers than the second, the inverse is none.
        let (step, per_unit) = if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < f32::from_bits(27 << 23) {
            (0.0, 0.0)
        } else {
            (step, 1.0 / step)
        };
        Self { step, per_unit }
    }

    /// The nearest integer, ties to even; anything where the step is NaN.
    #[inline(always)]
    fn quantise(&self, x: f32) -> i32 {
        // Added to this, a number's units are the lowest bits.
        const UNITS: f32 = (3 << 22) as f32;
        let bits = (x * self.per_unit + UNITS).to_bits();
        bits.wrapping_sub(UNITS.to_bits()) as i32
    }
}

/// A chunk of a row.
struct Quantised {
    /// What 1 stands for.
    step: f32,
    /// The middle of the integers.
    centre: i32,
    /// The integers less their middle; zeros after the last.
    terms: [i8; CHUNK],
    /// Of these terms.
    sum: i32,
}

impl Quantised {
    #[inline(always)]
    fn new(row: &[f32]) -> Self {
        match row.try_into() {
            // A length that is known makes loops without remainders.
            Ok(chunk) => Self::of(chunk, CHUNK),
            Err(_) => {
                let mut chunk = [0.0; CHUNK];
                chunk[..row.len()].copy_from_slice(row);
                Self::of(&chunk, row.len())
            }
        }
    }

    /// Of the first of these numbers; zeros follow.
    #[inline(always)]
    fn of(row: &[f32; CHUNK], len: usize) -> Self {
        // Numbers above zero have the order of their bits as signed integers, where what is below zero is below them; the
        // bits of numbers below zero are above all others' as unsigned ones. NaN is beyond infinity on both sides.
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
        let scale = Scale::new(span, span / 254.0);
        let centre = scale.quantise(lowest).wrapping_add(128);
        let mut terms = [0; CHUNK];
        let mut sum = 0i32;
        for (term, &x) in terms.iter_mut().zip(row).take(len) {
            *term = scale.quantise(x).wrapping_sub(centre) as i8;
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

/// What a sum starts at for the sake of the columns' offset.
#[inline(always)]
fn start(sum: i32) -> u32 {
    sum.wrapping_mul(-i32::from(OFFSET)) as u32
}

/// A packed row for the instruction: scale, start, centre, and four terms in a word.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn pack_quads(row: &[f32], words: &mut [u32]) {
    let row = Quantised::new(row);
    words[0] = row.step.to_bits();
    words[1] = start(row.sum);
    words[2] = halves(0, row.centre);
    let quads = bytemuck::cast::<_, [u32; CHUNK / 4]>(row.terms);
    words[QUAD_HEAD..QUAD_ROW_WORDS].copy_from_slice(&quads);
}

/// Words before the terms of a row packed by [`pack_quads`].
#[cfg(target_arch = "x86_64")]
pub const QUAD_HEAD: usize = 3;

/// Words of a row packed by [`pack_quads`].
#[cfg(target_arch = "x86_64")]
pub const QUAD_ROW_WORDS: usize = QUAD_HEAD + CHUNK / 4;

/// Words before the terms of a row that is packed widened: scale and start.
const HEAD: usize = 2;

/// Products of 16 bits where there is no instruction for bytes: rows are packed widened, columns are
/// widened in registers.
impl<V: Words> Dots<i8> for V {
    type Vectors = V;
    /// Terms 0 and 2, and terms 1 and 3.
    type Left = [V::Pairs; 2];
    type Right = [V::Pairs; 2];
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
        let len = row.len();
        let row = Quantised::new(row);
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

    #[inline(always)]
    unsafe fn left(self, row: *const u32, group: usize) -> [V::Pairs; 2] {
        // SAFETY: the caller's promise, with two words per group.
        let [even, odd] = unsafe { *row.add(HEAD + 2 * group).cast::<[u32; 2]>() };
        [self.splat_pair(even), self.splat_pair(odd)]
    }

    #[inline(always)]
    unsafe fn right(self, from: *const u32) -> [V::Pairs; 2] {
        // SAFETY: the caller's promise.
        let quads = unsafe { self.load_words(from) };
        [self.even_bytes(quads), self.odd_bytes(quads)]
    }

    #[inline(always)]
    unsafe fn start(self, row: *const u32, _: *const u32) -> V::Words {
        // SAFETY: the caller's promise.
        self.splat_word(unsafe { *row.add(1) })
    }

    #[inline(always)]
    fn dot(self, left: [V::Pairs; 2], right: [V::Pairs; 2], sum: V::Words) -> V::Words {
        let sum = self.add_products_of_pairs(sum, left[0], right[0]);
        self.add_products_of_pairs(sum, left[1], right[1])
    }

    #[inline(always)]
    unsafe fn numbers(self, sum: V::Words, row: *const u32, heads: *const u32) -> V::Vector {
        // SAFETY: the caller's promise.
        unsafe { numbers(self, sum, row, heads) }
    }
}

/// Multiplies sums of a chunk by the row's scale and the columns'.
///
/// # Safety
/// `row` starts a packed row, and `heads` a vector of columns' heads.
#[inline(always)]
pub unsafe fn numbers<V: Words>(
    v: V,
    sum: V::Words,
    row: *const u32,
    heads: *const u32,
) -> V::Vector {
    // SAFETY: the caller's promise.
    let (step, heads) = unsafe { (f32::from_bits(*row), v.load_words(heads)) };
    let in_steps = v.multiply(v.integers(sum), v.splat(step));
    v.multiply(in_steps, v.high_halves(heads))
}
