//! Number formats of a product's operands: f32, f64, half precision, bfloat16, int8 and int4.
//!
//! A [`Format`] is named by the type that numbers are stored in. The rows of the left operand come in, and
//! results go out, as [`Format::Number`]; both operands are packed into *words*, each of one or more
//! consecutive terms (a *group*), so that one instruction adds all products of a word to an accumulator.
//! [`Dots`] are these instructions at one level. Accumulators start anew in each chunk of [`Format::CHUNK`]
//! terms, and their sums are added, in order, to totals of [`Format::Number`]: that is what makes a row's bits
//! independent of everything around it, in every format.
//!
//! ```text
//! left operand [rows, depth]              right operand [depth, columns]
//! [chunk][row][word]                      [panel][chunk][head or word][column of the panel]
//!
//! chunk 0  row 0  w w w .. (ROW_WORDS)    panel 0  chunk 0  head    h h h .. (PANEL columns)
//!          row 1  w w w ..                                  word 0  w w w ..
//!          ..                                               word 1  w w w ..
//! chunk 1  row 0  w w w ..                                  ..
//!          ..                                      chunk 1  head    h h h ..
//!                                                           ..
//!                                         panel 1  chunk 0  ..
//! ```
//!
//! The micro-kernel broadcasts one group of a row and multiplies it by a panel's row of words. What a column
//! needs beside its terms (int8: its scale and sum; int4: its scale and minimum) are its *head* words, which precede the terms in each
//! chunk. Rows are packed as the level's instructions take them: where there are none for a narrow format, its
//! terms are widened already, and a group of a row is two words. The left operand is packed by
//! [`PackRows`](super::pack_rows::PackRows), the right one by [`pack_panels`](super::pack_panels).

use std::mem::MaybeUninit;

use std::fmt;

use bytemuck::Pod;

use super::{Chunks, WIDTH};
use crate::rows::activation::Computed;
use crate::vectors::{Instructions, Vectors};

/// The parts, or the groups, that so many terms have: of a power of two each.
#[inline(always)]
pub const fn parts(terms: usize, part: usize) -> usize {
    // A shift: each tile of a product asks for it, which takes not much longer than a division.
    (terms + part - 1) >> part.trailing_zeros()
}

/// How the operands of a product are stored. Implemented by the type that numbers are stored in.
pub trait Format: Copy + Send + Sync + 'static {
    /// The type of the rows that come in, of the results, and of the totals.
    type Number: Computed;
    /// The element of packed operands; as large as a number.
    type Word: Pod + Send + Sync;
    /// What of the storage is known at run time only.
    type Layout: Copy + fmt::Debug + Default + PartialEq + Send + Sync + 'static;
    /// Consecutive terms of a column in one word, or in [`Self::GROUP_WORDS`]. Divides [a part](Self::part).
    const GROUP: usize;
    /// Words of a group.
    const GROUP_WORDS: usize = 1;
    /// Terms that are summed in registers before they are added to the total. It is part of every result: see
    /// [`multiply`](super::multiply) on the order of addition.
    const CHUNK: usize;
    /// The most [parts](Self::part) of a chunk.
    const MOST_PARTS: usize = 1;
    /// Head words of a column, which precede its terms in each chunk, where the layout does not matter.
    const HEAD: usize = 0;
    /// Whether the words of a packed row are its numbers unchanged, with rows [`Self::CHUNK`] words apart in
    /// each chunk.
    const NUMBERS: bool = false;
    /// How many bytes ahead the product of a row or two prefetches a panel; 0 where words take so little work that the
    /// hardware is far enough ahead by itself.
    const AHEAD: usize = 0;
    /// Whether columns are packed from numbers. Those of other formats come as codes.
    const OF_NUMBERS: bool = true;
    /// Whether a word is made of nothing but its own one or two terms, so that columns can be packed by rows.
    const BY_ROWS: bool = false;

    /// Terms of a chunk whose sums are added to the total by themselves, as what the head has for them says: a power of two, as is
    /// [`Self::CHUNK`].
    #[inline(always)]
    fn part(_: Self::Layout) -> usize {
        Self::CHUNK
    }

    /// Head words of a column in a chunk of so many terms.
    #[inline(always)]
    fn head_words(_: Self::Layout, _terms: usize) -> usize {
        Self::HEAD
    }

    /// Words of a column in a chunk of so many terms, its head included.
    #[inline(always)]
    fn chunk_words(layout: Self::Layout, terms: usize) -> usize {
        Self::head_words(layout, terms) + terms.div_ceil(Self::GROUP) * Self::GROUP_WORDS
    }

    /// Words in a packed column of `depth` terms, heads included. A depth of 0 still has one chunk, and so one
    /// head.
    #[inline(always)]
    fn column_words(layout: Self::Layout, depth: usize) -> usize {
        let rest = match depth % Self::CHUNK {
            0 if depth > 0 => 0,
            rest => Self::chunk_words(layout, rest),
        };
        depth / Self::CHUNK * Self::chunk_words(layout, Self::CHUNK) + rest
    }

    /// Packs all terms of a column into its [words](Self::column_words). Groups do not cross chunks, and the last group is padded
    /// with terms whose products are zero. Not called of a format that is not [`Self::OF_NUMBERS`].
    fn pack_column(layout: Self::Layout, terms: &[Self::Number], words: &mut [Self::Word]);

    /// The terms of a packed column as products take them, from its [words](Self::column_words).
    fn unpack_column(layout: Self::Layout, words: &[Self::Word], terms: &mut [Self::Number]);

    /// Rearranges a vector of words of a panel, one of each lane's column, as [`Dots::right`] reads them.
    #[inline(always)]
    fn arrange(_: &mut [Self::Word]) {}

    /// The word of one lane's column in a vector that [`Self::arrange`] rearranged.
    #[inline(always)]
    fn arranged(vector: &[Self::Word], lane: usize) -> Self::Word {
        vector[lane]
    }

    /// Packs a row of words from the one or two rows that hold their terms, as [`Self::pack_column`] packs columns.
    ///
    /// # Panics
    /// If the format is not packed [by rows](Self::BY_ROWS).
    fn pack_word_row(_: [&[Self::Number]; 2], _: &mut [Self::Word]) {
        panic!("a format that is packed by columns")
    }
}

/// The dot-product instructions of one level in a format. A value is the proof that the CPU has them.
pub trait Dots<F: Format>: Instructions {
    /// The level's vectors of totals; each lane is a column.
    type Vectors: Vectors<F::Number> + Instructions;
    /// The terms of one group of one row, broadcast to all lanes.
    type Left: Copy;
    /// The terms of one group of each lane's column.
    type Right: Copy;
    /// The accumulator of a part, one sum per lane.
    type Sum: Copy;
    /// What turns the sums of a part into numbers: of each lane's column.
    type Heads: Copy;
    /// The most rows of a tile [`WIDTH`] vectors wide: as many as leave registers for the operands.
    const ROWS: usize;
    /// Words that one row occupies in a chunk of the packed left operand, with whatever precedes its terms.
    const ROW_WORDS: usize;
    /// Columns of a panel, which is as wide as a tile.
    const PANEL: usize = WIDTH * <Self::Vectors as Vectors<F::Number>>::LANES;

    /// How a row is packed that such columns are multiplied by.
    fn chunks(layout: F::Layout) -> Chunks {
        Chunks {
            columns: F::CHUNK,
            words: Self::ROW_WORDS,
            part: F::part(layout),
        }
    }

    /// The vectors that totals are computed in.
    fn vectors(self) -> Self::Vectors;

    /// Packs one row of a chunk, at most [`Format::CHUNK`] terms in parts of so many, into [`Self::ROW_WORDS`] words. The last
    /// group is padded with zeros; words behind it may be left as they were.
    fn pack_row(self, row: &[F::Number], part: usize, words: &mut [F::Word]);

    /// Group number `group` of a packed row, broadcast.
    ///
    /// # Safety
    /// `row` points to [`Self::ROW_WORDS`] packed words, and `group` is below `CHUNK / GROUP`.
    unsafe fn left(self, row: *const F::Word, group: usize) -> Self::Left;

    /// One group of each of `LANES` neighbouring columns.
    ///
    /// # Safety
    /// As many words can be read at `from` as a vector has lanes, in each of [`Format::GROUP_WORDS`] consecutive rows of a
    /// panel.
    unsafe fn right(self, from: *const F::Word) -> Self::Right;

    /// The initial accumulator of a part, for one row and one vector of columns.
    ///
    /// # Safety
    /// `row` points to [`Self::ROW_WORDS`] packed words, and `heads` to a vector of words in each of
    /// [`Format::head_words`] consecutive rows of a panel.
    unsafe fn start(self, row: *const F::Word, heads: *const F::Word) -> Self::Sum;

    /// `sum + left · right`.
    fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum;

    /// Two sums of some groups each as one, where they are integers that begin at 0: then the order of addition does not matter.
    /// `None` where it is part of the result.
    #[inline(always)]
    fn joined(self, _: Self::Sum, _: Self::Sum) -> Option<Self::Sum> {
        None
    }

    /// Adds the first groups of a chunk to the sums of several rows in a way of the level's own, and returns how many it
    /// added: those for which it has instructions that multiply several rows at a time, with the same bits.
    ///
    /// # Safety
    /// `rows` points to `ROWS` packed rows, and `panel` to [`Format::HEAD`] and `groups` consecutive rows of a panel.
    #[inline(always)]
    unsafe fn add_groups<const ROWS: usize>(
        self,
        _rows: *const F::Word,
        _panel: *const F::Word,
        _groups: usize,
        _sums: &mut [[Self::Sum; WIDTH]; ROWS],
    ) -> usize {
        0
    }

    /// What the head of one vector of columns has for a part.
    ///
    /// # Safety
    /// As for [`Self::start`]; the chunk has this part.
    unsafe fn heads(self, layout: F::Layout, heads: *const F::Word, part: usize) -> Self::Heads;

    /// As [`Self::heads`], of two neighbouring vectors and so many parts at once, so that the layout is asked for once.
    ///
    /// # Safety
    /// As for [`Self::start`], of both; the chunk has these parts.
    #[inline(always)]
    unsafe fn all_heads(
        self,
        layout: F::Layout,
        heads: [*const F::Word; WIDTH],
        to: &mut [[MaybeUninit<Self::Heads>; WIDTH]],
    ) {
        for (part, to) in to.iter_mut().enumerate() {
            for (to, heads) in to.iter_mut().zip(heads) {
                // SAFETY: the caller's promise.
                to.write(unsafe { self.heads(layout, heads, part) });
            }
        }
    }

    /// Converts a part's accumulators to numbers.
    ///
    /// # Safety
    /// As for [`Self::start`]; the row has this part.
    unsafe fn numbers(
        self,
        sum: Self::Sum,
        row: *const F::Word,
        part: usize,
        heads: Self::Heads,
    ) -> <Self::Vectors as Vectors<F::Number>>::Vector;
}

/// The methods of [`Dots`], each compiled where it is used; those that read what their callers point to come last.
macro_rules! dots {
    (
        $(fn $name:ident($($arguments:tt)*) -> $out:ty $body:block)*
        $(unsafe fn $unsafe_name:ident($($unsafe_arguments:tt)*) -> $unsafe_out:ty $unsafe_body:block)*
    ) => {
        $(
            #[inline(always)]
            fn $name($($arguments)*) -> $out $body
        )*
        $(
            #[inline(always)]
            #[allow(unused_unsafe, clippy::unused_unit)] // where nothing is read
            unsafe fn $unsafe_name($($unsafe_arguments)*) -> $unsafe_out {
                // SAFETY: the caller's promise, which the trait states.
                unsafe { $unsafe_body }
            }
        )*
    };
}
pub(super) use dots;
