//! Sums, factors and conversions of values.

use candle_blocks_kernels::rows::elements;
use candle_core::{DType, Result, Tensor, bail};

use super::tape::{Taped, Value};
use super::{composed, numbers::Numbers};

impl Value {
    /// `self + other`, of one shape.
    pub fn add(&self, other: &Value) -> Result<Value> {
        if self.dims() != other.dims() {
            bail!("sum: {:?} and {:?}", self.dims(), other.dims());
        }
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor((x + other.clone().tensor()?)?)),
            Self::Taped(x) => x.whole()?,
        };
        let other = x.on_tape(other)?.whole()?;
        let mut y = x.copy();
        elements::add(x.cpu(), y.slice_mut(), other.data.read().slice());
        let slots = [x.slot.clone(), other.slot];
        let asks = [slots[0].place, slots[1].place];
        Ok(x.mapped(y, &asks, move |pass, dy| {
            if asks.iter().all(Option::is_some) {
                pass.add(&slots[1], Numbers::copied(dy.slice()))?;
                return pass.add(&slots[0], dy);
            }
            let asks = slots.iter().find(|slot| slot.place.is_some());
            asks.map_or(Ok(()), |slot| pass.add(slot, dy))
        }))
    }

    /// `residual + self`, or `self` where there is none.
    pub fn added_to(self, residual: Option<&Value>) -> Result<Value> {
        match residual {
            Some(residual) => residual.add(&self),
            None => Ok(self),
        }
    }

    /// `factor · self`. A factor of 0 gives zeros as gradient, as in PyTorch, and not none.
    pub fn scale(&self, factor: f64) -> Result<Value> {
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(composed::scaled(x, factor)?)),
            Self::Taped(x) => x.whole()?,
        };
        let mut y = x.copy();
        elements::scale(x.cpu(), y.slice_mut(), factor);
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            elements::scale(pass.cpu, dy.slice_mut(), factor);
            pass.add(&slot, dy)
        }))
    }

    /// Each row times a vector, as long as a row, element by element.
    pub fn multiply_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(x.broadcast_mul(vector)?)),
            Self::Taped(x) => x.whole()?,
        };
        let (vector, of_vector) = x.parameter(vector)?;
        let mut y = x.copy();
        elements::multiply_rows(x.cpu(), y.slice_mut(), vector.read().slice());
        // The vector's gradient alone reads the rows.
        let (data, slot) = (of_vector.map(|_| x.data.clone()), x.slot.clone());
        Ok(x.mapped(y, &[slot.place, of_vector], move |pass, mut dy| {
            if let Some(x) = &data {
                let mut products = Numbers::copied(dy.slice());
                elements::multiply(pass.cpu, products.slice_mut(), x.read().slice());
                pass.add_column_sums(of_vector, &products, slot.width)?;
            }
            if slot.place.is_some() {
                elements::multiply_rows(pass.cpu, dy.slice_mut(), vector.read().slice());
            }
            pass.add(&slot, dy)
        }))
    }

    /// Each row plus a vector, as long as a row.
    pub fn add_to_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(x.broadcast_add(vector)?)),
            Self::Taped(x) => x.whole()?,
        };
        let (vector, of_vector) = x.parameter(vector)?;
        let mut y = x.copy();
        elements::add_to_rows(x.cpu(), y.slice_mut(), vector.read().slice());
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place, of_vector], move |pass, dy| {
            pass.add_column_sums(of_vector, &dy, slot.width)?;
            pass.add(&slot, dy)
        }))
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

    /// `min(max(self, -limit), limit)`.
    pub fn clamp(&self, limit: f64) -> Result<Value> {
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(x.clamp(-limit, limit)?)),
            Self::Taped(x) => x.whole()?,
        };
        let mut y = x.copy();
        elements::clamp(x.cpu(), y.slice_mut(), limit);
        let (data, slot) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            elements::clamp_gradient(pass.cpu, dy.slice_mut(), data.read().slice(), limit);
            pass.add(&slot, dy)
        }))
    }

    /// The value in another type; on the CPU, between f32 and a half type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Value> {
        let x = match self {
            other if other.dtype() == dtype => return Ok(other.clone()),
            Self::Tensor(x) => return Ok(Self::Tensor(x.to_dtype(dtype)?)),
            Self::Taped(x) => x.whole()?,
        };
        let mut y = Numbers::new(dtype, x.elem_count())?;
        elements::convert(x.cpu(), x.data.read().slice(), y.slice_mut());
        let (slot, from) = (x.slot.clone(), x.dtype());
        Ok(x.mapped(y, &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(from, dy.len())?;
            elements::convert(pass.cpu, dy.slice(), dx.slice_mut());
            pass.add(&slot, dx)
        }))
    }

    /// The value in the type that products of its type, and softmax and sums between them, are computed in on its device:
    /// f32 for half types on the CPU.
    pub fn in_product_type(&self) -> Result<Value> {
        match (self, self.dtype()) {
            (Self::Taped(_), DType::F16 | DType::BF16) => self.to_dtype(DType::F32),
            _ => Ok(self.clone()),
        }
    }
}

impl Taped {
    /// A copy of its numbers, which are whole.
    pub(super) fn copy(&self) -> Numbers {
        Numbers::copied(self.data.read().slice())
    }
}
