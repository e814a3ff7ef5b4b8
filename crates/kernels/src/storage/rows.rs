//! Quantized rows in groups with one scale each: dequantized, or converted for the packed formats, which have the same quantized
//! values, with the same scales and zero points or minima.

use std::ops::Range;

use crate::products::QuantizedWeightRows;

/// Quantized rows. A weight is `((value of its code) - zero) * scale * factor`, with each product rounded to f32. The
/// libraries that write the formats use this order, so the result depends on it.
pub struct QuantizedRows {
    /// `[rows, columns]`.
    pub codes: Vec<u8>,
    pub columns: usize,
    /// The value for each quantized value; the quantized value itself if absent.
    pub values: Option<Box<[f32; 256]>>,
    /// Each column's group.
    pub group_of: Vec<u32>,
    pub n_groups: usize,
    /// `[rows, groups]`.
    pub scales: Vec<f32>,
    pub zeros: Zeros,
    pub factor: f32,
}

/// Zero points that are subtracted before scaling, or offsets that are added after it.
pub enum Zeros {
    /// The same for all groups.
    All(f32),
    /// `[rows, groups]`, each at least the second field, and less than 256 above it.
    Each(Vec<f32>, u8),
    /// `[rows, groups]`, added to the scaled value.
    Behind(Vec<f32>),
}

impl QuantizedRows {
    /// Returns the weights, `[rows, columns]`.
    pub fn dequantized(&self) -> Vec<f32> {
        match &self.values {
            Some(table) => self.with_values(|code| table[usize::from(code)]),
            None => self.with_values(f32::from),
        }
    }

    fn with_values(&self, value: impl Fn(u8) -> f32) -> Vec<f32> {
        // Consecutive columns in the same group, the usual case without reordering, share one loop without a lookup.
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for run in self.group_of.chunk_by(|a, b| a == b) {
            let start = runs.last().map_or(0, |(columns, _)| columns.end);
            runs.push((start..start + run.len(), run[0] as usize));
        }
        let factor = self.factor;
        let mut weights = vec![0.0; self.codes.len()];
        let rows = self.codes.chunks_exact(self.columns.max(1));
        let rows = rows.zip(weights.chunks_exact_mut(self.columns.max(1)));
        for (row, (codes, weights)) in rows.enumerate() {
            for (columns, group) in &runs {
                let at = row * self.n_groups + group;
                let scale = self.scales[at];
                let pairs = weights[columns.clone()]
                    .iter_mut()
                    .zip(&codes[columns.clone()]);
                let scaled = |zero| move |code| (code - zero) * scale * factor;
                match &self.zeros {
                    Zeros::All(zero) => {
                        pairs.for_each(|(w, &code)| *w = scaled(*zero)(value(code)))
                    }
                    Zeros::Each(zeros, _) => {
                        pairs.for_each(|(w, &code)| *w = scaled(zeros[at])(value(code)))
                    }
                    Zeros::Behind(offsets) => {
                        let offset = offsets[at];
                        pairs.for_each(|(w, &code)| *w = value(code) * scale + offset);
                    }
                }
            }
        }
        weights
    }

    /// Returns the rows in packed groups with `group` columns, and scales times `factor`. If a group's columns are not
    /// contiguous, all columns are sorted by their groups.
    pub fn in_groups(self, group: usize, factor: f32) -> QuantizedWeightRows {
        let mut codes = self.codes;
        let (group_of, order) = in_runs(&self.group_of);
        if let Some(order) = order {
            let rows = codes.chunks_exact(self.columns.max(1));
            let ordered = rows.flat_map(|row| order.iter().map(|column| row[*column as usize]));
            codes = ordered.collect();
        }
        // One group in the file may be several of the packed format's.
        let part_groups = group_of.iter().step_by(group).map(|of| *of as usize);
        let part_groups: Vec<usize> = part_groups.collect();
        let spread = |numbers: Vec<f32>, factor: f32| -> Vec<f32> {
            let rows = numbers.chunks_exact(self.n_groups.max(1));
            rows.flat_map(|row| part_groups.iter().map(|of| row[*of] * factor))
                .collect()
        };
        debug_assert_eq!(codes.len() % self.columns.max(1), 0);
        QuantizedWeightRows {
            values: codes,
            scales: spread(self.scales, factor),
            offsets: match self.zeros {
                Zeros::All(_) => Vec::new(),
                Zeros::Each(numbers, _) | Zeros::Behind(numbers) => spread(numbers, 1.0),
            },
            shared: Vec::new(),
        }
    }
}

/// Returns each column's group, made contiguous, and the columns in that order if it differs from their own. Weights
/// quantized in the order of falling activations (`desc_act`) need this.
pub fn in_runs(group_of: &[u32]) -> (Vec<u32>, Option<Vec<u32>>) {
    if group_of.is_sorted() {
        return (group_of.to_vec(), None);
    }
    let mut order: Vec<u32> = (0..group_of.len() as u32).collect();
    order.sort_by_key(|column| group_of[*column as usize]);
    let groups = order.iter().map(|column| group_of[*column as usize]);
    (groups.collect(), Some(order))
}

/// Returns some columns, one after the other, from a matrix whose rows have `width` elements.
pub fn transposed(numbers: &[f32], width: usize, columns: Range<usize>) -> Vec<f32> {
    let n_rows = numbers.len() / width.max(1);
    let places = columns.flat_map(|column| (0..n_rows).map(move |row| row * width + column));
    places.map(|place| numbers[place]).collect()
}
