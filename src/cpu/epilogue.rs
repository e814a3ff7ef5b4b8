//! What becomes of a product's sums while they are still in the cache.

use std::ops::Range;

use super::{
    Real,
    arch::{MOST_LANES, Task, Vectors},
    pack::Halves,
    rows::Target,
    tile::WIDTH,
};

/// A function of every element of a slice.
pub type Map<T> = dyn Fn(&mut [T]) + Send + Sync;

/// `residual + scale · activation(sum + bias)`, or of a gated matrix `residual + scale ·
/// activation(gate + bias) · (up + up_bias)`. The sums do not depend on it.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// One number for each column; of a gated matrix, the gate's.
    pub bias: Option<&'a [T]>,
    /// One number for each column of the second half of a gated matrix.
    pub up_bias: Option<&'a [T]>,
    /// Of the sum and the bias; of the gate's in a gated matrix.
    pub activation: Option<&'a Map<T>>,
    /// A factor on the result.
    pub scale: Scale<'a, T>,
    /// Added last: rows without gaps, as many and as wide as the result.
    pub residual: Option<&'a [T]>,
}

/// A factor on the results.
#[derive(Clone, Copy)]
pub enum Scale<'a, T> {
    /// None.
    One,
    /// The same for all.
    Constant(T),
    /// One for each column.
    Columns(&'a [T]),
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// The sums as they are.
    pub const NONE: Self = Self {
        bias: None,
        up_bias: None,
        activation: None,
        scale: Scale::One,
        residual: None,
    };

    /// The sums and perhaps a bias.
    pub fn bias(bias: Option<&'a [T]>) -> Self {
        Self { bias, ..Self::NONE }
    }

    /// # Panics
    /// If a part does not fit results of this shape.
    pub(super) fn check(&self, rows: usize, columns: usize) {
        let fits = |values: Option<&[T]>, len| values.is_none_or(|values| values.len() == len);
        let scales = match self.scale {
            Scale::Columns(scales) => Some(scales),
            Scale::One | Scale::Constant(_) => None,
        };
        assert!(fits(self.bias, columns) && fits(self.up_bias, columns) && fits(scales, columns));
        assert!(fits(self.residual, rows * columns));
    }

    /// Writes one row's results for these columns.
    #[inline(always)]
    fn write(&self, values: &[T], row: usize, columns: Range<usize>, y: &Target<T>) {
        // SAFETY: of all tasks and panels only this one has this row and these columns.
        let out = unsafe { y.piece(row, columns.clone()) };
        let values = &values[..out.len()];
        match (self.scale, self.residual) {
            (Scale::One, None) => out.copy_from_slice(values),
            (Scale::One, Some(residual)) => {
                let residual = &residual[row * y.columns()..][columns];
                for ((out, &value), &residual) in out.iter_mut().zip(values).zip(residual) {
                    *out = residual + value;
                }
            }
            (scale, residual) => {
                for (i, (out, &value)) in out.iter_mut().zip(values).enumerate() {
                    let column = columns.start + i;
                    let scaled = match scale {
                        Scale::One => value,
                        Scale::Constant(factor) => value * factor,
                        Scale::Columns(factors) => value * factors[column],
                    };
                    *out = match residual {
                        Some(residual) => residual[row * y.columns() + column] + scaled,
                        None => scaled,
                    };
                }
            }
        }
    }
}

/// Writes the results of a panel.
pub(super) struct Finish<'a, T> {
    pub epilogue: &'a Epilogue<'a, T>,
    pub halves: Halves,
    pub first_row: usize,
    /// Of the result.
    pub columns: Range<usize>,
    /// `[rows, panel width]`, overwritten on the way.
    pub sums: &'a mut [T],
    pub y: &'a Target<'a, T>,
}

/// Rows that an activation is computed for at a time: they stay in the first cache.
const GROUP: usize = 16;

impl<T: Real> Task<T> for Finish<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, _: V) {
        let (epilogue, columns) = (self.epilogue, self.columns);
        let width = WIDTH * V::LANES;
        for (group, sums) in self.sums.chunks_mut(GROUP * width).enumerate() {
            let first_row = self.first_row + group * GROUP;
            match self.halves {
                Halves::One => {
                    if let Some(bias) = epilogue.bias {
                        for row in sums.chunks_exact_mut(width) {
                            add(row, &bias[columns.clone()]);
                        }
                    }
                    if let Some(activation) = epilogue.activation {
                        activation(sums);
                    }
                    for (i, row) in sums.chunks_exact(width).enumerate() {
                        epilogue.write(row, first_row + i, columns.clone(), self.y);
                    }
                }
                Halves::GateAndUp => {
                    let mut gates = [T::ZERO; GROUP * MOST_LANES];
                    let gates = &mut gates[..sums.len() / WIDTH];
                    for (gate, row) in gates
                        .chunks_exact_mut(V::LANES)
                        .zip(sums.chunks_exact(width))
                    {
                        gate.copy_from_slice(&row[..V::LANES]);
                        if let Some(bias) = epilogue.bias {
                            add(gate, &bias[columns.clone()]);
                        }
                    }
                    if let Some(activation) = epilogue.activation {
                        activation(gates);
                    }
                    let rows = sums.chunks_exact_mut(width);
                    for (i, (row, gate)) in rows.zip(gates.chunks_exact(V::LANES)).enumerate() {
                        let up = &mut row[V::LANES..];
                        if let Some(bias) = epilogue.up_bias {
                            add(up, &bias[columns.clone()]);
                        }
                        for (up, &gate) in up.iter_mut().zip(gate) {
                            *up = gate * *up;
                        }
                        epilogue.write(up, first_row + i, columns.clone(), self.y);
                    }
                }
            }
        }
    }
}

/// `row + bias`, as far as there is a bias.
#[inline(always)]
fn add<T: Real>(row: &mut [T], bias: &[T]) {
    for (value, &bias) in row.iter_mut().zip(bias) {
        *value += bias;
    }
}
