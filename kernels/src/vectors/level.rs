//! The instruction sets: what a register holds, and what one instruction does with it.
//!
//! Algorithms are written once, over the traits [`Vectors`], [`Words`], [`Widening`] and [`Lookup`]. Each level
//! implements these in a file of its own, in the same order, so that the files can be compared. An algorithm
//! that is to be compiled with a level's instructions is a struct with an `#[inline(always)]` method ([`Task`])
//! that a `#[target_feature]` function of the level calls ([`Instructions::enter`]): only what is inlined into that
//! function is compiled with its instructions.

use half::f16;

use super::Real;

/// The vectors of one level with elements of type `T`.
///
/// A value is the proof that the CPU has the level. The methods become single instructions only where they are
/// inlined into [`Instructions::enter`]; anywhere else they are correct, but calls.
pub trait Vectors<T: Real>: Copy + Send + Sync + 'static {
    /// The contents of a register (NEON: of two).
    type Vector: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// The vectors that transpose small squares fastest: a narrower vector takes fewer shuffles per number. Its
    /// lanes compute the same bits.
    type Transposer: Vectors<T> + From<Self>;
    /// The most rows of a tile two vectors wide: as many as leave registers for the operands.
    const ROWS: usize;

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

    /// Stores a vector of words; any alignment.
    ///
    /// # Safety
    /// `LANES` words can be written at `to`.
    unsafe fn store_words(self, words: Self::Words, to: *mut u32);

    /// Loads numbers of f16, widened; any alignment.
    ///
    /// # Safety
    /// `LANES` of them can be read at `from`.
    unsafe fn load_half(self, from: *const f16) -> Self::Vector;

    /// `word` in every lane.
    fn splat_word(self, word: u32) -> Self::Words;

    /// `a + b` in 32 bits, which wrap around.
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// The bits that both have.
    fn and_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// The bits in which `a` and `b` differ.
    fn xor_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Each word with its bits moved up by `by`, of 1 to 31; those that leave it come in below.
    fn rotate_words(self, words: Self::Words, by: u32) -> Self::Words;

    /// The lower half of each word, a bfloat16, as f32.
    fn low_halves(self, words: Self::Words) -> Self::Vector;

    /// The lower half of each word, an f16, as f32.
    fn low_f16(self, words: Self::Words) -> Self::Vector;

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

    /// The lower halves of all bytes of each word, and their upper halves, as bytes.
    fn halves_of_bytes(self, words: Self::Words) -> [Self::Words; 2];

    /// Each byte, of 0 to 15, replaced by that number of the table.
    fn look_up_bytes(self, words: Self::Words, table: &[u8; TABLE_LEN]) -> Self::Words;

    /// `sum` plus the products of the bytes of two words, of 0 to 63, and the signed bytes of two others, of -127 to 127.
    fn add_products_of_bytes(
        self,
        sum: Self::Words,
        unsigned: [Self::Words; 2],
        signed: [Self::Words; 2],
    ) -> Self::Words;

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

/// The methods of a level that are a few of its instructions each, the token left out:
/// `fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }`; those that touch memory, which are unsafe, come last.
macro_rules! instructions {
    (
        $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block)*
        $(unsafe fn $unsafe_name:ident($($unsafe_arg:ident: $unsafe_type:ty),*) $(-> $unsafe_out:ty)? $unsafe_body:block)*
    ) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe)] // what the portable level computes is safe
            fn $name(self, $($arg: $type),*) -> $out {
                // SAFETY: the token proves that the CPU has the instructions that `enter` enables, and no other is used.
                unsafe { $body }
            }
        )*
        $(
            #[inline(always)]
            unsafe fn $unsafe_name(self, $($unsafe_arg: $unsafe_type),*) $(-> $unsafe_out)? {
                // SAFETY: as above; the caller promises the memory of one vector, as the trait says.
                unsafe { $unsafe_body }
            }
        )*
    };
}
pub(super) use instructions;

/// Instructions that code can be compiled with. A value is the proof that the CPU has them.
pub trait Instructions: Copy + Send + Sync + 'static {
    /// Computes a task, compiled with these instructions.
    fn enter<O>(self, task: impl Task<Self, O>) -> O;
}

/// A level of instructions.
///
/// A further level whose unit is a vector is a token in a file of its own, with these traits. One whose unit is a tile
/// register has [`Tiles`](super::tiles::Tiles), and computes vectors at the level that it contains.
pub trait Level: Instructions + Words + Widening + Lookup {
    /// Whether `mul_add` is an instruction; without it, it is a call into the C library.
    const HAS_FUSED: bool = true;
}

/// An algorithm over instructions of a kind, by the traits that `I` has: vectors, or dot products. Its `compute`, and
/// everything that it calls, must be `#[inline(always)]`; it is a struct and not a closure, because a closure cannot be
/// forced inline. `O` is what it computes, besides what it writes.
pub trait Task<I, O = ()> {
    /// Computes it with these instructions.
    fn compute(self, instructions: I) -> O;
}

/// A [`Task`] over the vectors of any level, or scalar code for the compiler to vectorise with a level's instructions.
pub trait LevelTask<O = ()> {
    /// Computes it with these instructions.
    fn compute<L: Level>(self, level: L) -> O;
}

impl<L: Level, O, T: LevelTask<O>> Task<L, O> for T {
    #[inline(always)]
    fn compute(self, level: L) -> O {
        LevelTask::compute(self, level)
    }
}

/// A loop so short that the compiler inlines its closure, and so compiles it with the level's instructions.
pub struct Loop<F>(pub F);

impl<F: FnOnce()> LevelTask for Loop<F> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        (self.0)();
    }
}

/// Declares the token of instructions: what `new` finds in the CPU is what `enter` enables.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident: $is_detected:ident $($feature:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            pub(super) found: (),
        }

        impl $name {
            /// The token, if the CPU has all of these features.
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
                // SAFETY: a token exists only where `new` found these features.
                unsafe { with_instructions(self, task) }
            }
        }
    };
}
pub(super) use token;
