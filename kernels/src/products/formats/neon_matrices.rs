//! Pairs of rows, for Arm's products of small matrices (`ummla`, `bfmmla`): two words of two rows times two words of two
//! columns, four sums in a register. Each sum has the bits of dot products of its row.
//!
//! ```text
//! two words of two rows      two words of two columns       sums
//! [ r0 w0 | r0 w1 ]          [ c0 w0 | c0 w1 ]              [ r0·c0 | r0·c1 ]
//! [ r1 w0 | r1 w1 ]     x    [ c1 w0 | c1 w1 ]         →    [ r1·c0 | r1·c1 ]
//! ```
//!
//! Columns lie in a panel as for dot products; the words of two groups are zipped together on the way.

use std::arch::{aarch64::*, asm};

use crate::products::{Dots, Format, WIDTH};
use crate::vectors::neon::Neon;

/// Registers of four columns, of which a panel has as many.
const QUARTERS: usize = 2 * WIDTH;

/// Dot products of which a single instruction computes four.
pub trait Matrices<F: Format<Number = f32, Word = u32>>:
    Dots<F, Vectors = Neon, Sum = [uint32x4_t; 2]>
{
    /// Words of a packed row before its terms.
    const HEAD: usize;

    /// Adds to four sums.
    fn multiply_matrices(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t;
}

/// Adds all pairs of groups, if there is more than one row; [`Dots::add_groups`].
///
/// # Safety
/// As for that.
#[inline(always)]
pub unsafe fn add_groups<F, D, const ROWS: usize>(
    d: D,
    rows: *const u32,
    panel: *const u32,
    groups: usize,
    sums: &mut [[[uint32x4_t; 2]; WIDTH]; ROWS],
) -> usize
where
    F: Format<Number = f32, Word = u32>,
    D: Matrices<F>,
{
    const { assert!(D::PANEL == 4 * QUARTERS) };
    if ROWS == 1 {
        return 0;
    }
    let n_pairs = ROWS.div_ceil(2);
    // The rows of a pair; an odd last row twice.
    let of_pair = |pair: usize| [2 * pair, (2 * pair + 1).min(ROWS - 1)];
    let groups = groups - groups % 2;
    // SAFETY: the caller's promise, for each row below ROWS, and each of two groups below `groups`; the token proves NEON.
    unsafe {
        // As many of them as there are pairs are used.
        let mut squares = [[[vdupq_n_u32(0); 2]; QUARTERS]; ROWS];
        for (pair, squares) in squares[..n_pairs].iter_mut().enumerate() {
            let [first, second] = of_pair(pair);
            for (quarter, square) in squares.iter_mut().enumerate() {
                let (j, half) = (quarter / 2, quarter % 2);
                *square = turned([sums[first][j][half], sums[second][j][half]]);
            }
        }
        for group in (0..groups).step_by(2) {
            let mut pairs = [vdupq_n_u32(0); ROWS];
            for (pair, words) in pairs[..n_pairs].iter_mut().enumerate() {
                let [first, second] = of_pair(pair)
                    .map(|row| vld1_u32(rows.add(row * D::ROW_WORDS + D::HEAD + group)));
                *words = vcombine_u32(first, second);
            }
            for quarter in 0..QUARTERS {
                let columns = zipped(panel.add((F::HEAD + group) * D::PANEL + 4 * quarter));
                for (squares, &pair) in squares[..n_pairs].iter_mut().zip(&pairs) {
                    for (sum, columns) in squares[quarter].iter_mut().zip(columns) {
                        *sum = d.multiply_matrices(pair, columns, *sum);
                    }
                }
            }
        }
        for (pair, squares) in squares[..n_pairs].iter().enumerate() {
            let [first, second] = of_pair(pair);
            for (quarter, &square) in squares.iter().enumerate() {
                let (j, half) = (quarter / 2, quarter % 2);
                [sums[first][j][half], sums[second][j][half]] = turned(square);
            }
        }
    }
    groups
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
