//! Dot products that accompany emulated tiles. Rows are packed as for `vdpbf16ps` and `vpdpbusd`, which the CPU may
//! lack.

use half::bf16;

use crate::products::formats::{bf16 as pairs, int8};
use crate::products::{Dots, WIDTH, dots};
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::avx512::Avx512;
use crate::vectors::{Vectors, Words};

impl Dots<bf16> for AmxEmulated {
    type Vectors = Avx512;
    type Left = <Avx512 as Words>::Words;
    type Right = <Avx512 as Words>::Words;
    type Sum = <Avx512 as Vectors<f32>>::Vector;
    type Scales = ();
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
        unsafe fn right(self, from: *const u32, _: usize) -> Self::Right { self.avx512().load_words(from) }
        unsafe fn start(self, _: *const u32, _: *const u32) -> Self::Sum { Vectors::<f32>::splat(self.avx512(), 0.0) }
        unsafe fn scales(self, _: (), _: [*const u32; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
        unsafe fn to_floats(self, sum: Self::Sum, _: *const u32, _: usize, _: ()) -> Self::Sum { sum }
    }
}

impl Dots<i8> for AmxEmulated {
    type Vectors = Avx512;
    type Left = [<Avx512 as Words>::Pairs; 2];
    type Right = [<Avx512 as Words>::Pairs; 2];
    type Sum = <Avx512 as Words>::Words;
    type Scales = <Avx512 as Words>::Words;
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
            let quad = *row.add(int8::QUAD_SCALE_WORDS + group);
            // Bytes 0 and 2, and bytes 1 and 3, sign-extended.
            [quad << 8, quad].map(|bytes| {
                let [low, high] = [bytes as i16 >> 8, (bytes >> 16) as i16 >> 8].map(|byte| u32::from(byte as u16));
                self.avx512().splat_pair(low | high << 16)
            })
        }
        unsafe fn right(self, from: *const u32, _: usize) -> Self::Right {
            let quads = self.avx512().load_words(from);
            [self.avx512().even_bytes(quads), self.avx512().odd_bytes(quads)]
        }
        // `start` and `center` are words 1 and 2 in a packed row; the upper half of `center` is 0.
        unsafe fn start(self, row: *const u32, scales: *const u32) -> Self::Sum {
            let v = self.avx512();
            let (start, center) = (v.splat_word(*row.add(1)), v.splat_pair(*row.add(2)));
            v.add_products_of_pairs(start, center, v.load_words(scales))
        }
        unsafe fn scales(self, _: (), [a, b]: [*const u32; WIDTH], _: usize) -> [Self::Scales; WIDTH] {
            [self.avx512().load_words(a), self.avx512().load_words(b)]
        }
        unsafe fn to_floats(self, sum: Self::Sum, row: *const u32, _: usize, scales: Self::Scales) -> <Avx512 as Vectors<f32>>::Vector {
            int8::to_floats(self.avx512(), sum, row, scales)
        }
    }
}

impl AmxEmulated {
    /// Returns the dot products for quantized weights in groups, which do not use tiles.
    #[inline(always)]
    pub fn group_dots(self) -> Avx512 {
        self.avx512()
    }
}
