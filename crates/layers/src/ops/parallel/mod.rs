//! Ranks that compute one model together: processes, or threads in one process.
//!
//! Tensor parallel blocks communicate through a [`Communicator`].
//! `TensorParallel` loads a rank's part of every block, whose forward and
//! backward passes sum over the ranks. `docs/parallel.md` in the repository describes what is split, and the cost.

#[cfg(feature = "mpi")]
mod mpi;
mod threads;

use std::fmt;

use candle_core::{DType, Device, Result, Tensor, bail};

#[cfg(feature = "mpi")]
pub use self::mpi::Mpi;
pub use threads::Threads;

/// Connects a rank to the other ranks. All ranks must make the same calls in the same order, each with slices of
/// equal length. Pass it to `TensorParallel::new`.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// Returns this rank's index, from 0.
    fn rank(&self) -> usize;

    /// Returns the rank count.
    fn size(&self) -> usize;

    /// Replaces the values by their sums over all ranks. All ranks get the same bits.
    ///
    /// # Errors
    /// If another rank has ended.
    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<()>;

    /// Fills `all`, which is `size` times as long as `part`, with all ranks' parts in rank order.
    ///
    /// # Errors
    /// Same as for [`Self::all_reduce_sum`].
    fn all_gather(&self, part: &[f32], all: &mut [f32]) -> Result<()>;

    /// Like [`Self::all_reduce_sum`], for an f32 tensor on any device. Goes through the host, unless the
    /// communicator has a shorter way.
    ///
    /// # Errors
    /// Same as for [`Self::all_reduce_sum`], and if the tensor has another type.
    fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        sum_by_host(self, tensor)
    }
}

/// Returns the sum of all ranks' values, in f64. All ranks get the same bits.
///
/// # Errors
/// Same as for [`Communicator::all_gather`].
#[doc(hidden)]
pub fn sum_in_f64(ranks: &dyn Communicator, value: f64) -> Result<f64> {
    // An f32 has room for 16 of the 64 bits, as an integer, which every communicator leaves as it is.
    let bits = value.to_bits();
    let part = [48, 32, 16, 0].map(|shift| f32::from((bits >> shift) as u16));
    let mut all = vec![0.0; part.len() * ranks.size()];
    ranks.all_gather(&part, &mut all)?;
    let joined = |part: &[f32]| {
        part.iter()
            .fold(0, |bits, &piece| bits << 16 | piece as u64)
    };
    let values = all.chunks_exact(part.len());
    Ok(values.map(|part| f64::from_bits(joined(part))).sum())
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
