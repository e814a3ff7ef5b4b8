//! A tape: a layer's steps, which become one node in candle's graph.
//!
//! Between two nodes candle adds each gradient to a new tensor of zeros, and every tensor is newly allocated. On a
//! tape, gradients are added in a product's epilogue or not at all, and a value lives only as long as a later step
//! or the backward pass reads it.
//!
//! ```text
//! tensor → Value::of → step → step → step → Value::tensor → tensor, one node of the graph
//!                       ↑       ↑ parameters
//! ```
//!
//! An [`Engine`] computes every step at once. If any input requires a gradient, the step's backward pass is
//! recorded: a [`Step`](super::backward::Step), with its result's place. The backward pass runs the steps in reverse.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Result, Tensor, TensorId, bail};

use super::backward::{BackwardPass, Finished, Made};
use super::engine::Engine;
use super::graph;
use super::ranks::Ranks;
use super::slot::Slot;
use super::versions::Version;
use crate::config::Precision;

/// A value on a tape: rows, or some columns of them.
#[doc(hidden)]
pub struct Taped<E: Engine> {
    tape: Rc<Tape<E>>,
    pub slot: Slot,
    /// All columns in the rows.
    pub data: E::Data,
    dims: Vec<usize>,
}

impl<E: Engine> Clone for Taped<E> {
    fn clone(&self) -> Self {
        Self {
            tape: self.tape.clone(),
            slot: self.slot.clone(),
            data: self.data.clone(),
            dims: self.dims.clone(),
        }
    }
}

/// The steps so far. Places are numbered in the order in which values came to the tape.
struct Tape<E: Engine> {
    engine: E,
    /// The precision for linear layers' products.
    precision: Precision,
    record: RefCell<Record<E>>,
}

struct Record<E: Engine> {
    n_places: usize,
    /// Tensors that require a gradient, with their places.
    inputs: Vec<(usize, Tensor)>,
    /// Tensors that the backward pass reads again, as the forward pass found them.
    reads: Vec<(Tensor, Version)>,
    steps: Vec<Made<E>>,
    /// The ranks that compute the steps together, if any.
    ranks: Option<Arc<Ranks>>,
}

/// When a tape reads a tensor.
#[derive(Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Reads {
    /// In the forward pass alone, like a bias.
    Forward,
    /// In the backward pass too, like a weight.
    Both,
}

impl<E: Engine> Record<E> {
    fn new_place(&mut self) -> usize {
        self.n_places += 1;
        self.n_places - 1
    }
}

impl<E: Engine> Tape<E> {
    /// Returns the place for a tensor's gradient, or `None` if it requires none.
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

    /// Notes that the backward pass reads a tensor again.
    fn reads(&self, tensor: &Tensor) {
        let version = Version::of(tensor);
        let mut record = self.record.borrow_mut();
        record.reads.push((tensor.clone(), version));
    }
}

impl<E: Engine> Taped<E> {
    /// Starts a tape with its first value. Linear layers on it multiply in `precision`.
    pub fn begin(tensor: &Tensor, precision: Precision) -> Result<Self> {
        let record = Record {
            n_places: 0,
            inputs: Vec::new(),
            reads: Vec::new(),
            steps: Vec::new(),
            ranks: None,
        };
        let tape = Tape {
            engine: E::new()?,
            precision,
            record: RefCell::new(record),
        };
        Self::value(&Rc::new(tape), tensor)
    }

    fn value(tape: &Rc<Tape<E>>, tensor: &Tensor) -> Result<Self> {
        check_float("input", tensor)?;
        let width = tensor.dims().last().copied().unwrap_or(1);
        let place = tape.place(tensor);
        if place.is_some() {
            tape.reads(tensor);
        }
        Ok(Self {
            tape: tape.clone(),
            slot: Slot::whole(place, width),
            dims: tensor.dims().to_vec(),
            data: E::data(tensor)?,
        })
    }

    /// Returns another tensor as a value on the same tape.
    pub fn beside(&self, tensor: &Tensor) -> Result<Self> {
        Self::value(&self.tape, tensor)
    }

    /// Returns whether two values are on one tape.
    pub fn shares_tape(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.tape, &other.tape)
    }

    /// Returns the place for the gradient of a parameter that a step reads with this value.
    pub fn place(&self, parameter: &Tensor, reads: Reads) -> Option<usize> {
        let place = self.tape.place(parameter);
        // A frozen parameter may be a variable's memory.
        if reads == Reads::Both && (place.is_some() || self.slot.place.is_some()) {
            self.tape.reads(parameter);
        }
        place
    }

    pub fn engine(&self) -> E {
        self.tape.engine
    }

    pub fn precision(&self) -> Precision {
        self.tape.precision
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn dtype(&self) -> DType {
        E::dtype(&self.data)
    }

    /// Returns the row count.
    pub fn rows(&self) -> usize {
        let last = self.dims.len().saturating_sub(1);
        self.dims[..last].iter().product()
    }

    pub fn elem_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the value in other dimensions.
    pub fn reshape(&self, dims: Vec<usize>) -> Result<Self> {
        let mut value = self.whole()?;
        if dims.iter().product::<usize>() != value.elem_count() {
            bail!("reshape: {:?} as {dims:?}", value.dims);
        }
        let width = dims.last().copied().unwrap_or(1);
        value.data = E::reshaped(value.data, &dims)?;
        (value.slot.width, value.slot.columns) = (width, 0..width);
        value.dims = dims;
        Ok(value)
    }

    /// Changes the data of a value without a gradient.
    pub fn with_data(self, change: impl FnOnce(E::Data) -> Result<E::Data>) -> Result<Self> {
        let data = change(self.data)?;
        Ok(Self { data, ..self })
    }

    /// Returns some columns in the last dimension, without a copy.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        let mut value = self.clone();
        let (first, n) = (value.slot.columns.start, columns.len());
        value.slot.columns = first + columns.start..first + columns.end;
        if let Some(last) = value.dims.last_mut() {
            *last = n;
        }
        value
    }

    /// Wraps a step's result as a value. `asks` holds the places for the inputs' gradients. If there are any, `step`
    /// is recorded as their backward pass.
    pub fn computed(
        &self,
        (data, dims): (impl Into<E::Data>, Vec<usize>),
        asks: &[Option<usize>],
        step: impl Fn(&mut BackwardPass<E>, E::Output) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let data = data.into();
        let place = asks.iter().any(Option::is_some).then(|| {
            let mut record = self.tape.record.borrow_mut();
            let place = record.new_place();
            record.steps.push((place, dims.clone(), Arc::new(step)));
            place
        });
        Self {
            tape: self.tape.clone(),
            slot: Slot::whole(place, dims.last().copied().unwrap_or(1)),
            data,
            dims,
        }
    }

    /// Like [`Self::computed`], for a result with this value's dimensions.
    pub fn mapped(
        &self,
        data: impl Into<E::Data>,
        asks: &[Option<usize>],
        step: impl Fn(&mut BackwardPass<E>, E::Output) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.computed((data, self.dims.clone()), asks, step)
    }

    /// Returns the value without other columns beside it.
    pub fn whole(&self) -> Result<Self> {
        if self.slot.is_whole() {
            return Ok(self.clone());
        }
        let slot = self.slot.clone();
        let copy = E::copied(&self.data, &slot, &self.dims)?;
        Ok(self.mapped(copy, &[slot.place], move |pass, dy| pass.add(&slot, dy)))
    }

    /// Sets the ranks that compute the next steps together.
    pub fn divide(&self, ranks: &Arc<Ranks>) {
        self.tape.record.borrow_mut().ranks = Some(ranks.clone());
    }

    /// Ends the tape with this value.
    pub fn finish(self) -> Result<Tensor> {
        let Self {
            tape,
            slot,
            data,
            dims,
        } = self.whole()?;
        drop(self);
        let Some(place) = slot.place else {
            return E::tensor(data, &dims);
        };
        let record = tape.record.borrow();
        if let Some((_, input)) = record.inputs.iter().find(|(at, _)| *at == place) {
            return input.reshape(dims);
        }
        let inputs = record.inputs.iter().filter(|(at, _)| *at < place);
        let steps = record.steps.iter().filter(|(at, ..)| *at <= place);
        let finished = Finished::<E> {
            output: place,
            inputs: inputs.cloned().collect(),
            reads: record.reads.clone(),
            steps: Mutex::new(Some(steps.cloned().collect())),
            ranks: record.ranks.clone(),
        };
        let inputs: Vec<Tensor> = finished.inputs.iter().map(|(_, t)| t.clone()).collect();
        graph::recorded(&inputs, E::result(data, &dims)?, finished)
    }
}

/// Checks that a tensor has a float type.
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
