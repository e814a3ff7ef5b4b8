//! A tensor without a graph. Every operation is one candle operation, and is recorded by the recorder while a
//! recording runs.
//!
//! Devices without this crate's kernels execute these operations only. Views cost nothing and are not recorded.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor, Var, WithDType, bail};
use half::{bf16, f16};

use crate::device::is_one;

use super::recorder::{Transfer, issued, moved};

mod arithmetic;
mod fused;
mod lookup;
mod product;

/// A tensor on a device, without a graph.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Array(Tensor);

impl Array {
    /// Wraps a tensor's data.
    pub fn of(tensor: &Tensor) -> Self {
        Self(tensor.detach())
    }

    /// Uploads values, after rounding on the host: Metal has no f64.
    pub fn upload(values: Vec<f64>, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?).moved_to(device)
    }

    /// Uploads integers.
    pub fn upload_ids<T: WithDType>(ids: Vec<T>, dims: &[usize], device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(ids, dims, &Device::Cpu)?).moved_to(device)
    }

    /// Moves the array to another device.
    pub fn moved_to(&self, device: &Device) -> Result<Self> {
        moved(Transfer::Up, &self.0)?;
        self.0.to_device(device).map(Self)
    }

    /// Downloads the values, and waits for them.
    pub fn download(&self) -> Result<Vec<f64>> {
        // Downloading a view would transfer its whole storage.
        let flat = self.contiguous()?.at_its_beginning()?;
        moved(Transfer::Down, &flat.0)?;
        let host = flat.0.to_device(&Device::Cpu)?.flatten_all()?;
        host.to_dtype(DType::F64)?.to_vec1()
    }

    /// Creates an array filled with one value.
    pub fn filled(value: f64, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        if dims.contains(&0) {
            return Tensor::zeros(dims, dtype, device).map(Self);
        }
        let filled = match dtype {
            DType::F64 => Tensor::full(value, dims, device)?,
            DType::F32 => Tensor::full(value as f32, dims, device)?,
            DType::F16 => Tensor::full(f16::from_f64(value), dims, device)?,
            DType::BF16 => Tensor::full(bf16::from_f64(value), dims, device)?,
            other => bail!("values of type {other:?}; expected F32, F64, F16 or BF16"),
        };
        issued("const_set", &[&filled], None)?;
        Ok(Self(filled))
    }

    /// Returns `[1, n]` ones in `like`'s type and on its device. Recent ones are cached, because every bias in a
    /// layer needs the same.
    pub fn ones(n: usize, like: &Self) -> Result<Self> {
        const KEPT: usize = 4;
        thread_local! {
            static ONES: RefCell<Vec<Array>> = const { RefCell::new(Vec::new()) };
        }
        let fits = |known: &Self| {
            known.width() == n
                && known.dtype() == like.dtype()
                && is_one(known.device(), like.device())
        };
        if let Some(known) = ONES.with_borrow(|ones| ones.iter().find(|known| fits(known)).cloned())
        {
            return Ok(known);
        }
        let ones = Self::filled(1.0, &[1, n], like.dtype(), like.device())?;
        ONES.with_borrow_mut(|known| {
            known.truncate(KEPT - 1);
            known.insert(0, ones.clone());
        });
        Ok(ones)
    }

    /// Returns zeros in the same type on the same device.
    pub fn zeros(&self, dims: &[usize]) -> Result<Self> {
        let zeros = Tensor::zeros(dims, self.dtype(), self.device())?;
        issued("zeros", &[&zeros], None)?;
        Ok(Self(zeros))
    }

    /// Returns an array filled with one value, in the same shape. A broadcast scalar would be read with strides,
    /// which CUDA uploads for every operation.
    pub fn full(&self, value: f64) -> Result<Self> {
        Self::filled(value, self.dims(), self.dtype(), self.device())
    }

    /// Draws uniform random values in `[0, 1)`, in f32.
    pub fn uniform(dims: &[usize], device: &Device) -> Result<Self> {
        let uniform = Tensor::rand(0f32, 1f32, dims, device)?;
        issued("rand_uniform", &[&uniform], None)?;
        Ok(Self(uniform))
    }

    /// Copies the values to a variable with the same shape and type.
    pub fn store(&self, variable: &Var) -> Result<()> {
        issued("copy", &[&self.0], None)?;
        variable.set(&self.0)
    }

    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    pub fn dims(&self) -> &[usize] {
        self.0.dims()
    }

    /// Returns the last dimension, 1 for a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    pub fn device(&self) -> &Device {
        self.0.device()
    }

    pub fn is_empty(&self) -> bool {
        self.0.elem_count() == 0
    }

    /// Returns the array in another shape, copied if it is not contiguous.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.reshape(dims).map(Self)
    }

    /// Flattens all dimensions except the last.
    pub fn rows(&self) -> Result<Self> {
        let (last, before) = self.dims().split_last().unwrap_or((&1, &[]));
        self.reshape(&[before.iter().product(), *last])
    }

    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.0.narrow(dim, start, len).map(Self)
    }

    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.0.transpose(a, b).map(Self)
    }

    /// Broadcasts to larger dimensions without a copy.
    pub fn broadcast(&self, dims: &[usize]) -> Result<Self> {
        self.0.broadcast_as(dims).map(Self)
    }

    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        self.0.unsqueeze(dim).map(Self)
    }

    /// Returns a contiguous array, copied if necessary.
    pub fn contiguous(&self) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.contiguous().map(Self)
    }

    /// Returns the contiguous array itself if its storage offset is 0, else a copy.
    pub fn at_its_beginning(&self) -> Result<Self> {
        if self.0.layout().start_offset() == 0 {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// Copies to a separate storage. candle's `copy` keeps the data around a view, and on Metal the storage too.
    pub fn copied(&self) -> Result<Self> {
        issued("copy", &[&self.0], None)?;
        self.0.force_contiguous().map(Self)
    }
}

/// Returns f32 for half types, and other types unchanged.
#[doc(hidden)]
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Storage;

    use super::*;

    #[test]
    fn a_view_is_copied_to_the_start_of_its_own_storage() {
        let all = Array::upload(vec![1., 2., 3., 4.], &[4], DType::F32, &Device::Cpu).unwrap();
        let copied = all.narrow(0, 1, 2).unwrap().at_its_beginning().unwrap();
        let (storage, layout) = copied.tensor().storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            panic!("another device");
        };
        assert_eq!(layout.start_offset(), 0);
        assert_eq!(storage.as_slice::<f32>().unwrap(), [2.0, 3.0]);
    }
}
