//! Values within a layer.

use std::ops::Range;

use candle_blocks_kernels::Cpu;
use candle_core::{DType, Device, Result, Tensor};

use super::array::wide;
use super::composed::Composed;
use super::cpu::{Route, route, with_team};
use super::engine::Engine;
use super::tape::Taped;
use crate::config::Precision;

/// A value within a layer, computed by kernels or composed from candle operations.
#[derive(Clone)]
#[doc(hidden)]
pub enum Value {
    Kernels(Taped<Cpu>),
    Composed(Taped<Composed>),
}

/// Evaluates `$body` for the value on either route.
macro_rules! on_either {
    ($value:expr, $x:ident => $body:expr) => {
        match $value {
            $crate::ops::Value::Kernels($x) => $body,
            $crate::ops::Value::Composed($x) => $body,
        }
    };
}
pub(crate) use on_either;

/// An engine of one of the two routes.
#[doc(hidden)]
pub trait Routed: Engine {
    /// Returns the value if it is on a tape of this engine.
    fn of(value: &Value) -> Option<&Taped<Self>>;
}

impl Routed for Cpu {
    fn of(value: &Value) -> Option<&Taped<Self>> {
        match value {
            Value::Kernels(value) => Some(value),
            Value::Composed(_) => None,
        }
    }
}

impl Routed for Composed {
    fn of(value: &Value) -> Option<&Taped<Self>> {
        match value {
            Value::Composed(value) => Some(value),
            Value::Kernels(_) => None,
        }
    }
}

impl<E: Routed> Taped<E> {
    /// Returns another value on this one's tape: itself, or its tensor as a new value.
    pub fn on_tape(&self, other: &Value) -> Result<Self> {
        match E::of(other) {
            Some(other) if self.shares_tape(other) => Ok(other.clone()),
            _ => self.beside(&other.clone().tensor()?),
        }
    }
}

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
    /// Converts a tensor to a value, which starts a tape.
    ///
    /// # Errors
    /// If the tensor has no float type, or the environment requests an instruction set that this CPU lacks.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        Self::multiplied_in(Precision::F32, tensor)
    }

    /// Like [`Self::of`], for a tape whose linear layers multiply in a precision.
    pub fn multiplied_in(precision: Precision, tensor: &Tensor) -> Result<Self> {
        Self::on(route(tensor.device()), precision, tensor)
    }

    /// Like [`Self::multiplied_in`], on a given route.
    pub fn on(route: Route, precision: Precision, tensor: &Tensor) -> Result<Self> {
        Ok(match route {
            Route::Kernels => Self::Kernels(Taped::begin(tensor, precision)?),
            Route::Composed => Self::Composed(Taped::begin(tensor, precision)?),
        })
    }

    /// Returns zeros of the same dimensions and type, on a tape of their own.
    pub fn zeros(&self) -> Result<Self> {
        let zeros = self.clone().tensor()?.zeros_like()?;
        Self::on(self.route(), self.precision(), &zeros)
    }

    /// Returns the precision for linear layers' products on its tape.
    pub fn precision(&self) -> Precision {
        on_either!(self, of => of.precision())
    }

    /// Returns the route on which it is computed.
    pub fn route(&self) -> Route {
        match self {
            Self::Kernels(_) => Route::Kernels,
            Self::Composed(_) => Route::Composed,
        }
    }

    /// Applies `layer` to a tensor, on a tape, with threads that stay awake between its steps.
    ///
    /// # Errors
    /// Same as for [`Self::of`], and `layer`'s errors.
    pub fn through(x: &Tensor, layer: impl FnOnce(&Value) -> Result<Value>) -> Result<Tensor> {
        let x = Self::of(x)?;
        x.working(|| layer(&x)?.tensor())
    }

    /// Runs `work`, on the kernels' route with threads that stay awake between its steps.
    pub fn working<R>(&self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Kernels(_) => with_team(work),
            Self::Composed(_) => work(),
        }
    }

    /// Returns another tensor as a value on the same tape.
    pub fn beside(&self, tensor: &Tensor) -> Result<Self> {
        on_either!(self, of => Ok(of.beside(tensor)?.into()))
    }

    pub fn dims(&self) -> &[usize] {
        on_either!(self, of => of.dims())
    }

    /// Returns the last dimension, 1 for a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    pub fn dtype(&self) -> DType {
        on_either!(self, of => of.dtype())
    }

    /// Returns the type for its sums and tables: f32 for half types.
    pub fn sum_type(&self) -> DType {
        wide(self.dtype())
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Kernels(_) => Device::Cpu,
            Self::Composed(of) => of.data.device().clone(),
        }
    }

    /// Returns whether its gradient is required.
    pub fn is_tracked(&self) -> bool {
        on_either!(self, of => of.slot.place.is_some())
    }

    /// Returns the value in other dimensions.
    pub fn reshape(&self, dims: Vec<usize>) -> Result<Self> {
        on_either!(self, of => Ok(of.reshape(dims)?.into()))
    }

    /// Returns some columns in the last dimension, without a copy.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        on_either!(self, of => of.columns(columns).into())
    }

    /// Converts the value to a tensor. If it has a gradient, the tensor is a node in candle's graph.
    pub fn tensor(self) -> Result<Tensor> {
        on_either!(self, of => of.finish())
    }
}
