//! Packing of weights that come as codes, as a quantised file has them: nothing is computed anew, and nothing is lost.

use std::ops::Range;

use super::formats::coded::OfCodes;
use super::formats::heads::{self, ColumnHeads, GroupHeads, Heads};
use super::{Halves, PACKED, PackedMatrix, WithKernel, parts};
use crate::cpu::Cpu;
use crate::memory::{Aligned, lend};
use crate::threads::{Shared, parallel};

/// Some rows of a weight `[d_out, d_in]` as codes in groups, each with what its [`Heads`] ask for.
#[derive(Clone, Debug, Default)]
pub struct CodedRows {
    /// `[rows, d_in]`.
    pub codes: Vec<u8>,
    /// `[rows, groups]`.
    pub scales: Vec<f32>,
    /// `[rows, groups]`, or nothing.
    pub offsets: Vec<f32>,
    /// For every 256 terms of a row, or nothing.
    pub shared: Vec<[f32; 2]>,
}

/// How the codes of a weight are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFormat {
    /// The bits of a code, and how many terms share a scale: 4 or 8 by 32, 64, 128 or 256, 5 by 32, or 6 by 16.
    pub bits_by_group: (usize, usize),
    /// What there is for each group.
    pub heads: Heads,
}

impl CodeFormat {
    /// How such columns are stored: a group is a part, or two.
    ///
    /// # Panics
    /// If there are no such codes, or none with such heads.
    pub(super) fn layout(self) -> GroupHeads {
        let (bits, group) = self.bits_by_group;
        let part = match (bits, group) {
            (6, 16) => 16,
            (4 | 5 | 8, 32) | (8, 64) => 32,
            (4, 64) => 64,
            (4 | 8, 128 | 256) => 128,
            _ => panic!("codes of {bits} bits in groups of {group}"),
        };
        let of_32 = matches!(self.heads, Heads::TwoLevels | Heads::Microscaled);
        assert!(
            !of_32 || group == 32,
            "{:?} of groups of {group}",
            self.heads
        );
        GroupHeads {
            heads: self.heads,
            part,
            parts: group / part,
        }
    }

    /// The bits of a weight, with its share of what a whole chunk has beside codes.
    pub fn bits(self) -> f64 {
        let (bits, group) = self.bits_by_group;
        let head = self.heads.words(parts(heads::CHUNK, group));
        bits as f64 + (u32::BITS as usize * head) as f64 / heads::CHUNK as f64
    }
}

/// About how many codes are held beside what is packed of them. What is freed of them, the allocator may keep.
const CODES_AT_ONCE: usize = 1 << 22;

impl CodedRows {
    /// Adds rows behind these.
    pub fn append(&mut self, mut rows: Self) {
        if self.codes.is_empty() {
            *self = rows;
            return;
        }
        self.codes.append(&mut rows.codes);
        self.scales.append(&mut rows.scales);
        self.offsets.append(&mut rows.offsets);
        self.shared.append(&mut rows.shared);
    }

    /// Some of so many rows, in this order.
    pub fn select(&self, n_rows: usize, rows: impl Iterator<Item = usize>) -> Self {
        let mut selected = Self::default();
        for row in rows {
            let (codes, heads) = self.row(row, n_rows);
            selected.codes.extend_from_slice(codes);
            selected.scales.extend_from_slice(heads.scales);
            selected.offsets.extend_from_slice(heads.offsets);
            selected.shared.extend_from_slice(heads.shared);
        }
        selected
    }

    /// The codes and heads of one of so many rows.
    fn row(&self, row: usize, rows: usize) -> (&[u8], ColumnHeads<'_>) {
        fn part<T>(of: &[T], row: usize, rows: usize) -> &[T] {
            let width = of.len() / rows;
            &of[row * width..][..width]
        }
        let heads = ColumnHeads {
            scales: part(&self.scales, row, rows),
            offsets: part(&self.offsets, row, rows),
            shared: part(&self.shared, row, rows),
        };
        (part(&self.codes, row, rows), heads)
    }

    /// # Errors
    /// If these are not so many rows, or cannot be stored.
    fn check<F: OfCodes>(
        &self,
        groups: GroupHeads,
        d_in: usize,
        rows: &Range<usize>,
    ) -> Result<(), String> {
        let (n, codes) = (rows.len(), self.codes.len());
        if codes != n * d_in {
            return Err(format!(
                "{codes} codes of {n} rows, expected {d_in} of each"
            ));
        }
        if let Some(code) = self.codes.iter().find(|code| **code > F::LARGEST) {
            return Err(format!("the code {code}, expected at most {}", F::LARGEST));
        }
        let n_groups = d_in.div_ceil(groups.part * groups.parts);
        for i in 0..n {
            let checked = groups.heads.check(&self.row(i, n).1, n_groups);
            checked.map_err(|reason| format!("row {}: {reason}", rows.start + i))?;
        }
        Ok(())
    }
}

impl<F: WithKernel + OfCodes> PackedMatrix<F> {
    /// Packs one weight `[d_out, d_in]`, or the two of a gated map, of which `read` gives rows of either.
    ///
    /// # Errors
    /// Those of `read`; what cannot be stored becomes one by `refuse`.
    pub fn of_codes<E>(
        memory: Aligned<u32>,
        cpu: Cpu,
        (heads, halves): (GroupHeads, Halves),
        [d_out, d_in]: [usize; 2],
        read: &mut dyn FnMut(usize, Range<usize>) -> Result<CodedRows, E>,
        refuse: impl Fn(usize, String) -> E,
    ) -> Result<Self, E> {
        let kernel = &*F::kernel(cpu.isa);
        let width = kernel.panel();
        let share = halves.columns_per_panel(width);
        let n_words = F::column_words(heads, d_in);
        let mut panels = memory;
        panels.set_len(d_out.div_ceil(share) * n_words * width);
        let step = (CODES_AT_ONCE / d_in.max(1)).next_multiple_of(share);
        for start in (0..d_out).step_by(step) {
            let rows = start..d_out.min(start + step);
            let of_panels = start / share * n_words * width;
            let panels = &mut panels[of_panels..][..rows.len().div_ceil(share) * n_words * width];
            for matrix in 0..width / share {
                let coded = read(matrix, rows.clone())?;
                let checked = coded.check::<F>(heads, d_in, &rows);
                checked.map_err(|reason| refuse(matrix, reason))?;
                pack::<F>(
                    &coded,
                    rows.len(),
                    (heads, width, share),
                    matrix,
                    panels,
                    cpu.threads,
                );
            }
        }
        Ok(Self::from_panels(
            cpu.isa,
            (d_in, d_out),
            (halves, width),
            heads,
            panels,
        ))
    }
}

/// Packs rows into one matrix's share of the columns of panels.
fn pack<F: OfCodes>(
    coded: &CodedRows,
    n_rows: usize,
    (heads, width, share): (GroupHeads, usize, usize),
    matrix: usize,
    panels: &mut [u32],
    threads: usize,
) {
    let n_panels = n_rows.div_ceil(share);
    let panel_words = panels.len() / n_panels.max(1);
    let n_words = panel_words / width;
    let all = Shared::new(panels);
    parallel::for_tasks(threads, n_panels, |panel| {
        // SAFETY: `for_tasks` gives out each number once, and no two panels have a word in common.
        let to = unsafe { all.range(panel * panel_words..(panel + 1) * panel_words) };
        lend(PACKED, n_words, |words: &mut [u32]| {
            for column in 0..share {
                let row = panel * share + column;
                match row < n_rows {
                    true => {
                        let (codes, column) = coded.row(row, n_rows);
                        F::pack_coded(heads, codes, &column, words);
                    }
                    false => words.fill(0),
                }
                let column = matrix * share + column;
                for (to, word) in to[column..].iter_mut().step_by(width).zip(&*words) {
                    *to = *word;
                }
            }
        });
    });
}
