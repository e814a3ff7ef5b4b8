//! Storage formats for queries, keys, values and exponentials, and the instructions that multiply them.
//!
//! The traits extend [`Format`] and [`Dots`] for attention: operands are packed one vector at a time, as they leave
//! the softmax or enter the cache, rather than in whole rows and columns.

use std::fmt;

use half::bf16;

use super::exp::map;
#[cfg(target_arch = "x86_64")]
use crate::products::MAX_PANEL;
use crate::products::{Dots, Format, WIDTH, formats::bf16::round};
#[cfg(target_arch = "aarch64")]
use crate::vectors::neon::NeonBf16;
use crate::vectors::{Level, MAX_LANES, Vectors};
#[cfg(target_arch = "x86_64")]
use crate::vectors::{amx_emulated::AmxEmulated, avx512::Avx512Bf16};

/// The storage format for queries, keys, values and exponentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandFormat {
    /// f32, unchanged.
    F32,
    /// Rounded to bfloat16, two per word.
    Bf16,
}

impl fmt::Display for OperandFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// An operand format for attention. Each value is stored alone, without a scale for its row.
pub(crate) trait Operand: Format<Element = f32> {
    /// Stores element `term` in a group, for one right operand column per lane. Element 0 clears the others.
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// `LANES` words can be read and written at `words`.
    unsafe fn put_right<V: Vectors<f32>>(
        v: V,
        term: usize,
        of_columns: V::Vector,
        words: *mut Self::Word,
    );
}

/// The instruction set's f32 vector.
pub(crate) type VectorOf<F, D> = <<D as Dots<F>>::Vectors as Vectors<f32>>::Vector;

/// Dot products, with packing for whole vectors.
pub(crate) trait OperandDots<F: Operand>: Dots<F> {
    /// Words that one panel width along the depth takes in a left operand row.
    const LEFT_WORDS: usize = Self::ROW_WORDS / (F::CHUNK / Self::PANEL);

    /// Packs one panel width along the depth of a left operand row.
    ///
    /// # Safety
    /// [`Self::LEFT_WORDS`] words can be written at `words`.
    unsafe fn pack_left(self, terms: [VectorOf<F, Self>; WIDTH], words: *mut F::Word);

    /// Packs consecutive values in a right operand column.
    fn pack_right(self, terms: &[f32], words: &mut [F::Word]) {
        F::pack_column(F::Layout::default(), terms, words);
    }
}

impl Operand for f32 {
    #[inline(always)]
    unsafe fn put_right<V: Vectors<f32>>(v: V, _: usize, of_columns: V::Vector, words: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { v.store(of_columns, words) };
    }
}

impl<V: Level> OperandDots<f32> for V {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [VectorOf<f32, V>; WIDTH], words: *mut f32) {
        for (j, terms) in terms.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                Vectors::<f32>::store(self, terms, words.add(j * <V as Vectors<f32>>::LANES))
            };
        }
    }
}

impl Operand for bf16 {
    /// Rounds to bfloat16, and stores to the lower (`half` 0) or upper (1) half of each word.
    #[inline(always)]
    unsafe fn put_right<V: Vectors<f32>>(v: V, half: usize, numbers: V::Vector, words: *mut u32) {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` holds MAX_LANES elements, as many as the longest vector.
        unsafe { v.store(numbers, lanes.as_mut_ptr()) };
        // SAFETY: the caller's promise; any 32 bits are a valid word.
        let words = unsafe { std::slice::from_raw_parts_mut(words, V::LANES) };
        for (word, &x) in words.iter_mut().zip(&lanes) {
            let rounded = u32::from(round(x));
            *word = if half == 0 {
                rounded
            } else {
                *word & 0xffff | rounded << 16
            };
        }
    }
}

impl<V: Level> OperandDots<bf16> for V {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [VectorOf<bf16, V>; WIDTH], words: *mut u32) {
        for (j, terms) in terms.into_iter().enumerate() {
            let rounded = map(self, terms, |x: f32| {
                f32::from_bits(u32::from(round(x)) << 16)
            });
            // SAFETY: the caller's promise.
            unsafe {
                Vectors::<f32>::store(
                    self,
                    rounded,
                    words.add(j * <V as Vectors<f32>>::LANES).cast(),
                )
            };
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl OperandDots<bf16> for AmxEmulated {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [VectorOf<bf16, Self>; WIDTH], words: *mut u32) {
        let mut numbers = [0.0f32; MAX_PANEL];
        for (j, terms) in terms.into_iter().enumerate() {
            // SAFETY: `numbers` holds two vectors with any lane count.
            unsafe {
                Vectors::<f32>::store(self.avx512(), terms, numbers[j * MAX_LANES..].as_mut_ptr())
            };
        }
        // SAFETY: the caller's promise.
        let words = unsafe { std::slice::from_raw_parts_mut(words, Self::LEFT_WORDS) };
        Dots::<bf16>::pack_row(self, &numbers, bf16::CHUNK, words);
    }
}

#[cfg(target_arch = "x86_64")]
impl OperandDots<bf16> for Avx512Bf16 {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [VectorOf<bf16, Self>; WIDTH], words: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { self.store_pairs(terms, words) };
    }

    #[inline(always)]
    fn pack_right(self, terms: &[f32], words: &mut [u32]) {
        self.pack_row(terms, bf16::CHUNK, words);
    }
}

#[cfg(target_arch = "aarch64")]
impl OperandDots<bf16> for NeonBf16 {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [VectorOf<bf16, Self>; WIDTH], words: *mut u32) {
        for (j, terms) in terms.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.store_pairs(terms, words.add(4 * j)) };
        }
    }

    #[inline(always)]
    fn pack_right(self, terms: &[f32], words: &mut [u32]) {
        Dots::<bf16>::pack_row(self, terms, bf16::CHUNK, words);
    }
}
