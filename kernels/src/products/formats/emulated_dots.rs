//! The dot products beside emulated tiles: rows packed as for `vdpbf16ps` and `vpdpbusd`, for CPUs that lack these.

use half::bf16;

use crate::products::formats::{bf16 as pairs, int8};
use crate::products::{Dots, dots};
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::avx512::Avx512;
use crate::vectors::{Vectors, Words};

impl Dots<bf16> for AmxEmulated {
    type Vectors = Avx512;
    type Left = <Avx512 as Words>::Words;
    type Right = <Avx512 as Words>::Words;
    type Sum = <Avx512 as Vectors<f32>>::Vector;
    type Heads = ();
    const ROWS: usize = Avx512::WIDENED_ROWS;
    const ROW_WORDS: usize = pairs::PAIR_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
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
        unsafe fn heads(self, _: (), _: *const u32, _: usize) -> () { () }
        unsafe fn numbers(self, sum: Self::Sum, _: *const u32, _: usize, _: ()) -> Self::Sum { sum }
    }
}

impl Dots<i8> for AmxEmulated {
    type Vectors = Avx512;
    type Left = [<Avx512 as Words>::Pairs; 2];
    type Right = [<Avx512 as Words>::Pairs; 2];
    type Sum = <Avx512 as Words>::Words;
    type Heads = <Avx512 as Words>::Words;
    const ROWS: usize = Avx512::BYTE_ROWS;
    const ROW_WORDS: usize = int8::QUAD_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        int8::pack_quads(row, 0, words);
    }

    dots! {
        fn vectors(self) -> Avx512 { self.avx512() }
        fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum {
            let v = self.avx512();
            let sum = v.add_products_of_pairs(sum, left[0], right[0]);
            v.add_products_of_pairs(sum, left[1], right[1])
        }
        unsafe fn left(self, row: *const u32, group: usize) -> Self::Left {
            let quad = *row.add(int8::QUAD_HEAD + group);
            // Bytes 0 and 2, and bytes 1 and 3, widened with their signs.
            [quad << 8, quad].map(|bytes| {
                let [low, high] = [bytes as i16 >> 8, (bytes >> 16) as i16 >> 8].map(|byte| u32::from(byte as u16));
                self.avx512().splat_pair(low | high << 16)
            })
        }
        unsafe fn right(self, from: *const u32) -> Self::Right {
            let quads = self.avx512().load_words(from);
            [self.avx512().even_bytes(quads), self.avx512().odd_bytes(quads)]
        }
        // `start` and `centre` are words 1 and 2 of a packed row; the upper half of `centre` is 0.
        unsafe fn start(self, row: *const u32, heads: *const u32) -> Self::Sum {
            let v = self.avx512();
            let (start, centre) = (v.splat_word(*row.add(1)), v.splat_pair(*row.add(2)));
            v.add_products_of_pairs(start, centre, v.load_words(heads))
        }
        unsafe fn heads(self, _: (), heads: *const u32, _: usize) -> Self::Heads { self.avx512().load_words(heads) }
        unsafe fn numbers(self, sum: Self::Sum, row: *const u32, _: usize, heads: Self::Heads) -> <Avx512 as Vectors<f32>>::Vector {
            int8::numbers(self.avx512(), sum, row, heads)
        }
    }
}

impl AmxEmulated {
    /// The dot products for codes in groups, which are not multiplied in tiles.
    #[inline(always)]
    pub fn code_dots(self) -> Avx512 {
        self.avx512()
    }
}
