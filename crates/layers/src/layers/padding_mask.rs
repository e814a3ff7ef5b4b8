//! Key masks, on the device and on the host.

use candle_core::{DType, Device, Result, Tensor};

use crate::layers::state::cached_rows::of_sequences;
use crate::ops;

/// A key mask, `[batch, keys]` of `u8`, 1 = keep: one copy on the device that computes, one on the CPU. Decisions on
/// the CPU then need no copy from the device, which would wait for all its work.
#[derive(Clone, Debug)]
pub(crate) struct PaddingMask {
    /// The mask on the device.
    pub device: Tensor,
    /// The mask on the CPU. If the device is the CPU, the same tensor.
    pub host: Tensor,
}

/// Returns the number of padding positions before a sequence, given its marks (1 = keep).
pub(crate) fn padding_before(marks: &[u8]) -> usize {
    marks.iter().take_while(|&&mark| mark == 0).count()
}

impl PaddingMask {
    /// Creates the mask from a tensor on the CPU, and copies it to `device`.
    pub fn new(host: Tensor, device: &Device) -> Result<Self> {
        Ok(Self {
            device: host.to_device(device)?,
            host,
        })
    }

    /// Creates a mask that keeps all keys.
    pub fn ones(shape: (usize, usize), device: &Device) -> Result<Self> {
        Self::new(Tensor::ones(shape, DType::U8, &Device::Cpu)?, device)
    }

    /// Appends the mask of the keys that follow.
    pub fn cat(&self, next: &Self) -> Result<Self> {
        let join = |first: &Tensor, then: &Tensor| Tensor::cat(&[first, then], 1);
        let host = join(&self.host, &next.host)?;
        self.beside(host, || {
            ops::record("cat", &self.device)?;
            ops::record("cat", &next.device)?;
            join(&self.device, &next.device)
        })
    }

    /// Appends another batch's sequences, which have as many keys.
    pub fn join(&self, other: &Self) -> Result<Self> {
        let host = Tensor::cat(&[&self.host, &other.host], 0)?;
        self.beside(host, || {
            ops::record("cat", &self.device)?;
            ops::record("cat", &other.device)?;
            Tensor::cat(&[&self.device, &other.device], 0)
        })
    }

    /// Puts `n` positions of padding before each sequence.
    pub fn after_padding(&self, n: usize) -> Result<Self> {
        let (batch, _) = self.host.dims2()?;
        let padding = Tensor::zeros((batch, n), DType::U8, &Device::Cpu)?;
        match n {
            0 => Ok(self.clone()),
            _ => Self::new(padding, self.device.device())?.cat(self),
        }
    }

    /// Returns the mask of `n` keys from `start` on.
    pub fn narrow(&self, start: usize, n: usize) -> Result<Self> {
        let host = self.host.narrow(1, start, n)?.contiguous()?;
        self.beside(host, || self.device.narrow(1, start, n)?.contiguous())
    }

    /// Returns the mask of the given sequences.
    pub fn of_sequences(&self, sequences: &[usize]) -> Result<Self> {
        let kept = |of: &Tensor| of_sequences(of, sequences);
        self.beside(kept(&self.host)?, || {
            ops::record("cat", &self.device)?;
            kept(&self.device)
        })
    }

    /// Creates a mask from a host tensor, and computes the device tensor unless the device is the CPU.
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
        let first = PaddingMask::new(first, &Device::Cpu)?;
        let all = first.cat(&PaddingMask::ones((2, 3), &Device::Cpu)?)?;
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
