//! In-place AdamW steps, and the gradients' sum of squares.

use std::{cell::RefCell, ops::Range, sync::Arc};

use candle_blocks_kernels::rows::adamw::{
    sum_of_squares as kernel_sum_of_squares, update as kernel_update,
};
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{
    CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, Var, WithDType, bail,
};

use super::array::{Array, wide};
use super::cpu::{Route, cpu, route};
use super::{composed, constants::uploaded, kernels::Data, tape::check_float, versions};

#[doc(hidden)]
pub use candle_blocks_kernels::rows::adamw::Update;

const OP: &str = "adamw";

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

/// Updates parameters and their moments by one step.
#[doc(hidden)]
pub fn adamw(steps: Vec<ParameterStep>) -> Result<()> {
    versions::changes(steps.iter().map(|step| step.parameter.as_tensor()))?;
    let mut together = Vec::new();
    for step in steps {
        let (parameter, gradient) = (step.parameter, step.gradient);
        if parameter.dims() != gradient.dims() || parameter.dtype() != gradient.dtype() {
            bail!(
                "{OP}: the gradient is {:?} {:?}, its parameter {:?} {:?}",
                gradient.dtype(),
                gradient.dims(),
                parameter.dtype(),
                parameter.dims()
            );
        }
        if parameter.elem_count() == 0 {
            continue; // candle takes the strides of `[3, 0]` for repeated elements
        }
        if let Moments::Shared { .. } = step.moments {
            together.push(step);
            continue;
        }
        let in_place = InPlace {
            update: &step.update,
            moments: RefCell::new(step.moments),
        };
        parameter.inplace_op2(&gradient.contiguous()?, &in_place)?;
    }
    composed::adamw(together, composed::TOGETHER)
}

/// Returns `Σ x²` over all elements in tensors on any device. Sums are in f64 on the CPU, elsewhere in f32, or in
/// f64 for f64 tensors. The host waits once for other devices.
#[doc(hidden)]
pub fn sum_of_squares(of: &[&Tensor]) -> Result<f64> {
    let (mut sum, mut on_devices) = (0.0, Vec::new());
    for x in of {
        check_float(OP, x)?;
        match route(x.device()) {
            Route::Kernels => {
                let x = Data::Tensor(x.contiguous()?);
                sum += kernel_sum_of_squares(cpu()?, x.read().slice());
            }
            Route::Composed => on_devices.push(*x),
        }
    }
    Ok(sum + composed::sum_of_squares(&on_devices, composed::TOGETHER)?)
}

struct InPlace<'a> {
    update: &'a Update,
    /// candle passes operations by shared reference.
    moments: RefCell<&'a mut Moments>,
}

impl InplaceOp2 for InPlace<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let both = [layout, gradient_layout].map(Layout::contiguous_offsets);
        let [Some((start, end)), Some((from, to))] = both else {
            return Err(candle_core::Error::RequiresContiguous { op: OP }.bt());
        };
        let (places, of_gradient) = (start..end, from..to);
        let (parameter, gradient) = match (parameter, gradient) {
            (CpuStorage::F32(p), CpuStorage::F32(g)) => {
                (SliceMut::F32(&mut p[places]), Slice::F32(&g[of_gradient]))
            }
            (CpuStorage::F64(p), CpuStorage::F64(g)) => {
                (SliceMut::F64(&mut p[places]), Slice::F64(&g[of_gradient]))
            }
            (CpuStorage::F16(p), CpuStorage::F16(g)) => {
                (SliceMut::F16(&mut p[places]), Slice::F16(&g[of_gradient]))
            }
            (CpuStorage::BF16(p), CpuStorage::BF16(g)) => {
                (SliceMut::Bf16(&mut p[places]), Slice::Bf16(&g[of_gradient]))
            }
            _ => bail!("{OP}: the parameter is no float; expected F32, F64, F16 or BF16"),
        };
        let mut moments = self.moments.borrow_mut();
        let moments = match &mut **moments {
            Moments::F32(first, second) => [SliceMut::F32(first), SliceMut::F32(second)],
            Moments::F64(first, second) => [SliceMut::F64(first), SliceMut::F64(second)],
            Moments::Shared { .. } => bail!("{OP}: the moments are on another device"),
        };
        kernel_update(cpu()?, self.update, parameter, gradient, moments);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: Update = Update {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.0,
        step: 1,
        gradient_scale: 1.0,
    };

    fn step(parameter: &Var, gradient: &Tensor) -> Result<()> {
        let moments = &mut Moments::zeros(route(parameter.device()), parameter)?;
        adamw(vec![ParameterStep {
            parameter,
            gradient,
            moments,
            update: UPDATE,
        }])
    }

    #[test]
    fn a_parameter_without_elements_takes_its_step() {
        for shape in [(0, 3), (3, 0)] {
            let parameter = Var::zeros(shape, DType::F32, &Device::Cpu).unwrap();
            step(&parameter, &parameter.detach()).unwrap();
        }
    }

    #[test]
    fn a_gradient_of_another_shape_or_type_is_refused() {
        let parameter = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        for (shape, dtype) in [((3, 2), DType::F32), ((2, 3), DType::F64)] {
            let gradient = Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
            let refused = step(&parameter, &gradient);
            assert!(refused.unwrap_err().to_string().contains("its parameter"));
        }
    }
}
