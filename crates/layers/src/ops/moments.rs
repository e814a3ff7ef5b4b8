//! A parameter's moments in AdamW, and what a step changes: the parameter and them.

use std::{ops::Range, sync::Arc};

use candle_blocks_kernels::rows::adamw::Update;
use candle_core::{DType, Device, Result, Tensor, Var, WithDType};

use super::array::{Array, wide};
use super::constants::uploaded;
use super::cpu::{Route, route};

/// A parameter's first and second moments: f64 for f64 parameters, otherwise f32.
#[derive(Debug)]
#[doc(hidden)]
pub enum Moments {
    /// For a parameter on the CPU.
    F32(Vec<f32>, Vec<f32>),
    /// For an f64 parameter on the CPU.
    F64(Vec<f64>, Vec<f64>),
    /// For a parameter on another device: a range in the moments of all parameters that took their last step
    /// together.
    Shared {
        of: Arc<[Array; 2]>,
        at: Range<usize>,
    },
}

impl Moments {
    /// Returns the moments before a parameter's first step, for its route.
    pub fn zeros(route: Route, parameter: &Tensor) -> Result<Self> {
        let (n, dtype) = (parameter.elem_count(), moment_dtype(parameter.dtype()));
        Ok(match (route, dtype) {
            (Route::Kernels, DType::F64) => Self::F64(vec![0.0; n], vec![0.0; n]),
            (Route::Kernels, _) => Self::F32(vec![0.0; n], vec![0.0; n]),
            (Route::Composed, dtype) => {
                let zeros = Array::filled(0.0, &[n], dtype, parameter.device())?;
                Self::alone([zeros.clone(), zeros])
            }
        })
    }

    /// Wraps one parameter's moments on a device.
    fn alone(both: [Array; 2]) -> Self {
        let at = 0..both[0].width();
        let of = Arc::new(both);
        Self::Shared { of, at }
    }

    /// Returns first and second moment in their parameter's shape.
    pub fn to_tensors(&self, parameter: &Tensor) -> Result<[Tensor; 2]> {
        fn both<T: WithDType>(first: &[T], second: &[T], of: &Tensor) -> Result<[Tensor; 2]> {
            let tensor = |values| Tensor::from_slice(values, of.shape(), &Device::Cpu);
            Ok([tensor(first)?, tensor(second)?])
        }
        match self {
            Self::F32(first, second) => both(first, second, parameter),
            Self::F64(first, second) => both(first, second, parameter),
            Self::Shared { of, at } => {
                let [first, second] = own(of, at)?.map(|part| part.reshape(parameter.dims()));
                Ok([first?.into_tensor(), second?.into_tensor()])
            }
        }
    }

    /// The inverse of [`Self::to_tensors`]. The moments must have the parameter's shape.
    pub fn from_tensors(parameter: &Tensor, first: &Tensor, second: &Tensor) -> Result<Self> {
        let (device, dtype) = (parameter.device(), moment_dtype(parameter.dtype()));
        let place = |moment: &Tensor| uploaded(moment, dtype, device)?.flatten_all();
        let (first, second) = (place(first)?, place(second)?);
        Ok(match (route(device), dtype) {
            (Route::Kernels, DType::F64) => Self::F64(first.to_vec1()?, second.to_vec1()?),
            (Route::Kernels, _) => Self::F32(first.to_vec1()?, second.to_vec1()?),
            (Route::Composed, _) => Self::alone([Array::of(&first), Array::of(&second)]),
        })
    }

    /// Copies the moments to separate memory, so that they do not keep alive the moments of parameters that step on
    /// without this one.
    pub fn leave(&mut self) -> Result<()> {
        if let Self::Shared { of, at } = self {
            *self = Self::alone(own(of, at)?);
        }
        Ok(())
    }
}

/// Copies a range in both moments to separate storage, because a transfer would include the whole storage.
fn own(of: &[Array; 2], at: &Range<usize>) -> Result<[Array; 2]> {
    if at.len() == of[0].width() {
        return Ok(of.clone());
    }
    let part = |all: &Array| all.narrow(0, at.start, at.len())?.copied();
    Ok([part(&of[0])?, part(&of[1])?])
}

/// Returns the moments' type for a parameter type.
#[doc(hidden)]
pub fn moment_dtype(parameter: DType) -> DType {
    wide(parameter)
}

/// A parameter and its update.
#[doc(hidden)]
pub struct ParameterStep<'a> {
    pub parameter: &'a Var,
    pub gradient: &'a Tensor,
    pub moments: &'a mut Moments,
    pub update: Update,
}
