//! AVX-512 as in Skylake-X: 32 registers with 512 bits.

use std::arch::x86_64::*;

use half::f16;

use super::level::{instructions, token};
use super::{Level, Lookup, TABLE_LEN, Vectors, Widening, Words, avx2::Avx2};

token! {
    /// Proves that the CPU has AVX-512 F, BW, DQ and VL.
    Avx512: is_x86_feature_detected "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx2" "fma" "f16c"
}

token! {
    /// Proves that the CPU has AVX-512 with VNNI, int8 dot products (from Ice Lake on).
    Avx512Vnni: is_x86_feature_detected "avx512vnni" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx2" "fma" "f16c"
}

token! {
    /// Proves that the CPU has AVX-512 with BF16, bfloat16 dot products, and VNNI, which every such CPU has
    /// (Sapphire Rapids, Zen 4).
    Avx512Bf16: is_x86_feature_detected "avx512bf16" "avx512vnni" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx2" "fma" "f16c"
}

impl Avx512Vnni {
    /// Returns the instruction set without these dot products.
    #[inline(always)]
    pub fn avx512(self) -> Avx512 {
        Avx512 { found: () }
    }
}

impl Avx512Bf16 {
    /// Returns the instruction set with int8 dot products only.
    #[inline(always)]
    pub fn vnni(self) -> Avx512Vnni {
        Avx512Vnni { found: () }
    }

    /// Returns the instruction set without these dot products.
    #[inline(always)]
    pub fn avx512(self) -> Avx512 {
        Avx512 { found: () }
    }
}

impl From<Avx512> for Avx2 {
    // AVX-512 includes its features.
    #[inline(always)]
    fn from(_: Avx512) -> Self {
        Self { found: () }
    }
}

impl Level for Avx512 {}

impl Vectors<f32> for Avx512 {
    type Vector = __m512;
    const LANES: usize = 16;
    type Transposer = Avx2;
    // 32 registers: 28 sums, 2 vectors of columns, 2 broadcasts of rows. Unrolled, the compiler spilled some.
    const ROWS: usize = 14;

    instructions! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn multiply(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        unsafe fn load(from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
        unsafe fn store(vector: __m512, to: *mut f32) { _mm512_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f32,
        stride: usize,
        mut each: impl FnMut(usize, __m512),
    ) {
        // The four columns in rows i, i + 4, i + 8 and i + 12, one row per quarter.
        let quartet = |i: usize| {
            // SAFETY: the token proves AVX-512F; the caller promises 4 elements in each of 16 rows.
            unsafe {
                let quarter = |i: usize| _mm_loadu_ps(from.add(i * stride));
                let rows = _mm512_castps128_ps512(quarter(i));
                let rows = _mm512_insertf32x4::<1>(rows, quarter(i + 4));
                let rows = _mm512_insertf32x4::<2>(rows, quarter(i + 8));
                _mm512_insertf32x4::<3>(rows, quarter(i + 12))
            }
        };
        let rows = [quartet(0), quartet(1), quartet(2), quartet(3)];
        // SAFETY: the token proves AVX-512F.
        let columns = unsafe {
            let low01 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1]));
            let high01 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1]));
            let low23 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3]));
            let high23 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3]));
            [
                _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23)),
                _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23)),
            ]
        };
        for (j, column) in columns.into_iter().enumerate() {
            each(j, column);
        }
    }
}

impl Vectors<f64> for Avx512 {
    type Vector = __m512d;
    const LANES: usize = 8;
    type Transposer = Avx2;
    const ROWS: usize = 14;

    instructions! {
        fn splat(x: f64) -> __m512d { _mm512_set1_pd(x) }
        fn add(a: __m512d, b: __m512d) -> __m512d { _mm512_add_pd(a, b) }
        fn multiply(a: __m512d, b: __m512d) -> __m512d { _mm512_mul_pd(a, b) }
        fn multiply_add(a: __m512d, b: __m512d, c: __m512d) -> __m512d { _mm512_fmadd_pd(a, b, c) }
        unsafe fn load(from: *const f64) -> __m512d { _mm512_loadu_pd(from) }
        unsafe fn store(vector: __m512d, to: *mut f64) { _mm512_storeu_pd(to, vector) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f64,
        stride: usize,
        mut each: impl FnMut(usize, __m512d),
    ) {
        // The two columns in rows i, i + 2, i + 4 and i + 6, one row per quarter.
        let quartet = |i: usize| {
            // SAFETY: the token proves AVX-512 F and DQ; the caller promises 2 elements in each of 8 rows.
            unsafe {
                let quarter = |i: usize| _mm_loadu_pd(from.add(i * stride));
                let rows = _mm512_castpd128_pd512(quarter(i));
                let rows = _mm512_insertf64x2::<1>(rows, quarter(i + 2));
                let rows = _mm512_insertf64x2::<2>(rows, quarter(i + 4));
                _mm512_insertf64x2::<3>(rows, quarter(i + 6))
            }
        };
        let rows = [quartet(0), quartet(1)];
        // SAFETY: the token proves AVX-512F.
        each(0, unsafe { _mm512_unpacklo_pd(rows[0], rows[1]) });
        // SAFETY: the token proves AVX-512F.
        each(1, unsafe { _mm512_unpackhi_pd(rows[0], rows[1]) });
    }
}

impl Widening for Avx512 {
    instructions! {
        unsafe fn load_single(from: *const f32) -> __m512d { _mm512_cvtps_pd(_mm256_loadu_ps(from)) }
        unsafe fn store_single(vector: __m512d, to: *mut f32) { _mm256_storeu_ps(to, _mm512_cvtpd_ps(vector)) }
    }
}

impl Lookup for Avx512 {
    type Table<'a> = __m512;

    instructions! {
        fn table(numbers: &[f32; TABLE_LEN]) -> __m512 { _mm512_loadu_ps(numbers.as_ptr()) }
        fn look_up(table: __m512, places: __m512) -> __m512 { _mm512_permutexvar_ps(_mm512_castps_si512(places), table) }
        fn absolute(x: __m512) -> __m512 { _mm512_abs_ps(x) }
        fn with_sign_of(a: __m512, b: __m512) -> __m512 { _mm512_xor_ps(a, _mm512_and_ps(_mm512_set1_ps(-0.0), b)) }
        fn least(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
    }
}

impl Words for Avx512 {
    type Words = __m512i;
    type Pairs = __m512i;
    // 32 registers: 24 sums, 4 vectors of widened columns, 2 broadcasts of a row.
    const WIDENED_ROWS: usize = 12;

    instructions! {
        fn splat_word(word: u32) -> __m512i { _mm512_set1_epi32(word as i32) }
        fn low_halves(words: __m512i) -> __m512 { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) }
        fn low_f16(words: __m512i) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
        fn high_halves(words: __m512i) -> __m512 { _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0xffff))) }
        fn splat_pair(word: u32) -> __m512i { _mm512_set1_epi32(word as i32) }
        fn even_bytes(words: __m512i) -> __m512i { _mm512_and_si512(words, _mm512_set1_epi16(0xff)) }
        fn odd_bytes(words: __m512i) -> __m512i { _mm512_srli_epi16::<8>(words) }
        fn add_products_of_pairs(sum: __m512i, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) }
        fn halves_of_bytes(words: __m512i) -> [__m512i; 2] {
            let lower = _mm512_set1_epi8(0x0f);
            [_mm512_and_si512(words, lower), _mm512_and_si512(_mm512_srli_epi16::<4>(words), lower)]
        }
        fn look_up_bytes(words: __m512i, table: &[u8; TABLE_LEN]) -> __m512i {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), words)
        }
        fn add_products_of_bytes(sum: __m512i, a: [__m512i; 2], b: [__m512i; 2]) -> __m512i {
            let pairs = _mm512_add_epi16(_mm512_maddubs_epi16(a[0], b[0]), _mm512_maddubs_epi16(a[1], b[1]));
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
        fn integers(words: __m512i) -> __m512 { _mm512_cvtepi32_ps(words) }
        fn add_words(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn and_words(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn xor_words(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn rotate_words(words: __m512i, by: u32) -> __m512i { _mm512_rolv_epi32(words, _mm512_set1_epi32(by as i32)) }
        unsafe fn load_words(from: *const u32) -> __m512i { _mm512_loadu_si512(from.cast()) }
        unsafe fn store_words(words: __m512i, to: *mut u32) { _mm512_storeu_si512(to.cast(), words); }
        unsafe fn load_half(from: *const f16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
}
