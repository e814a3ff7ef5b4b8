//! Differentiable fused operations that candle lacks, or has only without a backward pass.
//!
//! On the CPU each operation is one pass over the data, forward and backward, in the kernels of
//! `candle-blocks-kernels`. A layer's steps become one node in candle's graph. On other devices the same function is
//! composed from candle's own operations. Only the input's device decides ([`route`]): a transposed, narrowed or
//! broadcast input gives the same values and gradients as its contiguous copy.
//!
//! f32 and f64 compute in their own type, with statistics and long sums in f64. f16 and bf16 compute and sum in f32,
//! and are rounded at the end. On the CPU a row's bits depend neither on the other rows nor on the thread count.
//! Second derivatives are not supported.
//!
//! Matrix products on the CPU ([`linear()`]) use the fastest available instruction set. The environment variable
//! `CANDLE_BLOCKS_ISA` (`portable`, `neon`, `neon_dotprod`, `neon_bf16`, `avx2`, `avx512`, `avx512_vnni`,
//! `avx512_bf16`, `amx`, `amx_emulated`) forces another one, and [`isa`] returns the one in use. Bits may differ
//! between instruction sets, but not within one.
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
#[doc(hidden)]
pub mod adamw;
mod among_ranks;
mod array;
mod attention;
mod backward;
mod bias_tensor;
#[doc(hidden)]
pub mod composed;
mod constants;
mod convolution;
mod cpu;
mod cross_entropy;
mod decay_complement;
mod dropout;
mod elements;
mod engine;
mod experts;
mod gradients;
mod graph;
mod join;
mod kernels;
mod largest;
mod linear;
mod mixing;
mod moments;
mod mse;
mod norm;
mod numbers;
mod packed_step;
pub mod parallel;
mod peak;
mod ranks;
mod recorder;
mod recurrence;
mod relative_scores;
mod rotary;
mod selective;
mod slot;
mod softmax;
mod states;
mod tap_table;
mod tape;
mod value;
mod versions;
mod visible;
mod weight;
mod xielu;

#[doc(hidden)]
pub use candle_blocks_kernels::memory::Keeper as MemoryKeeper;

pub use activation::activate;
pub(crate) use activation::activation_kernel;
#[doc(hidden)]
pub use adamw::{Update, adamw, sum_of_squares};
#[doc(hidden)]
pub use array::wide;
#[doc(hidden)]
pub use bias_tensor::BiasTensor;
pub(crate) use composed::{Chooser, GroupedLinear, Groups, has_grouped_kernel};
pub(crate) use constants::{Constants, drawn_on_device, uploaded};
#[doc(hidden)]
pub use cpu::{Route, cpu, route, with_team};
pub use cpu::{isa, n_threads};
pub use cross_entropy::{cross_entropy, n_targets};
pub(crate) use dropout::draw_mask;
pub use dropout::dropout;
pub(crate) use experts::ExpertColumns;
#[doc(hidden)]
pub use gradients::{Collected, collecting};
pub(crate) use largest::{keep_largest, quantile};
pub use linear::linear;
pub(crate) use mixing::{Content, Mixing, Relative, Term};
#[doc(hidden)]
pub use moments::{Moments, ParameterStep, moment_dtype};
pub use mse::mse;
pub use norm::norm;
pub(crate) use norm::norm_kernel;
#[doc(hidden)]
pub use peak::peak_flops;
pub(crate) use peak::weight_format;
#[doc(hidden)]
pub use ranks::{Partial, RankOf, Ranks, mark_parts, part_of};
#[doc(hidden)]
pub use recorder::{Operation, recorded};
pub(crate) use recorder::{record, record_conversion};
#[doc(hidden)]
pub(crate) use recurrence::Recurrence;
pub use rotary::rotate;
pub(crate) use selective::SelectiveScan;
pub(crate) use softmax::SoftmaxInput;
pub use softmax::softmax;
pub(crate) use states::Sequences;
pub use tap_table::TapTable;
#[doc(hidden)]
pub use value::Value;
#[doc(hidden)]
pub use versions::{CHANGED, changed_after, share_memory, store};
#[doc(hidden)]
pub use visible::{Reach, Visible};
#[doc(hidden)]
pub use weight::{Packed, Stored, StoredMatrix, Weight};
pub(crate) use xielu::{XieluNumbers, xielu_kernel};
