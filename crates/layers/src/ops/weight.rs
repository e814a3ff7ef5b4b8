//! The weight of a linear layer: a tensor, or a frozen matrix in quantized or packed form.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_blocks_kernels::products::{PackedWeight, QuantizedFormat, QuantizedWeightRows};
use candle_blocks_kernels::{SliceMut, threads};
use candle_core::{DType, Device, Result, Tensor, bail};

use super::array::Array;
use super::constants::uploaded;
use super::cpu::cpu;
use super::kernels::{Data, readable};
use super::numbers::{Number, Numbers};
use crate::error::Error;

/// A checkpoint's quantized matrix: quantized values with scales.
#[doc(hidden)]
pub trait StoredMatrix: fmt::Debug + Send + Sync {
    /// Dequantizes rows, and returns them one after the other.
    fn rows(&self, rows: Range<usize>) -> Result<Vec<f32>>;

    /// True if dequantizing some rows takes as long as dequantizing all.
    fn comes_whole(&self) -> bool;

    /// Returns the format and the input order for packing the quantized values, or `None` if only dequantized
    /// elements can be packed.
    fn coding(&self) -> Option<(QuantizedFormat, Option<&Arc<[u32]>>)>;

    /// Returns the quantized values of some rows, in the format from [`Self::coding`].
    fn coded_rows(&self, rows: Range<usize>) -> Result<QuantizedWeightRows>;

    /// Returns an error that names the tensor.
    fn error(&self, reason: String) -> Error;
}

/// The weight of a linear layer, `[d_out, d_in]`.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum Weight {
    Dense(Tensor),
    /// Quantized as in the checkpoint.
    Stored(Arc<Stored>),
    /// Packed for the kernels: for inference on the CPU.
    Packed(Packed),
    /// Packed together with other weights of its layer, which holds them: a shape, `(d_out, d_in)`.
    Joined(usize, usize),
}

/// A packed weight, cheap to clone.
#[derive(Clone)]
#[doc(hidden)]
pub struct Packed(pub Arc<PackedWeight>);

/// A frozen weight that stays quantized in memory. Each product dequantizes it again.
#[derive(Debug)]
#[doc(hidden)]
pub struct Stored {
    matrix: Arc<dyn StoredMatrix>,
    dims: (usize, usize),
    dtype: DType,
    device: Device,
}

impl From<&Tensor> for Weight {
    fn from(weight: &Tensor) -> Self {
        Self::Dense(weight.clone())
    }
}

impl From<&Self> for Weight {
    fn from(weight: &Self) -> Self {
        weight.clone()
    }
}

impl Weight {
    pub fn dims2(&self) -> Result<(usize, usize)> {
        match self {
            Self::Dense(weight) => weight.dims2(),
            Self::Stored(stored) => Ok(stored.dims),
            Self::Packed(Packed(packed)) => Ok((packed.d_out(), packed.d_in())),
            &Self::Joined(d_out, d_in) => Ok((d_out, d_in)),
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::Dense(weight) => weight.dtype(),
            Self::Stored(stored) => stored.dtype,
            Self::Packed(_) | Self::Joined(..) => DType::F32,
        }
    }

    pub fn device(&self) -> &Device {
        match self {
            Self::Dense(weight) => weight.device(),
            Self::Stored(stored) => &stored.device,
            Self::Packed(_) | Self::Joined(..) => &Device::Cpu,
        }
    }

    /// Returns the tensor, or `None` if the weight is quantized or packed.
    pub fn dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(weight) => Some(weight),
            Self::Stored(_) | Self::Packed(_) | Self::Joined(..) => None,
        }
    }

    /// Returns the weight as a tensor, dequantized or unpacked if necessary.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Ok(weight.clone()),
            Self::Stored(stored) => stored.tensor(),
            Self::Packed(packed) => {
                let rows: Vec<u32> = (0..packed.0.d_out() as u32).collect();
                packed.rows(&rows)
            }
            Self::Joined(d_out, d_in) => bail!(
                "linear: the weight [{d_out}, {d_in}] is packed with others of its layer, and cannot be read or used alone; keep the layer that it was packed from"
            ),
        }
    }

    /// Detaches the weight from its gradient.
    pub fn detached(&self) -> Self {
        match self {
            Self::Dense(weight) => Self::Dense(weight.detach()),
            Self::Stored(_) | Self::Packed(_) | Self::Joined(..) => self.clone(),
        }
    }

    /// Returns the elements for a product with the kernels.
    pub fn data(&self) -> Result<Data> {
        match self {
            Self::Dense(weight) => readable(weight.clone()),
            Self::Stored(stored) => stored.numbers().map(Data::from),
            Self::Packed(_) | Self::Joined(..) => self.tensor().and_then(readable),
        }
    }

    /// Returns the elements for a product on the weight's device.
    pub fn array(&self) -> Result<Array> {
        self.tensor().map(|weight| Array::of(&weight))
    }
}

impl Packed {
    /// Returns rows `[rows, d_in]` in f32, rounded to the packed format.
    pub fn rows(&self, numbers: &[u32]) -> Result<Tensor> {
        let d_in = self.0.d_in();
        let mut rows = vec![0f32; numbers.len() * d_in];
        for (&number, row) in numbers.iter().zip(rows.chunks_exact_mut(d_in)) {
            self.0.unpack_row(number as usize, row);
        }
        Tensor::from_vec(rows, (numbers.len(), d_in), &Device::Cpu)
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Packed")
            .field("d_in", &self.0.d_in())
            .field("d_out", &self.0.d_out())
            .finish_non_exhaustive()
    }
}

/// Elements to dequantize at a time, to bound the temporary memory for their quantized values and scales.
const PANEL: usize = 1 << 20;

impl Stored {
    pub fn weight(
        matrix: Arc<dyn StoredMatrix>,
        dims: (usize, usize),
        (dtype, device): (DType, &Device),
    ) -> Weight {
        let device = device.clone();
        Weight::Stored(Arc::new(Self {
            matrix,
            dims,
            dtype,
            device,
        }))
    }

    /// Returns `[d_out, d_in]`.
    pub fn dims(&self) -> (usize, usize) {
        self.dims
    }

    /// Returns the quantized matrix.
    pub fn matrix(&self) -> &Arc<dyn StoredMatrix> {
        &self.matrix
    }

    /// Dequantizes all elements with all threads, rounded to the weight's type.
    fn numbers(&self) -> Result<Numbers> {
        let ((d_out, d_in), threads) = (self.dims, cpu()?.threads);
        let mut numbers = Numbers::new(self.dtype, d_out * d_in)?;
        let rows = match self.matrix.comes_whole() {
            true => d_out.max(1),
            false => (PANEL / d_in.max(1)).clamp(1, d_out.div_ceil(threads).max(1)),
        };
        match numbers.slice_mut() {
            SliceMut::F32(to) => self.fill(to, rows, threads)?,
            SliceMut::F64(to) => self.fill(to, rows, threads)?,
            SliceMut::F16(to) => self.fill(to, rows, threads)?,
            SliceMut::Bf16(to) => self.fill(to, rows, threads)?,
        }
        Ok(numbers)
    }

    fn fill<T: Number + Send>(&self, to: &mut [T], rows: usize, threads: usize) -> Result<()> {
        let d_in = self.dims.1.max(1);
        let failed: Mutex<Option<candle_core::Error>> = Mutex::default();
        threads::for_chunks(threads, to, rows * d_in, |start, panel| {
            let first = start / d_in;
            let numbers = self.matrix.rows(first..first + panel.len() / d_in);
            let filled = numbers.and_then(|numbers| {
                if numbers.len() != panel.len() {
                    let (n, expected) = (numbers.len(), panel.len());
                    bail!("a stored weight: {n} values from row {first} on, expected {expected}");
                }
                for (to, number) in panel.iter_mut().zip(numbers) {
                    *to = T::rounded(number.into());
                }
                Ok(())
            });
            if let Err(error) = filled {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
            }
        });
        let failed = failed.into_inner();
        failed
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }

    /// Dequantizes on the CPU, and copies the result to the weight's device.
    fn tensor(&self) -> Result<Tensor> {
        let host = self.numbers()?.into_tensor(self.dims)?;
        uploaded(&host, self.dtype, &self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Value;

    /// A matrix whose elements are their indices, and with an optional row that fails.
    #[derive(Debug)]
    struct CountedMatrix {
        d_in: usize,
        comes_whole: bool,
        damaged: Option<usize>,
    }

    impl StoredMatrix for CountedMatrix {
        fn rows(&self, rows: Range<usize>) -> Result<Vec<f32>> {
            if self.damaged.is_some_and(|row| rows.contains(&row)) {
                bail!("row {:?} is damaged", self.damaged);
            }
            let numbers = rows.start * self.d_in..rows.end * self.d_in;
            Ok(numbers.map(|i| i as f32).collect())
        }

        fn comes_whole(&self) -> bool {
            self.comes_whole
        }

        fn coding(&self) -> Option<(QuantizedFormat, Option<&Arc<[u32]>>)> {
            None
        }

        fn coded_rows(&self, _: Range<usize>) -> Result<QuantizedWeightRows> {
            bail!("no quantized values")
        }

        fn error(&self, reason: String) -> Error {
            Error::InvalidConfig(reason)
        }
    }

    fn weight(dims: (usize, usize), comes_whole: bool, damaged: Option<usize>) -> Weight {
        let matrix = CountedMatrix {
            d_in: dims.1,
            comes_whole,
            damaged,
        };
        let kind = (DType::F32, &Device::Cpu);
        Stored::weight(Arc::new(matrix), dims, kind)
    }

    #[test]
    fn panels_of_any_size_make_the_whole() {
        // One row and several per panel; several panels, one, and none.
        for dims in [
            (0, 3),
            (3, 0),
            (1, 5),
            (7, 5),
            (3, PANEL + 1),
            (5, PANEL / 2),
        ] {
            for comes_whole in [false, true] {
                let made = weight(dims, comes_whole, None).tensor().unwrap();
                assert_eq!(made.dims(), [dims.0, dims.1]);
                let numbers = made.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let expected = (0..dims.0 * dims.1).map(|i| i as f32);
                assert!(numbers.into_iter().eq(expected), "{dims:?}");
            }
        }
    }

    #[test]
    fn a_failure_in_a_panel_fails_the_product() {
        let x = Tensor::ones((2, 5), DType::F32, &Device::Cpu).unwrap();
        let product = |damaged| {
            let weight = weight((300, 5), false, damaged);
            let y = Value::of(&x)?.linear(&weight, None, None)?;
            y.tensor()
        };
        assert!(product(None).is_ok());
        let message = product(Some(299)).unwrap_err().to_string();
        assert!(message.contains("damaged"), "{message}");
    }
}
