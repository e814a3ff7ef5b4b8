//! Marks of keys, where they mask and where they are read.

use candle_core::{DType, Device, Result, Tensor};

use crate::layers::cached_rows::of_sequences;
use crate::ops;

/// Which keys are kept, `[batch, keys]` of `u8`, 1 = keep: the same on the device that computes with them and on the CPU.
/// What is chosen by them on the CPU needs no copy from the device, which would wait for all its work.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    /// Where the mask lies.
    pub device: Tensor,
    /// On the CPU; where the mask lies there, the same tensor.
    pub host: Tensor,
}

impl Marks {
    /// Marks on the CPU, and as they are on `device`.
    pub fn new(host: Tensor, device: &Device) -> Result<Self> {
        Ok(Self {
            device: host.to_device(device)?,
            host,
        })
    }

    /// Keeps all.
    pub fn ones(shape: (usize, usize), device: &Device) -> Result<Self> {
        Self::new(Tensor::ones(shape, DType::U8, &Device::Cpu)?, device)
    }

    /// These and those of the keys behind them.
    pub fn cat(&self, behind: &Self) -> Result<Self> {
        let join = |first: &Tensor, then: &Tensor| Tensor::cat(&[first, then], 1);
        let host = join(&self.host, &behind.host)?;
        self.beside(host, || {
            ops::asked("cat", &self.device)?;
            ops::asked("cat", &behind.device)?;
            join(&self.device, &behind.device)
        })
    }

    /// Those of `n` keys from `start` on.
    pub fn narrow(&self, start: usize, n: usize) -> Result<Self> {
        let host = self.host.narrow(1, start, n)?.contiguous()?;
        self.beside(host, || self.device.narrow(1, start, n)?.contiguous())
    }

    /// Those of these sequences.
    pub fn of_sequences(&self, sequences: &[usize]) -> Result<Self> {
        let kept = |of: &Tensor| of_sequences(of, sequences);
        self.beside(kept(&self.host)?, || {
            ops::asked("cat", &self.device)?;
            kept(&self.device)
        })
    }

    /// Made of these: on the host, and with the device's operations where that is another.
    fn beside(&self, host: Tensor, device: impl FnOnce() -> Result<Tensor>) -> Result<Self> {
        let device = match self.device.device() {
            Device::Cpu => host.clone(),
            _ => device()?,
        };
        Ok(Self { device, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_cpu_both_are_one_tensor() -> Result<()> {
        let first = Tensor::new(&[[1u8, 0], [0, 1]], &Device::Cpu)?;
        let first = Marks::new(first, &Device::Cpu)?;
        let all = first.cat(&Marks::ones((2, 3), &Device::Cpu)?)?;
        let last = all.narrow(1, 3)?;
        for marks in [&first, &all, &last] {
            assert_eq!(marks.device.id(), marks.host.id());
        }
        assert_eq!(
            all.host.to_vec2::<u8>()?,
            [[1, 0, 1, 1, 1], [0, 1, 1, 1, 1]]
        );
        assert_eq!(last.host.to_vec2::<u8>()?, [[0, 1, 1], [1, 1, 1]]);
        Ok(())
    }
}
