//! Differentiable fused operations: those that candle has only without a backward pass, or not at all.
//!
//! On the CPU each is one pass over the data, forward and backward: a [`candle_core::CustomOp1`] (or 2, or 3)
//! over the kernels of this crate. On other devices the same function is composed of candle's own operations.
//! The choice depends on the input's device and on nothing else: a transposed, narrowed or broadcast input
//! gives the values and the gradients of its contiguous copy.
//!
//! f32 and f64 compute in their own type, with statistics and long sums in f64; f16 and bf16 compute and sum in
//! f32, and are rounded at the end. On the CPU a row's bits depend neither on the other rows nor on the number
//! of threads. Second derivatives are not supported.
//!
//! Matrix products on the CPU ([`linear()`]) use the fastest instruction set that it has. The environment
//! variable `CANDLE_BLOCKS_ISA` (`portable`, `neon`, `avx2`, `avx512`, `avx512_vnni`, `avx512_bf16`) forces
//! another one, and [`isa`] tells which is used. Bits may differ between instruction sets; within one they do
//! not.
//!
//! ```
//! use candle_blocks::{Activation, NormConfig, ops};
//! use candle_core::{DType, Device, Tensor, Var};
//!
//! let x = Var::new(&[[1f32, 2., 4.], [0., -1., 5.]], &Device::Cpu)?;
//! let weight = Var::ones(3, DType::F32, &Device::Cpu)?;
//! let normal = ops::norm(&x, &weight, None, &NormConfig::layer_norm(3, 1e-5).with_bias(false))?;
//! let loss = ops::activate(&normal, Activation::Gelu)?.sum_all()?;
//! assert!(loss.backward()?.get(&weight).is_some());
//! # Ok::<(), candle_core::Error>(())
//! ```

mod activation;
mod adamw;
mod attention;
mod batched_product;
mod collected;
mod composed;
mod cross_entropy;
mod dropout;
mod joint;
mod linear;
mod many;
mod norm;
mod peak;
mod rotary;
mod scaled;
mod softmax;
mod storage;
mod threads;
mod weighted;

use candle_core::DType;

pub(crate) use crate::cpu::recycled::Keeper as MemoryKeeper;

pub use activation::activate;
pub(crate) use activation::activation_map;
pub(crate) use adamw::{Moments, Update, adamw, moment_dtype, sum_of_squares, with_team};
pub(crate) use attention::{Mixing, mix};
pub(crate) use batched_product::batched_product;
pub(crate) use collected::{Collected, collecting};
pub use cross_entropy::cross_entropy;
pub use dropout::dropout;
pub(crate) use joint::{Joint, Value};
pub(crate) use linear::selected_isa;
pub use linear::{isa, linear};
pub use norm::norm;
pub(crate) use norm::norm_kernel;
pub use peak::peak_flops;
pub use rotary::rotate;
pub(crate) use scaled::scaled;
pub(crate) use softmax::Reach;
pub use softmax::{Visible, attention_softmax, softmax};
pub(crate) use threads::threads;

/// The type in which products of tensors like `x`, and sums and softmax between them, are to be taken on its
/// device: f32 for half types on the CPU, where candle widens them for each product anyway.
pub(crate) fn product_dtype(x: &candle_core::Tensor) -> DType {
    match x.dtype() {
        DType::F16 | DType::BF16 if x.device().is_cpu() => DType::F32,
        other => other,
    }
}
