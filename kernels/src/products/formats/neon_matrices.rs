//! Tiles of pairs of rows, for Arm's products of small matrices (`ummla`, `bfmmla`): two rows of two words times two words of
//! two columns, four sums in a register. Each sum has the bits of the dot product of its row.
//!
//! ```text
//! two words of two rows      two words of two columns       sums
//! [ r0 w0 | r0 w1 ]          [ c0 w0 | c0 w1 ]              [ r0·c0 | r0·c1 ]
//! [ r1 w0 | r1 w1 ]     x    [ c1 w0 | c1 w1 ]         →    [ r1·c0 | r1·c1 ]
//! ```
//!
//! Columns lie in a panel as for dot products, so that two vectors of words are zipped together on the way.

use std::arch::{aarch64::*, asm};

use crate::products::{DotTile, Dots, Format, WIDTH};
use crate::vectors::neon::Neon;

/// Registers of four columns, which a panel is wide.
const QUARTERS: usize = 2 * WIDTH;

/// Dot products of which a single instruction computes four.
pub trait Matrices<F: Format<Number = f32, Word = u32>>:
    Dots<F, Vectors = Neon, Left = uint32x4_t, Right = [uint32x4_t; 2], Sum = [uint32x4_t; 2]>
{
    /// Words of a packed row before its terms.
    const HEAD: usize;

    /// Adds to four sums.
    fn multiply_matrices(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t;
}

/// Computes a tile in pairs of rows; a single row by dot products.
#[inline(always)]
pub fn multiply_pairs<F: Format<Number = f32, Word = u32>, D: Matrices<F>>(d: D, tile: DotTile<F>) {
    match tile.rows {
        2 => accumulate::<F, D, 2, 1>(d, tile),
        3 => accumulate::<F, D, 3, 2>(d, tile),
        4 => accumulate::<F, D, 4, 2>(d, tile),
        5 => accumulate::<F, D, 5, 3>(d, tile),
        6 => accumulate::<F, D, 6, 3>(d, tile),
        _ => tile.row_by_row(d),
    }
}

#[inline(always)]
fn accumulate<F, D, const ROWS: usize, const PAIRS: usize>(d: D, mut tile: DotTile<F>)
where
    F: Format<Number = f32, Word = u32>,
    D: Matrices<F>,
{
    const { assert!(D::PANEL == 16) };
    let lanes = D::PANEL / WIDTH;
    let (a, b) = (tile.a, tile.b);
    let groups = tile.depth.div_ceil(F::GROUP);
    assert!(tile.depth <= F::CHUNK && a.len() >= ROWS * D::ROW_WORDS);
    assert!(b.len() >= (F::HEAD + groups) * D::PANEL);
    assert!(tile.totals.len() >= ROWS * D::PANEL);
    let row = |i: usize| a.as_ptr().wrapping_add(i * D::ROW_WORDS);
    // The rows of a pair; an odd last row twice.
    let rows_of = |pair: usize| [row(2 * pair), row((2 * pair + 1).min(ROWS - 1))];
    let words = |group: usize, quarter: usize| {
        let at = (F::HEAD + group) * D::PANEL + 4 * quarter;
        b.as_ptr().wrapping_add(at)
    };
    // SAFETY: the assertions above: `a` holds ROWS packed rows, and `b` the heads and `groups` rows of words of a panel; the
    // token proves NEON.
    unsafe {
        let mut sums = [[[vdupq_n_u32(0); 2]; QUARTERS]; PAIRS];
        for (pair, sums) in sums.iter_mut().enumerate() {
            for j in 0..WIDTH {
                let heads = b.as_ptr().wrapping_add(j * lanes);
                let [first, second] = rows_of(pair).map(|row| d.start(row, heads));
                for q in 0..2 {
                    sums[2 * j + q] = turned([first[q], second[q]]);
                }
            }
        }
        for group in (0..groups - groups % 2).step_by(2) {
            let mut pairs = [vdupq_n_u32(0); PAIRS];
            for (pair, words) in pairs.iter_mut().enumerate() {
                let [first, second] = rows_of(pair).map(|row| vld1_u32(row.add(D::HEAD + group)));
                *words = vcombine_u32(first, second);
            }
            for quarter in 0..QUARTERS {
                let columns = zipped(words(group, quarter));
                for (sums, &pair) in sums.iter_mut().zip(&pairs) {
                    for (sum, columns) in sums[quarter].iter_mut().zip(columns) {
                        *sum = d.multiply_matrices(pair, columns, *sum);
                    }
                }
            }
        }
        for (pair, sums) in sums.into_iter().enumerate() {
            let quarters = sums.map(|sums| turned(sums));
            for (second, row) in rows_of(pair).into_iter().enumerate() {
                let i = 2 * pair + second;
                if i == ROWS {
                    continue;
                }
                let mut sums =
                    [0, 1].map(|j| [quarters[2 * j][second], quarters[2 * j + 1][second]]);
                if !groups.is_multiple_of(2) {
                    let left = d.left(row, groups - 1);
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = d.dot(left, d.right(words(groups - 1, 2 * j)), *sum);
                    }
                }
                tile.finish_row(d, row, sums, i);
            }
        }
    }
}

/// Four columns' words in two consecutive rows of a panel, two columns to a register.
///
/// In assembly, and in this order among the products, because the compiler loads all of a panel's columns first, and then
/// moves sums about for want of registers.
///
/// # Safety
/// Four words can be read there, and in the next row of a panel of 16 columns.
#[inline(always)]
unsafe fn zipped(words: *const u32) -> [uint32x4_t; 2] {
    let (low, high): (uint32x4_t, uint32x4_t);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ldr {first:q}, [{words}]",
            "ldr {high:q}, [{words}, #64]",
            "zip1 {low:v}.4s, {first:v}.4s, {high:v}.4s",
            "zip2 {high:v}.4s, {first:v}.4s, {high:v}.4s",
            words = in(reg) words,
            first = out(vreg) _,
            low = out(vreg) low,
            high = out(vreg) high,
            options(readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

/// From the sums of two rows with four columns to those of both rows with two columns each, and back.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn turned([first, second]: [uint32x4_t; 2]) -> [uint32x4_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = [first, second].map(|sums| vreinterpretq_u64_u32(sums));
        [vzip1q_u64(first, second), vzip2q_u64(first, second)]
            .map(|sums| vreinterpretq_u32_u64(sums))
    }
}
