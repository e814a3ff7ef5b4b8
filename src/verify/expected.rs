//! What PyTorch computed for one tensor: in its working precision and, if the fixture has it, in double
//! precision.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

use super::tolerance::epsilon;

/// PyTorch's result for one tensor and its double-precision twin, which counts as exact.
#[derive(Clone, Debug)]
pub struct Expected {
    value: Tensor,
    exact: Option<Tensor>,
    depth: usize,
}

impl Expected {
    /// Takes a result of PyTorch with its optional `f64` twin.
    ///
    /// # Shapes
    /// Any shape; the twin has that of the value.
    ///
    /// # Errors
    /// If the value is not of a floating-point dtype, or the twin is not `f64`, has a different shape, or is
    /// infinite or NaN where the value is finite (PyTorch's error would then be infinite, and anything would
    /// pass).
    pub fn new(value: Tensor, exact: Option<Tensor>) -> Result<Self> {
        Self::of_rows(value, exact, None)
    }

    /// As [`Self::new`], of which only some rows count: for each whether it does, and the elements in one. The
    /// twin may hold anything in the others: in float64, transformers gives NaN where nothing can be seen.
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

    /// Sets the number of blocks that the value has passed through, forward and backward; by default 1. It
    /// only matters without a twin: see [`super::Tolerance`].
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// PyTorch's result in its working precision.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// PyTorch's result in double precision, if any.
    pub fn exact(&self) -> Option<&Tensor> {
        self.exact.as_ref()
    }

    /// The number of blocks that the value has passed through.
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

/// A tensor's elements in row-major order, widened to `f64`, from any device and layout.
pub(super) fn elements(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    tensor
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}
