//! AVX2 with FMA and F16C, which every CPU with AVX2 has: 16 registers with 256 bits.

use std::arch::x86_64::*;

use half::f16;

use super::level::{instructions, token};
use super::{Level, Lookup, TABLE_LEN, Vectors, Widening, Words};

token! {
    /// Proves that the CPU has AVX2, FMA and F16C.
    Avx2: is_x86_feature_detected "avx2" "fma" "f16c"
}

impl Level for Avx2 {}

impl Vectors<f32> for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    type Transposer = Self;
    // 16 registers: 12 sums, 2 vectors of columns, 1 broadcast of a row.
    const ROWS: usize = 6;
    // A core that computes for two threads at once starts half as many instructions for each.
    const UNROLLED: usize = 4;

    instructions! {
        fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn multiply(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        unsafe fn load(from: *const f32) -> __m256 { _mm256_loadu_ps(from) }
        unsafe fn store(vector: __m256, to: *mut f32) { _mm256_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f32,
        stride: usize,
        mut each: impl FnMut(usize, __m256),
    ) {
        // The four columns in row i in the lower half, in row i + 4 in the upper half.
        let pair = |i: usize| {
            // SAFETY: the token proves AVX; the caller promises 4 elements in each of 8 rows.
            unsafe {
                let low = _mm_loadu_ps(from.add(i * stride));
                let high = _mm_loadu_ps(from.add((i + 4) * stride));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
            }
        };
        let rows = [pair(0), pair(1), pair(2), pair(3)];
        // SAFETY: the token proves AVX.
        let columns = unsafe {
            let low01 = _mm256_castps_pd(_mm256_unpacklo_ps(rows[0], rows[1]));
            let high01 = _mm256_castps_pd(_mm256_unpackhi_ps(rows[0], rows[1]));
            let low23 = _mm256_castps_pd(_mm256_unpacklo_ps(rows[2], rows[3]));
            let high23 = _mm256_castps_pd(_mm256_unpackhi_ps(rows[2], rows[3]));
            [
                _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23)),
                _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23)),
            ]
        };
        for (j, column) in columns.into_iter().enumerate() {
            each(j, column);
        }
    }
}

impl Vectors<f64> for Avx2 {
    type Vector = __m256d;
    const LANES: usize = 4;
    type Transposer = Self;
    const ROWS: usize = 6;
    const UNROLLED: usize = 4;

    instructions! {
        fn splat(x: f64) -> __m256d { _mm256_set1_pd(x) }
        fn add(a: __m256d, b: __m256d) -> __m256d { _mm256_add_pd(a, b) }
        fn multiply(a: __m256d, b: __m256d) -> __m256d { _mm256_mul_pd(a, b) }
        fn multiply_add(a: __m256d, b: __m256d, c: __m256d) -> __m256d { _mm256_fmadd_pd(a, b, c) }
        unsafe fn load(from: *const f64) -> __m256d { _mm256_loadu_pd(from) }
        unsafe fn store(vector: __m256d, to: *mut f64) { _mm256_storeu_pd(to, vector) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f64,
        stride: usize,
        mut each: impl FnMut(usize, __m256d),
    ) {
        // The two columns in row i in the lower half, in row i + 2 in the upper half.
        let pair = |i: usize| {
            // SAFETY: the token proves AVX; the caller promises 2 elements in each of 4 rows.
            unsafe {
                let low = _mm_loadu_pd(from.add(i * stride));
                let high = _mm_loadu_pd(from.add((i + 2) * stride));
                _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high)
            }
        };
        let rows = [pair(0), pair(1)];
        // SAFETY: the token proves AVX.
        each(0, unsafe { _mm256_unpacklo_pd(rows[0], rows[1]) });
        // SAFETY: the token proves AVX.
        each(1, unsafe { _mm256_unpackhi_pd(rows[0], rows[1]) });
    }
}

impl Widening for Avx2 {
    instructions! {
        unsafe fn load_single(from: *const f32) -> __m256d { _mm256_cvtps_pd(_mm_loadu_ps(from)) }
        unsafe fn store_single(vector: __m256d, to: *mut f32) { _mm_storeu_ps(to, _mm256_cvtpd_ps(vector)) }
    }
}

impl Lookup for Avx2 {
    type Table<'a> = &'a [f32; TABLE_LEN];

    instructions! {
        fn table(numbers: &[f32; TABLE_LEN]) -> Self::Table<'_> { numbers }
        fn look_up(table: Self::Table<'_>, places: __m256) -> __m256 {
            let [low, high] = [table[..8].as_ptr(), table[8..].as_ptr()];
            unsafe {
                let places = _mm256_castps_si256(places);
                let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places));
                _mm256_blendv_ps(
                    _mm256_permutevar8x32_ps(_mm256_loadu_ps(low), places),
                    _mm256_permutevar8x32_ps(_mm256_loadu_ps(high), places),
                    is_high,
                )
            }
        }
        fn absolute(x: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
        fn with_sign_of(a: __m256, b: __m256) -> __m256 { _mm256_xor_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0), b)) }
        fn least(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
    }
}

impl Words for Avx2 {
    type Words = __m256i;
    type Pairs = __m256i;
    // 16 registers: 10 sums, 4 vectors of widened columns, 1 or 2 broadcasts of a row.
    const WIDENED_ROWS: usize = 5;
    const WIDENED_ONCE: bool = true;

    instructions! {
        fn splat_word(word: u32) -> __m256i { _mm256_set1_epi32(word as i32) }
        fn low_halves(words: __m256i) -> __m256 { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)) }
        fn low_f16(words: __m256i) -> __m256 {
            let halves = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
            // Four halves in the lower half of each lane.
            let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(halves, halves));
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
        }
        fn high_halves(words: __m256i) -> __m256 { _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(!0xffff))) }
        fn splat_pair(word: u32) -> __m256i { _mm256_set1_epi32(word as i32) }
        fn even_bytes(words: __m256i) -> __m256i { _mm256_and_si256(words, _mm256_set1_epi16(0xff)) }
        fn odd_bytes(words: __m256i) -> __m256i { _mm256_srli_epi16::<8>(words) }
        fn add_products_of_pairs(sum: __m256i, a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) }
        fn halves_of_bytes(words: __m256i) -> [__m256i; 2] {
            let lower = _mm256_set1_epi8(0x0f);
            [_mm256_and_si256(words, lower), _mm256_and_si256(_mm256_srli_epi16::<4>(words), lower)]
        }
        fn look_up_bytes(words: __m256i, table: &[u8; TABLE_LEN]) -> __m256i {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), words)
        }
        fn add_products_of_bytes(sum: __m256i, a: [__m256i; 2], b: [__m256i; 2]) -> __m256i {
            let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a[0], b[0]), _mm256_maddubs_epi16(a[1], b[1]));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
        fn integers(words: __m256i) -> __m256 { _mm256_cvtepi32_ps(words) }
        fn add_words(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        fn and_words(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn xor_words(a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn rotate_words(words: __m256i, by: u32) -> __m256i {
            let up = _mm256_sllv_epi32(words, _mm256_set1_epi32(by as i32));
            _mm256_or_si256(up, _mm256_srlv_epi32(words, _mm256_set1_epi32(32 - by as i32)))
        }
        unsafe fn load_words(from: *const u32) -> __m256i { _mm256_loadu_si256(from.cast()) }
        unsafe fn store_words(words: __m256i, to: *mut u32) { _mm256_storeu_si256(to.cast(), words); }
        unsafe fn load_half(from: *const f16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
}
