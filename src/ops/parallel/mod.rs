//! Ranks that compute one model together: processes, or threads of one.
//!
//! A [`Communicator`] is what tensor parallel blocks ask of them: [`TensorParallel`](crate::checkpoint::TensorParallel) loads a rank's part
//! of every block, whose forward and backward passes sum over the ranks. `docs/parallel.md` in the repository says what is
//! split, and what it costs.

#[cfg(feature = "mpi")]
mod mpi;
mod threads;

use std::fmt;

use candle_core::{DType, Device, Result, Tensor, bail};

#[cfg(feature = "mpi")]
pub use self::mpi::Mpi;
pub use threads::Threads;

/// One of several ranks, and its way to the others. All ranks make the same calls in the same order, each with slices of
/// the same length.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// Which of the ranks this is, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Replaces the values by their sums over all ranks, which get the same bits.
    ///
    /// # Errors
    /// If another rank is gone.
    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<()>;

    /// Fills `all`, which is `size` times as long, with the parts of all ranks in their order.
    ///
    /// # Errors
    /// As for [`Self::all_reduce_sum`].
    fn all_gather(&self, part: &[f32], all: &mut [f32]) -> Result<()>;

    /// As [`Self::all_reduce_sum`], of a tensor of f32 on any device; by way of the host, unless the communicator knows a
    /// shorter one.
    ///
    /// # Errors
    /// As for [`Self::all_reduce_sum`]; also if it is of another type.
    fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        sum_by_host(self, tensor)
    }
}

fn sum_by_host(ranks: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Tensor> {
    if tensor.dtype() != DType::F32 {
        let found = tensor.dtype();
        bail!("parallel: a sum over ranks of {found:?}; expected F32, convert it with to_dtype");
    }
    let mut values = tensor.flatten_all()?.to_device(&Device::Cpu)?.to_vec1()?;
    ranks.all_reduce_sum(&mut values)?;
    Tensor::from_vec(values, tensor.shape(), tensor.device())
}
