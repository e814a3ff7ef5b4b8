//! Numbers of any float type in recycled memory: the values and gradients of a tape.

use candle_blocks_kernels::memory::{Buffer, Recycled};
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{CpuStorage, DType, Device, Result, Shape, Tensor, bail};
use half::{bf16, f16};

/// A type of numbers.
pub trait Number: Copy {
    /// The nearest number; f16 and bf16 through f32, as the kernels round.
    fn rounded(value: f64) -> Self;

    /// The same number; exact.
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

/// Numbers of any type as f64.
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

/// Owned numbers.
pub enum Numbers {
    F32(Buffer<f32>),
    F64(Buffer<f64>),
    F16(Buffer<f16>),
    Bf16(Buffer<bf16>),
}

/// Runs `$body` with `$buffer` bound to the buffer of whichever type, and makes it that type again.
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
    /// `len` numbers of unspecified value.
    ///
    /// # Errors
    /// If the type is not a float that this crate computes with.
    pub fn new(dtype: DType, len: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(Buffer::new(len)),
            DType::F64 => Self::F64(Buffer::new(len)),
            DType::F16 => Self::F16(Buffer::new(len)),
            DType::BF16 => Self::Bf16(Buffer::new(len)),
            other => bail!("numbers of type {other:?}; expected F32, F64, F16 or BF16"),
        })
    }

    /// `len` zeros; errors as for [`Self::new`].
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

    /// A copy of a slice.
    pub fn copied(from: Slice) -> Self {
        match from {
            Slice::F32(numbers) => Self::F32(Buffer::copied(numbers)),
            Slice::F64(numbers) => Self::F64(Buffer::copied(numbers)),
            Slice::F16(numbers) => Self::F16(Buffer::copied(numbers)),
            Slice::Bf16(numbers) => Self::Bf16(Buffer::copied(numbers)),
        }
    }

    /// One number, rounded; errors as for [`Self::new`].
    pub fn of_scalar(dtype: DType, value: f64) -> Result<Self> {
        let mut one = Self::new(dtype, 1)?;
        map_buffer!(&mut one, buffer => buffer[0] = Number::rounded(value));
        Ok(one)
    }

    /// The first number.
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

    /// Its memory as candle's, for good.
    pub fn into_storage(self) -> CpuStorage {
        match self {
            Self::F32(buffer) => CpuStorage::F32(buffer.into_vec()),
            Self::F64(buffer) => CpuStorage::F64(buffer.into_vec()),
            Self::F16(buffer) => CpuStorage::F16(buffer.into_vec()),
            Self::Bf16(buffer) => CpuStorage::BF16(buffer.into_vec()),
        }
    }

    /// A tensor of these numbers, for good.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        map_buffer!(self, buffer => Tensor::from_vec(buffer.into_vec(), shape, &Device::Cpu))
    }

    /// A tensor of these numbers, on loan: [`give_back`] must follow.
    pub fn into_lent_tensor(self, shape: &Shape) -> Result<Tensor> {
        map_buffer!(self, buffer => Tensor::from_vec(buffer.into_lent(), shape, &Device::Cpu))
    }
}

/// Takes back the memory of a tensor from [`Numbers::into_lent_tensor`].
pub fn give_back(storage: &mut CpuStorage) {
    fn give<T: Recycled>(numbers: &mut Vec<T>) {
        candle_blocks_kernels::memory::give_back(std::mem::take(numbers));
    }
    match storage {
        CpuStorage::F32(numbers) => give(numbers),
        CpuStorage::F64(numbers) => give(numbers),
        CpuStorage::F16(numbers) => give(numbers),
        CpuStorage::BF16(numbers) => give(numbers),
        _ => {}
    }
}
