//! Sums, factors and type conversions for values.

use candle_blocks_kernels::{Cpu, rows::elements};
use candle_core::{DType, Result, Tensor, bail};

use super::array::wide;
use super::kernels::{owned, same_types};
use super::numbers::{Number, Numbers};
use super::recorder::record;
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};

impl Value {
    /// Computes `self + other`, for equal shapes.
    pub fn add(&self, other: &Value) -> Result<Value> {
        if self.dims() != other.dims() {
            bail!("sum: {:?} and {:?}", self.dims(), other.dims());
        }
        on_either!(self, x => Ok(x.add(&x.on_tape(other)?)?.into()))
    }

    /// Computes `residual + self`, or returns `self` without a residual.
    pub fn added_to(self, residual: Option<&Value>) -> Result<Value> {
        let Some(residual) = residual else {
            return Ok(self);
        };
        match (self, residual) {
            (Self::Kernels(x), Self::Kernels(residual))
                if x.dims() == residual.dims() && x.can_be_added_to(residual) =>
            {
                let engine = x.engine();
                let sum = x.with_data(|data| {
                    let mut sum = owned(data)?;
                    elements::add(engine, sum.slice_mut(), residual.data.read().slice());
                    Ok(sum.into())
                });
                Ok(sum?.into())
            }
            (branch, residual) => residual.add(&branch),
        }
    }

    /// Computes `factor · self`. With factor 0 the gradient is zeros rather than `None`, as in PyTorch.
    pub fn scale(&self, factor: f64) -> Result<Value> {
        on_either!(self, x => Ok(x.scale(factor)?.into()))
    }

    /// Computes `factor · self`, or returns `self` if the factor is 1.
    pub fn multiplied(self, factor: f64) -> Result<Value> {
        match factor {
            1.0 => Ok(self),
            _ => self.scale(factor),
        }
    }

    /// Multiplies each row by a vector, elementwise.
    pub fn multiply_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        on_either!(self, x => Ok(x.multiply_rows(vector)?.into()))
    }

    /// Multiplies by `number`, a tensor `[1]` that gets no gradient.
    pub fn scale_by(&self, number: &Tensor) -> Result<Value> {
        let each = number.detach().broadcast_as(self.width())?;
        record("copy", &each)?;
        self.multiply_rows(&each.contiguous()?)
    }

    /// Adds a vector to each row.
    pub fn add_to_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        on_either!(self, x => Ok(x.add_to_rows(vector)?.into()))
    }

    /// Returns, for each row, the mean product with the same row in `other`, as a column.
    pub fn mean_products(&self, other: &Value) -> Result<Value> {
        if self.dims() != other.dims() {
            bail!("mean of products: {:?} and {:?}", self.dims(), other.dims());
        }
        on_either!(self, x => Ok(x.mean_products(&x.on_tape(other)?)?.into()))
    }

    fn check_vector(&self, vector: &Tensor) -> Result<()> {
        if vector.dims() != [self.width()] || vector.dtype() != self.dtype() {
            bail!(
                "a vector of {:?} {:?} for rows of {:?} {:?}",
                vector.dtype(),
                vector.dims(),
                self.dtype(),
                self.dims()
            );
        }
        Ok(())
    }

    /// Computes `min(max(self, low), high)`.
    pub fn clamp(&self, bounds: [f64; 2]) -> Result<Value> {
        on_either!(self, x => Ok(x.clamp(bounds)?.into()))
    }

    /// Computes `self + offset`.
    pub fn shift(&self, offset: f64) -> Result<Value> {
        on_either!(self, x => Ok(x.shift(offset)?.into()))
    }

    /// Converts to another type; on the CPU, between f32 and a half type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Value> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        on_either!(self, x => Ok(x.to_dtype(dtype)?.into()))
    }

    /// Converts half types to f32, and leaves other types unchanged.
    pub fn widened(&self) -> Result<Value> {
        self.to_dtype(wide(self.dtype()))
    }
}

impl Taped<Cpu> {
    /// Returns whether a residual can be added in place.
    fn can_be_added_to(&self, residual: &Self) -> bool {
        let is_plain = |of: &Self| of.slot.place.is_none() && of.slot.is_whole();
        is_plain(self) && is_plain(residual) && self.dtype() == residual.dtype()
    }

    /// Copies the elements. The value must be whole.
    pub(super) fn copy(&self) -> Result<Numbers> {
        Numbers::copied(self.data.read().slice())
    }

    pub(super) fn add(&self, other: &Self) -> Result<Self> {
        let (x, other) = (self.whole()?, other.whole()?);
        let mut y = x.copy()?;
        elements::add(x.engine(), y.slice_mut(), other.data.read().slice());
        let slots = [x.slot.clone(), other.slot];
        let asks = [slots[0].place, slots[1].place];
        Ok(x.mapped(y, &asks, move |pass, dy| {
            if asks.iter().all(Option::is_some) {
                pass.add(&slots[1], Numbers::copied(dy.slice())?)?;
                return pass.add(&slots[0], dy);
            }
            let asks = slots.iter().find(|slot| slot.place.is_some());
            asks.map_or(Ok(()), |slot| pass.add(slot, dy))
        }))
    }

    fn scale(&self, factor: f64) -> Result<Self> {
        let x = self.whole()?;
        let mut y = x.copy()?;
        elements::scale(x.engine(), y.slice_mut(), factor);
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            elements::scale(pass.engine, dy.slice_mut(), factor);
            pass.add(&slot, dy)
        }))
    }

    fn multiply_rows(&self, vector: &Tensor) -> Result<Self> {
        let x = self.whole()?;
        let (vector, of_vector) = x.parameter(vector, Reads::Both)?;
        let mut y = x.copy()?;
        elements::multiply_rows(x.engine(), y.slice_mut(), vector.read().slice());
        // Only the vector's gradient reads the rows.
        let (data, slot) = (of_vector.map(|_| x.data.clone()), x.slot.clone());
        Ok(x.mapped(y, &[slot.place, of_vector], move |pass, mut dy| {
            if let Some(x) = &data {
                let mut products = Numbers::copied(dy.slice())?;
                elements::multiply(pass.engine, products.slice_mut(), x.read().slice());
                pass.add_column_sums(of_vector, &products, slot.width)?;
            }
            if slot.place.is_some() {
                elements::multiply_rows(pass.engine, dy.slice_mut(), vector.read().slice());
            }
            pass.add(&slot, dy)
        }))
    }

    fn add_to_rows(&self, vector: &Tensor) -> Result<Self> {
        let x = self.whole()?;
        let (vector, of_vector) = x.parameter(vector, Reads::Forward)?;
        let mut y = x.copy()?;
        elements::add_to_rows(x.engine(), y.slice_mut(), vector.read().slice());
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place, of_vector], move |pass, dy| {
            pass.add_column_sums(of_vector, &dy, slot.width)?;
            pass.add(&slot, dy)
        }))
    }

    fn mean_products(&self, other: &Self) -> Result<Self> {
        let (x, other) = (self.whole()?, other.whole()?);
        let (n_rows, width) = (x.rows(), x.slot.width.max(1));
        let mut y = Numbers::new(x.dtype(), n_rows)?;
        same_types!(
            y.slice_mut(),
            x.data.read().slice(),
            other.data.read().slice(),
            |y, x, other| means(y, x, other, width)
        );
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = 1;
        }
        let of_each = [
            (x.slot.clone(), other.data.clone()),
            (other.slot, x.data.clone()),
        ];
        let asks = [of_each[0].0.place, of_each[1].0.place];
        Ok(x.computed((y, dims), &asks, move |pass, dy| {
            for (slot, beside) in &of_each {
                if slot.place.is_some() {
                    let mut dx = Numbers::new(dy.dtype(), n_rows * slot.width)?;
                    same_types!(
                        dx.slice_mut(),
                        dy.slice(),
                        beside.read().slice(),
                        |dx, dy, beside| mean_gradients(dx, dy, beside, width)
                    );
                    pass.add(slot, dx)?;
                }
            }
            Ok(())
        }))
    }

    fn shift(&self, offset: f64) -> Result<Self> {
        let x = self.whole()?;
        let mut y = x.copy()?;
        elements::shift(x.engine(), y.slice_mut(), offset);
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place], move |pass, dy| pass.add(&slot, dy)))
    }

    fn clamp(&self, bounds: [f64; 2]) -> Result<Self> {
        let x = self.whole()?;
        let mut y = x.copy()?;
        elements::clamp(x.engine(), y.slice_mut(), bounds);
        let (data, slot) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            elements::clamp_gradient(pass.engine, dy.slice_mut(), data.read().slice(), bounds);
            pass.add(&slot, dy)
        }))
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let x = self.whole()?;
        let mut y = Numbers::new(dtype, x.elem_count())?;
        elements::convert(x.engine(), x.data.read().slice(), y.slice_mut());
        let (slot, from) = (x.slot.clone(), x.dtype());
        Ok(x.mapped(y, &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(from, dy.len())?;
            elements::convert(pass.engine, dy.slice(), dx.slice_mut());
            pass.add(&slot, dx)
        }))
    }
}

/// Computes `y = Σ x · other / width` for each row, rounded once.
fn means<T: Number>(y: &mut [T], x: &[T], other: &[T], width: usize) {
    let rows = x.chunks_exact(width).zip(other.chunks_exact(width));
    for (y, (x, other)) in y.iter_mut().zip(rows) {
        let products = x
            .iter()
            .zip(other)
            .map(|(x, other)| x.wide() * other.wide());
        *y = T::rounded(products.sum::<f64>() / width as f64);
    }
}

/// Computes `dx = dy · other / width`, with one `dy` per row.
fn mean_gradients<T: Number>(dx: &mut [T], dy: &[T], other: &[T], width: usize) {
    let rows = dx.chunks_exact_mut(width).zip(other.chunks_exact(width));
    for ((dx, other), dy) in rows.zip(dy) {
        let dy = dy.wide() / width as f64;
        for (dx, other) in dx.iter_mut().zip(other) {
            *dx = T::rounded(dy * other.wide());
        }
    }
}
