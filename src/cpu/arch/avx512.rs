//! AVX-512 as of Skylake-X: 32 registers of 512 bits.

use std::arch::x86_64::*;

use super::{Avx2, Task, Vectors};

/// The proof that the CPU has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    avx2: Avx2,
}

impl Avx512 {
    /// If the CPU has it. Tests for what `run` enables.
    pub fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let avx2 = Avx2::new()?;
        found.then_some(Self { avx2 })
    }
}

impl Vectors<f32> for Avx512 {
    type Vector = __m512;
    const LANES: usize = 16;
    type Turner = Avx2;
    // 28 sums, 2 columns' vectors, 2 rows'.
    const ROWS: usize = 14;

    #[inline(always)]
    fn run(self, task: impl Task<f32>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn with_instructions(token: Avx512, task: impl Task<f32>) {
            task.run(token);
        }
        // SAFETY: a token exists only where `new` found these instructions.
        unsafe { with_instructions(self, task) }
    }

    #[inline(always)]
    fn turner(self) -> Avx2 {
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
        // SAFETY: every x86-64 CPU has it, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f32,
        stride: usize,
        mut each: impl FnMut(usize, __m512),
    ) {
        // Four columns of rows i, i + 4, i + 8 and i + 12.
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
    type Turner = Avx2;
    const ROWS: usize = 14;

    #[inline(always)]
    fn run(self, task: impl Task<f64>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn with_instructions(token: Avx512, task: impl Task<f64>) {
            task.run(token);
        }
        // SAFETY: a token exists only where `new` found these instructions.
        unsafe { with_instructions(self, task) }
    }

    #[inline(always)]
    fn turner(self) -> Avx2 {
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
        // SAFETY: every x86-64 CPU has it, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const f64,
        stride: usize,
        mut each: impl FnMut(usize, __m512d),
    ) {
        // Two columns of rows i, i + 2, i + 4 and i + 6.
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
