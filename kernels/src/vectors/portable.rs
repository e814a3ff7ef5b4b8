//! Plain Rust: the fallback, the version to read first, and what Miri runs.

use super::{
    element::Real,
    level::{Level, Lookup, TABLE_LEN, Task, Vectors, Widening, Words, columns_at_once},
};

/// The token of the portable level, which every CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// 128 bits of f32, the narrowest vector unit in common use.
const LANES: usize = 4;

impl Level for Portable {
    const HAS_FUSED: bool = false;

    #[inline(always)]
    fn enter<T: Task>(self, task: T) -> T::Output {
        task.compute(self)
    }
}

impl<T: Real> Vectors<T> for Portable {
    type Vector = [T; LANES];
    const LANES: usize = LANES;
    type Transposer = Self;
    const ROWS: usize = 4;

    #[inline(always)]
    fn transposer(self) -> Self {
        self
    }

    #[inline(always)]
    fn splat(self, x: T) -> Self::Vector {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // Two roundings: without an FMA instruction, a fused one would be a library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn load(self, from: *const T) -> Self::Vector {
        // SAFETY: the caller promises LANES numbers; an array is aligned as its elements.
        unsafe { *from.cast() }
    }

    #[inline(always)]
    unsafe fn store(self, vector: Self::Vector, to: *mut T) {
        // SAFETY: the caller promises room for LANES numbers; an array is aligned as its elements.
        unsafe { *to.cast() = vector }
    }

    #[inline(always)]
    unsafe fn for_columns(
        self,
        from: *const T,
        stride: usize,
        mut each: impl FnMut(usize, Self::Vector),
    ) {
        for j in 0..columns_at_once::<T>() {
            // SAFETY: the caller promises `columns_at_once` numbers in each of LANES rows.
            each(
                j,
                std::array::from_fn(|i| unsafe { *from.add(i * stride + j) }),
            );
        }
    }
}

impl Widening for Portable {
    #[inline(always)]
    unsafe fn load_single(self, from: *const f32) -> [f64; LANES] {
        // SAFETY: the caller promises LANES numbers; an array is aligned as its elements.
        unsafe { *from.cast::<[f32; LANES]>() }.map(f64::from)
    }

    #[inline(always)]
    unsafe fn store_single(self, vector: [f64; LANES], to: *mut f32) {
        // SAFETY: the caller promises room for LANES numbers; an array is aligned as its elements.
        unsafe { *to.cast() = vector.map(|x| x as f32) }
    }
}

impl Lookup for Portable {
    type Table<'a> = &'a [f32; TABLE_LEN];

    #[inline(always)]
    fn table(self, numbers: &[f32; TABLE_LEN]) -> Self::Table<'_> {
        numbers
    }

    #[inline(always)]
    fn look_up(self, table: Self::Table<'_>, places: [f32; LANES]) -> [f32; LANES] {
        places.map(|place| table[place.to_bits() as usize % TABLE_LEN])
    }

    #[inline(always)]
    fn absolute(self, x: [f32; LANES]) -> [f32; LANES] {
        x.map(f32::abs)
    }

    #[inline(always)]
    fn with_sign_of(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        let sign = |x: f32| x.to_bits() & 1 << 31;
        std::array::from_fn(|i| f32::from_bits(a[i].to_bits() ^ sign(b[i])))
    }

    #[inline(always)]
    fn least(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
}

impl Words for Portable {
    type Words = [u32; LANES];
    type Pairs = [u32; LANES];
    const WIDENED_ROWS: usize = 2;
    // With more, the compiler multiplies one number at a time.
    const BYTE_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> [u32; LANES] {
        // SAFETY: the caller promises LANES words; an array is aligned as its elements.
        unsafe { *from.cast() }
    }

    #[inline(always)]
    fn splat_word(self, word: u32) -> [u32; LANES] {
        [word; LANES]
    }

    #[inline(always)]
    fn low_halves(self, words: [u32; LANES]) -> [f32; LANES] {
        words.map(|word| f32::from_bits(word << 16))
    }

    #[inline(always)]
    fn high_halves(self, words: [u32; LANES]) -> [f32; LANES] {
        words.map(|word| f32::from_bits(word & 0xffff_0000))
    }

    #[inline(always)]
    fn splat_pair(self, word: u32) -> [u32; LANES] {
        [word; LANES]
    }

    #[inline(always)]
    fn even_bytes(self, words: [u32; LANES]) -> [u32; LANES] {
        words.map(|word| word & 0x00ff_00ff)
    }

    #[inline(always)]
    fn odd_bytes(self, words: [u32; LANES]) -> [u32; LANES] {
        words.map(|word| word >> 8 & 0x00ff_00ff)
    }

    #[inline(always)]
    fn add_products_of_pairs(
        self,
        sum: [u32; LANES],
        a: [u32; LANES],
        b: [u32; LANES],
    ) -> [u32; LANES] {
        let low = |word: u32| i32::from(word as i16);
        let high = |word: u32| i32::from((word >> 16) as i16);
        std::array::from_fn(|i| {
            let products = low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]);
            sum[i].wrapping_add(products as u32)
        })
    }

    #[inline(always)]
    fn integers(self, words: [u32; LANES]) -> [f32; LANES] {
        words.map(|word| word as i32 as f32)
    }
}
