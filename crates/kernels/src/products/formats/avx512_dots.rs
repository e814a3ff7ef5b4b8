//! AVX-512 dot products: four bytes (VNNI), or two bfloat16 (BF16).

use std::{arch::x86_64::*, mem::transmute};

use half::bf16;

use super::group_scales::{E2M1, NON_LINEAR};
use super::quantized::Quantized;
use super::quantized_dots::{self, quantized_dots, short_quantized_dots};
use crate::products::format::Tile;
use crate::products::formats::{bf16 as pairs, int8};
use crate::products::{Dots, Format, WIDTH, WidenedWords, dots};
use crate::vectors::amx::Amx;
use crate::vectors::avx512::{Avx512, Avx512Bf16, Avx512Vnni};
use crate::vectors::{Vectors, Words};

impl Avx512Bf16 {
    /// Stores 32 consecutive values as 16 pairs, rounded like [`pairs::pack_pairs`]. Subnormal values become zeros,
    /// as which the dot product treats them anyway.
    ///
    /// # Safety
    /// 16 words can be written at `words`.
    #[inline(always)]
    pub unsafe fn store_pairs(self, [low, high]: [__m512; 2], words: *mut u32) {
        // SAFETY: the token proves AVX-512 BF16; both types are 64 bytes, and any bits are 16 words.
        unsafe {
            let terms = _mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(words.cast(), transmute::<__m512bh, __m512i>(terms));
        }
    }
}

impl Dots<bf16> for Avx512Bf16 {
    type Vectors = Avx512;
    type Left = __m512i;
    type Right = __m512i;
    type Sum = __m512;
    type Scales = ();
    // Of 32 registers: 28 sums, 2 vectors of columns, 2 broadcasts of rows.
    const ROWS: usize = 14;
    const ROW_WORDS: usize = pairs::PAIR_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        let (blocks, rest) = row.as_chunks::<32>();
        for (block, words) in blocks.iter().zip(words.chunks_exact_mut(16)) {
            // SAFETY: a block is two vectors, and its pairs fit 16 words.
            unsafe {
                let (low, high) = (
                    _mm512_loadu_ps(block.as_ptr()),
                    _mm512_loadu_ps(block.as_ptr().add(16)),
                );
                self.store_pairs([low, high], words.as_mut_ptr());
            }
        }
        pairs::pack_pairs(rest, &mut words[16 * blocks.len()..]);
    }

    dots! {
        fn vectors(self) -> Avx512 { self.avx512() }
        fn dot(self, left: __m512i, right: __m512i, sum: __m512) -> __m512 {
            // SAFETY: both types are 64 bytes, and any bits are 32 bfloat16; the token proves AVX-512 BF16.
            unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(left), transmute::<__m512i, __m512bh>(right)) }
        }
        // A group is one word.
        unsafe fn left(self, row: *const u32, group: usize) -> __m512i { self.avx512().splat_word(*row.add(group)) }
        unsafe fn right(self, from: *const u32, _: usize) -> __m512i { self.avx512().load_words(from) }
        unsafe fn start(self, _: *const u32, _: *const u32) -> __m512 { _mm512_setzero_ps() }
        unsafe fn scales(self, _: (), _: [*const u32; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
        unsafe fn to_floats(self, sum: __m512, _: *const u32, _: usize, _: ()) -> __m512 { sum }
    }
}

macro_rules! vnni_quantized_dots {
    ($($code:tt)*) => {
        $(short_quantized_dots! {
            impl[] for Avx512Vnni, $code;
            (self) -> Avx512 { self.avx512() }
            // Leaves registers for four vectors with widened values.
            rows Avx512::WIDENED_ROWS;
            widened Avx512::WIDENED_ONCE;
            dot(left, right, sum) {
                // SAFETY: the token proves AVX-512 VNNI.
                unsafe {
                    let sum = _mm512_dpbusd_epi32(sum, right[0], left[0]);
                    _mm512_dpbusd_epi32(sum, right[1], left[1])
                }
            }
        })*
    };
}
vnni_quantized_dots!(2 3 4 E2M1 NON_LINEAR 5 6);

quantized_dots! {
    impl[] for Avx512Vnni, 8;
    (self) -> Avx512 { self.avx512() }
    rows Avx512::WIDENED_ROWS;
    bytes 1;
    widened false;
    left(row, group) -> __m512i { quantized_dots::left::<Avx512, 8>(self.avx512(), row, group)[0] }
    right(from, _stride, _place) -> [__m512i; 1] { [self.avx512().load_words(from)] }
    dot(a, b, sum) {
        // SAFETY: the token proves AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, b[0], a) }
    }
}

impl Dots<i8> for Avx512Vnni {
    type Vectors = Avx512;
    type Left = __m512i;
    type Right = __m512i;
    type Sum = __m512i;
    type Scales = __m512i;
    // Of 32 registers: 28 sums, 2 vectors of columns, 2 broadcasts of rows.
    const ROWS: usize = 14;
    const ROW_WORDS: usize = int8::QUAD_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        int8::pack_quads(row, 0, words);
    }

    dots! {
        fn vectors(self) -> Avx512 { self.avx512() }
        fn dot(self, left: __m512i, right: __m512i, sum: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512 VNNI.
            unsafe { _mm512_dpbusd_epi32(sum, right, left) }
        }
        // A group is one word.
        unsafe fn left(self, row: *const u32, group: usize) -> __m512i {
            self.avx512().splat_word(*row.add(int8::QUAD_SCALE_WORDS + group))
        }
        unsafe fn right(self, from: *const u32, _: usize) -> __m512i { self.avx512().load_words(from) }
        // `start` and `center` are words 1 and 2 in a packed row; the token proves AVX-512 VNNI.
        unsafe fn start(self, row: *const u32, scales: *const u32) -> __m512i {
            let (start, center) = (self.avx512().splat_word(*row.add(1)), self.avx512().splat_word(*row.add(2)));
            _mm512_dpwssd_epi32(start, center, self.avx512().load_words(scales))
        }
        unsafe fn scales(self, _: (), [a, b]: [*const u32; WIDTH], _: usize) -> [__m512i; WIDTH] {
            [self.avx512().load_words(a), self.avx512().load_words(b)]
        }
        unsafe fn to_floats(self, sum: __m512i, row: *const u32, _: usize, scales: __m512i) -> __m512 {
            int8::to_floats(self.avx512(), sum, row, scales)
        }
    }
}

impl Amx {
    /// Returns the dot products for quantized weights in groups. They do not use tiles: with a scale for every
    /// group, rescaling after each tile product would cost as much as the tiles save.
    #[inline(always)]
    pub fn group_dots(self) -> Avx512Vnni {
        self.bf16().vnni()
    }
}
