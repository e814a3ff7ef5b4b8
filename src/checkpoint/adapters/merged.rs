//! A base model's tensor plus the adapters' changes, computed as it is read.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Tensor};

use super::product_layout::ProductLayout;
use super::stacked::ExpertFactors;
use crate::checkpoint::files::{Compute, StoredForm, StoredTensor, TensorFiles};
use crate::checkpoint::scheme::Features;
use crate::error::Result;

/// The number of elements computed at a time when a whole tensor is traversed.
const AT_ONCE: usize = 1 << 20;

/// An adapter's two factors.
#[derive(Debug)]
pub(super) struct Factors {
    pub a: StoredTensor, // [rank, d_in, ..]
    pub b: StoredTensor, // [d_out, rank, ..]
    pub rank: usize,
    pub scale: f64,
    pub layout: ProductLayout,
}

/// An adapter's change to a tensor.
#[derive(Debug)]
pub(super) enum Change {
    /// Adds the product of its factors.
    Product(Factors),
    /// Adds the product, then scales each output's weights to a learned length (DoRA).
    Directed {
        factors: Factors,
        lengths: StoredTensor,
        /// Column lengths before the change, for a tensor whose outputs are columns; computed on first use.
        before: OnceLock<Vec<f32>>,
    },
    /// Adds the products for a stack of experts.
    Experts {
        factors: ExpertFactors,
        layout: ProductLayout,
    },
    /// Adds the product for one expert. The tensor is the part of the expert's parameter that begins at output
    /// `first_output`.
    Expert {
        factors: ExpertFactors,
        expert: usize,
        first_output: usize,
    },
    /// Adds a vector times a scalar.
    Vector { part: StoredTensor, scale: f64 },
    /// Replaces some rows.
    Rows {
        part: StoredTensor,
        rows: Vec<usize>,
    },
    /// Replaces the whole tensor.
    Whole { part: StoredTensor },
}

/// An adapter's change to a tensor or to a slice.
#[derive(Debug)]
pub(super) struct Placed {
    pub change: Change,
    pub features: Option<Features>,
}

/// A tensor with the adapters' changes, in order.
#[derive(Debug)]
struct Merged {
    base: StoredTensor,
    changes: Vec<Placed>,
}

impl Merged {
    /// Returns the tensor's shape as a matrix, `[rows, everything else]`.
    fn dims(&self) -> (usize, usize) {
        let shape = &self.base.info.shape;
        let rows = shape.first().copied().unwrap_or(1);
        (rows, shape.iter().skip(1).product())
    }
}

impl Factors {
    /// Returns rows of the scaled product.
    fn rows(&self, files: &TensorFiles, rows: Range<usize>, width: usize) -> Result<Vec<f32>> {
        let all = |part: &StoredTensor| -> Result<Vec<f32>> {
            files.part_rows(part, 0..part.info.shape.first().copied().unwrap_or(1))
        };
        let cpu = &Device::Cpu;
        let (left, right) = match self.layout {
            ProductLayout::OutIn => {
                let b = files.part_rows(&self.b, rows.clone())?;
                let b = Tensor::from_vec(b, (rows.len(), self.rank), cpu)?;
                (b, Tensor::from_vec(all(&self.a)?, (self.rank, width), cpu)?)
            }
            ProductLayout::InOut => {
                let a = all(&self.a)?;
                let d_in = a.len() / self.rank.max(1);
                let a = Tensor::from_vec(a, (self.rank, d_in), cpu)?;
                let a = a.narrow(1, rows.start, rows.len())?.t()?;
                let b = Tensor::from_vec(all(&self.b)?, (width, self.rank), cpu)?;
                (a.contiguous()?, b.t()?.contiguous()?)
            }
        };
        let product = (left.matmul(&right)? * self.scale)?;
        Ok(product.flatten_all()?.to_vec1()?)
    }

    /// # Errors
    /// If the product does not have the shape that the tensor or slice has.
    pub fn check(&self, base: &StoredTensor, features: Option<&Features>) -> Result<()> {
        let n = |part: &StoredTensor| part.info.shape.iter().product::<usize>();
        let shape = &base.info.shape;
        let rows = n_rows(shape, features);
        let width = shape.iter().skip(1).product();
        let (d_out, d_in) = match self.layout {
            ProductLayout::OutIn => (rows, width),
            ProductLayout::InOut => (width, rows),
        };
        let a_first = self.a.info.shape.first() == Some(&self.rank);
        let fits = a_first
            && n(&self.a) == self.rank * d_in
            && n(&self.b) == d_out * self.rank
            && self.b.info.shape.first() == Some(&d_out);
        // No class splits a `Conv1D`.
        if fits && shape.len() >= 2 && (features.is_none() || self.layout == ProductLayout::OutIn) {
            return Ok(());
        }
        let (a, b, rank) = (&self.a.info.shape, &self.b.info.shape, self.rank);
        Err(self.a.error(format!(
            "it has shape {a:?} and its B {b:?}, which with rank {rank} do not fit {}, {shape:?}; \
             use the adapter's own base model",
            base.name
        )))
    }
}

impl Compute for Merged {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        let (_, width) = self.dims();
        let mut numbers = files.part_rows(&self.base, rows.clone())?;
        for Placed { change, features } in &self.changes {
            for (own, on_disk) in places(features.as_ref(), &rows) {
                let start = on_disk.start - rows.start;
                let part = &mut numbers[start * width..(start + own.len()) * width];
                let base = || files.part_rows(&self.base, on_disk.clone());
                change.apply(files, part, (own, width), (&self.base, &base))?;
            }
        }
        Ok(numbers)
    }

    fn stored_form(&self) -> StoredForm {
        let changed = |of: String| format!("{of} with an adapter");
        match self.base.info.stored_form() {
            StoredForm::Elements(name) => StoredForm::Elements(changed(name)),
            StoredForm::Unpackable(name)
            | StoredForm::Refused(name)
            | StoredForm::Values { name, .. } => StoredForm::Unpackable(changed(name)),
        }
    }

    fn is_of_codes(&self) -> bool {
        self.base.is_dequantized()
    }
}

impl Change {
    fn apply(
        &self,
        files: &TensorFiles,
        numbers: &mut [f32],
        (rows, width): (Range<usize>, usize),
        (base, base_rows): (&StoredTensor, &dyn Fn() -> Result<Vec<f32>>),
    ) -> Result<()> {
        match self {
            Self::Product(factors) => add(numbers, &factors.rows(files, rows, width)?),
            Self::Experts { factors, layout } => {
                add(numbers, &factors.of_all(files, rows, *layout)?)
            }
            Self::Expert {
                factors,
                expert,
                first_output,
            } => add(
                numbers,
                &factors.rows_of_one(files, *expert, *first_output, rows)?,
            ),
            Self::Directed {
                factors,
                lengths,
                before,
            } => {
                let product = factors.rows(files, rows.clone(), width)?;
                let n = lengths.info.shape.iter().product();
                let learned = files.part_rows(&flat(lengths, n), 0..n)?;
                match factors.layout {
                    ProductLayout::OutIn => {
                        let mut whole = base_rows()?;
                        add(&mut whole, &product);
                        add(numbers, &product);
                        let outputs = numbers.chunks_mut(width).zip(whole.chunks(width));
                        for ((numbers, whole), learned) in outputs.zip(&learned[rows]) {
                            let factor = (f64::from(*learned) / length(whole)) as f32;
                            numbers.iter_mut().for_each(|number| *number *= factor);
                        }
                    }
                    ProductLayout::InOut => {
                        let lengths = match before.get() {
                            Some(known) => known,
                            None => {
                                let computed = column_lengths(files, base, factors, width)?;
                                before.get_or_init(|| computed)
                            }
                        };
                        add(numbers, &product);
                        for row in numbers.chunks_mut(width) {
                            for ((number, learned), before) in
                                row.iter_mut().zip(&learned).zip(lengths)
                            {
                                *number *= learned / before;
                            }
                        }
                    }
                }
            }
            Self::Vector { part, scale } => {
                let vector = files.part_rows(part, rows)?;
                let scale = *scale as f32;
                let pairs = numbers.iter_mut().zip(&vector);
                pairs.for_each(|(number, added)| *number += scale * added);
            }
            Self::Whole { part } => numbers.copy_from_slice(&files.part_rows(part, rows)?),
            Self::Rows { part, rows: given } => {
                for (place, row) in given.iter().enumerate() {
                    if rows.contains(row) {
                        let new = files.part_rows(part, place..place + 1)?;
                        let start = (row - rows.start) * width;
                        numbers[start..start + width].copy_from_slice(&new);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of rows that a tensor with this shape, or its slice, has.
pub(super) fn n_rows(shape: &[usize], features: Option<&Features>) -> usize {
    match features {
        Some(features) => features.ranges.iter().map(ExactSizeIterator::len).sum(),
        None => shape.first().copied().unwrap_or(1),
    }
}

/// Returns ranges of a slice's rows, each with the same rows' range in the requested rows.
fn places(features: Option<&Features>, rows: &Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
    let Some(features) = features else {
        return vec![(rows.clone(), rows.clone())];
    };
    let mut before = 0;
    let place = |range: &Range<usize>| {
        let on_disk = range.start.max(rows.start)..range.end.min(rows.end);
        let start = before + on_disk.start.saturating_sub(range.start);
        before += range.len();
        (!on_disk.is_empty()).then(|| (start..start + on_disk.len(), on_disk))
    };
    features.ranges.iter().filter_map(place).collect()
}

/// Returns a part as a vector, without dimensions of size 1.
fn flat(part: &StoredTensor, n: usize) -> StoredTensor {
    let mut part = part.clone();
    part.info.shape = vec![n];
    part
}

fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

fn length(numbers: &[f32]) -> f64 {
    let squares = numbers.iter().map(|&number| f64::from(number).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Returns the column lengths of the base tensor plus the adapter's product.
fn column_lengths(
    files: &TensorFiles,
    base: &StoredTensor,
    factors: &Factors,
    width: usize,
) -> Result<Vec<f32>> {
    let n_rows = base.info.shape.first().copied().unwrap_or(1);
    let step = (AT_ONCE / width.max(1)).max(1);
    let mut squares = vec![0f64; width];
    for start in (0..n_rows).step_by(step) {
        let rows = start..n_rows.min(start + step);
        let mut whole = files.part_rows(base, rows.clone())?;
        add(&mut whole, &factors.rows(files, rows, width)?);
        for row in whole.chunks(width) {
            let pairs = squares.iter_mut().zip(row);
            pairs.for_each(|(sum, &number)| *sum += f64::from(number).powi(2));
        }
    }
    Ok(squares.into_iter().map(|sum| sum.sqrt() as f32).collect())
}

/// Returns a computed tensor that applies the changes to `base`.
pub(super) fn compute(base: StoredTensor, changes: Vec<Placed>) -> Arc<dyn Compute> {
    Arc::new(Merged { base, changes })
}
