//! Instruction sets: the contents of a register, and the operations that are one instruction.
//!
//! Algorithms are written once, over the traits [`Vectors`], [`Words`], [`Widening`] and [`Lookup`]. Each
//! instruction set implements these in its own file, in the same order, so that the files can be compared. An
//! algorithm that is to be compiled with an instruction set is a struct with an `#[inline(always)]` method
//! ([`Task`]), which the instruction set's `#[target_feature]` function calls ([`Instructions::enter`]). Only code
//! inlined into that function is compiled with its instructions.

use half::f16;

use super::Real;

/// An instruction set's vectors with elements `T`.
///
/// Holding a value proves that the CPU has the instruction set. The methods become single instructions only if they
/// are inlined into [`Instructions::enter`]. Elsewhere they are correct, but calls.
pub trait Vectors<T: Real>: Copy + Send + Sync + 'static {
    /// A register's contents (on NEON: two registers').
    type Vector: Copy;
    /// Elements per vector.
    const LANES: usize;
    /// The vectors that transpose small squares fastest: a narrower vector takes fewer shuffles per element. Its
    /// lanes compute the same bits.
    type Transposer: Vectors<T> + From<Self>;
    /// The maximum row count in a tile two vectors wide that leaves registers for the operands.
    const ROWS: usize;
    /// Groups of one value that such a tile adds without a condition in between, at most 4: more than one where a group
    /// takes so few instructions that those of a loop count.
    const UNROLLED: usize = 1;

    /// Returns `x` in every lane.
    fn splat(self, x: T) -> Self::Vector;

    /// Returns `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns `a * b`.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns `a * b + c`, rounded once, except on the portable instruction set, which rounds twice.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Loads a vector with any alignment.
    ///
    /// # Safety
    /// `LANES` elements can be read at `from`.
    unsafe fn load(self, from: *const T) -> Self::Vector;

    /// Stores a vector with any alignment.
    ///
    /// # Safety
    /// `LANES` elements can be written at `to`.
    unsafe fn store(self, vector: Self::Vector, to: *mut T);

    /// Transposes [`columns_at_once`] columns in `LANES` rows, which are `stride` elements apart. Calls `each(j,
    /// column j)` in order.
    ///
    /// # Safety
    /// For each `i` below `LANES`, [`columns_at_once`] elements can be read at `from + i * stride`.
    unsafe fn for_columns(
        self,
        from: *const T,
        stride: usize,
        each: impl FnMut(usize, Self::Vector),
    );
}

/// The longest vector's element count on any instruction set: 512 bits in f32.
pub const MAX_LANES: usize = 16;

/// Vectors with 32-bit words that hold two or four narrow values each.
pub trait Words: Vectors<f32> {
    /// A register's contents.
    type Words: Copy;
    /// Each word as a pair of signed 16-bit integers, in the order that multiplies fastest.
    type Pairs: Copy;
    /// The maximum row count in a tile two vectors wide, for operands that are widened in registers.
    const WIDENED_ROWS: usize;
    /// The maximum row count for byte operands, which are multiplied as [`Self::Pairs`].
    const BYTE_ROWS: usize = Self::WIDENED_ROWS;

    /// True if a chunk of quantized weights is widened once for several tiles. With many rows in a tile, widening it
    /// in registers again is faster (AVX-512 on Zen 4).
    const WIDENED_ONCE: bool = false;

    /// Loads a word vector with any alignment.
    ///
    /// # Safety
    /// `LANES` words can be read at `from`.
    unsafe fn load_words(self, from: *const u32) -> Self::Words;

    /// Stores a word vector with any alignment.
    ///
    /// # Safety
    /// `LANES` words can be written at `to`.
    unsafe fn store_words(self, words: Self::Words, to: *mut u32);

    /// Loads f16 values and widens them, with any alignment.
    ///
    /// # Safety
    /// `LANES` f16 values can be read at `from`.
    unsafe fn load_half(self, from: *const f16) -> Self::Vector;

    /// Returns `word` in every lane.
    fn splat_word(self, word: u32) -> Self::Words;

    /// Returns `a + b` in wrapping 32-bit integers.
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Returns the bitwise AND.
    fn and_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Returns the bitwise XOR.
    fn xor_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Rotates each word left by `by` bits, from 1 to 31.
    fn rotate_words(self, words: Self::Words, by: u32) -> Self::Words;

    /// Returns each word's lower half, a bfloat16, as f32.
    fn low_halves(self, words: Self::Words) -> Self::Vector;

    /// Returns each word's lower half, an f16, as f32.
    fn low_f16(self, words: Self::Words) -> Self::Vector;

    /// Returns each word's upper half, a bfloat16, as f32.
    fn high_halves(self, words: Self::Words) -> Self::Vector;

    /// Returns `word`, as a pair of 16-bit integers, in every lane.
    fn splat_pair(self, word: u32) -> Self::Pairs;

    /// Returns each word's bytes 0 and 2, zero-extended to 16 bits.
    fn even_bytes(self, words: Self::Words) -> Self::Pairs;

    /// Returns each word's bytes 1 and 3, zero-extended to 16 bits.
    fn odd_bytes(self, words: Self::Words) -> Self::Pairs;

    /// Returns `sum + a.low · b.low + a.high · b.high` in wrapping 32-bit integers.
    fn add_products_of_pairs(self, sum: Self::Words, a: Self::Pairs, b: Self::Pairs)
    -> Self::Words;

    /// Returns the lower and the upper four bits in each byte, as bytes.
    fn halves_of_bytes(self, words: Self::Words) -> [Self::Words; 2];

    /// Replaces each byte, from 0 to 15, by that entry in the table.
    fn look_up_bytes(self, words: Self::Words, table: &[u8; TABLE_LEN]) -> Self::Words;

    /// Returns `sum` plus the byte products of `unsigned` words, from 0 to 63, and `signed` words, from -127 to 127.
    fn add_products_of_bytes(
        self,
        sum: Self::Words,
        unsigned: [Self::Words; 2],
        signed: [Self::Words; 2],
    ) -> Self::Words;

    /// Converts each word, as a signed integer, to the nearest f32.
    fn integers(self, words: Self::Words) -> Self::Vector;
}

/// f64 vectors that are loaded from and stored to f32.
pub trait Widening: Vectors<f64> {
    /// Loads f32 values and widens them.
    ///
    /// # Safety
    /// `LANES` f32 values can be read at `from`.
    unsafe fn load_single(self, from: *const f32) -> Self::Vector;

    /// Stores elements as f32, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `LANES` f32 values can be written at `to`.
    unsafe fn store_single(self, vector: Self::Vector, to: *mut f32);
}

/// f32 vectors with a lookup in a table of 16 values.
pub trait Lookup: Vectors<f32> {
    /// A table, in registers if there are enough.
    type Table<'a>: Copy;

    /// Loads a table.
    fn table(self, numbers: &[f32; TABLE_LEN]) -> Self::Table<'_>;

    /// Returns, for each lane, the table entry at the index in the lane's four lowest bits.
    fn look_up(self, table: Self::Table<'_>, places: Self::Vector) -> Self::Vector;

    /// Returns `|x|`.
    fn absolute(self, x: Self::Vector) -> Self::Vector;

    /// Returns `a` with its sign flipped where `b` is negative.
    fn with_sign_of(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns the smaller value in each lane, or `b` if either is NaN.
    fn least(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

/// Values in a lookup table.
pub const TABLE_LEN: usize = 16;

/// Returns how many columns [`Vectors::for_columns`] transposes at a time: 16 bytes, the part within which a shuffle
/// stays.
pub const fn columns_at_once<T>() -> usize {
    16 / size_of::<T>()
}

/// Implements an instruction set's methods with a few instructions each, without the token: `fn add(a: __m256, b:
/// __m256) -> __m256 { _mm256_add_ps(a, b) }`. Methods that access memory are unsafe, and come last.
macro_rules! instructions {
    (
        $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block)*
        $(unsafe fn $unsafe_name:ident($($unsafe_arg:ident: $unsafe_type:ty),*) $(-> $unsafe_out:ty)? $unsafe_body:block)*
    ) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe)] // the portable code is safe
            fn $name(self, $($arg: $type),*) -> $out {
                // SAFETY: the token proves that the CPU has the instructions that `enter` enables, and no others are
                // used.
                unsafe { $body }
            }
        )*
        $(
            #[inline(always)]
            unsafe fn $unsafe_name(self, $($unsafe_arg: $unsafe_type),*) $(-> $unsafe_out)? {
                // SAFETY: as above; the caller promises memory for one vector, as the trait requires.
                unsafe { $unsafe_body }
            }
        )*
    };
}
pub(super) use instructions;

/// Instructions that code can be compiled with. Holding a value proves that the CPU has them.
pub trait Instructions: Copy + Send + Sync + 'static {
    /// Runs a task, compiled with these instructions.
    fn enter<O>(self, task: impl Task<Self, O>) -> O;
}

/// An instruction set with vectors.
///
/// A new one with vector registers is a token in its own file, with these traits. One with tile registers implements
/// [`Tiles`](super::tiles::Tiles), and uses the vectors of another instruction set.
pub trait Level: Instructions + Words + Widening + Lookup {
    /// True if `mul_add` is an instruction. Otherwise, it calls the C library.
    const HAS_FUSED: bool = true;
}

/// An algorithm over instructions, given by the traits that `I` implements: vectors, or dot products. Its `compute`,
/// and everything that it calls, must be `#[inline(always)]`. A struct rather than a closure, because a closure
/// cannot be forced inline. `O` is the return value.
pub trait Task<I, O = ()> {
    /// Runs the task with these instructions.
    fn compute(self, instructions: I) -> O;
}

/// A [`Task`] over any vectors, or scalar code that the compiler vectorizes.
pub trait LevelTask<O = ()> {
    /// Runs the task with these instructions.
    fn compute<L: Level>(self, level: L) -> O;
}

impl<L: Level, O, T: LevelTask<O>> Task<L, O> for T {
    #[inline(always)]
    fn compute(self, level: L) -> O {
        LevelTask::compute(self, level)
    }
}

/// A loop so short that the compiler inlines its closure, and so compiles it with the instruction set.
pub struct Loop<F>(pub F);

impl<F: FnOnce()> LevelTask for Loop<F> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        (self.0)();
    }
}

/// Declares an instruction token. `new` detects the same features that `enter` enables.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! token {
    ($(#[$doc:meta])* $name:ident: $is_detected:ident $($feature:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            pub(super) found: (),
        }

        impl $name {
            /// Returns the token, if the CPU has all these features.
            pub fn new() -> Option<Self> {
                let found = true $(&& std::arch::$is_detected!($feature))*;
                found.then_some(Self { found: () })
            }
        }

        impl $crate::vectors::level::Instructions for $name {
            #[inline(always)]
            fn enter<O>(self, task: impl $crate::vectors::level::Task<Self, O>) -> O {
                #[target_feature($(enable = $feature),*)]
                fn with_instructions<O>(token: $name, task: impl $crate::vectors::level::Task<$name, O>) -> O {
                    task.compute(token)
                }
                // SAFETY: a token exists only if `new` detected these features.
                unsafe { with_instructions(self, task) }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use token;
