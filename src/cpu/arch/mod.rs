//! The instruction sets: what a register holds, and what one instruction does with it.
//!
//! Algorithms are written once, over the traits [`Vectors`], [`Words`], [`Widening`] and [`Lookup`]. Each level
//! implements these in a file of its own, in the same order, so that the files can be compared. To run an
//! algorithm with a level's instructions, it is a struct with an `#[inline(always)]` method ([`Task`]) that a
//! `#[target_feature]` function of the level calls: only what is inlined into that function is compiled with
//! its instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_dots;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, Avx512Bf16, Avx512Vnni};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;

use super::{
    Real,
    isa::Isa,
    scratch::{Aligned, Scratch},
};

/// The vectors of one level with elements of type `T`.
///
/// A value is the proof that the CPU has the level. The methods become single instructions only where they are
/// inlined into [`Self::run`]; anywhere else they are correct, but calls.
pub trait Vectors<T: Real>: Copy + Send + Sync + 'static {
    /// The contents of a register (NEON: of two).
    type Vector: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// The vectors that transpose small squares fastest: a narrower vector takes fewer shuffles per number. Its
    /// lanes compute the same bits.
    type Transposer: Vectors<T>;
    /// The most rows of a tile two vectors wide: as many as leave registers for the operands.
    const ROWS: usize;

    /// Runs a task compiled with this level's instructions: the task's own `run`, and everything that it calls,
    /// must be `#[inline(always)]`.
    fn run(self, task: impl Task<T>);

    /// The proof that the CPU has [`Self::Transposer`].
    fn transposer(self) -> Self::Transposer;

    /// `x` in every lane.
    fn splat(self, x: T) -> Self::Vector;

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b`.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b + c`: rounded once, except at the portable level, which rounds twice.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Loads a vector; any alignment.
    ///
    /// # Safety
    /// `LANES` numbers can be read at `from`.
    unsafe fn load(self, from: *const T) -> Self::Vector;

    /// Stores a vector; any alignment.
    ///
    /// # Safety
    /// `LANES` numbers can be written at `to`.
    unsafe fn store(self, vector: Self::Vector, to: *mut T);

    /// Prefetches a cache line into the first-level cache. Any address will do.
    fn prefetch(self, from: *const T);

    /// Prefetches a cache line into the second-level cache. Any address will do.
    fn prefetch_far(self, from: *const T);

    /// Transposes [`columns_at_once`] columns of `LANES` rows, these `stride` numbers apart: calls `each(j, column j)`
    /// in order.
    ///
    /// # Safety
    /// From `from + i * stride` on, [`columns_at_once`] numbers can be read, for each `i` below `LANES`.
    unsafe fn for_columns(
        self,
        from: *const T,
        stride: usize,
        each: impl FnMut(usize, Self::Vector),
    );
}

/// Elements of the longest vector of any level: 512 bits of f32.
pub const MAX_LANES: usize = 16;

/// Vectors of 32-bit words that hold two or four narrow numbers each.
pub trait Words: Vectors<f32> {
    /// The contents of a register.
    type Words: Copy;
    /// Each word as a pair of signed 16-bit integers, in whichever order is multiplied fastest.
    type Pairs: Copy;
    /// The most rows of a tile two vectors wide whose operands are widened in registers.
    const WIDENED_ROWS: usize;
    /// The same for operands of bytes, which are multiplied as [`Self::Pairs`].
    const BYTE_ROWS: usize = Self::WIDENED_ROWS;

    /// Loads a vector of words; any alignment.
    ///
    /// # Safety
    /// `LANES` words can be read at `from`.
    unsafe fn load_words(self, from: *const u32) -> Self::Words;

    /// `word` in every lane.
    fn splat_word(self, word: u32) -> Self::Words;

    /// The lower half of each word, a bfloat16, as f32.
    fn low_halves(self, words: Self::Words) -> Self::Vector;

    /// The upper half of each word, a bfloat16, as f32.
    fn high_halves(self, words: Self::Words) -> Self::Vector;

    /// `word`, as a pair of 16-bit integers, in every lane.
    fn splat_pair(self, word: u32) -> Self::Pairs;

    /// Bytes 0 and 2 of each word, zero-extended to 16 bits.
    fn even_bytes(self, words: Self::Words) -> Self::Pairs;

    /// Bytes 1 and 3 of each word, zero-extended to 16 bits.
    fn odd_bytes(self, words: Self::Words) -> Self::Pairs;

    /// `sum + a.low · b.low + a.high · b.high` in 32 bits, which wrap around.
    fn add_products_of_pairs(self, sum: Self::Words, a: Self::Pairs, b: Self::Pairs)
    -> Self::Words;

    /// Each word as a signed integer, converted to the nearest f32.
    fn integers(self, words: Self::Words) -> Self::Vector;
}

/// Vectors of f64 whose elements are loaded from and stored to f32.
pub trait Widening: Vectors<f64> {
    /// Loads numbers of f32, widened.
    ///
    /// # Safety
    /// `LANES` of them can be read at `from`.
    unsafe fn load_single(self, from: *const f32) -> Self::Vector;

    /// Stores numbers as f32, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `LANES` of them can be written at `to`.
    unsafe fn store_single(self, vector: Self::Vector, to: *mut f32);
}

/// Vectors of f32 with a lookup in a table of 16 numbers.
pub trait Lookup: Vectors<f32> {
    /// A table, in registers if there are enough of them.
    type Table<'a>: Copy;

    /// The table of these numbers.
    fn table(self, numbers: &[f32; TABLE_LEN]) -> Self::Table<'_>;

    /// For each lane, the number of the table at the index in the lane's four lowest bits.
    fn look_up(self, table: Self::Table<'_>, places: Self::Vector) -> Self::Vector;

    /// `|x|`.
    fn absolute(self, x: Self::Vector) -> Self::Vector;

    /// `a` with its sign flipped where `b` is negative.
    fn with_sign_of(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The lesser of both in each lane; `b` where either is NaN.
    fn least(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

/// Numbers in a lookup table.
pub const TABLE_LEN: usize = 16;

/// Columns that [`Vectors::for_columns`] transposes at a time: 16 bytes, the part of a vector that a shuffle
/// does not leave.
pub const fn columns_at_once<T>() -> usize {
    16 / size_of::<T>()
}

/// Prefetches numbers that are read soon into the first-level cache.
#[inline(always)]
pub fn fetch<T>(numbers: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in numbers.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    for line in numbers.chunks(64 / size_of::<T>()) {
        neon::prefetch_line(line.as_ptr());
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = numbers;
}

/// An algorithm over the vectors of any level. A struct and not a closure, because a closure cannot be forced
/// inline.
pub trait Task<T: Real> {
    /// Runs the algorithm with these vectors.
    fn run<V: Vectors<T>>(self, vectors: V);
}

/// Scalar code for the compiler to vectorise, compiled with a level's instructions. As for a [`Task`], its
/// `run` and everything that it calls must be `#[inline(always)]`.
pub trait Routine {
    /// Runs the code.
    fn run(self);
}

/// Makes a routine a task, which uses no vectors.
struct Plain<R>(R);

impl<R: Routine> Task<f32> for Plain<R> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, _: V) {
        self.0.run();
    }
}

/// Runs `$body` with `$token` bound to the level's token.
macro_rules! with_level {
    ($isa:expr, $token:ident => $body:expr) => {
        match $isa {
            Isa::Portable($token) => $body,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon($token) => $body,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2($token) => $body,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512($token) => $body,
        }
    };
}

impl Isa {
    /// Runs a routine compiled with this level's instructions.
    pub fn enter(self, routine: impl Routine) {
        with_level!(self, token => Vectors::<f32>::run(token, Plain(routine)))
    }
}

/// An algorithm over the [`Widening`] vectors of any level; see [`Task`].
pub trait WideningTask {
    /// Runs the algorithm with these vectors.
    fn run<V: Widening>(self, vectors: V);
}

/// A task that asks for more than [`Vectors`], with the level's token `V`: it is run within the level's
/// instructions, and given that token in place of the plain one.
struct Within<V, T>(V, T);

impl<V: Widening, T: WideningTask> Task<f64> for Within<V, T> {
    #[inline(always)]
    fn run<W: Vectors<f64>>(self, _: W) {
        self.1.run(self.0);
    }
}

impl Isa {
    /// Runs a task with this level's [`Widening`] vectors.
    pub fn widening(self, task: impl WideningTask) {
        with_level!(self, token => Vectors::<f64>::run(token, Within(token, task)))
    }
}

/// An algorithm over the [`Lookup`] vectors of any level; see [`Task`].
pub trait LookupTask {
    /// Runs the algorithm with these vectors.
    fn run<V: Lookup>(self, vectors: V);
}

impl<V: Lookup, T: LookupTask> Task<f32> for Within<V, T> {
    #[inline(always)]
    fn run<W: Vectors<f32>>(self, _: W) {
        self.1.run(self.0);
    }
}

impl Isa {
    /// Runs a task with this level's [`Lookup`] vectors.
    pub fn looking_up(self, task: impl LookupTask) {
        with_level!(self, token => Vectors::<f32>::run(token, Within(token, task)))
    }
}

/// A number type that every level has vectors of: f32 and f64.
pub trait Kernels: Real {
    /// Runs `task` with the vectors of `isa`.
    fn run(isa: Isa, task: impl Task<Self>);

    /// The calling thread's scratch memory for totals and packed columns.
    fn tile_scratch() -> &'static Scratch<Self>;
}

macro_rules! kernels {
    ($type:ty) => {
        impl Kernels for $type {
            fn run(isa: Isa, task: impl Task<Self>) {
                with_level!(isa, token => task.run(token))
            }

            fn tile_scratch() -> &'static Scratch<Self> {
                thread_local!(static TILES: Cell<Aligned<$type>> = const { Cell::new(Aligned::empty()) });
                &TILES
            }
        }
    };
}

kernels!(f32);
kernels!(f64);

#[cfg(test)]
mod tests;
