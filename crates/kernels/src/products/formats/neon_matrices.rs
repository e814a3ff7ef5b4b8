//! Matrix products for row pairs on Arm (`ummla`, `bfmmla`): two rows' words times two columns' words, two each,
//! give four sums in one register. Each sum has the bits that dot products give.
//!
//! ```text
//! two words of two rows      two words of two columns       sums
//! [ r0 w0 | r0 w1 ]          [ c0 w0 | c0 w1 ]              [ r0·c0 | r0·c1 ]
//! [ r1 w0 | r1 w1 ]     x    [ c1 w0 | c1 w1 ]         →    [ r1·c0 | r1·c1 ]
//! ```
//!
//! Columns are stored in a panel as for dot products. Two groups' words are zipped on load.

use std::arch::{aarch64::*, asm};

use crate::products::{Dots, Format, WIDTH};
use crate::vectors::neon::Neon;

/// Four-column registers in a panel.
const QUARTERS: usize = 2 * WIDTH;

/// Dot products with an instruction that computes four at once.
pub trait Matrices<F: Format<Element = f32, Word = u32>>:
    Dots<F, Vectors = Neon, Sum = [uint32x4_t; 2]>
{
    /// Words before a packed row's values.
    const SCALE_WORDS: usize;

    /// Adds products to four sums.
    fn multiply_matrices(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t;
}

/// Adds all group pairs, if there is more than one row, for [`Dots::add_groups`].
///
/// # Safety
/// Same as for [`Dots::add_groups`].
#[inline(always)]
pub unsafe fn add_groups<F, D, const ROWS: usize>(
    d: D,
    rows: *const u32,
    values: *const u32,
    groups: usize,
    sums: &mut [[[uint32x4_t; 2]; WIDTH]; ROWS],
) -> usize
where
    F: Format<Element = f32, Word = u32>,
    D: Matrices<F>,
{
    const { assert!(D::PANEL == 4 * QUARTERS) };
    if ROWS == 1 {
        return 0;
    }
    let n_pairs = ROWS.div_ceil(2);
    // A pair's rows. An odd last row is paired with itself.
    let pair_rows = |pair: usize| [2 * pair, (2 * pair + 1).min(ROWS - 1)];
    let groups = groups - groups % 2;
    // SAFETY: the caller's promise, for each row below ROWS, and both groups below `groups`; the token proves NEON.
    unsafe {
        // Only the first `n_pairs` are used.
        let mut squares = [[[vdupq_n_u32(0); 2]; QUARTERS]; ROWS];
        for (pair, squares) in squares[..n_pairs].iter_mut().enumerate() {
            let [first, second] = pair_rows(pair);
            for (quarter, square) in squares.iter_mut().enumerate() {
                let (j, half) = (quarter / 2, quarter % 2);
                *square = turned([sums[first][j][half], sums[second][j][half]]);
            }
        }
        for group in (0..groups).step_by(2) {
            let mut pairs = [vdupq_n_u32(0); ROWS];
            for (pair, words) in pairs[..n_pairs].iter_mut().enumerate() {
                let [first, second] = pair_rows(pair)
                    .map(|row| vld1_u32(rows.add(row * D::ROW_WORDS + D::SCALE_WORDS + group)));
                *words = vcombine_u32(first, second);
            }
            for quarter in 0..QUARTERS {
                let columns = zipped(values.add(group * D::PANEL + 4 * quarter));
                for (squares, &pair) in squares[..n_pairs].iter_mut().zip(&pairs) {
                    for (sum, columns) in squares[quarter].iter_mut().zip(columns) {
                        *sum = d.multiply_matrices(pair, columns, *sum);
                    }
                }
            }
        }
        for (pair, squares) in squares[..n_pairs].iter().enumerate() {
            let [first, second] = pair_rows(pair);
            for (quarter, &square) in squares.iter().enumerate() {
                let (j, half) = (quarter / 2, quarter % 2);
                [sums[first][j][half], sums[second][j][half]] = turned(square);
            }
        }
    }
    groups
}

/// Loads four columns' words from two consecutive panel rows, two columns per register.
///
/// In assembly, interleaved with the products, because the compiler would load all the panel's columns first, and
/// then spill sums.
///
/// # Safety
/// Four words can be read there, and in the next row of a 16-column panel.
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

/// Converts two rows' sums in four columns each into both rows' sums in two columns each, and back.
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
