//! Packs quantized weights as stored in a file. Nothing is requantized, and nothing is lost.

use std::ops::Range;

use super::formats::group_scales::{self, ColumnScales, GroupScales, ScaleLayout};
use super::formats::quantized::PackQuantized;
use super::{Halves, PACKED, PackedMatrix, WithKernel, parts};
use crate::cpu::Cpu;
use crate::memory::{Aligned, lend};
use crate::threads::{Shared, parallel};

/// Some rows from a weight `[d_out, d_in]` as quantized values in groups, with the scales that [`GroupScales`] describes.
#[derive(Clone, Debug, Default)]
pub struct QuantizedWeightRows {
    /// Quantized values, `[rows, d_in]`.
    pub values: Vec<u8>,
    /// Scales, `[rows, groups]`.
    pub scales: Vec<f32>,
    /// Zero points or minima, `[rows, groups]`, or empty.
    pub offsets: Vec<f32>,
    /// Two-level scales' shared factors for every 256 values in a row, or empty.
    pub shared: Vec<[f32; 2]>,
}

/// A quantized weight's packed format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedFormat {
    /// Bits per value and values per group: 4 or 8 bits by 32, 64, 128 or 256; 5 bits by 32; or 2, 3 or 6 bits by 16. With
    /// 4 bits, [microscaling](GroupScales::Microscaled) and the zero point [`NON_LINEAR_ZERO`](group_scales::NON_LINEAR_ZERO) imply
    /// a table of values.
    pub bits_by_group: (usize, usize),
    /// How each group's scale and offset are stored.
    pub scales: GroupScales,
}

impl QuantizedFormat {
    /// Returns the packed columns' layout: a group has one part, or two.
    ///
    /// # Panics
    /// If this combination of bits, group size and scales is not supported.
    pub(super) fn layout(self) -> ScaleLayout {
        let (bits, group) = self.bits_by_group;
        let part = match (bits, group) {
            (2 | 3 | 6, 16) => 16,
            (4 | 5 | 8, 32) | (8, 64) => 32,
            (4, 64) => 64,
            (4 | 8, 128 | 256) => 128,
            _ => panic!("{bits}-bit values in groups of {group} are not supported"),
        };
        let is_of_32 = matches!(
            self.scales,
            GroupScales::TwoLevels | GroupScales::Microscaled
        ) || self.scales.is_non_linear();
        assert!(
            !is_of_32 || group == 32,
            "{:?} scales do not support groups of {group}",
            self.scales
        );
        ScaleLayout {
            scales: self.scales,
            part,
            parts: group / part,
        }
    }

    /// Returns the bits per weight in a whole chunk, scale words included.
    pub fn bits(self) -> f64 {
        let (bits, group) = self.bits_by_group;
        let scale_words = self.scales.words(parts(group_scales::CHUNK, group));
        bits as f64 + (u32::BITS as usize * scale_words) as f64 / group_scales::CHUNK as f64
    }
}

/// Returns rows from the weight with the given number; `None` if they cannot be read.
pub(super) type ReadRows<'r> = dyn FnMut(usize, Range<usize>) -> Option<QuantizedWeightRows> + 'r;

/// Rows that cannot be packed.
pub(super) struct Refused {
    /// The weight's number.
    pub matrix: usize,
    /// The value or scale that cannot be stored; empty for rows that cannot be read.
    pub reason: String,
}

/// Quantized values in memory at a time while a weight is packed, approximately. A larger constant would raise peak
/// memory, because the allocator may keep freed memory.
const VALUES_AT_ONCE: usize = 1 << 22;

impl QuantizedWeightRows {
    /// Appends rows.
    pub fn append(&mut self, mut rows: Self) {
        if self.values.is_empty() {
            *self = rows;
            return;
        }
        self.values.append(&mut rows.values);
        self.scales.append(&mut rows.scales);
        self.offsets.append(&mut rows.offsets);
        self.shared.append(&mut rows.shared);
    }

    /// Returns the given rows, in this order. `n_rows` is the row count in `self`.
    pub fn select(&self, n_rows: usize, rows: impl Iterator<Item = usize>) -> Self {
        let mut selected = Self::default();
        for row in rows {
            let (values, scales) = self.row(row, n_rows);
            selected.values.extend_from_slice(values);
            selected.scales.extend_from_slice(scales.scales);
            selected.offsets.extend_from_slice(scales.offsets);
            selected.shared.extend_from_slice(scales.shared);
        }
        selected
    }

    /// Returns the values and scales of one row. `rows` is the row count in `self`.
    fn row(&self, row: usize, rows: usize) -> (&[u8], ColumnScales<'_>) {
        fn part<T>(of: &[T], row: usize, rows: usize) -> &[T] {
            let width = of.len() / rows;
            &of[row * width..][..width]
        }
        let scales = ColumnScales {
            scales: part(&self.scales, row, rows),
            offsets: part(&self.offsets, row, rows),
            shared: part(&self.shared, row, rows),
        };
        (part(&self.values, row, rows), scales)
    }

    /// Checks the row count, and that all values and scales can be stored.
    ///
    /// # Errors
    /// If the value count is wrong, or a value or scale cannot be stored.
    fn check<F: PackQuantized>(
        &self,
        groups: ScaleLayout,
        d_in: usize,
        rows: &Range<usize>,
    ) -> Result<(), String> {
        let (n, values) = (rows.len(), self.values.len());
        if values != n * d_in {
            return Err(format!(
                "{values} quantized values in {n} rows, expected {d_in} per row"
            ));
        }
        if let Some(code) = self.values.iter().find(|code| **code > F::LARGEST) {
            return Err(format!(
                "the quantized value {code}, expected at most {}",
                F::LARGEST
            ));
        }
        let n_groups = d_in.div_ceil(groups.part * groups.parts);
        let n_chunks = d_in.div_ceil(group_scales::CHUNK);
        for i in 0..n {
            let checked = groups.scales.check(&self.row(i, n).1, n_groups, n_chunks);
            checked.map_err(|reason| format!("row {}: {reason}", rows.start + i))?;
        }
        Ok(())
    }
}

impl<F: WithKernel + PackQuantized> PackedMatrix<F> {
    /// Packs one weight `[d_out, d_in]`, or a gated feed-forward's gate and up weights.
    ///
    /// # Errors
    /// If rows cannot be read, or have values or scales that cannot be stored.
    pub(super) fn from_quantized(
        memory: Aligned<u32>,
        cpu: Cpu,
        (scales, halves): (ScaleLayout, Halves),
        [d_out, d_in]: [usize; 2],
        read: &mut ReadRows,
    ) -> Result<Self, Refused> {
        let kernel = &*F::kernel(cpu.isa);
        let width = kernel.panel();
        let share = halves.columns_per_panel(width);
        let n_words = F::column_words(scales, d_in);
        let mut panels = memory;
        panels.set_len(d_out.div_ceil(share) * n_words * width);
        let step = (VALUES_AT_ONCE / d_in.max(1)).next_multiple_of(share);
        for start in (0..d_out).step_by(step) {
            let rows = start..d_out.min(start + step);
            let panels_at = start / share * n_words * width;
            let panels = &mut panels[panels_at..][..rows.len().div_ceil(share) * n_words * width];
            for matrix in 0..width / share {
                let refused = |reason| Refused { matrix, reason };
                let coded = read(matrix, rows.clone()).ok_or_else(|| refused(String::new()))?;
                let checked = coded.check::<F>(scales, d_in, &rows);
                checked.map_err(refused)?;
                pack::<F>(
                    &coded,
                    rows.len(),
                    (scales, width, share),
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
            scales,
            panels,
        ))
    }
}

/// Packs rows into one matrix's share in the panels' columns.
fn pack<F: PackQuantized>(
    coded: &QuantizedWeightRows,
    n_rows: usize,
    (scales, width, share): (ScaleLayout, usize, usize),
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
                        let (values, column) = coded.row(row, n_rows);
                        F::pack_column_values(scales, values, &column, words);
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
