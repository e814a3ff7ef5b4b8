//! Norms of rows, and AdamW's step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::element::Element;
use super::error::Error;
use crate::rows::adamw::Update;
use crate::rows::norm::{Gain, Norm, Statistic};

const SOURCE: &str = concat!(include_str!("device.cu"), include_str!("kernels.cu"));

/// The threads of a block, as in the source; part of a norm's bits.
const THREADS: u32 = 256;

/// Enough blocks to fill any GPU; each takes more than one part of a longer array.
const MOST_BLOCKS: usize = 4096;

/// A kernel of the source, which is compiled for a device when the first of them is asked for.
fn kernel<T: Element>(stream: &CudaStream, name: &'static str) -> Result<CudaFunction, Error> {
    type Functions = HashMap<(usize, &'static str, &'static str), CudaFunction>;
    static KNOWN: Mutex<Option<Functions>> = Mutex::new(None);
    let context = stream.context();
    let device = context.ordinal();
    let key = (device, name, T::NAME);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(function) = known.get(&key) {
        return Ok(function.clone());
    }
    let options = CompileOptions {
        fmad: Some(false), // rounds as written
        ..CompileOptions::default()
    };
    let ptx = compile_ptx_with_opts(SOURCE, options);
    let ptx = ptx.map_err(|error| Error::new("compiling the kernels", error))?;
    let failed = |error| Error::new("loading the kernels", error);
    let module = context.load_module(ptx).map_err(failed)?;
    for name in ["norm", "adamw"] {
        for of in ["f32", "f64", "f16", "bf16"] {
            let function = module.load_function(&format!("{name}_{of}"));
            known.insert((device, name, of), function.map_err(failed)?);
        }
    }
    let missing = || Error::new("loading a kernel", key);
    known.get(&key).cloned().ok_or_else(missing)
}

/// The norm of rows as long as the weight, or of their sums with `residual`: returns it, and those sums.
///
/// Sums are rounded before they are normalised. Statistics are summed in f32, or f64 for f64.
///
/// # Errors
/// If CUDA fails.
///
/// # Panics
/// If lengths do not fit.
#[allow(clippy::type_complexity)]
pub fn norm<T: Element>(
    stream: &Arc<CudaStream>,
    norm: &Norm,
    x: &CudaView<T>,
    residual: Option<&CudaView<T>>,
    weight: &CudaView<T>,
    bias: Option<&CudaView<T>>,
) -> Result<(CudaSlice<T>, Option<CudaSlice<T>>), Error> {
    let width = weight.len();
    assert!(width > 0 && !x.is_empty() && x.len() % width == 0, "rows");
    assert!(residual.is_none_or(|residual| residual.len() == x.len()));
    assert!(bias.is_none_or(|bias| bias.len() == width));
    let failed = |error| Error::new("norm", error);
    let function = kernel::<T>(stream, "norm")?;
    // SAFETY: the kernel writes all of it before anything reads it.
    let make = || unsafe { stream.alloc::<T>(x.len()) }.map_err(failed);
    let mut y = make()?;
    let mut sum = residual.map(|_| make()).transpose()?;
    {
        // Addresses, 0 for none; what comes with them tells other streams of the launch, when it is dropped.
        let (x_at, _x) = x.device_ptr(stream);
        let (weight_at, _weight) = weight.device_ptr(stream);
        let (residual_at, _residual) = residual.map(|of| of.device_ptr(stream)).unzip();
        let (bias_at, _bias) = bias.map(|of| of.device_ptr(stream)).unzip();
        let (sum_at, _sum) = sum.as_mut().map(|of| of.device_ptr_mut(stream)).unzip();
        let (y_at, _y) = y.device_ptr_mut(stream);
        let [residual_at, bias_at, sum_at] =
            [residual_at, bias_at, sum_at].map(Option::unwrap_or_default);
        let (width, eps) = (width as i64, norm.eps);
        let statistic: i32 = match norm.statistic {
            Statistic::Variance => 0,
            Statistic::MeanSquare => 1,
        };
        let gain: i32 = match norm.gain {
            Gain::Weight => 0,
            Gain::WeightAfterRounding => 1,
            Gain::OnePlusWeight => 2,
        };
        let rows = x.len() / weight.len();
        let blocks = u32::try_from(rows).map_err(|error| Error::new("norm", error))?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x_at).arg(&residual_at).arg(&weight_at);
        launch.arg(&bias_at).arg(&sum_at).arg(&y_at);
        launch.arg(&width).arg(&eps).arg(&statistic).arg(&gain);
        // SAFETY: the arguments are those of the kernel, in its order; each array is as long as was asserted, and lives until
        // the stream has read it, because it is freed on that stream.
        unsafe { launch.launch(grid(blocks)) }.map_err(failed)?;
    }
    Ok((y, sum))
}

/// Moves a parameter and its moments, the first before the second in one array, by one step, with the bits of
/// [`rows::adamw::update`](crate::rows::adamw::update).
///
/// # Errors
/// If CUDA fails.
///
/// # Panics
/// If lengths do not fit.
pub fn adamw<T: Element>(
    stream: &Arc<CudaStream>,
    update: &Update,
    parameter: &mut CudaViewMut<T>,
    gradient: &CudaView<T>,
    moments: &mut CudaViewMut<T::Wide>,
) -> Result<(), Error> {
    let n = gradient.len();
    assert!(n > 0 && parameter.len() == n, "parameter");
    assert!(moments.len() == 2 * n, "moments");
    let function = kernel::<T>(stream, "adamw")?;
    let of = update.constants::<f64>();
    let (len, from_gradient) = (n as i64, i32::from(of.from_gradient));
    let blocks = n.div_ceil(THREADS as usize).min(MOST_BLOCKS) as u32;
    let mut launch = stream.launch_builder(&function);
    launch.arg(parameter).arg(gradient).arg(moments).arg(&len);
    launch.arg(&of.scale).arg(&of.keep).arg(&of.beta2);
    launch.arg(&of.first_weight).arg(&from_gradient);
    launch.arg(&of.second_weight).arg(&of.second_root);
    launch.arg(&of.eps).arg(&of.step_size);
    // SAFETY: the arguments are those of the kernel, in its order, and arrays are as long as was asserted.
    let launched = unsafe { launch.launch(grid(blocks)) };
    launched.map_err(|error| Error::new("adamw", error))?;
    Ok(())
}

fn grid(blocks: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    }
}
