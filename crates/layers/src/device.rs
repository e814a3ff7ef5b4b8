//! Device checks: which float types a device supports, and whether two handles are for the same device.

use candle_core::{DType, Device, DeviceLocation};

use crate::error::{Error, Result};

/// Checks that a device supports a type for layers.
///
/// ```
/// use candle_blocks::{candle_core::{DType, Device}, device::check_dtype};
/// assert!(check_dtype(DType::F64, &Device::Cpu).is_ok());
/// assert!(check_dtype(DType::U8, &Device::Cpu).is_err());
/// ```
///
/// # Errors
/// If the type is not F32, F16, BF16 or F64, or the device lacks it: Metal has no F64, and candle's kernels for BF16 need
/// an NVIDIA GPU of compute capability 8.0.
pub fn check_dtype(dtype: DType, device: &Device) -> Result<()> {
    let capability = match dtype {
        DType::BF16 => compute_capability(device)?,
        _ => None,
    };
    match lacks(device.location(), capability, dtype) {
        None => Ok(()),
        Some(reason) => Err(Error::input("dtype", reason)),
    }
}

/// Returns the reason why a device does not support a type for layers.
fn lacks(
    location: DeviceLocation,
    compute_capability: Option<(i32, i32)>,
    dtype: DType,
) -> Option<String> {
    match (dtype, location, compute_capability) {
        (DType::F64, DeviceLocation::Metal { .. }, _) => {
            Some("it is F64, which Metal lacks; use F32, or the CPU for F64".to_string())
        }
        (DType::BF16, DeviceLocation::Cuda { gpu_id }, Some((major, minor))) if major < 8 => {
            Some(format!(
                "it is BF16, for which candle needs compute capability 8.0, and GPU {gpu_id} has {major}.{minor}; use F16 or F32"
            ))
        }
        (DType::F32 | DType::F16 | DType::BF16 | DType::F64, ..) => None,
        _ => Some(format!("it is {dtype:?}, expected F32, F16, BF16 or F64")),
    }
}

/// Returns an NVIDIA GPU's compute capability.
#[cfg(feature = "cuda")]
fn compute_capability(device: &Device) -> candle_core::Result<Option<(i32, i32)>> {
    use candle_core::cuda::WrapErr;
    let Device::Cuda(device) = device else {
        return Ok(None);
    };
    let stream = device.cuda_stream();
    stream.context().compute_capability().w().map(Some)
}

/// Without the `cuda` feature there is no GPU.
#[cfg(not(feature = "cuda"))]
fn compute_capability(_: &Device) -> candle_core::Result<Option<(i32, i32)>> {
    Ok(None)
}

/// Tells whether candle computes with tensors from both devices: all handles to one NVIDIA GPU, but on Metal only
/// the same handle.
#[doc(hidden)]
pub fn is_one(a: &Device, b: &Device) -> bool {
    match (a, b) {
        (Device::Metal(_), Device::Metal(_)) => a.same_device(b),
        _ => a.location() == b.location(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: DeviceLocation = DeviceLocation::Cpu;
    const CUDA: DeviceLocation = DeviceLocation::Cuda { gpu_id: 3 };
    const METAL: DeviceLocation = DeviceLocation::Metal { gpu_id: 0 };
    const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

    #[test]
    fn f64_is_refused_on_metal_alone() {
        let reason = lacks(METAL, None, DType::F64).unwrap();
        for word in ["F64", "Metal", "F32", "CPU"] {
            assert!(reason.contains(word), "{reason}");
        }
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            assert_eq!(lacks(METAL, None, dtype), None);
        }
    }

    #[test]
    fn bf16_is_refused_below_compute_capability_8() {
        let reason = lacks(CUDA, Some((7, 5)), DType::BF16).unwrap();
        for word in ["BF16", "8.0", "GPU 3 has 7.5", "F16", "F32"] {
            assert!(reason.contains(word), "{reason}");
        }
        for dtype in [DType::F32, DType::F16, DType::F64] {
            assert_eq!(lacks(CUDA, Some((7, 5)), dtype), None);
        }
        for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
            assert_eq!(lacks(CUDA, Some(capability), DType::BF16), None);
        }
    }

    #[test]
    fn types_that_no_layer_has_are_refused_everywhere() {
        for location in [CPU, CUDA, METAL] {
            for dtype in [DType::U8, DType::U32, DType::I64, DType::F8E4M3] {
                let reason = lacks(location, None, dtype).unwrap();
                assert!(
                    reason.contains("expected F32, F16, BF16 or F64"),
                    "{reason}"
                );
            }
        }
        for dtype in FLOATS {
            assert_eq!(lacks(CPU, None, dtype), None);
            assert!(check_dtype(dtype, &Device::Cpu).is_ok());
        }
    }
}
