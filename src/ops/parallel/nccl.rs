//! Ranks that have a CUDA device each.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::{
    driver::CudaSlice,
    nccl::{Comm, Id, ReduceOp, result::NcclError},
};
use candle_core::{CpuStorage, CudaDevice, CudaStorage, DType, Device, InplaceOp1, Layout};
use candle_core::{Error, Result, Tensor, bail};

use super::{Communicator, sum_by_host};

/// A rank that has a CUDA device and speaks with the others by NCCL.
///
/// The types of this file are checked; it was never run.
pub struct Nccl {
    rank: usize,
    size: usize,
    device: CudaDevice,
    /// Calls for the thread that has NCCL's communicator, which is bound to one.
    calls: Sender<Call>,
}

type Call = Box<dyn FnOnce(&Comm) + Send>;

impl Nccl {
    /// Joins the others. All ranks give the id that one of them made (`Id::new()` of cudarc's `nccl`) and handed round.
    ///
    /// # Errors
    /// If the device is no CUDA device, or NCCL fails.
    pub fn new(device: &Device, rank: usize, size: usize, id: Id) -> Result<Self> {
        let Device::Cuda(device) = device else {
            bail!("parallel: NCCL is for CUDA devices, found {device:?}");
        };
        let (calls, called) = channel::<Call>();
        let (joined, joining) = channel();
        let stream = device.cuda_stream();
        thread::spawn(move || {
            let bound = stream.context().bind_to_thread().w();
            let made = bound.and_then(|()| Comm::from_rank(stream, rank, size, id).map_err(failed));
            match made {
                Ok(comm) => {
                    let _ = joined.send(Ok(()));
                    called.iter().for_each(|call| call(&comm));
                }
                Err(error) => {
                    let _ = joined.send(Err(error));
                }
            }
        });
        joining.recv().map_err(|_| gone())??;
        Ok(Self {
            rank,
            size,
            device: device.clone(),
            calls,
        })
    }

    /// What a call on the communicator's thread gives.
    fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Comm) -> std::result::Result<R, NcclError> + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = channel();
        let call: Call = Box::new(move |comm| {
            let _ = answer.send(call(comm));
        });
        self.calls.send(call).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?.map_err(failed)
    }

    fn summed(&self, mut values: CudaSlice<f32>) -> Result<CudaSlice<f32>> {
        self.call(move |comm| {
            comm.all_reduce_in_place(&mut values, &ReduceOp::Sum)?;
            Ok(values)
        })
    }
}

fn failed(error: NcclError) -> Error {
    Error::msg(format!("parallel: NCCL failed, {:?}", error.0))
}

fn gone() -> Error {
    Error::msg("parallel: the thread of NCCL's communicator is gone")
}

impl Communicator for Nccl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<()> {
        let sum = self.summed(self.device.clone_htod(values)?)?;
        values.copy_from_slice(&self.device.clone_dtoh(&sum)?);
        Ok(())
    }

    fn all_gather(&self, part: &[f32], all: &mut [f32]) -> Result<()> {
        let part = self.device.clone_htod(part)?;
        let mut gathered = self.device.alloc_zeros::<f32>(all.len())?;
        let gathered = self.call(move |comm| {
            comm.all_gather(&part, &mut gathered)?;
            Ok(gathered)
        })?;
        all.copy_from_slice(&self.device.clone_dtoh(&gathered)?);
        Ok(())
    }

    fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        if !tensor.device().is_cuda() || tensor.dtype() != DType::F32 {
            return sum_by_host(self, tensor);
        }
        let sum = tensor.force_contiguous()?;
        sum.inplace_op1(&Sum(self))?;
        Ok(sum)
    }
}

/// The sum over the ranks, in the place of a whole tensor.
struct Sum<'a>(&'a Nccl);

impl InplaceOp1 for Sum<'_> {
    fn name(&self) -> &'static str {
        "sum-over-ranks"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("parallel: expected a tensor on a CUDA device")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let none = storage.device().alloc_zeros::<f32>(0)?;
        let values = storage.as_cuda_slice_mut::<f32>()?;
        let sum = self.0.summed(std::mem::replace(values, none))?;
        *values = sum;
        Ok(())
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Nccl({} of {})", self.rank, self.size)
    }
}
