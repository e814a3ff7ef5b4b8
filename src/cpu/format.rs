//! How a product's operands are stored and multiplied: f32, f64, bfloat16 or int8.
//!
//! A format goes by the type that numbers are stored in. Rows come in and results go out as
//! [`Format::Number`]; both operands are packed into words of one or more consecutive terms, so that
//! one instruction adds a word's products to a sum. Sums start anew in each chunk of [`Format::CHUNK`] terms and
//! are added, in order, to totals of [`Format::Number`]: a row's bits are its own in every format.
//!
//! The left operand is packed as `[chunk][row][Dots::ROW_WORDS]` ([`PackRows`](super::pack_rows::PackRows)).
//! The right one consists of panels as wide as a tile, each `[word][column]`
//! ([`panel::pack`](super::panel::pack)); what a column needs beside its terms leads them in each chunk.

pub mod bf16;
mod float;
pub mod int8;

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{
    arch::{Kernels, Task, Vectors},
    element::Element,
    isa::Isa,
    rows::Chunks,
    scratch::Scratch,
    tile::WIDTH,
};

/// How the operands of a product are stored. Implemented by the type that numbers are stored in.
pub trait Format: Copy + Send + Sync + 'static {
    /// What rows come in, results go out, and totals are.
    type Number: Kernels;
    /// What packed operands consist of; as large as a number.
    type Word: Pod + Send + Sync;
    /// Consecutive terms of a column in a word. Divides [`Self::CHUNK`].
    const GROUP: usize;
    /// Terms that are summed in registers before they are added to the total. Part of every result: see
    /// [`gemm`](super::gemm) on the order of addition.
    const CHUNK: usize;
    /// Words of a column before its terms in each chunk.
    const HEAD: usize = 0;
    /// Words of a column in a whole chunk.
    const CHUNK_WORDS: usize = Self::HEAD + Self::CHUNK / Self::GROUP;
    /// Whether a packed row's words are its numbers as they are, [`Self::CHUNK`] apart.
    const NUMBERS: bool = false;

    /// Runs `task` with the fastest dot products that `isa` has for this format.
    fn run(isa: Isa, task: impl DotTask<Self>);

    /// The calling thread's memory for packed rows and columns.
    fn word_scratch() -> &'static Scratch<Self::Word>;

    /// The calling thread's memory for a product that is the next one's operand.
    fn hidden_scratch() -> &'static Scratch<Self::Word>;

    /// Words in a column of `depth` terms, with all that belongs to it. No terms are a chunk too.
    fn column_words(depth: usize) -> usize {
        Self::HEAD * depth.div_ceil(Self::CHUNK).max(1) + depth.div_ceil(Self::GROUP)
    }

    /// Packs all terms of a column into its [words](Self::column_words). Groups do not cross chunks,
    /// and the last one is filled up with what multiplies to nothing.
    fn pack_column<S: Element<Acc = Self::Number>>(terms: &[S], words: &mut [Self::Word]);
}

/// The dot products of one level in a format. A value is the proof that the CPU has them.
pub trait Dots<F: Format>: Copy + Send + Sync + 'static {
    /// The level's vectors of totals, whose lanes are columns.
    type Vectors: Vectors<F::Number>;
    /// A group of terms of one row, in all lanes.
    type Left: Copy;
    /// A group of terms of each lane's column.
    type Right: Copy;
    /// The running sum of a chunk.
    type Sum: Copy;
    /// The most rows of a tile [`WIDTH`] vectors wide: as many as leave registers for the operands.
    const ROWS: usize;
    /// Words of a row in a chunk, as packed.
    const ROW_WORDS: usize;
    /// How a packed row is cut.
    const CHUNKS: Chunks = Chunks {
        columns: F::CHUNK,
        words: Self::ROW_WORDS,
    };
    /// Columns of a panel.
    const PANEL: usize = WIDTH * <Self::Vectors as Vectors<F::Number>>::LANES;

    /// Runs a task that was compiled with these instructions; see [`Vectors::run`].
    fn run(self, task: impl DotTask<F>);

    /// The level's vectors.
    fn vectors(self) -> Self::Vectors;

    /// Packs one row of a chunk, at most [`Format::CHUNK`] terms, into [`Self::ROW_WORDS`] words. Its last
    /// group is filled up with zeros.
    fn pack_row(self, row: &[F::Number], words: &mut [F::Word]);

    /// A group of a packed row.
    ///
    /// # Safety
    /// `row` starts [`Self::ROW_WORDS`] words, and `group` is below `CHUNK / GROUP`.
    unsafe fn left(self, row: *const F::Word, group: usize) -> Self::Left;

    /// A group of each of the columns from one on.
    ///
    /// # Safety
    /// As many words can be read as a vector has lanes.
    unsafe fn right(self, from: *const F::Word) -> Self::Right;

    /// What the sums of a chunk of a row and of some columns start at.
    ///
    /// # Safety
    /// `row` starts [`Self::ROW_WORDS`] words, and `heads` a vector of words in each of [`Format::HEAD`] rows of a panel.
    unsafe fn start(self, row: *const F::Word, heads: *const F::Word) -> Self::Sum;

    /// `sum + left · right`.
    fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum;

    /// A chunk's sums as numbers.
    ///
    /// # Safety
    /// As of [`Self::start`].
    unsafe fn numbers(
        self,
        sum: Self::Sum,
        row: *const F::Word,
        heads: *const F::Word,
    ) -> <Self::Vectors as Vectors<F::Number>>::Vector;
}

/// An algorithm over the dot products of any level; see [`Task`] on why it is no closure.
pub trait DotTask<F: Format> {
    /// Runs it.
    fn run<D: Dots<F>>(self, dots: D);
}

/// Packs all chunks of rows, one after the other; the words are to be as many.
#[cfg(test)]
pub fn pack_chunks<F: Format, D: Dots<F>>(d: D, a: View<F::Number>, words: &mut [F::Word]) {
    let chunks = words.chunks_exact_mut((a.rows() * D::ROW_WORDS).max(1));
    for (chunk, packed) in chunks.enumerate() {
        d.run(PackRows {
            a,
            rows: 0..a.rows(),
            columns: chunk * F::CHUNK..a.columns().min((chunk + 1) * F::CHUNK),
            packed,
        });
    }
}

/// Words in a panel of columns of `depth` terms.
#[cfg(test)]
pub fn panel_words<F: Format, D: Dots<F>>(depth: usize) -> usize {
    F::column_words(depth) * D::PANEL
}

/// A task of dot products that are made of a level's vectors, within the instructions of these.
struct Within<F, D, T> {
    dots: D,
    task: T,
    format: PhantomData<F>,
}

impl<F: Format, D: Dots<F>, T: DotTask<F>> Within<F, D, T> {
    fn new(dots: D, task: T) -> Self {
        Self {
            dots,
            task,
            format: PhantomData,
        }
    }
}

impl<F: Format, D: Dots<F>, T: DotTask<F>> Task<F::Number> for Within<F, D, T> {
    #[inline(always)]
    fn run<V: Vectors<F::Number>>(self, _: V) {
        self.task.run(self.dots);
    }
}

/// Runs a task with the fastest dot products of a level: those that `$instruction` gives where the CPU has it, else those
/// of the level's vectors. No function, as tasks are of several traits.
macro_rules! run_fastest {
    ($isa:expr, $task:expr, $instruction:ident) => {
        match $isa {
            Isa::Portable(level) => $task.run(level),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(level) => $task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(level) => $task.run(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(level) => match level.$instruction() {
                Some(dots) => $task.run(dots),
                None => $task.run(level),
            },
        }
    };
}
pub(super) use run_fastest;

/// The calling thread's memory for words of this type.
macro_rules! word_scratch {
    ($type:ty) => {
        word_scratch!($type, word_scratch);
        word_scratch!($type, hidden_scratch);
    };
    ($type:ty, $name:ident) => {
        fn $name() -> &'static Scratch<$type> {
            thread_local! {
                static WORDS: Cell<Aligned<$type>> = const { Cell::new(Aligned::empty()) };
            }
            &WORDS
        }
    };
}
use word_scratch;

#[cfg(test)]
use super::{pack_rows::PackRows, view::View};

#[cfg(test)]
mod bandwidth;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
