//! What attention's products compute with: a level of instructions, and how queries, keys, values and
//! weights are stored for it.

use std::fmt;

use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::super::arch::Avx512Bf16;
use super::{
    super::{
        arch::{Kernels, MOST_LANES, Task, Vectors, Words},
        format::{DotTask, Dots, Format, bf16::round},
        isa::Isa,
        tile::WIDTH,
    },
    exp::map,
};

/// Which instructions attention runs, on operands stored how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The level.
    pub isa: Isa,
    /// What the products' operands are rounded to. Sums, scores and the softmax are f32.
    pub stored: Stored,
}

/// How queries, keys, values and the softmax's exponentials are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As they are.
    F32,
    /// Rounded to bfloat16, two in a word.
    Bf16,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl Arithmetic {
    /// Runs a task with the fastest dot products there are.
    pub(super) fn run(self, task: impl AnyOperands) {
        match self.stored {
            Stored::F32 => task.run::<f32>(self.isa),
            Stored::Bf16 => task.run::<bf16>(self.isa),
        }
    }
}

/// A task for operands of any format.
pub(super) trait AnyOperands {
    fn run<F: Operand>(self, isa: Isa);
}

/// A format of attention's operands: each term by itself, without a scale of its row.
pub(super) trait Operand: Format<Number = f32> {
    /// Runs `task` with the fastest dot products that `isa` has.
    fn run_operands(isa: Isa, task: impl OperandTask<Self>);

    /// Puts the `term`th of a group into the right operand, of as many columns as there are lanes; the first clears the
    /// others. `#[inline(always)]`.
    ///
    /// # Safety
    /// So many words can be written.
    unsafe fn put_right<V: Vectors<f32>>(
        v: V,
        term: usize,
        of_columns: V::Vector,
        words: *mut Self::Word,
    );
}

/// [`DotTask`], for operands.
pub(super) trait OperandTask<F: Operand> {
    fn run<D: OperandDots<F>>(self, dots: D);
}

/// A vector of f32 of a level.
pub(super) type Numbers<F, D> = <<D as Dots<F>>::Vectors as Vectors<f32>>::Vector;

/// Dot products whose operands vectors are packed into.
pub(super) trait OperandDots<F: Operand>: Dots<F> {
    /// Words of the left operand that hold the terms of as many columns as a panel has.
    const LEFT_WORDS: usize = Self::ROW_WORDS / (F::CHUNK / Self::PANEL);

    /// Packs consecutive terms of a row of the left operand.
    ///
    /// # Safety
    /// [`Self::LEFT_WORDS`] words can be written.
    unsafe fn pack_left(self, terms: [Numbers<F, Self>; WIDTH], words: *mut F::Word);

    /// Packs consecutive terms of a column of the right operand.
    fn pack_right(self, terms: &[f32], words: &mut [F::Word]) {
        F::pack_column(terms, words);
    }

    /// Runs a step of a task within these instructions; the step's own `run` must be `#[inline(always)]`.
    fn enter(self, step: impl Step<F, Self>) {
        self.run(Entered { dots: self, step });
    }
}

/// A part of a task that instructions are chosen for.
pub(super) trait Step<F, D> {
    fn run(self, dots: D);
}

struct Entered<D, S> {
    dots: D,
    step: S,
}

impl<F: Format, D: Dots<F>, S: Step<F, D>> DotTask<F> for Entered<D, S> {
    #[inline(always)]
    fn run<Same: Dots<F>>(self, _: Same) {
        self.step.run(self.dots);
    }
}

impl Operand for f32 {
    fn run_operands(isa: Isa, task: impl OperandTask<Self>) {
        struct OnVectors<T>(T);
        impl<T: OperandTask<f32>> Task<f32> for OnVectors<T> {
            fn run<V: Vectors<f32>>(self, vectors: V) {
                self.0.run(vectors);
            }
        }
        <Self as Kernels>::run(isa, OnVectors(task));
    }

    #[inline(always)]
    unsafe fn put_right<V: Vectors<f32>>(v: V, _: usize, of_columns: V::Vector, words: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { v.store(of_columns, words) };
    }
}

impl<V: Vectors<f32>> OperandDots<f32> for V {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [V::Vector; WIDTH], words: *mut f32) {
        for (j, terms) in terms.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.store(terms, words.add(j * V::LANES)) };
        }
    }
}

impl Operand for bf16 {
    fn run_operands(isa: Isa, task: impl OperandTask<Self>) {
        match isa {
            Isa::Portable(level) => task.run(level),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(level) => task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(level) => task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(level) => match level.bf16() {
                Some(dots) => task.run(dots),
                None => task.run(level),
            },
        }
    }

    /// Rounds numbers to the lower (0) or upper (1) half of each word.
    #[inline(always)]
    unsafe fn put_right<V: Vectors<f32>>(v: V, half: usize, numbers: V::Vector, words: *mut u32) {
        let mut lanes = [0.0; MOST_LANES];
        // SAFETY: no vector has more than MOST_LANES.
        unsafe { v.store(numbers, lanes.as_mut_ptr()) };
        // SAFETY: the caller's promise; words are 32 bits of any value.
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

impl<V: Words> OperandDots<bf16> for V {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [V::Vector; WIDTH], words: *mut u32) {
        for (j, terms) in terms.into_iter().enumerate() {
            let rounded = map(self, terms, |x| f32::from_bits(u32::from(round(x)) << 16));
            // SAFETY: the caller's promise.
            unsafe { self.store(rounded, words.add(j * V::LANES).cast()) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl OperandDots<bf16> for Avx512Bf16 {
    #[inline(always)]
    unsafe fn pack_left(self, terms: [Numbers<bf16, Self>; WIDTH], words: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { self.store_pairs(terms, words) };
    }

    #[inline(always)]
    fn pack_right(self, terms: &[f32], words: &mut [u32]) {
        self.pack_row(terms, words);
    }
}
