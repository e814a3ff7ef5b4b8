//! This crate's kernels for CUDA, on candle's storages.

use std::{cell::RefCell, ops::Range, sync::Arc};

use candle_blocks_kernels::cuda::{self, Element, Multiplied, Product};
use candle_blocks_kernels::rows::{adamw::Update, norm::Norm};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, CudaView};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, DType, InplaceOp1, Layout};
use candle_core::{Result, Storage, Tensor, bail};
use half::{bf16, f16};

use super::Array;
use super::own::After;
use crate::config::Activation;

/// The numbers of an array in order.
fn view<'a, T: CudaDType>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, T>> {
    Ok(storage.as_cuda_slice::<T>()?.slice(places(layout)?))
}

/// Where they lie.
fn places(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("an array that does not lie in order"),
    }
}

/// Runs `$body` with `$name` bound to the numbers of an array, or of an array that there may be.
macro_rules! with_views {
    ($type:ty; ; $body:expr) => { $body };
    ($type:ty; $name:ident = $array:expr, $($rest:tt)*) => {{
        let (storage, layout) = $array.tensor().storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            bail!("an array on another device");
        };
        let $name = view::<$type>(storage, layout)?;
        with_views!($type; $($rest)*)
    }};
    ($type:ty; $name:ident =? $array:expr, $($rest:tt)*) => {{
        let array: Option<&Array> = $array;
        let read = array.map(|array| array.tensor().storage_and_layout());
        let $name = match &read {
            Some((storage, layout)) => match &**storage {
                Storage::Cuda(storage) => Some(view::<$type>(storage, layout)?),
                _ => bail!("an array on another device"),
            },
            None => None,
        };
        with_views!($type; $($rest)*)
    }};
}

/// An array of new numbers.
fn made<T: CudaDType>(numbers: CudaSlice<T>, dims: &[usize], device: &CudaDevice) -> Array {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(numbers, device.clone()));
    Array(Tensor::from_storage(
        storage,
        dims,
        BackpropOp::none(),
        false,
    ))
}

fn failed(error: cuda::Error) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

pub(super) fn product(
    device: &CudaDevice,
    x: &Array,
    weight: &Array,
    after: After,
) -> Result<Array> {
    let stream = device.cuda_stream();
    match x.dtype() {
        DType::F32 => typed_product::<f32>((device, &stream), x, weight, after),
        DType::F16 => typed_product::<f16>((device, &stream), x, weight, after),
        DType::BF16 => typed_product::<bf16>((device, &stream), x, weight, after),
        other => bail!("a product of {other:?}"),
    }
}

fn typed_product<T: CudaDType + Multiplied>(
    (device, stream): (&CudaDevice, &Arc<CudaStream>),
    x: &Array,
    weight: &Array,
    after: After,
) -> Result<Array> {
    let dims = match after.residual {
        Some(residual) => residual.dims().to_vec(),
        None => vec![x.dims()[0], weight.dims()[0]],
    };
    let (d_in, residual, of_bias) = (x.width(), after.residual, after.bias);
    let after = match after.activation {
        None => cuda::After::Nothing,
        Some(Activation::Relu) => cuda::After::Relu,
        Some(Activation::GeluTanh) => cuda::After::GeluTanh,
        Some(other) => bail!("cuBLASLt has no epilogue for {other:?}"),
    };
    with_views!(T; x = x, weight = weight, bias =? of_bias, residual =? residual,; {
        let product = Product {
            x: &x,
            weight: &weight,
            bias: bias.as_ref(),
            residual: residual.as_ref(),
            after,
            d_in,
        };
        let y = cuda::product(stream, &product).map_err(failed)?;
        Ok(made(y, &dims, device))
    })
}

pub(super) fn norm(
    device: &CudaDevice,
    rows: (&Array, Option<&Array>),
    parameters: (&Array, Option<&Array>),
    norm: &Norm,
) -> Result<(Array, Array)> {
    let stream = device.cuda_stream();
    let on = (device, &stream);
    match rows.0.dtype() {
        DType::F32 => typed_norm::<f32>(on, rows, parameters, norm),
        DType::F64 => typed_norm::<f64>(on, rows, parameters, norm),
        DType::F16 => typed_norm::<f16>(on, rows, parameters, norm),
        DType::BF16 => typed_norm::<bf16>(on, rows, parameters, norm),
        other => bail!("a norm of {other:?}"),
    }
}

fn typed_norm<T: CudaDType + Element>(
    (device, stream): (&CudaDevice, &Arc<CudaStream>),
    (x, residual): (&Array, Option<&Array>),
    (weight, of_bias): (&Array, Option<&Array>),
    norm: &Norm,
) -> Result<(Array, Array)> {
    let (dims, rows) = (x.dims(), x);
    with_views!(T; x = x, residual =? residual, weight = weight, bias =? of_bias,; {
        let (residual, bias) = (residual.as_ref(), bias.as_ref());
        let computed = cuda::norm(stream, norm, &x, residual, &weight, bias);
        let (y, sum) = computed.map_err(failed)?;
        let sum = sum.map_or_else(|| rows.clone(), |sum| made(sum, dims, device));
        Ok((made(y, dims, device), sum))
    })
}

/// Moves a parameter and its moments, the first before the second, by one step of AdamW.
pub(in crate::ops) fn adamw(
    update: &Update,
    (parameter, gradient): (&mut CudaStorage, &CudaStorage),
    layouts: [&Layout; 2],
    moments: &Array,
) -> Result<()> {
    moments.tensor().inplace_op1(&Step {
        update,
        parameter: RefCell::new(parameter),
        gradient,
        layouts,
    })
}

/// What moves moments: in candle's hands two storages cannot be changed at once.
struct Step<'a> {
    update: &'a Update,
    parameter: RefCell<&'a mut CudaStorage>,
    gradient: &'a CudaStorage,
    layouts: [&'a Layout; 2],
}

impl Step<'_> {
    fn typed<T: CudaDType + Element<Wide: CudaDType>>(
        &self,
        moments: &mut CudaStorage,
        layout: &Layout,
    ) -> Result<()> {
        let stream = self.gradient.device().cuda_stream();
        let [of_parameter, of_gradient] = self.layouts;
        let gradient = view::<T>(self.gradient, of_gradient)?;
        let mut parameter = self.parameter.borrow_mut();
        let parameter = parameter.as_cuda_slice_mut::<T>()?;
        let mut parameter = parameter.slice_mut(places(of_parameter)?);
        let moments = moments.as_cuda_slice_mut::<T::Wide>()?;
        let mut moments = moments.slice_mut(places(layout)?);
        let (parameter, moments) = (&mut parameter, &mut moments);
        cuda::adamw(&stream, self.update, parameter, &gradient, moments).map_err(failed)
    }
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("adamw: moments of another device")
    }

    fn cuda_fwd(&self, moments: &mut CudaStorage, layout: &Layout) -> Result<()> {
        match self.gradient.dtype() {
            DType::F32 => self.typed::<f32>(moments, layout),
            DType::F64 => self.typed::<f64>(moments, layout),
            DType::F16 => self.typed::<f16>(moments, layout),
            DType::BF16 => self.typed::<bf16>(moments, layout),
            other => bail!("adamw: a parameter of {other:?}"),
        }
    }
}
