//! The dot products beside emulated tiles: rows packed as for `vdpbf16ps`, for CPUs that lack it.

use half::bf16;

use crate::products::formats::bf16 as pairs;
use crate::products::{Dots, dots};
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::avx512::Avx512;
use crate::vectors::{Vectors, Words};

impl Dots<bf16> for AmxEmulated {
    type Vectors = Avx512;
    type Left = <Avx512 as Words>::Words;
    type Right = <Avx512 as Words>::Words;
    type Sum = <Avx512 as Vectors<f32>>::Vector;
    const ROWS: usize = Avx512::WIDENED_ROWS;
    const ROW_WORDS: usize = pairs::PAIR_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], words: &mut [u32]) {
        pairs::pack_pairs(row, words);
    }

    dots! {
        fn vectors(self) -> Avx512 { self.avx512() }
        fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum {
            let v = self.avx512();
            let sum = Vectors::<f32>::multiply_add(v, v.high_halves(left), v.high_halves(right), sum);
            Vectors::<f32>::multiply_add(v, v.low_halves(left), v.low_halves(right), sum)
        }
        unsafe fn left(self, row: *const u32, group: usize) -> Self::Left { self.avx512().splat_word(*row.add(group)) }
        unsafe fn right(self, from: *const u32) -> Self::Right { self.avx512().load_words(from) }
        unsafe fn start(self, _: *const u32, _: *const u32) -> Self::Sum { Vectors::<f32>::splat(self.avx512(), 0.0) }
        unsafe fn numbers(self, sum: Self::Sum, _: *const u32, _: *const u32) -> Self::Sum { sum }
    }
}
