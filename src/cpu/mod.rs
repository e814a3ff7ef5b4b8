//! CPU kernels: slices in, slices out.
//!
//! Nothing here knows candle, configuration or shapes beyond "rows of `n` elements"; lengths are
//! the caller's promise and are asserted. Half types are widened to f32, computed and summed there,
//! and rounded once at the end; f32 and f64 compute in their own type, but f32 takes statistics and
//! long sums in f64.
//!
//! A row's bits never depend on the thread count or on the other rows: rows are computed alone, and
//! sums over rows go through chunks of a fixed size whose partial sums are added in order.

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
