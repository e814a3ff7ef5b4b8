//! CPU kernels: slices in, slices out.
//!
//! Nothing here knows candle, a configuration, or any shape beyond "rows of `n` elements". Lengths are the
//! caller's promise, and are asserted.
//!
//! **Precision.** Half types are widened to f32, computed and summed there, and rounded once at the end. f32
//! and f64 compute in their own type, except that f32 takes statistics and long sums in f64.
//!
//! **Determinism.** A row's bits depend neither on the thread count nor on the other rows. Rows are computed
//! independently, and sums over rows are split into chunks of a fixed size whose partial sums are added in
//! order.
//!
//! **Where to start.** A matrix product is, from the outside in: [`gemm`] (order of addition and of work),
//! [`mod@format`] (how operands are stored and multiplied), `dot_tile` (the micro-kernel), `arch` (one file per
//! instruction set). Everything else is a loop over rows or elements.

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod bias;
pub mod cross_entropy;
pub mod dropout;
pub mod element;
pub mod format;
pub mod gemm;
pub mod isa;
pub mod large_pages;
pub mod norm;
pub mod pack;
mod pack_rows;
mod panel;
mod panel_pair;
pub mod peak;
pub mod recycled;
pub mod rotary;
pub mod rows;
pub mod softmax;
pub mod source;
pub mod view;
pub mod weight;

mod arch;
mod dot_tile;
mod epilogue;
mod fused;
mod gemv;
mod lanes;
mod math;
pub mod parallel;
#[cfg(test)]
pub mod reference;
pub mod scratch;
mod tile;
#[cfg(test)]
mod timing;

pub use arch::Kernels;
use arch::Routine;
pub use element::{Element, Real};
