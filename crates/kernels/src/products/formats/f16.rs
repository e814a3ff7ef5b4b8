//! IEEE half precision for weights: half of f32's memory, with three more mantissa bits than bfloat16.
//!
//! Weights are widened when they are loaded, which is exact. Rows stay in f32. A word holds two column values, which
//! are added one after the other, in chunks as long as f32's. The bits therefore equal the f32 product's with the
//! rounded weights on the same instruction set. Weights that are half precision already lose nothing.
//!
//! The instructions that widen a whole vector read consecutive halves. In a panel, `LANES` columns' first values
//! therefore precede their second values.

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;

use crate::products::{CHUNK, Dots, Format, WIDTH, dots};
use crate::vectors::{Level, MAX_LANES, Vectors};

impl Format for f16 {
    type Element = f32;
    type Word = u32;
    type Layout = ();
    const GROUP: usize = 2;
    const CHUNK: usize = CHUNK;

    #[inline(always)]
    fn pack_column((): (), terms: &[f32], words: &mut [u32]) {
        // An odd column's last word is padded with zero.
        if let Some(last) = words.last_mut() {
            *last = 0;
        }
        let halves: &mut [u16] = cast_slice_mut(words);
        for (half, &term) in halves.iter_mut().zip(terms) {
            *half = f16::from_f32(term).to_bits();
        }
    }

    fn unpack_column((): (), words: &[u32], terms: &mut [f32]) {
        let halves: &[f16] = cast_slice(words);
        for (term, half) in terms.iter_mut().zip(halves) {
            *term = half.to_f32();
        }
    }

    // All words' lower halves, then the upper halves.
    #[inline(always)]
    fn arrange(vector: &mut [u32]) {
        let mut second = [0; MAX_LANES];
        let halves: &mut [u16] = cast_slice_mut(vector);
        let lanes = halves.len() / 2;
        for lane in 0..lanes {
            second[lane] = halves[2 * lane + 1];
            halves[lane] = halves[2 * lane];
        }
        halves[lanes..].copy_from_slice(&second[..lanes]);
    }

    #[inline(always)]
    fn arranged(vector: &[u32], lane: usize) -> u32 {
        let halves: &[u16] = cast_slice(vector);
        let [first, second] = [halves[lane], halves[halves.len() / 2 + lane]];
        u32::from(first) | u32::from(second) << 16
    }
}

/// The instruction set's f32 vector.
type Single<V> = <V as Vectors<f32>>::Vector;

impl<V: Level> Dots<f16> for V {
    type Vectors = V;
    type Left = [Single<V>; 2];
    type Right = [Single<V>; 2];
    type Sum = Single<V>;
    type Scales = ();
    const ROWS: usize = V::WIDENED_ROWS;
    const ROW_WORDS: usize = CHUNK;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        for (word, x) in words.iter_mut().zip(row) {
            *word = x.to_bits();
        }
        if !row.len().is_multiple_of(2) {
            // The product with the last word's zero is -0, and adding -0 leaves every sum unchanged.
            words[row.len()] = (-0f32).to_bits();
        }
    }

    dots! {
        fn vectors(self) -> V { self }
        fn dot(self, left: [Single<V>; 2], right: [Single<V>; 2], sum: Single<V>) -> Single<V> {
            let sum = Vectors::<f32>::multiply_add(self, left[0], right[0], sum);
            Vectors::<f32>::multiply_add(self, left[1], right[1], sum)
        }
        // A group is two words.
        unsafe fn left(self, row: *const u32, group: usize) -> [Single<V>; 2] {
            let [first, second] = *row.add(2 * group).cast::<[f32; 2]>();
            [self.splat(first), self.splat(second)]
        }
        unsafe fn right(self, from: *const u32, _: usize) -> [Single<V>; 2] {
            let halves = from.cast::<f16>();
            [self.load_half(halves), self.load_half(halves.add(<V as Vectors<f32>>::LANES))]
        }
        unsafe fn start(self, _: *const u32, _: *const u32) -> Single<V> { Vectors::<f32>::splat(self, 0.0) }
        unsafe fn scales(self, _: (), _: [*const u32; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
        unsafe fn to_floats(self, sum: Single<V>, _: *const u32, _: usize, _: ()) -> Single<V> { sum }
    }
}
