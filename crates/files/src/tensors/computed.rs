//! Tensors that are computed from other tensors while they are read.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};
use candle_blocks_kernels::storage::numbers::{from_bf16, from_f16, not_finite};
use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;

use super::{ElementSource, TensorFiles, TensorInfo};
use candle_blocks_base::memory::check_next;
use candle_blocks_base::{Error, Result};

/// Computes an f32 tensor from other tensors.
#[doc(hidden)]
pub trait Compute: fmt::Debug + Send + Sync {
    /// Returns rows, given as indices in the first dimension.
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>>;

    /// Returns whether the quantized values can be packed without dequantizing.
    fn coding(&self, _: &TensorFiles) -> Result<Coding> {
        Ok(Coding::Numbers)
    }

    /// Returns the form that its values have in the files, from the headers alone.
    fn stored_form(&self) -> StoredForm;

    /// Returns whether the tensor is a dequantized matrix. Such a matrix is `[d_out, d_in]`, whatever the family's rule
    /// says.
    fn is_of_codes(&self) -> bool {
        true
    }

    /// Returns quantized rows in the format and the column order that [`Self::coding`] gives. If the tensor stacks several
    /// matrices, rows are counted across them. Called if [`Self::coding`] returns [`Coding::Codes`].
    fn coded_rows(
        &self,
        files: &TensorFiles,
        _: Range<usize>,
        _: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        Err(Error::input(
            files.path().to_string_lossy(),
            "a computed tensor has no quantized values",
        ))
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub enum Coding {
    /// Floating-point values.
    Numbers,
    /// Quantized values that can be packed directly, and the order of their input columns if they were reordered.
    Codes(QuantizedFormat, Option<Arc<[u32]>>),
    /// Quantized values that cannot be packed, and the reason.
    Refused(String),
}

/// The form that a tensor's values have in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum StoredForm {
    /// Elements whose type has this name.
    Elements(String),
    /// Quantized values whose type has this name, for which there is no packed form.
    Unpackable(String),
    /// Quantized values whose kind has this name, which `Precision::AsStored` refuses.
    Refused(String),
    /// Quantized values that can be packed, with the name of their type, their bits, and their bits when they are packed.
    Values {
        name: String,
        bits: usize,
        packed: usize,
    },
}

/// A stored tensor that only others are computed from.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct StoredTensor {
    pub name: String,
    pub info: TensorInfo,
}

impl TensorFiles {
    /// Removes a tensor from the list, to compute others from it.
    #[doc(hidden)]
    pub fn take(&mut self, name: &str) -> Option<StoredTensor> {
        let part = self.as_part(name)?;
        self.tensors.remove(name);
        Some(part)
    }

    /// Returns a stored tensor as a part.
    #[doc(hidden)]
    pub fn as_part(&self, name: &str) -> Option<StoredTensor> {
        let info = self.tensors.get(name)?.clone();
        let name = name.to_string();
        Some(StoredTensor { name, info })
    }

    /// Adds an f32 tensor that is computed from `parts`; its path is that of the first part.
    #[doc(hidden)]
    pub fn add_computed(
        &mut self,
        name: String,
        shape: Vec<usize>,
        parts: &[&StoredTensor],
        compute: Arc<dyn Compute>,
    ) {
        let Some(first) = parts.first() else { return };
        let info = TensorInfo {
            dtype: Dtype::F32,
            shape,
            path: first.info.path.clone(),
            n_bytes: parts.iter().map(|part| part.info.n_bytes).sum(),
            storage: ElementSource::Computed(compute),
        };
        self.tensors.insert(name, info);
    }

    /// Returns a tensor's form, if there is one with this name.
    #[doc(hidden)]
    pub fn stored_form(&self, name: &str) -> Option<StoredForm> {
        self.info(name).map(TensorInfo::stored_form)
    }

    /// Returns a tensor's computation; `None` if the tensor is stored.
    #[doc(hidden)]
    pub fn computed(&self, name: &str) -> Option<&Arc<dyn Compute>> {
        match &self.info(name)?.storage {
            ElementSource::Computed(compute) => Some(compute),
            ElementSource::Stored { .. } => None,
        }
    }

    /// Returns whether a tensor is a dequantized matrix.
    #[doc(hidden)]
    pub fn is_dequantized(&self, name: &str) -> bool {
        self.computed(name)
            .is_some_and(|compute| compute.is_of_codes())
    }

    /// Stores a tensor under this name, replacing an existing one.
    #[doc(hidden)]
    pub fn put(&mut self, name: String, info: TensorInfo) {
        self.tensors.insert(name, info);
    }

    /// Adds the tensors of another file without names, and returns them.
    #[doc(hidden)]
    pub fn take_in(&mut self, other: Self) -> Vec<StoredTensor> {
        let n_before = self.files.len();
        self.files.extend(other.files);
        let moved = |(name, mut info): (String, TensorInfo)| {
            if let ElementSource::Stored { file, .. } = &mut info.storage {
                *file += n_before;
            }
            StoredTensor { name, info }
        };
        other.tensors.into_iter().map(moved).collect()
    }

    /// Returns rows of a stored or computed part in f32.
    ///
    /// # Errors
    /// If its dtype is not a floating-point type, or it cannot be read.
    #[doc(hidden)]
    pub fn part_rows(&self, part: &StoredTensor, rows: Range<usize>) -> Result<Vec<f32>> {
        let width: usize = part.info.shape.iter().skip(1).product();
        let span = rows.start * width..rows.end * width;
        let shape = vec![span.len()];
        let read = self.gather(&part.name, &part.info, &[span], shape)?;
        let read = super::floating(read, &part.info.path, &part.name)?;
        Ok(super::converted(&read, DType::F32)?.to_vec1()?)
    }

    /// Returns all elements in a part whose element size is that of `T`.
    pub(crate) fn part<T: bytemuck::Pod>(&self, part: &StoredTensor) -> Result<Vec<T>> {
        let all = 0..part.info.n_bytes / size_of::<T>();
        self.elements(&part.name, &part.info, std::slice::from_ref(&all))
    }

    /// Returns a span from a part's elements.
    #[doc(hidden)]
    pub fn part_span<T: bytemuck::Pod>(
        &self,
        part: &StoredTensor,
        span: Range<usize>,
    ) -> Result<Vec<T>> {
        self.elements(&part.name, &part.info, std::slice::from_ref(&span))
    }

    /// Returns columns of a two-dimensional part, row by row.
    pub(crate) fn part_columns<T: bytemuck::Pod>(
        &self,
        part: &StoredTensor,
        columns: Range<usize>,
    ) -> Result<Vec<T>> {
        let (n_lines, width) = part.dims2()?;
        let spans =
            (0..n_lines).map(|line| line * width + columns.start..line * width + columns.end);
        match columns.len() == width {
            true => self.part(part),
            false => self.elements(&part.name, &part.info, &spans.collect::<Vec<_>>()),
        }
    }

    /// Returns all elements in a floating-point part, in f32.
    ///
    /// # Errors
    /// If an element is NaN or infinite, or the dtype is not a floating-point type.
    pub(crate) fn part_in_f32(&self, part: &StoredTensor) -> Result<Vec<f32>> {
        let numbers: Vec<f32> = match part.info.dtype {
            Dtype::F32 => self.part(part)?,
            Dtype::F16 => from_f16(&self.part(part)?),
            Dtype::BF16 => from_bf16(&self.part(part)?),
            _ => {
                return Err(Error::UnsupportedDType {
                    path: part.info.path.clone(),
                    tensor: part.name.clone(),
                    found: format!("{:?}", part.info.dtype),
                });
            }
        };
        part.check_finite(&numbers)?;
        Ok(numbers)
    }

    pub(super) fn compute(
        &self,
        compute: &dyn Compute,
        info: &TensorInfo,
        spans: &[Range<usize>],
        shape: Vec<usize>,
    ) -> Result<Tensor> {
        let width: usize = info.shape.iter().skip(1).product();
        let mut values = Vec::new();
        for span in spans {
            let rows = span.start / width.max(1)..span.end / width.max(1);
            check_next(span.len().saturating_mul(size_of::<f32>()))?;
            let mut part = compute.rows(self, rows)?;
            match values.is_empty() {
                true => values = part,
                false => values.append(&mut part),
            }
        }
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    /// Writes a computed tensor in groups of rows.
    pub(super) fn copy_computed(
        &self,
        name: &str,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        const PIECE: usize = 1 << 18;
        let info = self.find(name)?;
        let n_rows = info.shape.first().copied().unwrap_or(0);
        let width: usize = info.shape.iter().skip(1).product();
        let step = (PIECE / width.max(1)).max(1);
        for start in (0..n_rows).step_by(step) {
            let rows = start..n_rows.min(start + step);
            let tensor = self.read_rows(name, std::slice::from_ref(&rows))?;
            let numbers: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            write(bytemuck::cast_slice(&numbers))?;
        }
        Ok(())
    }
}

impl TensorInfo {
    /// Returns the tensor's form.
    #[doc(hidden)]
    pub fn stored_form(&self) -> StoredForm {
        match &self.storage {
            ElementSource::Computed(compute) => compute.stored_form(),
            ElementSource::Stored { .. } => StoredForm::Elements(self.dtype.to_string()),
        }
    }
}

impl StoredTensor {
    /// Returns the part of a tensor in a file at this index of its first dimension.
    ///
    /// # Errors
    /// If it has no such part, or is computed.
    pub fn nth(&self, index: usize) -> Result<Self> {
        let mut part = self.clone();
        let (
            ElementSource::Stored {
                offset, strides, ..
            },
            Some((&n, rest)),
        ) = (&mut part.info.storage, self.info.shape.split_first())
        else {
            return Err(self.error("expected a tensor in a file, with several dimensions"));
        };
        if index >= n {
            return Err(self.error(format!("it has {n} parts, and no part {index}")));
        }
        part.info.n_bytes = self.info.n_bytes / n;
        let n_elements = rest.iter().product::<usize>().max(1);
        let step = match strides {
            None => part.info.n_bytes,
            Some(strides) => strides[0] * (part.info.n_bytes / n_elements),
        };
        *offset += (index * step) as u64;
        *strides = strides.as_deref().map(|strides| strides[1..].into());
        part.info.shape = rest.to_vec();
        Ok(part)
    }

    /// Returns whether the part is a dequantized matrix.
    pub fn is_dequantized(&self) -> bool {
        matches!(&self.info.storage, ElementSource::Computed(compute) if compute.is_of_codes())
    }

    /// # Errors
    /// Makes an error that names the tensor and its file.
    pub fn error(&self, reason: impl fmt::Display) -> Error {
        let path = self.info.path.display();
        Error::input(&self.name, format!("{reason} ({path})"))
    }

    /// # Errors
    /// If it has another shape.
    pub fn check_shape(&self, expected: &[usize]) -> Result<()> {
        if self.info.shape == expected {
            return Ok(());
        }
        Err(Error::ShapeMismatch {
            path: self.info.path.clone(),
            tensor: self.name.clone(),
            expected: expected.to_vec(),
            found: self.info.shape.clone(),
        })
    }

    /// # Errors
    /// If its dtype is not one of these.
    pub fn check_dtype(&self, expected: &[Dtype]) -> Result<()> {
        if expected.contains(&self.info.dtype) {
            return Ok(());
        }
        let found = self.info.dtype;
        Err(self.error(format!("it is {found:?}, expected {expected:?}")))
    }

    /// # Errors
    /// If it does not have two dimensions.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        match self.info.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            ref found => {
                Err(self.error(format!("it has shape {found:?}, expected two dimensions")))
            }
        }
    }

    /// # Errors
    /// If an element is NaN or infinite.
    pub fn check_finite(&self, numbers: &[f32]) -> Result<()> {
        match not_finite(numbers) {
            None => Ok(()),
            Some(found) => Err(self.error(format!("it contains {found}, expected finite values"))),
        }
    }
}
