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
pub mod bias;
pub mod dropout;
pub mod element;
pub mod gemm;
pub mod isa;
pub mod norm;
pub mod pack;
pub mod rotary;
pub mod softmax;
pub mod view;

mod arch;
mod epilogue;
mod gemv;
mod lanes;
mod math;
pub mod parallel;
#[cfg(test)]
pub mod reference;
mod scratch;
mod tile;

pub use arch::Kernels;
pub use element::{Element, Real};
