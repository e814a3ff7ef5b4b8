//! Number formats for matrix product operands: f32, f64, half precision, bfloat16, int8 and int4.
//!
//! A [`Format`] is named by its storage type. Left operand rows come in, and results go out, as
//! [`Format::Element`]. Both operands are packed into *words*. A word holds one or more values that are
//! consecutive along the depth `k` (a *group*), so that one instruction adds all products in a word to an
//! accumulator. [`Dots`] provides these instructions for one instruction set. Accumulators start anew in each chunk
//! with [`Format::CHUNK`] values along `k`, and the chunks' sums are added in order to totals in
//! [`Format::Element`]. This fixed order makes a row's bits independent of batch size, threads and packing, in
//! every format.
//!
//! ```text
//! left operand [rows, depth]              right operand [depth, columns]
//! [chunk][row][word]                      [panel][chunk][scales or word][column of the panel]
//!
//! chunk 0  row 0  w w w .. (ROW_WORDS)    panel 0  chunk 0  scales  s s s .. (PANEL columns)
//!          row 1  w w w ..                                  word 0  w w w ..
//!          ..                                               word 1  w w w ..
//! chunk 1  row 0  w w w ..                                  ..
//!          ..                                      chunk 1  scales  s s s ..
//!                                                           ..
//!                                         panel 1  chunk 0  ..
//! ```
//!
//! The micro-kernel broadcasts one group from a row and multiplies it by a panel's word row. *Scale words* precede a
//! column's values in each chunk: scale and sum for int8, scale and minimum for int4. Rows are packed in the layout
//! that the instruction set needs. Without an instruction for a narrow format, rows are widened when they are
//! packed, and a row's group takes two words. [`PackRows`](super::pack_rows::PackRows) packs the left operand,
//! [`pack_panels`](super::pack_panels) the right one.

use std::mem::MaybeUninit;

use std::fmt;

use bytemuck::Pod;

use super::{Chunks, WIDTH};
use crate::rows::activation::Computed;
use crate::vectors::{Instructions, Vectors};

/// Returns how many parts (or groups) of `part` values cover `terms` values. `part` is a power of two.
#[inline(always)]
pub const fn parts(terms: usize, part: usize) -> usize {
    // A shift is faster than a division: the micro-kernel calls this for each tile.
    (terms + part - 1) >> part.trailing_zeros()
}

/// A storage format for product operands, implemented by its storage type.
pub trait Format: Copy + Send + Sync + 'static {
    /// The type of input rows, totals and results.
    type Element: Computed;
    /// An element in packed operands, as large as `Element`.
    type Word: Pod + Send + Sync;
    /// The storage options that are known only at run time.
    type Layout: Copy + fmt::Debug + Default + PartialEq + Send + Sync + 'static;
    /// A column's consecutive values in one word, or in [`Self::GROUP_WORDS`] words. Divides [the part](Self::part).
    const GROUP: usize;
    /// Groups that share words. Divides the groups of a chunk.
    const GROUPS: usize = 1;
    /// Words in [`Self::GROUPS`] groups.
    const GROUP_WORDS: usize = 1;
    /// Values along `k` that are summed in registers before they are added to the total. It defines every result:
    /// see [`multiply`](super::multiply) for the summation order.
    const CHUNK: usize;
    /// At most this many [parts](Self::part) in a chunk.
    const MOST_PARTS: usize = 1;
    /// A column's scale words in each chunk, before its values, for formats without layout options.
    const SCALE_WORDS: usize = 0;
    /// True if packed words are the input values unchanged, with rows [`Self::CHUNK`] words apart in each
    /// chunk.
    const PLAIN: bool = false;
    /// Prefetch distance in bytes for products with few rows. 0 if the hardware prefetcher is fast enough for
    /// the format.
    const AHEAD: usize = 0;
    /// The maximum row count for which two panels at a time are faster than one.
    const PAIRED_ROWS: usize = 4;
    /// True if [`Self::pack_column`] packs float columns. Other formats are packed from quantized values only.
    const FROM_FLOATS: bool = true;
    /// True if a word depends only on its own one or two values, so that columns can be packed row by row.
    const BY_ROWS: bool = false;

    /// Returns a part's length: the values along `k` that share a scale, and whose sum is added to the total
    /// separately. A power of two, like [`Self::CHUNK`].
    #[inline(always)]
    fn part(_: Self::Layout) -> usize {
        Self::CHUNK
    }

    /// Returns how many scale words a column has, in a chunk with depth `terms`.
    #[inline(always)]
    fn scale_words(_: Self::Layout, _terms: usize) -> usize {
        Self::SCALE_WORDS
    }

    /// Returns how many words a column has, scales included, in a chunk with depth `terms`.
    #[inline(always)]
    fn chunk_words(layout: Self::Layout, terms: usize) -> usize {
        Self::scale_words(layout, terms)
            + terms.div_ceil(Self::GROUP * Self::GROUPS) * Self::GROUP_WORDS
    }

    /// Returns the word count in a packed column of `depth` values, scales included. A column with depth 0 still has
    /// one chunk, and therefore scale words.
    #[inline(always)]
    fn column_words(layout: Self::Layout, depth: usize) -> usize {
        let rest = match depth % Self::CHUNK {
            0 if depth > 0 => 0,
            rest => Self::chunk_words(layout, rest),
        };
        depth / Self::CHUNK * Self::chunk_words(layout, Self::CHUNK) + rest
    }

    /// Packs a column into its [words](Self::column_words). Groups do not cross chunks, and the last group is
    /// padded with values whose products are zero. Not called for formats without [`Self::FROM_FLOATS`].
    fn pack_column(layout: Self::Layout, terms: &[Self::Element], words: &mut [Self::Word]);

    /// Unpacks a column's values, rounded to the format, from its [words](Self::column_words).
    fn unpack_column(layout: Self::Layout, words: &[Self::Word], terms: &mut [Self::Element]);

    /// Rearranges a panel word vector, one per lane, into the order that [`Dots::right`] reads.
    #[inline(always)]
    fn arrange(_: &mut [Self::Word]) {}

    /// Returns one lane's word from a vector that [`Self::arrange`] rearranged.
    #[inline(always)]
    fn arranged(vector: &[Self::Word], lane: usize) -> Self::Word {
        vector[lane]
    }

    /// Packs a word row from the one or two rows that hold its values, as [`Self::pack_column`] packs columns.
    ///
    /// # Panics
    /// If the format is not packed [by rows](Self::BY_ROWS).
    fn pack_word_row(_: [&[Self::Element]; 2], _: &mut [Self::Word]) {
        panic!("a format that is packed by columns")
    }
}

/// An instruction set's dot products for a format. Holding a value proves that the CPU has them.
pub trait Dots<F: Format>: Instructions {
    /// Vectors for totals. Each lane is a column.
    type Vectors: Vectors<F::Element> + Instructions;
    /// A row's group, broadcast to all lanes.
    type Left: Copy;
    /// A group from each lane's column.
    type Right: Copy;
    /// A part's accumulator, with one sum per lane.
    type Sum: Copy;
    /// A part's scales and offsets, for each lane's column. They convert the sums to floats.
    type Scales: Copy;
    /// The maximum row count in a tile [`WIDTH`] vectors wide that leaves registers for the operands.
    const ROWS: usize;
    /// A row's words in a packed chunk, including the row's scales.
    const ROW_WORDS: usize;
    /// Groups that a tile adds without a condition in between, at most 4.
    const UNROLLED: usize = 1;
    /// Columns in a panel, which is as wide as a tile.
    const PANEL: usize = WIDTH * <Self::Vectors as Vectors<F::Element>>::LANES;

    /// The words in a chunk that is widened once for several tiles.
    const WIDENED: WidenedWords = WidenedWords::NONE;
    /// A column's words in a widened group: the first in [`Self::Right`].
    const WIDENED_GROUP: usize = 1;
    /// A column's words in a group, as tiles of widened chunks read it.
    const TILE_WORDS: usize = Self::WIDENED_GROUP;

    /// Returns how rows are packed that are multiplied by columns in `layout`.
    fn chunks(layout: F::Layout) -> Chunks {
        Chunks {
            columns: F::CHUNK,
            words: Self::ROW_WORDS,
            part: F::part(layout),
        }
    }

    /// Returns the vectors in which totals are computed.
    fn vectors(self) -> Self::Vectors;

    /// Packs a row's chunk, at most [`Format::CHUNK`] values in parts with length `part`, into
    /// [`Self::ROW_WORDS`] words. The last group is padded with zeros. Words after it may keep old contents.
    fn pack_row(self, row: &[F::Element], part: usize, words: &mut [F::Word]);

    /// Loads group `group` from a packed row, and broadcasts it.
    ///
    /// # Safety
    /// `row` points to [`Self::ROW_WORDS`] packed words, and `group` is below `CHUNK / GROUP`.
    unsafe fn left(self, row: *const F::Word, group: usize) -> Self::Left;

    /// Loads one group per column, for `LANES` adjacent columns: number `place` among those that share words.
    ///
    /// # Safety
    /// A word vector can be read at `from`, in [`Format::GROUP_WORDS`] consecutive panel rows
    /// each, and `place` is below [`Format::GROUPS`].
    unsafe fn right(self, from: *const F::Word, place: usize) -> Self::Right;

    /// Computes a tile of a widened chunk, with the code for a format whose widened chunks are equal.
    ///
    /// # Panics
    /// If [`Self::WIDENED`] is empty.
    #[inline(always)]
    fn multiply_widened(self, _: impl Tile<F>) {
        panic!("a format whose tiles read packed chunks")
    }

    /// Loads one group per column, for `LANES` adjacent columns, from a widened chunk.
    ///
    /// # Safety
    /// [`Self::WIDENED_GROUP`] word vectors can be read at `from`.
    #[inline(always)]
    unsafe fn widened(self, from: *const F::Word) -> Self::Right {
        // SAFETY: the caller's promise.
        unsafe { self.right(from, 0) }
    }

    /// Returns a part's initial accumulator, for one row and one column vector.
    ///
    /// # Safety
    /// `row` points to [`Self::ROW_WORDS`] packed words, and `scales` to a vector of words in each of
    /// [`Format::scale_words`] consecutive rows of a panel.
    unsafe fn start(self, row: *const F::Word, scales: *const F::Word) -> Self::Sum;

    /// `sum + left · right`.
    fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum;

    /// Adds two sums over different groups, if they are integers that start at 0, so that the summation order does
    /// not matter. Returns `None` if the order affects the result.
    #[inline(always)]
    fn joined(self, _: Self::Sum, _: Self::Sum) -> Option<Self::Sum> {
        None
    }

    /// Adds a chunk's first groups to several rows' sums, with instructions that multiply several rows at once, and
    /// returns the group count added. The bits equal [`Self::dot`]'s. Instruction sets without such instructions
    /// return 0.
    ///
    /// # Safety
    /// `rows` points to `ROWS` packed rows, and `values` to `groups` consecutive panel rows.
    #[inline(always)]
    unsafe fn add_groups<const ROWS: usize>(
        self,
        _rows: *const F::Word,
        _values: *const F::Word,
        _groups: usize,
        _sums: &mut [[Self::Sum; WIDTH]; ROWS],
    ) -> usize {
        0
    }

    /// Loads a part's scales for two adjacent vectors.
    ///
    /// # Safety
    /// Same as for [`Self::start`], for both; the chunk has this part.
    unsafe fn scales(
        self,
        layout: F::Layout,
        scales: [*const F::Word; WIDTH],
        part: usize,
    ) -> [Self::Scales; WIDTH];

    /// Loads several parts' scales for two adjacent vectors. Branches on the layout once for all.
    ///
    /// # Safety
    /// Same as for [`Self::start`], for both; the chunk has these parts.
    #[inline(always)]
    unsafe fn all_scales(
        self,
        layout: F::Layout,
        scales: [*const F::Word; WIDTH],
        to: &mut [[MaybeUninit<Self::Scales>; WIDTH]],
    ) {
        for (part, to) in to.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *to = unsafe { self.scales(layout, scales, part) }.map(MaybeUninit::new);
        }
    }

    /// Converts a part's accumulators to floats.
    ///
    /// # Safety
    /// Same as for [`Self::start`]; the row has this part.
    unsafe fn to_floats(
        self,
        sum: Self::Sum,
        row: *const F::Word,
        part: usize,
        scales: Self::Scales,
    ) -> <Self::Vectors as Vectors<F::Element>>::Vector;
}

/// A tile's computation, for [`Dots::multiply_widened`].
pub trait Tile<F: Format> {
    /// Computes the tile with the code for another format, which is compiled once for all formats that share it.
    fn multiply_as<G, D: Dots<G>>(self, d: D)
    where
        G: Format<Element = F::Element, Word = F::Word, Layout = F::Layout>;
}

/// The words in a panel's widened chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidenedWords {
    /// The fewest tiles for which a chunk is widened. With fewer, widening it in each tile is faster.
    pub fewest_tiles: usize,
    /// Words for the scales, which precede the values.
    pub scales: usize,
    /// Words for the values.
    pub values: usize,
}

impl WidenedWords {
    /// No words, because tiles read packed chunks.
    pub const NONE: Self = Self {
        fewest_tiles: usize::MAX,
        scales: 0,
        values: 0,
    };

    /// Returns the word count.
    pub const fn all(self) -> usize {
        self.scales + self.values
    }
}

/// Implements [`Dots`]' methods, each inlined. The `unsafe` methods, which read through pointers, come last.
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
            #[allow(unused_unsafe, clippy::unused_unit)] // for methods that read nothing
            unsafe fn $unsafe_name($($unsafe_arguments)*) -> $unsafe_out {
                // SAFETY: the caller's promise, which the trait states.
                unsafe { $unsafe_body }
            }
        )*
    };
}
pub(super) use dots;
