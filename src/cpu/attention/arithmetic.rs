//! The arithmetic of attention's products: a level of instructions, and the format that queries, keys, values
//! and exponentials are stored in.
//!
//! It extends [`Format`] and [`Dots`] by what attention needs beside products: to pack operands one vector at a
//! time, as they leave the softmax or enter the cache, instead of whole rows and columns.

use std::fmt;

use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::super::arch::Avx512Bf16;
use super::{
    super::{
        arch::{Kernels, MAX_LANES, Task, Vectors, Words},
        format::{DotTask, Dots, Format, bf16::round, run_fastest},
        isa::Isa,
        tile::WIDTH,
    },
    exp::map,
};

/// The level whose instructions attention runs, and the format of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The level of instructions.
    pub isa: Isa,
    /// What the operands of products are rounded to. Sums, scores and the softmax are f32.
    pub stored: Stored,
}

/// How queries, keys, values and exponentials are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// f32, unchanged.
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
    /// Runs a task with the fastest dot products of this level and format.
    pub(super) fn run(self, task: impl AnyOperands) {
        match self.stored {
            Stored::F32 => task.run::<f32>(self.isa),
            Stored::Bf16 => task.run::<bf16>(self.isa),
        }
    }
}

/// A task that can be run with operands of any format.
pub(super) trait AnyOperands {
    fn run<F: Operand>(self, isa: Isa);
}

/// A format for attention's operands: each term is stored by itself, without a scale that depends on its row.
pub(super) trait Operand: Format<Number = f32> {
    /// Runs `task` with the fastest dot products that `isa` has for this format.
    fn run_operands(isa: Isa, task: impl OperandTask<Self>);

    /// Stores term number `term` of a group for as many columns of the right operand as there are lanes. Term 0
    /// clears the others. Implementations are `#[inline(always)]`.
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

/// An algorithm over attention's dot products; as [`DotTask`].
pub(super) trait OperandTask<F: Operand> {
    fn run<D: OperandDots<F>>(self, dots: D);
}

/// The f32 vector of a level.
pub(super) type Numbers<F, D> = <<D as Dots<F>>::Vectors as Vectors<f32>>::Vector;

/// Dot products with packing of whole vectors.
pub(super) trait OperandDots<F: Operand>: Dots<F> {
    /// Words that a panel's width of consecutive terms occupies in a row of the left operand.
    const LEFT_WORDS: usize = Self::ROW_WORDS / (F::CHUNK / Self::PANEL);

    /// Packs a panel's width of consecutive terms of a row of the left operand.
    ///
    /// # Safety
    /// [`Self::LEFT_WORDS`] words can be written at `words`.
    unsafe fn pack_left(self, terms: [Numbers<F, Self>; WIDTH], words: *mut F::Word);

    /// Packs consecutive terms of a column of the right operand.
    fn pack_right(self, terms: &[f32], words: &mut [F::Word]) {
        F::pack_column(terms, words);
    }

    /// Runs a step of a task within these instructions; the step's `run` must be `#[inline(always)]`.
    fn enter(self, step: impl Step<F, Self>) {
        self.run(Entered { dots: self, step });
    }
}

/// A part of a task that is compiled with the level's instructions.
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
        run_fastest!(isa, task, bf16);
    }

    /// Rounds to bfloat16, and stores to the lower (`half` 0) or upper (1) half of each word.
    #[inline(always)]
    unsafe fn put_right<V: Vectors<f32>>(v: V, half: usize, numbers: V::Vector, words: *mut u32) {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` holds MAX_LANES numbers, as many as the longest vector.
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
