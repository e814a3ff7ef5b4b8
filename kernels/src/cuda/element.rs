//! Number types of a device.

use cudarc::cublaslt::sys::cudaDataType;
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A number type that kernels take.
pub trait Element: sealed::Sealed + DeviceRepr {
    /// What it is computed in, and what its moments are: f64 for f64, else f32.
    type Wide: DeviceRepr;
    /// As kernels' names end.
    #[doc(hidden)]
    const NAME: &'static str;
}

/// A number type that cuBLASLt multiplies with sums in f32.
pub trait Multiplied: Element {
    #[doc(hidden)]
    const TYPE: cudaDataType;
}

macro_rules! element {
    ($type:ty, $wide:ty, $name:literal) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            type Wide = $wide;
            const NAME: &'static str = $name;
        }
    };
}
element!(f32, f32, "f32");
element!(f64, f64, "f64");
element!(f16, f32, "f16");
element!(bf16, f32, "bf16");

impl Multiplied for f32 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_32F;
}
impl Multiplied for f16 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_16F;
}
impl Multiplied for bf16 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_16BF;
}
