//! What differs between instruction sets: a vector of numbers, and nothing else.
//!
//! Algorithms are written once over [`Vectors`]; each level implements it in a file of its own, in
//! the same order, so that the files can be compared.

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

/// The vectors of one level, holding numbers of type `T`.
///
/// A value is the proof that the CPU has the level. The methods are instructions only where they are
/// inlined into [`Self::run`]; elsewhere they are right, and calls.
pub trait Vectors<T: Real>: Copy + Send + Sync + 'static {
    /// A register.
    type Vector: Copy;
    /// Numbers per register.
    const LANES: usize;
    /// The vectors that turn squares fastest: a narrow square takes fewer moves for each number than a
    /// wide one, and its lanes compute the same.
    type Turner: Vectors<T>;
    /// The most rows of a tile two vectors wide: as many as leave registers for the operands.
    const ROWS: usize;

    /// Runs a task that was compiled with this level's instructions: the task's own `run` must be
    /// `#[inline(always)]`, and all that it calls.
    fn run(self, task: impl Task<T>);

    /// The proof that the CPU has [`Self::Turner`].
    fn turner(self) -> Self::Turner;

    /// `x` in every lane.
    fn splat(self, x: T) -> Self::Vector;

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b`.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b + c`: rounded once, except at the portable level, which rounds twice.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Reads a vector.
    ///
    /// # Safety
    /// `LANES` numbers from `from` on can be read.
    unsafe fn load(self, from: *const T) -> Self::Vector;

    /// Writes a vector.
    ///
    /// # Safety
    /// `LANES` numbers from `to` on can be written.
    unsafe fn store(self, vector: Self::Vector, to: *mut T);

    /// Brings a cache line near, whatever is there.
    fn prefetch(self, from: *const T);

    /// Brings a cache line into the second cache, whatever is there.
    fn prefetch_far(self, from: *const T);

    /// Calls `each(j, column j)` for [`turned`] columns of `LANES` rows, in order.
    ///
    /// # Safety
    /// So many numbers can be read from `from + i * stride` on, for each `i` below `LANES`.
    unsafe fn for_columns(
        self,
        from: *const T,
        stride: usize,
        each: impl FnMut(usize, Self::Vector),
    );
}

/// Numbers in the longest vector: 512 bits of f32.
pub const MOST_LANES: usize = 16;

/// Registers of 32-bit words, each of two or four narrow numbers.
pub trait Words: Vectors<f32> {
    /// A register.
    type Words: Copy;
    /// A register of words as pairs of signed halves, in the order in which they are multiplied best.
    type Pairs: Copy;
    /// The most rows of a tile two vectors wide whose operands are widened in registers.
    const WIDENED_ROWS: usize;

    /// Reads a register.
    ///
    /// # Safety
    /// `LANES` words from `from` on can be read.
    unsafe fn load_words(self, from: *const u32) -> Self::Words;

    /// `word` in every lane.
    fn splat_word(self, word: u32) -> Self::Words;

    /// The lower half of each word as a bfloat16.
    fn low_halves(self, words: Self::Words) -> Self::Vector;

    /// The upper half of each word as a bfloat16.
    fn high_halves(self, words: Self::Words) -> Self::Vector;

    /// The halves of `word` in every lane.
    fn splat_pair(self, word: u32) -> Self::Pairs;

    /// Bytes 0 and 2 of each word, widened to halves.
    fn even_bytes(self, words: Self::Words) -> Self::Pairs;

    /// Bytes 1 and 3 of each word, widened to halves.
    fn odd_bytes(self, words: Self::Words) -> Self::Pairs;

    /// `sum + a.low · b.low + a.high · b.high`, in 32 bits.
    fn add_products_of_pairs(self, sum: Self::Words, a: Self::Pairs, b: Self::Pairs)
    -> Self::Words;

    /// Each word as a signed integer, rounded to the nearest f32.
    fn integers(self, words: Self::Words) -> Self::Vector;
}

/// Registers of f64 that numbers of f32 go into and come out of.
pub trait Widening: Vectors<f64> {
    /// Reads numbers of f32.
    ///
    /// # Safety
    /// `LANES` of them can be read from `from` on.
    unsafe fn load_single(self, from: *const f32) -> Self::Vector;

    /// Writes the nearest numbers of f32, ties to even.
    ///
    /// # Safety
    /// `LANES` of them can be written from `to` on.
    unsafe fn store_single(self, vector: Self::Vector, to: *mut f32);
}

/// Registers of f32 that numbers are looked up in.
pub trait Lookup: Vectors<f32> {
    /// Numbers to look up, in registers if there are enough.
    type Table<'a>: Copy;

    /// Of these numbers.
    fn table(self, numbers: &[f32; LOOKED_UP]) -> Self::Table<'_>;

    /// For each lane the number of the table that the lane's lowest four bits say.
    fn look_up(self, table: Self::Table<'_>, places: Self::Vector) -> Self::Vector;

    /// `|x|`.
    fn absolute(self, x: Self::Vector) -> Self::Vector;

    /// `a`, its sign turned where `b` is negative.
    fn with_sign_of(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The lesser of both; where one is NaN, `b`.
    fn least(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

/// Numbers of a table.
pub const LOOKED_UP: usize = 16;

/// Columns that are turned at a time: 16 bytes, the part of a vector within which numbers move freely.
pub const fn turned<T>() -> usize {
    16 / size_of::<T>()
}

/// Brings numbers into the first cache, to be read soon.
#[inline(always)]
pub fn fetch<T>(numbers: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in numbers.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has it, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    for line in numbers.chunks(64 / size_of::<T>()) {
        neon::prefetch_line(line.as_ptr());
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = numbers;
}

/// An algorithm over the vectors of any level. A struct and not a closure, which cannot be told to be
/// inlined.
pub trait Task<T: Real> {
    /// Runs it.
    fn run<V: Vectors<T>>(self, vectors: V);
}

/// Plain code that the compiler makes vector code of, where it is compiled with a level's instructions. As of a
/// [`Task`], its `run` and all that it calls must be `#[inline(always)]`.
pub trait Routine {
    /// Runs it.
    fn run(self);
}

/// A routine is a task that uses no vectors.
struct Plain<R>(R);

impl<R: Routine> Task<f32> for Plain<R> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, _: V) {
        self.0.run();
    }
}

/// Runs `$body` with `$token` the proof of the level.
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
    /// Runs a routine that was compiled with this level's instructions.
    pub fn enter(self, routine: impl Routine) {
        with_level!(self, token => Vectors::<f32>::run(token, Plain(routine)))
    }
}

/// An algorithm over the [`Widening`] vectors of any level; as a [`Task`].
pub trait WideningTask {
    /// Runs it.
    fn run<V: Widening>(self, vectors: V);
}

/// A task with more than a [`Task`] asks of its vectors, to be run within their level.
struct Within<V, T>(V, T);

impl<V: Widening, T: WideningTask> Task<f64> for Within<V, T> {
    #[inline(always)]
    fn run<W: Vectors<f64>>(self, _: W) {
        self.1.run(self.0);
    }
}

impl Isa {
    /// Runs a task with this level's vectors.
    pub fn widening(self, task: impl WideningTask) {
        with_level!(self, token => Vectors::<f64>::run(token, Within(token, task)))
    }
}

/// An algorithm over the [`Lookup`] vectors of any level; as a [`Task`].
pub trait LookupTask {
    /// Runs it.
    fn run<V: Lookup>(self, vectors: V);
}

impl<V: Lookup, T: LookupTask> Task<f32> for Within<V, T> {
    #[inline(always)]
    fn run<W: Vectors<f32>>(self, _: W) {
        self.1.run(self.0);
    }
}

impl Isa {
    /// Runs a task with this level's vectors.
    pub fn looking_up(self, task: impl LookupTask) {
        with_level!(self, token => Vectors::<f32>::run(token, Within(token, task)))
    }
}

/// A number type that every level has vectors of.
pub trait Kernels: Real {
    /// Runs `task` with the vectors of `isa`.
    fn run(isa: Isa, task: impl Task<Self>);

    /// The calling thread's memory for sums and packed columns.
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
