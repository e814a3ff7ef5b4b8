//! The engine that computes a tape's steps: the CPU's kernels or candle's operations.

use candle_core::{DType, Result, Tensor};

use super::graph::NodeResult;
use super::slot::Slot;

/// Computes a tape's steps.
#[doc(hidden)]
pub trait Engine: Copy + Send + Sync + 'static {
    /// Values that a step reads. They live as long as its backward pass may read them too.
    type Data: Clone + Send + Sync;
    /// Values that a step computes: a value, or a gradient.
    type Output: Into<Self::Data>;
    /// The gradient so far for one value.
    type Sum;

    /// Creates the engine.
    ///
    /// # Errors
    /// If the environment requests an unavailable instruction set or device.
    fn new() -> Result<Self>;

    /// Wraps a float tensor's data.
    fn data(tensor: &Tensor) -> Result<Self::Data>;

    fn dtype(data: &Self::Data) -> DType;

    /// Returns a whole value's data in other dimensions.
    fn reshaped(data: Self::Data, dims: &[usize]) -> Result<Self::Data>;

    /// Copies a value's own columns. `dims` are the value's.
    fn copied(data: &Self::Data, of: &Slot, dims: &[usize]) -> Result<Self::Output>;

    /// Returns a tensor for a value without a gradient.
    fn tensor(data: Self::Data, dims: &[usize]) -> Result<Tensor>;

    /// Returns a tape's result for candle's graph.
    fn result(data: Self::Data, dims: &[usize]) -> Result<NodeResult>;

    /// Returns zeros with these dimensions, in `like`'s type and on its device.
    fn zeros(like: &Self::Output, dims: &[usize]) -> Result<Self::Output>;

    /// Returns the gradient for the tape's output.
    fn cotangent(tensor: &Tensor) -> Result<Self::Output>;

    /// Adds to a value's gradient.
    fn add(self, sum: &mut Option<Self::Sum>, to: &Slot, gradient: Self::Output) -> Result<()>;

    /// Returns the gradient for a whole value with these dimensions.
    fn total(sum: Self::Sum, dims: &[usize]) -> Result<Self::Output>;

    /// Hands over a tensor's gradient: returns it for candle, or `None` if it is collected.
    fn handed_over(gradient: Self::Output, of: &Tensor) -> Result<Option<Tensor>>;

    /// Runs a backward pass's steps.
    fn working<R>(work: impl FnOnce() -> R) -> R;
}
