//! Tapes whose steps are computed by the kernels, with values in recycled memory.

use std::ops::{Deref, Range};
use std::sync::Arc;

use candle_blocks_kernels::rows::{RowNorm, Source, column_sums, elements};
use candle_blocks_kernels::{Cpu, Slice, SliceMut, memory::Buffer, products::Matrix};
use candle_core::{DType, Device, Layout, Result, Storage, Tensor, bail};

use super::backward::BackwardPass;
use super::cpu::{cpu, with_team};
use super::engine::Engine;
use super::graph::NodeResult;
use super::slot::Slot;
use super::tape::{Reads, Taped};
use super::{gradients::handed_over, numbers::Numbers};

/// Values that a step reads.
#[derive(Clone)]
#[doc(hidden)]
pub enum Data {
    Numbers(Arc<Numbers>),
    /// A contiguous tensor, or a matrix with any strides.
    Tensor(Tensor),
    /// F32 rows with a norm that a packed product applies as it reads them. Other steps read a normalized copy.
    Normalized(Arc<Normalized>),
}

/// Rows, and the norm for each of them.
#[doc(hidden)]
pub struct Normalized {
    pub rows: Data,
    pub norm: Arc<RowNorm>,
    pub engine: Cpu,
}

/// Read access to [`Data`].
#[doc(hidden)]
pub enum Reading<'a> {
    Numbers(&'a Numbers),
    Normalized(Numbers),
    Tensor(Box<dyn Deref<Target = Storage> + 'a>, &'a Layout),
}

impl From<Numbers> for Data {
    fn from(numbers: Numbers) -> Self {
        Self::Numbers(Arc::new(numbers))
    }
}

impl Engine for Cpu {
    type Data = Data;
    type Output = Numbers;
    type Sum = Numbers;

    fn new() -> Result<Self> {
        cpu()
    }

    fn data(tensor: &Tensor) -> Result<Data> {
        readable(tensor.detach().contiguous()?)
    }

    fn dtype(data: &Data) -> DType {
        match data {
            Data::Numbers(numbers) => numbers.dtype(),
            Data::Tensor(tensor) => tensor.dtype(),
            Data::Normalized(_) => DType::F32,
        }
    }

    fn reshaped(data: Data, _: &[usize]) -> Result<Data> {
        Ok(data)
    }

    fn copied(data: &Data, of: &Slot, dims: &[usize]) -> Result<Numbers> {
        let mut numbers = Numbers::new(Self::dtype(data), dims.iter().product())?;
        let (width, columns) = (of.width, of.columns.clone());
        copy_columns(data.read().slice(), width, columns, &mut numbers);
        Ok(numbers)
    }

    fn tensor(data: Data, dims: &[usize]) -> Result<Tensor> {
        match data {
            Data::Tensor(tensor) => tensor.reshape(dims),
            Data::Numbers(numbers) => own(numbers)?.into_tensor(dims),
            Data::Normalized(rows) => rows.numbers().into_tensor(dims),
        }
    }

    fn result(data: Data, dims: &[usize]) -> Result<NodeResult> {
        Ok(match data {
            Data::Tensor(tensor) => NodeResult::Copied(tensor.reshape(dims)?),
            Data::Numbers(numbers) => NodeResult::moved(own(numbers)?.into_storage(), dims.into()),
            Data::Normalized(rows) => NodeResult::moved(rows.numbers().into_storage(), dims.into()),
        })
    }

    fn zeros(like: &Numbers, dims: &[usize]) -> Result<Numbers> {
        Numbers::zeros(like.dtype(), dims.iter().product())
    }

    fn cotangent(tensor: &Tensor) -> Result<Numbers> {
        let tensor = Data::Tensor(tensor.contiguous()?);
        Numbers::copied(tensor.read().slice())
    }

    fn add(self, sum: &mut Option<Numbers>, to: &Slot, gradient: Numbers) -> Result<()> {
        match sum {
            None if to.is_whole() => *sum = Some(gradient),
            Some(sum) if to.is_whole() => elements::add(self, sum.slice_mut(), gradient.slice()),
            sum => {
                let rows = gradient.len() / to.columns.len().max(1);
                if sum.is_none() {
                    *sum = Some(Numbers::zeros(gradient.dtype(), rows * to.width)?);
                }
                if let Some(sum) = sum {
                    add_columns(sum, to, &gradient);
                }
            }
        }
        Ok(())
    }

    fn total(sum: Numbers, _: &[usize]) -> Result<Numbers> {
        Ok(sum)
    }

    fn handed_over(gradient: Numbers, of: &Tensor) -> Result<Option<Tensor>> {
        handed_over(gradient, of)
    }

    fn working<R>(work: impl FnOnce() -> R) -> R {
        with_team(work)
    }
}

/// Runs `$body` with a mutable and a shared slice of one type.
macro_rules! same_type {
    ($to:expr, $from:expr, |$a:ident, $b:ident| $body:expr) => {
        match ($to, $from) {
            (candle_blocks_kernels::SliceMut::F32($a), candle_blocks_kernels::Slice::F32($b)) => {
                $body
            }
            (candle_blocks_kernels::SliceMut::F64($a), candle_blocks_kernels::Slice::F64($b)) => {
                $body
            }
            (candle_blocks_kernels::SliceMut::F16($a), candle_blocks_kernels::Slice::F16($b)) => {
                $body
            }
            (candle_blocks_kernels::SliceMut::Bf16($a), candle_blocks_kernels::Slice::Bf16($b)) => {
                $body
            }
            _ => candle_core::bail!("operands of two types"),
        }
    };
}
pub(crate) use same_type;

/// Like `same_type`, with two shared slices.
macro_rules! same_types {
    ($to:expr, $from:expr, $with:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {{
        use candle_blocks_kernels::{Slice, SliceMut};
        match ($to, $from, $with) {
            (SliceMut::F32($a), Slice::F32($b), Slice::F32($c)) => $body,
            (SliceMut::F64($a), Slice::F64($b), Slice::F64($c)) => $body,
            (SliceMut::F16($a), Slice::F16($b), Slice::F16($c)) => $body,
            (SliceMut::Bf16($a), Slice::Bf16($b), Slice::Bf16($c)) => $body,
            _ => candle_core::bail!("operands of three types"),
        }
    }};
}
pub(crate) use same_types;

/// Returns the values, copied if somebody else still reads them, or if a tensor has them.
#[doc(hidden)]
pub fn owned(data: Data) -> Result<Numbers> {
    match data {
        Data::Numbers(numbers) => own(numbers),
        other => Numbers::copied(other.read().slice()),
    }
}

/// Returns the values, copied only if somebody else still reads them.
fn own(numbers: Arc<Numbers>) -> Result<Numbers> {
    Arc::try_unwrap(numbers).or_else(|shared| Numbers::copied(shared.slice()))
}

impl Taped<Cpu> {
    /// Returns a step's parameter on this value's tape: its values, and its gradient's place.
    pub fn parameter(&self, tensor: &Tensor, reads: Reads) -> Result<(Data, Option<usize>)> {
        let values = match tensor.rank() {
            2 => tensor.clone(),
            _ => tensor.detach().contiguous()?,
        };
        Ok((readable(values)?, self.place(tensor, reads)))
    }
}

/// Returns a tensor's values, which the kernels read.
///
/// # Errors
/// If the tensor is on another device than the CPU.
#[doc(hidden)]
pub fn readable(tensor: Tensor) -> Result<Data> {
    match tensor.device() {
        Device::Cpu => Ok(Data::Tensor(tensor)),
        other => bail!(
            "the input is on the CPU, but a parameter is on {:?}; move the input with to_device",
            other.location()
        ),
    }
}

impl BackwardPass<Cpu> {
    /// Adds to a parameter's gradient, if it is required.
    pub fn add_parameter(&mut self, place: Option<usize>, gradient: Numbers) -> Result<()> {
        self.add(&Slot::whole(place, gradient.len()), gradient)
    }

    /// Adds column sums, for `width` columns, to a vector's gradient, if it is required.
    pub fn add_column_sums(
        &mut self,
        of: Option<usize>,
        rows: &Numbers,
        width: usize,
    ) -> Result<()> {
        if of.is_none() {
            return Ok(());
        }
        let mut sums = Numbers::new(rows.dtype(), width)?;
        column_sums(self.engine, rows.slice(), sums.slice_mut());
        self.add_parameter(of, sums)
    }
}

impl Data {
    pub fn read(&self) -> Reading<'_> {
        match self {
            Self::Numbers(numbers) => Reading::Numbers(numbers),
            Self::Normalized(rows) => Reading::Normalized(rows.numbers()),
            Self::Tensor(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                Reading::Tensor(Box::new(storage), layout)
            }
        }
    }
}

impl Normalized {
    /// Normalizes the rows.
    fn numbers(&self) -> Numbers {
        let rows = self.rows.read();
        let Slice::F32(rows) = rows.slice() else {
            unreachable!("f32, as checked where the norm was attached")
        };
        let mut normal = Buffer::new(rows.len());
        let rows = Source::new(rows, self.norm.width()).with_norm(Some(&self.norm));
        rows.copy_to(self.engine, &mut normal);
        Numbers::F32(normal)
    }
}

impl Reading<'_> {
    /// Returns all values. A tensor's values start at its first element.
    pub fn slice(&self) -> Slice<'_> {
        match self {
            Self::Numbers(numbers) => numbers.slice(),
            Self::Normalized(numbers) => numbers.slice(),
            Self::Tensor(storage, layout) => {
                let all = storage_slice(storage);
                // A view without elements may begin after the last one.
                let start = layout.start_offset().min(all.len());
                let end = match layout.is_contiguous() {
                    true => (start + layout.shape().elem_count()).min(all.len()),
                    false => all.len(),
                };
                all.part(start..end)
            }
        }
    }

    /// Returns a matrix with any strides, as a parameter may have. `shape` applies to values without a layout.
    pub fn matrix(&self, shape: (usize, usize)) -> Matrix<'_> {
        let strides = match self {
            Self::Tensor(_, layout) if layout.dims().len() == 2 => {
                (layout.stride()[0], layout.stride()[1])
            }
            _ => (shape.1, 1),
        };
        Matrix::new(self.slice(), shape, strides)
    }
}

/// Returns a tensor's storage, which is a CPU float storage: a tape accepts no others.
fn storage_slice(storage: &Storage) -> Slice<'_> {
    use candle_core::CpuStorage::*;
    match storage {
        Storage::Cpu(F32(numbers)) => Slice::F32(numbers),
        Storage::Cpu(F64(numbers)) => Slice::F64(numbers),
        Storage::Cpu(F16(numbers)) => Slice::F16(numbers),
        Storage::Cpu(BF16(numbers)) => Slice::Bf16(numbers),
        _ => unreachable!("floats on the CPU, as checked when the tensor came to the tape"),
    }
}

/// Copies some columns from rows with `width` elements.
fn copy_columns(from: Slice, width: usize, columns: Range<usize>, to: &mut Numbers) {
    use candle_blocks_kernels::SliceMut::*;
    fn copy<T: Copy>(from: &[T], width: usize, columns: Range<usize>, to: &mut [T]) {
        let rows = to.chunks_exact_mut(columns.len().max(1));
        for (to, from) in rows.zip(from.chunks_exact(width)) {
            to.copy_from_slice(&from[columns.clone()]);
        }
    }
    match (from, to.slice_mut()) {
        (Slice::F32(from), F32(to)) => copy(from, width, columns, to),
        (Slice::F64(from), F64(to)) => copy(from, width, columns, to),
        (Slice::F16(from), F16(to)) => copy(from, width, columns, to),
        (Slice::Bf16(from), Bf16(to)) => copy(from, width, columns, to),
        _ => unreachable!("the copy has its source's type"),
    }
}

fn add_columns(sum: &mut Numbers, slot: &Slot, gradient: &Numbers) {
    fn add<T: Copy>(sum: &mut [T], slot: &Slot, gradient: &[T], plus: impl Fn(T, T) -> T) {
        let rows = gradient.chunks_exact(slot.columns.len().max(1));
        for (sum, gradient) in sum.chunks_exact_mut(slot.width).zip(rows) {
            for (sum, &gradient) in sum[slot.columns.clone()].iter_mut().zip(gradient) {
                *sum = plus(*sum, gradient);
            }
        }
    }
    match (sum.slice_mut(), gradient.slice()) {
        (SliceMut::F32(sum), Slice::F32(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::F64(sum), Slice::F64(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::F16(sum), Slice::F16(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::Bf16(sum), Slice::Bf16(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        _ => unreachable!("gradients have the type of their value"),
    }
}
