//! In-place AdamW steps, and the gradients' sum of squares.

use std::cell::RefCell;

use candle_blocks_kernels::rows::adamw::{
    sum_of_squares as kernel_sum_of_squares, update as kernel_update,
};
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};

use super::cpu::{Route, cpu, route};
use super::moments::{Moments, ParameterStep};
use super::{composed, kernels::Data, tape::check_float, versions};

#[doc(hidden)]
pub use candle_blocks_kernels::rows::adamw::Update;

const OP: &str = "adamw";

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
    use candle_core::{DType, Device, Var};

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
