//! The dot products of AVX-512: of four bytes (VNNI), and of two bfloat16 (BF16).

use std::{arch::x86_64::*, mem::transmute};

use half::bf16;

use super::coded::Coded;
use super::coded_dots::{self, dots_of_codes, dots_of_short_codes};
use crate::products::formats::{bf16 as pairs, int8};
use crate::products::{Dots, dots};
use crate::vectors::amx::Amx;
use crate::vectors::avx512::{Avx512, Avx512Bf16, Avx512Vnni};
use crate::vectors::{Vectors, Words};

impl Avx512Bf16 {
    /// Stores 32 consecutive terms as 16 pairs, rounded as by [`pairs::pack_pairs`], except that subnormal
    /// numbers become zeros, which the dot product takes them for anyway.
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
    type Heads = ();
    // Of 32 registers: 28 sums, 2 vectors of columns, 2 broadcasts of rows.
    const ROWS: usize = 14;
    const ROW_WORDS: usize = pairs::PAIR_ROW_WORDS;

    #[inline(always)]
    fn pack_row(self, row: &[f32], _: usize, words: &mut [u32]) {
        let (blocks, rest) = row.as_chunks::<32>();
        for (block, words) in blocks.iter().zip(words.chunks_exact_mut(16)) {
            // SAFETY: a block is two vectors of numbers, and 16 words have room for its pairs.
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
        unsafe fn right(self, from: *const u32) -> __m512i { self.avx512().load_words(from) }
        unsafe fn start(self, _: *const u32, _: *const u32) -> __m512 { _mm512_setzero_ps() }
        unsafe fn heads(self, _: (), _: *const u32, _: usize) -> () { () }
        unsafe fn numbers(self, sum: __m512, _: *const u32, _: usize, _: ()) -> __m512 { sum }
    }
}

macro_rules! vnni_dots_of_short_codes {
    ($($bits:literal)*) => {
        $(dots_of_short_codes! {
            impl[] for Avx512Vnni, $bits;
            (self) -> Avx512 { self.avx512() }
            // As many as leave registers for four vectors of widened codes.
            rows Avx512::WIDENED_ROWS;
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
vnni_dots_of_short_codes!(4 5 6);

dots_of_codes! {
    impl[] for Avx512Vnni, 8 false;
    (self) -> Avx512 { self.avx512() }
    rows Avx512::WIDENED_ROWS;
    bytes 1;
    left(row, group) -> __m512i { coded_dots::left::<Avx512, 8>(self.avx512(), row, group)[0] }
    right(from, _stride) -> __m512i { self.avx512().load_words(from) }
    dot(a, b, sum) {
        // SAFETY: the token proves AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, b, a) }
    }
}

impl Dots<i8> for Avx512Vnni {
    type Vectors = Avx512;
    type Left = __m512i;
    type Right = __m512i;
    type Sum = __m512i;
    type Heads = __m512i;
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
            self.avx512().splat_word(*row.add(int8::QUAD_HEAD + group))
        }
        unsafe fn right(self, from: *const u32) -> __m512i { self.avx512().load_words(from) }
        // `start` and `centre` are words 1 and 2 of a packed row; the token proves AVX-512 VNNI.
        unsafe fn start(self, row: *const u32, heads: *const u32) -> __m512i {
            let (start, centre) = (self.avx512().splat_word(*row.add(1)), self.avx512().splat_word(*row.add(2)));
            _mm512_dpwssd_epi32(start, centre, self.avx512().load_words(heads))
        }
        unsafe fn heads(self, _: (), heads: *const u32, _: usize) -> __m512i { self.avx512().load_words(heads) }
        unsafe fn numbers(self, sum: __m512i, row: *const u32, _: usize, heads: __m512i) -> __m512 {
            int8::numbers(self.avx512(), sum, row, heads)
        }
    }
}

impl Amx {
    /// The dot products for codes in groups, which are not multiplied in tiles: with a scale for every group, each product of
    /// two tiles would be followed by as much work as it saves.
    #[inline(always)]
    pub fn code_dots(self) -> Avx512Vnni {
        self.bf16().vnni()
    }
}
