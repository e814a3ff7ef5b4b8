//! Values on their way through a layer.

use std::ops::Range;

use candle_blocks_kernels::Cpu;
use candle_core::{DType, Device, Result, Tensor};

use super::array::wide;
use super::composed::Composed;
use super::cpu::{Route, route, with_team};
use super::tape::Taped;
use crate::config::Precision;

/// A value on its way through a layer, computed by kernels or composed of candle's operations.
#[derive(Clone)]
pub(crate) enum Value {
    Kernels(Taped<Cpu>),
    Composed(Taped<Composed>),
}

/// What `$body` makes of the value, whoever computes it.
macro_rules! on_either {
    ($value:expr, $x:ident => $body:expr) => {
        match $value {
            $crate::ops::Value::Kernels($x) => $body,
            $crate::ops::Value::Composed($x) => $body,
        }
    };
}
pub(crate) use on_either;

impl From<Taped<Cpu>> for Value {
    fn from(value: Taped<Cpu>) -> Self {
        Self::Kernels(value)
    }
}

impl From<Taped<Composed>> for Value {
    fn from(value: Taped<Composed>) -> Self {
        Self::Composed(value)
    }
}

impl Value {
    /// The value of a tensor, which begins a tape.
    ///
    /// # Errors
    /// If it is not of a float type, or the environment asks for an instruction set that this CPU lacks.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        Self::multiplied_in(Precision::F32, tensor)
    }

    /// As [`Self::of`], of a tape whose linear layers multiply in a precision.
    pub fn multiplied_in(precision: Precision, tensor: &Tensor) -> Result<Self> {
        Self::on(route(tensor.device()), precision, tensor)
    }

    /// As [`Self::multiplied_in`], computed in a given way.
    pub(super) fn on(route: Route, precision: Precision, tensor: &Tensor) -> Result<Self> {
        Ok(match route {
            Route::Kernels => Self::Kernels(Taped::begin(tensor, precision)?),
            Route::Composed => Self::Composed(Taped::begin(tensor, precision)?),
        })
    }

    /// Of the products of its tape's linear layers.
    pub fn precision(&self) -> Precision {
        on_either!(self, of => of.precision())
    }

    /// What `layer` makes of a tensor, computed on a tape by threads that stay awake between its steps.
    ///
    /// # Errors
    /// As for [`Self::of`], and those of `layer`.
    pub fn through(x: &Tensor, layer: impl FnOnce(&Value) -> Result<Value>) -> Result<Tensor> {
        Self::through_in(Precision::F32, x, layer)
    }

    /// As [`Self::through`], of a tape whose linear layers multiply in a precision.
    pub fn through_in(
        precision: Precision,
        x: &Tensor,
        layer: impl FnOnce(&Value) -> Result<Value>,
    ) -> Result<Tensor> {
        let work = || layer(&Self::multiplied_in(precision, x)?)?.tensor();
        match route(x.device()) {
            Route::Kernels => with_team(work),
            Route::Composed => work(),
        }
    }

    /// Another tensor beside this value, on the same tape.
    pub fn beside(&self, tensor: &Tensor) -> Result<Self> {
        on_either!(self, of => Ok(of.beside(tensor)?.into()))
    }

    pub fn dims(&self) -> &[usize] {
        on_either!(self, of => of.dims())
    }

    /// The last dimension; 1 of a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    pub fn dtype(&self) -> DType {
        on_either!(self, of => of.dtype())
    }

    /// The type of its sums and tables: f32 for half types.
    pub fn sum_type(&self) -> DType {
        wide(self.dtype())
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Kernels(_) => Device::Cpu,
            Self::Composed(of) => of.data.device().clone(),
        }
    }

    /// Whether something asks for its gradient.
    pub fn is_tracked(&self) -> bool {
        on_either!(self, of => of.slot.place.is_some())
    }

    /// The value in other dimensions.
    pub fn reshape(&self, dims: Vec<usize>) -> Result<Self> {
        on_either!(self, of => Ok(of.reshape(dims)?.into()))
    }

    /// Some columns of the last dimension; nothing is copied.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        on_either!(self, of => of.columns(columns).into())
    }

    /// The tensor of this value: where it has a gradient, a node of candle's graph.
    pub fn tensor(self) -> Result<Tensor> {
        on_either!(self, of => of.finish())
    }
}
