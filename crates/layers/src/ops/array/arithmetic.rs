//! Elementwise operations, and row sums.

use candle_core::{D, DType, Result, Tensor};

use super::{Array, wide};
use crate::ops::recorder::issued;

/// Operations with one operand, each a kernel in every backend.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $operation:expr;)*) => {
        impl Array {
            $($(#[$doc])* pub fn $name(&self) -> Result<Self> {
                self.elementwise(stringify!($name), $operation)
            })*
        }
    };
}

unary! {
    abs => Tensor::abs;
    erf => Tensor::erf;
    exp => Tensor::exp;
    floor => Tensor::floor;
    /// `x · Φ(x)`.
    gelu_erf => exact_gelu;
    log => Tensor::log;
    sigmoid => candle_nn::ops::sigmoid;
    silu => Tensor::silu;
    sqr => Tensor::sqr;
    sqrt => Tensor::sqrt;
    tanh => Tensor::tanh;
}

/// Operations with two operands that broadcast.
macro_rules! binary {
    ($($name:ident => $operation:expr;)*) => {
        impl Array {
            $(pub fn $name(&self, other: &Self) -> Result<Self> {
                self.pairwise(stringify!($name), other, $operation)
            })*
        }
    };
}

binary! {
    add => Tensor::broadcast_add;
    sub => Tensor::broadcast_sub;
    mul => Tensor::broadcast_mul;
    div => Tensor::broadcast_div;
    eq => Tensor::broadcast_eq;
    ge => Tensor::broadcast_ge;
    gt => Tensor::broadcast_gt;
    lt => Tensor::broadcast_lt;
    le => Tensor::broadcast_le;
}

impl Array {
    pub(super) fn elementwise(
        &self,
        name: &'static str,
        operation: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        if self.is_empty() {
            return Ok(self.clone());
        }
        issued(name, &[&self.0], None)?;
        operation(&self.0).map(Self)
    }

    fn pairwise(
        &self,
        name: &'static str,
        other: &Self,
        operation: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        if self.is_empty() || other.is_empty() {
            let shape = self
                .0
                .shape()
                .broadcast_shape_binary_op(other.0.shape(), name)?;
            return self.reshape(shape.dims());
        }
        issued(name, &[&self.0, &other.0], None)?;
        operation(&self.0, &other.0).map(Self)
    }

    /// Computes `factor · self + offset`.
    pub fn affine(&self, factor: f64, offset: f64) -> Result<Self> {
        if (factor, offset) == (1.0, 0.0) {
            return Ok(self.clone());
        }
        self.elementwise("affine", |x| x.affine(factor, offset))
    }

    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if self.is_empty() {
            return Tensor::zeros(self.dims(), dtype, self.device()).map(Self);
        }
        issued("to_dtype", &[&self.0], Some(dtype))?;
        self.0.to_dtype(dtype).map(Self)
    }

    /// Converts half types to f32, and leaves other types unchanged.
    pub fn widened(&self) -> Result<Self> {
        self.to_dtype(wide(self.dtype()))
    }

    /// Returns `if_kept` where this u8 mask is not 0, else `other`. All shapes are equal.
    pub fn select(&self, if_kept: &Self, other: &Self) -> Result<Self> {
        if if_kept.is_empty() {
            return Ok(if_kept.clone());
        }
        issued("where_cond", &[&self.0, &if_kept.0], None)?;
        self.0.where_cond(&if_kept.0, &other.0).map(Self)
    }

    /// Sums over a dimension, which stays with length 1.
    pub fn sum(&self, dim: usize) -> Result<Self> {
        if self.is_empty() {
            let mut dims = self.dims().to_vec();
            dims[dim] = 1;
            return self.zeros(&dims);
        }
        issued("sum", &[&self.0], None)?;
        self.0.sum_keepdim(dim).map(Self)
    }

    /// Computes `min(self, limit)`. candle's own version drops NaN on CUDA.
    pub fn at_most(&self, limit: f64) -> Result<Self> {
        let limits = self.full(limit)?;
        self.gt(&limits)?.select(&limits, self)
    }

    /// Computes `max(self, limit)`.
    pub fn at_least(&self, limit: f64) -> Result<Self> {
        let limits = self.full(limit)?;
        self.lt(&limits)?.select(&limits, self)
    }

    /// Returns each row's largest element, as a row with one element. Fails without columns.
    pub fn max(&self) -> Result<Self> {
        issued("max", &[&self.0], None)?;
        self.0.max_keepdim(D::Minus1).map(Self)
    }
}

/// candle's `gelu_erf`. When emulating CUDA, uses CUDA's precision: the CPU version cancels in `1 + erf`.
fn exact_gelu(x: &Tensor) -> Result<Tensor> {
    match x.device().is_cpu() {
        true => x.to_dtype(DType::F64)?.gelu_erf()?.to_dtype(x.dtype()),
        false => x.gelu_erf(),
    }
}
