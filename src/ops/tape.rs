//! Values on their way through a layer. On the CPU they are computed on a tape, which becomes one node of candle's
//! graph; on other devices they are candle's tensors.
//!
//! Between two nodes candle adds each gradient to a tensor of zeros that it makes for it, and every tensor is newly
//! allocated. On a tape, gradients are added in a product's epilogue or not at all, values and gradients lie in recycled
//! memory, and a value lives only as long as a later step or the backward pass reads it.
//!
//! ```text
//! tensor → Value::of → step → step → step → Value::tensor → tensor, one node of the graph
//!                       ↑       ↑ parameters
//! ```
//!
//! Every step is computed at once. What its backward pass needs is recorded, if anything that went into it asks for a
//! gradient: a [`Step`], with the place of the value that it made. The backward pass takes the steps in reverse.

use std::ops::{Deref, Range};
use std::{cell::RefCell, rc::Rc, sync::Arc};

use candle_blocks_kernels::{Cpu, Slice, products::Matrix};
use candle_core::{DType, Device, Layout, Result, Storage, Tensor, TensorId, bail};

use super::backward::{Finished, Pass};
use super::cpu::{Route, cpu, route, with_team};
use super::{graph, numbers::Numbers};

/// A tensor on its way through a layer.
#[derive(Clone)]
pub(crate) enum Value {
    /// On the CPU: a value on a tape.
    Taped(Taped),
    /// On another device.
    Tensor(Tensor),
}

/// A value on a tape: rows of numbers, or some columns of them.
#[derive(Clone)]
pub(crate) struct Taped {
    tape: Rc<Tape>,
    pub slot: Slot,
    pub data: Data,
    dims: Vec<usize>,
}

/// Where the gradient of a value goes: to some columns of the gradient of all of its rows.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// The rows' place on the tape; `None` if nothing asks for their gradient.
    pub place: Option<usize>,
    /// Columns of the rows.
    pub width: usize,
    /// Those that are the value.
    pub columns: Range<usize>,
}

/// Numbers that a step reads, kept for as long as its backward pass may read them too.
#[derive(Clone)]
pub(crate) enum Data {
    Numbers(Arc<Numbers>),
    /// A contiguous tensor, or a matrix of any strides.
    Tensor(Tensor),
}

/// Read access to [`Data`].
pub(crate) enum Reading<'a> {
    Numbers(&'a Numbers),
    Tensor(Box<dyn Deref<Target = Storage> + 'a>, &'a Layout),
}

/// The backward pass of what made one value: hands the gradients of what went in to the pass, given that of the value.
pub(crate) type Step = dyn Fn(&mut Pass, Numbers) -> Result<()> + Send + Sync;

/// The steps so far. Places are numbered in the order in which their values came to the tape.
pub(crate) struct Tape {
    pub cpu: Cpu,
    record: RefCell<Record>,
}

#[derive(Default)]
struct Record {
    n_places: usize,
    /// Tensors that ask for a gradient, with their places.
    inputs: Vec<(usize, Tensor)>,
    /// Steps, with the places of the values that they made.
    steps: Vec<(usize, Arc<Step>)>,
}

impl Value {
    /// The value of a tensor, which begins a tape if it is on the CPU.
    ///
    /// # Errors
    /// If it is on the CPU and not of a float type, or the environment asks for an instruction set that it lacks.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        if route(tensor.device()) == Route::Composed {
            return Ok(Self::Tensor(tensor.clone()));
        }
        let tape = Rc::new(Tape {
            cpu: cpu()?,
            record: RefCell::default(),
        });
        tape.value(tensor).map(Self::Taped)
    }

    /// What `layer` makes of a tensor, computed on a tape by threads that stay awake between its steps.
    ///
    /// # Errors
    /// As for [`Self::of`], and those of `layer`.
    pub fn through(x: &Tensor, layer: impl FnOnce(&Value) -> Result<Value>) -> Result<Tensor> {
        let work = || layer(&Self::of(x)?)?.tensor();
        match route(x.device()) {
            Route::Kernels => with_team(work),
            Route::Composed => work(),
        }
    }

    /// Another tensor beside this value, on the same tape.
    pub fn beside(&self, tensor: &Tensor) -> Result<Self> {
        match self {
            Self::Taped(of) => of.tape.value(tensor).map(Self::Taped),
            Self::Tensor(_) => Ok(Self::Tensor(tensor.clone())),
        }
    }

    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Taped(value) => &value.dims,
            Self::Tensor(tensor) => tensor.dims(),
        }
    }

    /// The last dimension; 1 of a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::Taped(value) => value.data.dtype(),
            Self::Tensor(tensor) => tensor.dtype(),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Taped(_) => Device::Cpu,
            Self::Tensor(tensor) => tensor.device().clone(),
        }
    }

    /// The value in other dimensions.
    pub fn reshape(&self, dims: Vec<usize>) -> Result<Self> {
        match self {
            Self::Tensor(tensor) => Ok(Self::Tensor(tensor.reshape(dims)?)),
            Self::Taped(value) => {
                let mut value = value.whole()?;
                if dims.iter().product::<usize>() != value.elem_count() {
                    bail!("reshape: {:?} as {dims:?}", value.dims);
                }
                let width = dims.last().copied().unwrap_or(1);
                (value.slot.width, value.slot.columns) = (width, 0..width);
                value.dims = dims;
                Ok(Self::Taped(value))
            }
        }
    }

    /// Some columns of the last dimension; nothing is copied.
    pub fn columns(&self, columns: Range<usize>) -> Result<Self> {
        match self {
            Self::Tensor(tensor) => {
                let last = tensor.rank() - 1;
                let part = tensor.narrow(last, columns.start, columns.len())?;
                Ok(Self::Tensor(part))
            }
            Self::Taped(value) => {
                let mut value = value.clone();
                let (first, n) = (value.slot.columns.start, columns.len());
                value.slot.columns = first + columns.start..first + columns.end;
                if let Some(last) = value.dims.last_mut() {
                    *last = n;
                }
                Ok(Self::Taped(value))
            }
        }
    }

    /// The tensor of this value: where it has a gradient, a node of candle's graph.
    pub fn tensor(self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Taped(value) => value.whole()?.finish(),
        }
    }
}

impl Tape {
    /// The value of a tensor, made contiguous.
    fn value(self: &Rc<Self>, tensor: &Tensor) -> Result<Taped> {
        check_float("input", tensor)?;
        let tensor = tensor.contiguous()?;
        let width = tensor.dims().last().copied().unwrap_or(1);
        Ok(Taped {
            tape: self.clone(),
            slot: Slot::whole(self.place(&tensor), width),
            dims: tensor.dims().to_vec(),
            data: Data::Tensor(tensor),
        })
    }

    /// The place of a tensor's gradient; `None` if it asks for none.
    fn place(&self, tensor: &Tensor) -> Option<usize> {
        if !tensor.track_op() {
            return None;
        }
        let mut record = self.record.borrow_mut();
        let id: TensorId = tensor.id();
        if let Some((place, _)) = record.inputs.iter().find(|(_, known)| known.id() == id) {
            return Some(*place);
        }
        let place = record.new_place();
        record.inputs.push((place, tensor.clone()));
        Some(place)
    }
}

impl Record {
    fn new_place(&mut self) -> usize {
        self.n_places += 1;
        self.n_places - 1
    }
}

impl Slot {
    /// All columns.
    pub fn whole(place: Option<usize>, width: usize) -> Self {
        Self {
            place,
            width,
            columns: 0..width,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.columns.len() == self.width
    }
}

impl Taped {
    pub fn cpu(&self) -> Cpu {
        self.tape.cpu
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        let last = self.dims.len().saturating_sub(1);
        self.dims[..last].iter().product()
    }

    pub fn elem_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// A parameter of a step on this value's tape: its numbers, and the place of its gradient.
    pub fn parameter(&self, tensor: &Tensor) -> Result<(Data, Option<usize>)> {
        let readable = match tensor.rank() {
            2 => tensor.clone(),
            _ => tensor.contiguous()?,
        };
        let place = self.tape.place(&readable);
        Ok((Data::Tensor(readable), place))
    }

    /// Another value on this one's tape: itself, or its tensor's value.
    pub fn on_tape(&self, other: &Value) -> Result<Taped> {
        match other {
            Value::Taped(other) if Rc::ptr_eq(&self.tape, &other.tape) => Ok(other.clone()),
            other => self.tape.value(&other.clone().tensor()?),
        }
    }

    /// The value of these results of values and parameters with gradients at these places. If there are any, `step` is
    /// recorded, their backward pass.
    pub fn computed(
        &self,
        (data, dims): (impl Into<Data>, Vec<usize>),
        asks: &[Option<usize>],
        step: impl Fn(&mut Pass, Numbers) -> Result<()> + Send + Sync + 'static,
    ) -> Value {
        let data = data.into();
        let place = asks.iter().any(Option::is_some).then(|| {
            let mut record = self.tape.record.borrow_mut();
            let place = record.new_place();
            record.steps.push((place, Arc::new(step)));
            place
        });
        Value::Taped(Self {
            tape: self.tape.clone(),
            slot: Slot::whole(place, dims.last().copied().unwrap_or(1)),
            data,
            dims,
        })
    }

    /// As [`Self::computed`], of results in this value's dimensions.
    pub fn mapped(
        &self,
        data: impl Into<Data>,
        asks: &[Option<usize>],
        step: impl Fn(&mut Pass, Numbers) -> Result<()> + Send + Sync + 'static,
    ) -> Value {
        self.computed((data, self.dims.clone()), asks, step)
    }

    /// The value without other columns beside it.
    pub fn whole(&self) -> Result<Self> {
        if self.slot.is_whole() {
            return Ok(self.clone());
        }
        let (width, columns) = (self.slot.width, self.slot.columns.clone());
        let mut numbers = Numbers::new(self.dtype(), self.elem_count())?;
        let from = self.data.read();
        copy_columns(from.slice(), width, columns, &mut numbers);
        let slot = self.slot.clone();
        match self.mapped(numbers, &[slot.place], move |pass, dy| pass.add(&slot, dy)) {
            Value::Taped(copy) => Ok(copy),
            Value::Tensor(_) => bail!("a copy on a tape"),
        }
    }

    /// Ends the tape with this value, which is whole.
    fn finish(self) -> Result<Tensor> {
        let numbers = match self.data {
            Data::Tensor(tensor) => return tensor.reshape(self.dims),
            Data::Numbers(numbers) => numbers,
        };
        // Nobody else reads the last value as a rule.
        let numbers =
            Arc::try_unwrap(numbers).unwrap_or_else(|shared| Numbers::copied(shared.slice()));
        let Some(place) = self.slot.place else {
            return numbers.into_tensor(self.dims);
        };
        let record = self.tape.record.borrow();
        let before = |(at, _): &&(usize, Arc<Step>)| *at <= place;
        let inputs = record.inputs.iter().filter(|(at, _)| *at < place);
        let finished = Finished {
            n_places: place + 1,
            output: place,
            inputs: inputs.cloned().collect(),
            steps: record.steps.iter().filter(before).cloned().collect(),
        };
        let inputs: Vec<Tensor> = finished.inputs.iter().map(|(_, t)| t.clone()).collect();
        let result = (numbers.into_storage(), self.dims.into());
        graph::recorded(&inputs, result, finished)
    }
}

/// Copies some columns of rows of `width` numbers.
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
        _ => unreachable!("the copy has the type of what is copied"),
    }
}

impl From<Numbers> for Data {
    fn from(numbers: Numbers) -> Self {
        Self::Numbers(Arc::new(numbers))
    }
}

impl Data {
    pub fn dtype(&self) -> DType {
        match self {
            Self::Numbers(numbers) => numbers.dtype(),
            Self::Tensor(tensor) => tensor.dtype(),
        }
    }

    pub fn read(&self) -> Reading<'_> {
        match self {
            Self::Numbers(numbers) => Reading::Numbers(numbers),
            Self::Tensor(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                Reading::Tensor(Box::new(storage), layout)
            }
        }
    }
}

impl Reading<'_> {
    /// All numbers, of which a tensor's begin at its first one.
    pub fn slice(&self) -> Slice<'_> {
        match self {
            Self::Numbers(numbers) => numbers.slice(),
            Self::Tensor(storage, layout) => {
                let all = storage_slice(storage);
                // A view without elements may begin behind the last one.
                let start = layout.start_offset().min(all.len());
                let end = match layout.is_contiguous() {
                    true => (start + layout.shape().elem_count()).min(all.len()),
                    false => all.len(),
                };
                all.part(start..end)
            }
        }
    }

    /// A matrix of any strides, as a parameter may be; `shape` is that of numbers without a layout.
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

/// The numbers of a tensor's storage, which is on the CPU and of a float type: [`Tape`] takes no others.
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

/// Checks that the type of a tensor is a float.
pub(crate) fn check_float(op: &str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Ok(()),
        other => bail!(
            "{op}: the input is {other:?}; expected F32, F64, F16 or BF16, convert it with to_dtype"
        ),
    }
}

#[cfg(test)]
mod tests;
