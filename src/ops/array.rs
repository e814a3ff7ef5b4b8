//! A tensor without a graph whose every operation is one of candle's, and is taken down while somebody records.
//!
//! This is all that devices without kernels of this crate are asked to do. Views cost nothing and are not taken down.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor, Var, WithDType, bail};
use half::{bf16, f16};

use crate::device::is_one;

use super::ledger::{Transfer, issued, moved};

mod arithmetic;
mod fused;
mod lookup;
mod product;

/// A tensor on a device, without a graph.
#[derive(Clone, Debug)]
pub(crate) struct Array(Tensor);

impl Array {
    /// The numbers of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self(tensor.detach())
    }

    /// Numbers of the host, rounded there: Metal has no f64.
    pub fn upload(values: Vec<f64>, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?).moved_to(device)
    }

    /// Integers of the host.
    pub fn upload_ids<T: WithDType>(ids: Vec<T>, dims: &[usize], device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(ids, dims, &Device::Cpu)?).moved_to(device)
    }

    /// The same numbers on another device.
    pub fn moved_to(&self, device: &Device) -> Result<Self> {
        moved(Transfer::Up, &self.0)?;
        self.0.to_device(device).map(Self)
    }

    /// The numbers on the host, for which it waits.
    pub fn download(&self) -> Result<Vec<f64>> {
        // A view would move all that is around it.
        let flat = self.contiguous()?.at_its_beginning()?;
        moved(Transfer::Down, &flat.0)?;
        let host = flat.0.to_device(&Device::Cpu)?.flatten_all()?;
        host.to_dtype(DType::F64)?.to_vec1()
    }

    /// One number everywhere.
    pub fn filled(value: f64, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        if dims.contains(&0) {
            return Tensor::zeros(dims, dtype, device).map(Self);
        }
        let filled = match dtype {
            DType::F64 => Tensor::full(value, dims, device)?,
            DType::F32 => Tensor::full(value as f32, dims, device)?,
            DType::F16 => Tensor::full(f16::from_f64(value), dims, device)?,
            DType::BF16 => Tensor::full(bf16::from_f64(value), dims, device)?,
            other => bail!("numbers of type {other:?}; expected F32, F64, F16 or BF16"),
        };
        issued("const_set", &[&filled], None)?;
        Ok(Self(filled))
    }

    /// `[1, n]` ones in the type and on the device of `like`. The latest are kept: every bias of a layer asks for the same.
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

    /// Numbers of `0` in the same type on the same device.
    pub fn zeros(&self, dims: &[usize]) -> Result<Self> {
        let zeros = Tensor::zeros(dims, self.dtype(), self.device())?;
        issued("zeros", &[&zeros], None)?;
        Ok(Self(zeros))
    }

    /// One number everywhere, as often as there are numbers here: a single one would be read by strides, which CUDA uploads
    /// for every operation.
    pub fn full(&self, value: f64) -> Result<Self> {
        Self::filled(value, self.dims(), self.dtype(), self.device())
    }

    /// Uniform random numbers of `[0, 1)`, in f32.
    pub fn uniform(dims: &[usize], device: &Device) -> Result<Self> {
        let uniform = Tensor::rand(0f32, 1f32, dims, device)?;
        issued("rand_uniform", &[&uniform], None)?;
        Ok(Self(uniform))
    }

    /// Sets a variable of the same shape and type to these numbers, which do not share its storage.
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

    /// The last dimension; 1 of a scalar.
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

    /// The numbers in other dimensions, copied where they do not lie in order.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.reshape(dims).map(Self)
    }

    /// A row of numbers for all but the last dimension.
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

    /// The numbers in larger dimensions, in which some of them stand for many; nothing is copied.
    pub fn broadcast(&self, dims: &[usize]) -> Result<Self> {
        self.0.broadcast_as(dims).map(Self)
    }

    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        self.0.unsqueeze(dim).map(Self)
    }

    /// The numbers in order, copied where they are not.
    pub fn contiguous(&self) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.contiguous().map(Self)
    }

    /// As it is, or copied to the beginning of a storage of its own; it is in order.
    pub fn at_its_beginning(&self) -> Result<Self> {
        if self.0.layout().start_offset() == 0 {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// In a storage of its own; candle's `copy` keeps what lies around a view, and on Metal the storage too.
    pub fn copied(&self) -> Result<Self> {
        issued("copy", &[&self.0], None)?;
        self.0.force_contiguous().map(Self)
    }
}

/// f32 for half types, other types unchanged.
pub(crate) fn wide(dtype: DType) -> DType {
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
    fn a_view_is_copied_to_the_beginning_of_a_storage_that_holds_nothing_else() {
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
