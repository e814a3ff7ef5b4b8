//! PyTorch's result for a tensor: in its working precision and, if the fixture has it, in double precision.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

use super::epsilon::epsilon;

/// PyTorch's result for a tensor, with its double-precision twin, which counts as exact.
/// Pass it to [`Comparer::compare`](crate::verify::Comparer::compare).
#[derive(Clone, Debug)]
pub struct Expected {
    value: Tensor,
    exact: Option<Tensor>,
    depth: usize,
}

impl Expected {
    /// Takes PyTorch's result and an optional `f64` twin.
    ///
    /// # Shapes
    /// Any shape. The twin has the value's shape.
    ///
    /// # Errors
    /// If the value has no floating-point dtype, or the twin is not `f64`, has a different shape, or is infinite or
    /// NaN where the value is finite (PyTorch's error would then be infinite, and anything would pass).
    pub fn new(value: Tensor, exact: Option<Tensor>) -> Result<Self> {
        Self::of_rows(value, exact, None)
    }

    /// Like [`Self::new`], where only some rows count: `rows` says which, and the row length. The twin may have any
    /// value in the other rows: in float64, transformers returns NaN for a query that sees no key.
    pub(super) fn of_rows(
        value: Tensor,
        exact: Option<Tensor>,
        rows: Option<(&[bool], usize)>,
    ) -> Result<Self> {
        if epsilon(value.dtype()).is_none() {
            return Err(Error::input(
                "expected value",
                format!("is {:?}, expected F32, F16, BF16 or F64", value.dtype()),
            ));
        }
        if let Some(exact) = &exact {
            check_twin(&value, exact, rows)?;
        }
        Ok(Self {
            value,
            exact,
            depth: 1,
        })
    }

    /// Sets the number of blocks that the value has passed through, forward and backward. The default is 1. Only
    /// used without a twin: see [`super::Tolerance`].
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Returns PyTorch's result in its working precision.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Returns PyTorch's result in double precision, if any.
    pub fn exact(&self) -> Option<&Tensor> {
        self.exact.as_ref()
    }

    /// Returns the number of blocks that the value has passed through.
    pub fn depth(&self) -> usize {
        self.depth
    }
}

fn check_twin(value: &Tensor, exact: &Tensor, rows: Option<(&[bool], usize)>) -> Result<()> {
    let refuse = |reason: String| Err(Error::input("f64 twin", reason));
    if exact.dtype() != DType::F64 {
        return refuse(format!("is {:?}, expected F64", exact.dtype()));
    }
    if exact.dims() != value.dims() {
        return refuse(format!(
            "has shape {:?}, expected the value's shape {:?}",
            exact.dims(),
            value.dims()
        ));
    }
    let (value_elements, exact_elements) = (elements(value)?, elements(exact)?);
    let counts = |index: usize| rows.is_none_or(|(keep, width)| keep[index / width]);
    let pairs = value_elements.iter().zip(&exact_elements).enumerate();
    let n_broken = pairs
        .filter(|&(index, (value, exact))| counts(index) && value.is_finite() && !exact.is_finite())
        .count();
    if n_broken > 0 {
        return refuse(format!(
            "is infinite or NaN at {n_broken} element(s) where the value is finite; export the fixture again"
        ));
    }
    Ok(())
}

/// Returns a tensor's elements in row-major order, converted to `f64`, from any device and layout.
#[doc(hidden)]
pub fn elements(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    tensor
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}
