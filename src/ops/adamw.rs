//! AdamW's update in place, and the sum of squares of a gradient.

use std::cell::RefCell;

use candle_blocks_kernels::rows::adamw::{
    sum_of_squares as kernel_sum_of_squares, update as kernel_update,
};
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{
    CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, Var, WithDType, bail,
};

use super::{cpu::cpu, kernels::Data};

pub(crate) use candle_blocks_kernels::rows::adamw::Update;

const OP: &str = "adamw";

/// The running means of a parameter's gradient and of its square: f64 for f64 parameters, otherwise f32.
#[derive(Debug)]
pub(crate) enum Moments {
    /// Of a parameter on the CPU.
    F32(Vec<f32>, Vec<f32>),
    /// Of an f64 parameter on the CPU.
    F64(Vec<f64>, Vec<f64>),
    /// Of a parameter on another device.
    Device(Tensor, Tensor),
}

impl Moments {
    /// The moments before the first step.
    pub fn zeros(parameter: &Tensor) -> Result<Self> {
        let n = parameter.elem_count();
        Ok(match (parameter.device(), parameter.dtype()) {
            (Device::Cpu, DType::F64) => Self::F64(vec![0.0; n], vec![0.0; n]),
            (Device::Cpu, _) => Self::F32(vec![0.0; n], vec![0.0; n]),
            (device, dtype) => {
                let zeros = Tensor::zeros(parameter.shape(), moment_dtype(dtype), device)?;
                Self::Device(zeros.clone(), zeros)
            }
        })
    }

    /// First and second moment in the shape of their parameter.
    pub fn to_tensors(&self, parameter: &Tensor) -> Result<(Tensor, Tensor)> {
        fn both<T: WithDType>(first: &[T], second: &[T], of: &Tensor) -> Result<(Tensor, Tensor)> {
            let tensor = |values| Tensor::from_slice(values, of.shape(), &Device::Cpu);
            Ok((tensor(first)?, tensor(second)?))
        }
        match self {
            Self::F32(first, second) => both(first, second, parameter),
            Self::F64(first, second) => both(first, second, parameter),
            Self::Device(first, second) => Ok((first.clone(), second.clone())),
        }
    }

    /// The inverse of [`Self::to_tensors`]. The moments must have the parameter's shape.
    pub fn from_tensors(parameter: &Tensor, first: &Tensor, second: &Tensor) -> Result<Self> {
        let dtype = moment_dtype(parameter.dtype());
        let place = |moment: &Tensor| moment.to_dtype(dtype)?.to_device(parameter.device());
        let (first, second) = (place(first)?.contiguous()?, place(second)?.contiguous()?);
        let (first_flat, second_flat) = (first.flatten_all()?, second.flatten_all()?);
        Ok(match (parameter.device(), dtype) {
            (Device::Cpu, DType::F64) => Self::F64(first_flat.to_vec1()?, second_flat.to_vec1()?),
            (Device::Cpu, _) => Self::F32(first_flat.to_vec1()?, second_flat.to_vec1()?),
            _ => Self::Device(first, second),
        })
    }
}

/// The type of the moments of a parameter.
pub(crate) fn moment_dtype(parameter: DType) -> DType {
    match parameter {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Moves a parameter and its moments by one step.
pub(crate) fn adamw(
    parameter: &Var,
    gradient: &Tensor,
    moments: &mut Moments,
    update: &Update,
) -> Result<()> {
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
        return Ok(()); // candle takes the strides of `[3, 0]` for repeated elements
    }
    match moments {
        Moments::Device(first, second) => composed(parameter, gradient, first, second, update),
        _ => {
            let moments = RefCell::new(moments);
            parameter.inplace_op2(&gradient.contiguous()?, &Step { update, moments })
        }
    }
}

/// `Σ x²` of a tensor on any device; summed in f64 on the CPU, elsewhere in f32, or f64 for f64.
pub(crate) fn sum_of_squares(x: &Tensor) -> Result<f64> {
    if !x.device().is_cpu() {
        let wide = x.to_dtype(moment_dtype(x.dtype()))?;
        return wide.sqr()?.sum_all()?.to_dtype(DType::F64)?.to_scalar();
    }
    super::tape::check_float(OP, x)?;
    let x = Data::Tensor(x.contiguous()?);
    Ok(kernel_sum_of_squares(cpu()?, x.read().slice()))
}

struct Step<'a> {
    update: &'a Update,
    /// candle takes operations by shared reference.
    moments: RefCell<&'a mut Moments>,
}

impl InplaceOp2 for Step<'_> {
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
            Moments::Device(..) => bail!("{OP}: moments of another device"),
        };
        kernel_update(cpu()?, self.update, parameter, gradient, moments);
        Ok(())
    }
}

/// The same, composed of candle's own operations.
fn composed(
    parameter: &Var,
    gradient: &Tensor,
    first: &mut Tensor,
    second: &mut Tensor,
    update: &Update,
) -> Result<()> {
    let dtype = first.dtype();
    let (first_correction, second_correction) = update.bias_corrections();
    let gradient = gradient
        .to_dtype(dtype)?
        .affine(update.gradient_scale, 0.0)?;
    *first = (&*first + ((&gradient - &*first)? * (1.0 - update.beta1))?)?;
    *second = ((&*second * update.beta2)? + (gradient.sqr()? * (1.0 - update.beta2))?)?;
    let root = ((second.sqrt()? / second_correction.sqrt())? + update.eps)?;
    let step_size = update.learning_rate / first_correction;
    let kept = parameter
        .as_detached_tensor()
        .to_dtype(dtype)?
        .affine(1.0 - update.learning_rate * update.weight_decay, 0.0)?;
    let next = (kept - ((&*first / root)? * step_size)?)?;
    parameter.set(&next.to_dtype(parameter.dtype())?)
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

    /// What other devices compute, run on the CPU.
    #[test]
    fn the_composed_step_is_the_kernels() {
        let tensor = |k: f64| {
            let values: Vec<f64> = (0..60).map(|i| (f64::from(i) * k).sin()).collect();
            Tensor::from_vec(values, (5, 12), &Device::Cpu).unwrap()
        };
        let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let (a, b) = (tensor(0.3), tensor(0.3));
        let (a, b) = (Var::from_tensor(&a).unwrap(), Var::from_tensor(&b).unwrap());
        let mut moments = Moments::zeros(&a).unwrap();
        let zeros = a.zeros_like().unwrap();
        let (mut first, mut second) = (zeros.clone(), zeros);
        for step in 1..=5 {
            let update = Update {
                weight_decay: 0.1,
                step,
                gradient_scale: 0.7,
                ..UPDATE
            };
            // Not contiguous.
            let gradient = tensor(step as f64).reshape((12, 5)).unwrap().t().unwrap();
            adamw(&a, &gradient, &mut moments, &update).unwrap();
            composed(&b, &gradient, &mut first, &mut second, &update).unwrap();
        }
        let (m, v) = moments.to_tensors(&a).unwrap();
        for (ours, theirs) in [(&*a, &*b), (&m, &first), (&v, &second)] {
            for (x, y) in values(ours).iter().zip(values(theirs)) {
                assert!((x - y).abs() < 1e-14, "{x} {y}");
            }
        }
        let squares: f64 = values(&a).iter().map(|x| x * x).sum();
        assert!((sum_of_squares(&a.t().unwrap()).unwrap() / squares - 1.0).abs() < 1e-14);
    }

    #[test]
    fn a_parameter_without_elements_takes_its_step() {
        for shape in [(0, 3), (3, 0)] {
            let parameter = Var::zeros(shape, DType::F32, &Device::Cpu).unwrap();
            let mut moments = Moments::zeros(&parameter).unwrap();
            adamw(&parameter, &parameter.detach(), &mut moments, &UPDATE).unwrap();
        }
    }

    #[test]
    fn a_gradient_of_another_shape_or_type_is_refused() {
        let parameter = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let mut moments = Moments::zeros(&parameter).unwrap();
        for (shape, dtype) in [((3, 2), DType::F32), ((2, 3), DType::F64)] {
            let gradient = Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
            let refused = adamw(&parameter, &gradient, &mut moments, &UPDATE);
            assert!(refused.unwrap_err().to_string().contains("its parameter"));
        }
    }
}
