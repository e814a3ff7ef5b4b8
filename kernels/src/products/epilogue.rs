//! The epilogue of a product: what is applied to a tile's totals while they are still in the cache.
//!
//! Bias, activation, gate, scale and residual cost no pass of their own over the result, and the result is
//! written to memory once.

use crate::{cpu::Cpu, rows::activation::ActivationFunction, threads::parallel, vectors::Real};

/// `residual + scale · activation(sum + bias)`; of a gated matrix
/// `residual + scale · activation(gate + bias) · (up + up_bias)`. Each part is optional; a [`GateClamp`] bounds gate and
/// up behind their biases. The bits of the sums do not depend on it.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// One number for each column; of a gated matrix, for the columns of the gate.
    pub bias: Option<&'a [T]>,
    /// One number for each column of the second half of a gated matrix, up.
    pub up_bias: Option<&'a [T]>,
    /// Applied to the sum and bias; of a gated matrix, to those of the gate only.
    pub activation: ActivationFunction,
    /// Bounds of the halves of a gated matrix.
    pub clamp: Option<GateClamp<T>>,
    /// Factor on everything but the residual.
    pub scale: Scale<'a, T>,
    /// Added last: rows without gaps, in the shape of the result.
    pub residual: Option<&'a [T]>,
}

/// Bounds of gate and up: `activation(min(gate, limit)) · (min(max(up, -limit), limit) + offset)`. NaN stays.
#[derive(Clone, Copy, Debug)]
pub struct GateClamp<T> {
    /// The bound.
    pub limit: T,
    /// What is added to up behind it.
    pub offset: T,
}

/// A factor on the results of a product.
#[derive(Clone, Copy)]
pub enum Scale<'a, T> {
    /// No factor.
    One,
    /// The same factor for all results.
    Constant(T),
    /// One factor for each column.
    Columns(&'a [T]),
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// The sums unchanged.
    pub const NONE: Self = Self {
        bias: None,
        up_bias: None,
        activation: ActivationFunction::Identity,
        clamp: None,
        scale: Scale::One,
        residual: None,
    };

    /// The sums with an optional bias.
    pub fn bias(bias: Option<&'a [T]>) -> Self {
        Self { bias, ..Self::NONE }
    }

    /// Applies scale and residual to finished sums, with the bits of a product that ends in this epilogue.
    ///
    /// # Panics
    /// If the epilogue has any other part, or a part that does not fit.
    pub fn finish(&self, cpu: Cpu, rows: &[T], columns: usize, y: &mut [T]) {
        assert!(self.bias.is_none() && self.up_bias.is_none() && self.clamp.is_none());
        assert!(self.activation == ActivationFunction::Identity);
        assert_eq!(rows.len(), y.len());
        self.check(y.len() / columns, columns);
        let threads = cpu.for_elements(y.len()).threads;
        parallel::for_chunks(threads, y, ROWS_PER_TASK * columns, |start, y| {
            for (i, (y, &value)) in y.iter_mut().zip(&rows[start..]).enumerate() {
                let scaled = match self.scale {
                    Scale::One => value,
                    Scale::Constant(factor) => value * factor,
                    Scale::Columns(factors) => value * factors[i % columns],
                };
                *y = match self.residual {
                    Some(residual) => residual[start + i] + scaled,
                    None => scaled,
                };
            }
        });
    }

    /// Checks the lengths of all parts.
    ///
    /// # Panics
    /// If a part does not fit results of this shape.
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        let fits = |values: Option<&[T]>, len| values.is_none_or(|values| values.len() == len);
        let scales = match self.scale {
            Scale::Columns(scales) => Some(scales),
            Scale::One | Scale::Constant(_) => None,
        };
        assert!(fits(self.bias, columns) && fits(self.up_bias, columns) && fits(scales, columns));
        assert!(fits(self.residual, rows * columns));
    }
}

/// Rows that one task finishes.
const ROWS_PER_TASK: usize = 16;
