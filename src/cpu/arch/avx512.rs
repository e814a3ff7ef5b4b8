//! AVX-512 of the Skylake-X generation: 32 registers of 512 bits.

use std::arch::x86_64::*;

use super::{Avx2, Lookup, TABLE_LEN, Task, Vectors, Widening, Words};

/// The token of this level: the proof that the CPU has AVX-512 F, BW, DQ and VL, and which dot products may be
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    avx2: Avx2,
    dots: DotProducts,
}

/// The instructions for dot products of narrow numbers. Every CPU that has those of bfloat16 has those of int8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum DotProducts {
    None,
    Int8,
    Bf16AndInt8,
}

impl Avx512 {
    /// The token without dot products, if the CPU has all the features that `run` enables.
    pub fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let avx2 = Avx2::new()?;
        found.then_some(Self {
            avx2,
            dots: DotProducts::None,
        })
    }

    /// The token with dot products of int8 (VNNI; from Ice Lake on), if the CPU has them.
    pub fn with_vnni() -> Option<Self> {
        let plain = Self::new()?;
        is_x86_feature_detected!("avx512vnni").then_some(Self {
            dots: DotProducts::Int8,
            ..plain
        })
    }

    /// The token with dot products of int8 and bfloat16 (Sapphire Rapids, Zen 4), if the CPU has them.
    pub fn with_bf16() -> Option<Self> {
        let with_vnni = Self::with_vnni()?;
        is_x86_feature_detected!("avx512bf16").then_some(Self {
            dots: DotProducts::Bf16AndInt8,
            ..with_vnni
        })
    }

    /// The token for dot products of int8, if this level has them.
    pub fn vnni(self) -> Option<Avx512Vnni> {
        (self.dots >= DotProducts::Int8).then_some(Avx512Vnni { avx512: self })
    }

    /// The token for dot products of bfloat16, if this level has them.
    pub fn bf16(self) -> Option<Avx512Bf16> {
        (self.dots >= DotProducts::Bf16AndInt8).then_some(Avx512Bf16 { avx512: self })
    }

    /// The name of the level.
    pub fn name(self) -> &'static str {
        match self.dots {
            DotProducts::None => "avx512",
            DotProducts::Int8 => "avx512_vnni",
            DotProducts::Bf16AndInt8 => "avx512_bf16",
        }
    }
}

/// The proof that the CPU has AVX-512 with VNNI.
#[derive(Clone, Copy)]
pub struct Avx512Vnni {
    pub(super) avx512: Avx512,
}

/// The proof that the CPU has AVX-512 with BF16.
#[derive(Clone, Copy)]
pub struct Avx512Bf16 {
    pub(super) avx512: Avx512,
}

impl Vectors<f32> for Avx512 {
    type Vector = __m512;
    const LANES: usize = 16;
    type Transposer = Avx2;
    // Of 32 registers: 28 sums, 2 vectors of columns, 2 broadcasts of rows.
    const ROWS: usize = 14;

    #[inline(always)]
    fn run(self, task: impl Task<f32>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn with_instructions(token: Avx512, task: impl Task<f32>) {
            task.run(token);
        }
        // SAFETY: a token exists only where `new` found these features.
        unsafe { with_instructions(self, task) }
    }

    #[inline(always)]
    fn transposer(self) -> Avx2 {
        self.avx2
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the token proves AVX-512F; the caller promises 16 numbers.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, vector: __m512, to: *mut f32) {
        // SAFETY: the token proves AVX-512F; the caller promises room for 16 numbers.
        unsafe { _mm512_storeu_ps(to, vector) }
    }

    #[inline(always)]
    fn prefetch(self, from: *const f32) {
        // SAFETY: every x86-64 CPU has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    fn prefetch_far(self, from: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f32,
        stride: usize,
        mut each: impl FnMut(usize, __m512),
    ) {
        // The four columns of rows i, i + 4, i + 8 and i + 12, one row in each quarter.
        let quartet = |i: usize| {
            // SAFETY: the token proves AVX-512F; the caller promises 4 numbers of each of 16 rows.
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

    #[inline(always)]
    fn run(self, task: impl Task<f64>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn with_instructions(token: Avx512, task: impl Task<f64>) {
            task.run(token);
        }
        // SAFETY: a token exists only where `new` found these features.
        unsafe { with_instructions(self, task) }
    }

    #[inline(always)]
    fn transposer(self) -> Avx2 {
        self.avx2
    }

    #[inline(always)]
    fn splat(self, x: f64) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_pd(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_add_pd(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_mul_pd(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f64) -> __m512d {
        // SAFETY: the token proves AVX-512F; the caller promises 8 numbers.
        unsafe { _mm512_loadu_pd(from) }
    }

    #[inline(always)]
    unsafe fn store(self, vector: __m512d, to: *mut f64) {
        // SAFETY: the token proves AVX-512F; the caller promises room for 8 numbers.
        unsafe { _mm512_storeu_pd(to, vector) }
    }

    #[inline(always)]
    fn prefetch(self, from: *const f64) {
        // SAFETY: every x86-64 CPU has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    fn prefetch_far(self, from: *const f64) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f64,
        stride: usize,
        mut each: impl FnMut(usize, __m512d),
    ) {
        // The two columns of rows i, i + 2, i + 4 and i + 6, one row in each quarter.
        let quartet = |i: usize| {
            // SAFETY: the token proves AVX-512 F and DQ; the caller promises 4 numbers of each of 8 rows.
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
    #[inline(always)]
    unsafe fn load_single(self, from: *const f32) -> __m512d {
        // SAFETY: the token proves AVX-512F; the caller promises 8 numbers.
        unsafe { _mm512_cvtps_pd(_mm256_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store_single(self, vector: __m512d, to: *mut f32) {
        // SAFETY: the token proves AVX-512F; the caller promises room for 8 numbers.
        unsafe { _mm256_storeu_ps(to, _mm512_cvtpd_ps(vector)) }
    }
}

impl Lookup for Avx512 {
    type Table<'a> = __m512;

    #[inline(always)]
    fn table(self, numbers: &[f32; TABLE_LEN]) -> __m512 {
        // SAFETY: the token proves AVX-512F; the table has 16 numbers.
        unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
    }

    #[inline(always)]
    fn look_up(self, table: __m512, places: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_permutexvar_ps(_mm512_castps_si512(places), table) }
    }

    #[inline(always)]
    fn absolute(self, x: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_abs_ps(x) }
    }

    #[inline(always)]
    fn with_sign_of(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512 F and DQ.
        unsafe { _mm512_xor_ps(a, _mm512_and_ps(_mm512_set1_ps(-0.0), b)) }
    }

    #[inline(always)]
    fn least(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_min_ps(a, b) }
    }
}

impl Words for Avx512 {
    type Words = __m512i;
    type Pairs = __m512i;
    // Of 32 registers: 24 sums, 4 vectors of widened columns, 2 broadcasts of a row.
    const WIDENED_ROWS: usize = 12;

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> __m512i {
        // SAFETY: the token proves AVX-512 F and BW; the caller promises 16 words.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    fn splat_word(self, word: u32) -> __m512i {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    fn low_halves(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) }
    }

    #[inline(always)]
    fn high_halves(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0xffff))) }
    }

    #[inline(always)]
    fn splat_pair(self, word: u32) -> __m512i {
        self.splat_word(word)
    }

    #[inline(always)]
    fn even_bytes(self, words: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_and_si512(words, _mm512_set1_epi16(0xff)) }
    }

    #[inline(always)]
    fn odd_bytes(self, words: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_srli_epi16::<8>(words) }
    }

    #[inline(always)]
    fn add_products_of_pairs(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn integers(self, words: __m512i) -> __m512 {
        // SAFETY: the token proves AVX-512 F and BW.
        unsafe { _mm512_cvtepi32_ps(words) }
    }
}
