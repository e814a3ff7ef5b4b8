//! Values in any float type, in recycled memory: a tape's values and gradients.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_blocks_kernels::memory::{Buffer, Recycled, tried_in_a_pass};
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Tensor, bail};
use half::{bf16, f16};

use crate::memory;

/// A float type.
pub trait Number: Copy {
    /// Rounds to the nearest value. f16 and bf16 round through f32, like the kernels.
    fn rounded(value: f64) -> Self;

    /// Converts to f64, exactly.
    fn wide(self) -> f64;
}

macro_rules! number {
    ($($type:ty: $value:ident => $rounded:expr, $of:ident => $wide:expr;)*) => {
        $(impl Number for $type {
            fn rounded($value: f64) -> Self {
                $rounded
            }

            fn wide(self) -> f64 {
                let $of = self;
                $wide
            }
        })*
    };
}

number! {
    f32: value => value as f32, of => of.into();
    f64: value => value, of => of;
    f16: value => f16::from_f32(value as f32), of => of.into();
    bf16: value => bf16::from_f32(value as f32), of => of.into();
}

/// Converts values in any type to f64.
pub fn widened(numbers: Slice) -> Vec<f64> {
    fn wide<T: Number>(numbers: &[T]) -> Vec<f64> {
        numbers.iter().map(|number| number.wide()).collect()
    }
    match numbers {
        Slice::F32(numbers) => wide(numbers),
        Slice::F64(numbers) => wide(numbers),
        Slice::F16(numbers) => wide(numbers),
        Slice::Bf16(numbers) => wide(numbers),
    }
}

/// Creates a buffer with `len` elements and unspecified contents.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the system would not give the memory.
pub fn allocated<T: Recycled>(len: usize) -> Result<Buffer<T>> {
    let bytes = tried_in_a_pass(len.saturating_mul(size_of::<T>()));
    Buffer::allocated(len).ok_or_else(|| memory::refused(Path::new(""), bytes).into())
}

/// An owned buffer in any float type.
pub enum Numbers {
    F32(Buffer<f32>),
    F64(Buffer<f64>),
    F16(Buffer<f16>),
    Bf16(Buffer<bf16>),
}

/// Runs `$body` with `$buffer` bound to the buffer in any type.
macro_rules! map_buffer {
    ($numbers:expr, $buffer:ident => $body:expr) => {
        match $numbers {
            Numbers::F32($buffer) => $body,
            Numbers::F64($buffer) => $body,
            Numbers::F16($buffer) => $body,
            Numbers::Bf16($buffer) => $body,
        }
    };
}

impl Numbers {
    /// Creates a buffer with `len` elements and unspecified contents.
    ///
    /// # Errors
    /// If the type is not a float that this crate supports, or the system would not give the memory.
    pub fn new(dtype: DType, len: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(allocated(len)?),
            DType::F64 => Self::F64(allocated(len)?),
            DType::F16 => Self::F16(allocated(len)?),
            DType::BF16 => Self::Bf16(allocated(len)?),
            other => bail!("values of type {other:?}; expected F32, F64, F16 or BF16"),
        })
    }

    /// Creates the same in the memory of a tensor that nobody reads again, if that has this type and size and lies on the
    /// CPU.
    pub fn in_place_of(tensor: &Tensor, dtype: DType, len: usize) -> Result<Self> {
        match (taken(tensor), dtype) {
            (Some(CpuStorage::F32(numbers)), DType::F32) if numbers.len() == len => {
                Ok(Self::F32(Buffer::of(numbers)))
            }
            (Some(CpuStorage::F64(numbers)), DType::F64) if numbers.len() == len => {
                Ok(Self::F64(Buffer::of(numbers)))
            }
            _ => Self::new(dtype, len),
        }
    }

    /// Creates a buffer with `len` zeros. Errors as for [`Self::new`].
    pub fn zeros(dtype: DType, len: usize) -> Result<Self> {
        let mut zeros = Self::new(dtype, len)?;
        match zeros.slice_mut() {
            SliceMut::F32(numbers) => numbers.fill(0.0),
            SliceMut::F64(numbers) => numbers.fill(0.0),
            SliceMut::F16(numbers) => numbers.fill(f16::ZERO),
            SliceMut::Bf16(numbers) => numbers.fill(bf16::ZERO),
        }
        Ok(zeros)
    }

    /// Copies a slice.
    ///
    /// # Errors
    /// If the system would not give the memory.
    pub fn copied(from: Slice) -> Result<Self> {
        fn copied<T: Recycled>(from: &[T]) -> Result<Buffer<T>> {
            let mut copy = allocated(from.len())?;
            copy.copy_from_slice(from);
            Ok(copy)
        }
        Ok(match from {
            Slice::F32(numbers) => Self::F32(copied(numbers)?),
            Slice::F64(numbers) => Self::F64(copied(numbers)?),
            Slice::F16(numbers) => Self::F16(copied(numbers)?),
            Slice::Bf16(numbers) => Self::Bf16(copied(numbers)?),
        })
    }

    /// Creates a buffer with one rounded value. Errors as for [`Self::new`].
    pub fn of_scalar(dtype: DType, value: f64) -> Result<Self> {
        let mut one = Self::new(dtype, 1)?;
        map_buffer!(&mut one, buffer => buffer[0] = Number::rounded(value));
        Ok(one)
    }

    /// Returns the first value.
    pub fn scalar(&self) -> f64 {
        map_buffer!(self, buffer => buffer[0].wide())
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::BF16,
        }
    }

    pub fn len(&self) -> usize {
        self.slice().len()
    }

    pub fn slice(&self) -> Slice<'_> {
        map_buffer!(self, buffer => Slice::from(&buffer[..]))
    }

    pub fn slice_mut(&mut self) -> SliceMut<'_> {
        map_buffer!(self, buffer => SliceMut::from(&mut buffer[..]))
    }

    /// Converts to candle's storage. The memory is not recycled.
    pub fn into_storage(self) -> CpuStorage {
        match self {
            Self::F32(buffer) => CpuStorage::F32(buffer.into_vec()),
            Self::F64(buffer) => CpuStorage::F64(buffer.into_vec()),
            Self::F16(buffer) => CpuStorage::F16(buffer.into_vec()),
            Self::Bf16(buffer) => CpuStorage::BF16(buffer.into_vec()),
        }
    }

    /// Converts to a tensor. The memory is not recycled.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        map_buffer!(self, buffer => Tensor::from_vec(buffer.into_vec(), shape, &Device::Cpu))
    }

    /// Converts to a tensor as a loan: [`give_back`] must follow.
    pub fn into_lent_tensor(self, shape: &Shape) -> Result<Tensor> {
        map_buffer!(self, buffer => Tensor::from_vec(buffer.into_lent(), shape, &Device::Cpu))
    }
}

/// Takes the storage of a tensor on the CPU that nobody reads again, and leaves an empty one.
fn taken(tensor: &Tensor) -> Option<CpuStorage> {
    let taken = Taken::default();
    tensor.inplace_op1(&taken).ok()?;
    taken.0.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Taken(Mutex<Option<CpuStorage>>);

impl InplaceOp1 for Taken {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        let taken = std::mem::replace(storage, CpuStorage::F32(Vec::new()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
        Ok(())
    }
}

/// Returns the memory of a tensor from [`Numbers::into_lent_tensor`] to the pool. What cannot be taken is freed with the
/// tensor.
pub fn give_back(tensor: &Tensor) {
    use candle_blocks_kernels::memory::give_back as give;
    match taken(tensor) {
        Some(CpuStorage::F32(numbers)) => give(numbers),
        Some(CpuStorage::F64(numbers)) => give(numbers),
        Some(CpuStorage::F16(numbers)) => give(numbers),
        Some(CpuStorage::BF16(numbers)) => give(numbers),
        _ => {}
    }
}
