//! A product's epilogue: elementwise operations on a tile's totals while they are still in the cache.
//!
//! Bias, activation, gate, scale and residual need no separate pass over the result, which is written to memory
//! once.

use crate::{cpu::Cpu, rows::activation::ActivationFunction, threads::parallel, vectors::Real};

/// An epilogue `residual + scale · activation(sum + bias)`, or for a gated matrix `residual + scale ·
/// activation(factor · (gate + bias)) · (up + up_bias)`. Each field is optional. A [`GateClamp`] clamps gate and up after their
/// biases. The epilogue does not change the sums' bits.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// A value per column. For a gated matrix, the gate's bias.
    pub bias: Option<&'a [T]>,
    /// A value per column, added to a gated matrix's `up` half.
    pub up_bias: Option<&'a [T]>,
    /// The activation for the biased sum. For a gated matrix, applied to the gate only.
    pub activation: ActivationFunction,
    /// A factor on a gated matrix's gate, after its bias.
    pub gate_factor: Option<T>,
    /// Clamps gate and up in a gated matrix.
    pub clamp: Option<GateClamp<T>>,
    /// A factor on everything except the residual.
    pub scale: Scale<'a, T>,
    /// A residual in the result's shape, row-major and contiguous. Added last.
    pub residual: Option<&'a [T]>,
}

/// Clamps gate and up: `activation(min(gate, limit)) · (min(max(up, -limit), limit) + offset)`. NaN is preserved.
#[derive(Clone, Copy, Debug)]
pub struct GateClamp<T> {
    /// The limit.
    pub limit: T,
    /// The offset that is added to `up` after clamping.
    pub offset: T,
}

/// A factor on a product's results.
#[derive(Clone, Copy)]
pub enum Scale<'a, T> {
    /// No factor.
    One,
    /// The same factor for all results.
    Constant(T),
    /// A factor for each column.
    Columns(&'a [T]),
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// Leaves the sums unchanged.
    pub const NONE: Self = Self {
        bias: None,
        up_bias: None,
        activation: ActivationFunction::Identity,
        gate_factor: None,
        clamp: None,
        scale: Scale::One,
        residual: None,
    };

    /// Returns whether the sums are the results.
    pub(crate) fn is_none(&self) -> bool {
        let adds = self.bias.is_some() || self.up_bias.is_some() || self.residual.is_some();
        let clamps = self.clamp.is_some() || self.gate_factor.is_some();
        let scales = !matches!(self.scale, Scale::One);
        !adds && !clamps && !scales && self.activation == ActivationFunction::Identity
    }

    /// Adds an optional bias to the sums.
    pub fn bias(bias: Option<&'a [T]>) -> Self {
        Self { bias, ..Self::NONE }
    }

    /// Applies scale and residual to finished sums. The bits equal a product's with this epilogue.
    ///
    /// # Panics
    /// If the epilogue has any other operation, or a length does not match.
    pub fn finish(&self, cpu: Cpu, rows: &[T], columns: usize, y: &mut [T]) {
        assert!(self.bias.is_none() && self.up_bias.is_none());
        assert!(self.clamp.is_none() && self.gate_factor.is_none());
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

    /// Checks all lengths.
    ///
    /// # Panics
    /// If a field does not match this result shape.
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

/// Rows per task.
const ROWS_PER_TASK: usize = 16;
