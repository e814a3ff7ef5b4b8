//! Sums, factors and conversions of values.

use candle_blocks_kernels::rows::{column_sums, elements};
use candle_core::{DType, Result, Tensor, bail};

use super::tape::{Data, Slot, Step, Taped, Value};
use super::{backward::Pass, composed, numbers::Numbers};

impl Value {
    /// `self + other`, of one shape.
    pub fn add(&self, other: &Value) -> Result<Value> {
        if self.dims() != other.dims() {
            bail!("sum: {:?} and {:?}", self.dims(), other.dims());
        }
        match self {
            Self::Tensor(x) => Ok(Self::Tensor((x + other.clone().tensor()?)?)),
            Self::Taped(x) => {
                let (x, other) = (x.whole()?, x.on_tape(other)?.whole()?);
                let mut y = x.copy();
                elements::add(x.cpu(), y.slice_mut(), other.data.read().slice());
                let slots = [x.slot.clone(), other.slot];
                let asks = [slots[0].place, slots[1].place];
                Ok(x.computed((y, x.dims().to_vec()), &asks, |_| Sum { slots }))
            }
        }
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
        match self {
            Self::Tensor(x) => Ok(Self::Tensor(composed::scaled(x, factor)?)),
            Self::Taped(x) => {
                let x = x.whole()?;
                let mut y = x.copy();
                elements::scale(x.cpu(), y.slice_mut(), factor);
                let slot = x.slot.clone();
                Ok(
                    x.computed((y, x.dims().to_vec()), &[slot.place], |_| Scaled {
                        slot,
                        factor,
                    }),
                )
            }
        }
    }

    /// Each row times a vector, as long as a row, element by element.
    pub fn multiply_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        match self {
            Self::Tensor(x) => Ok(Self::Tensor(x.broadcast_mul(vector)?)),
            Self::Taped(x) => {
                let x = x.whole()?;
                let (vector, of_vector) = x.parameter(vector)?;
                let mut y = x.copy();
                elements::multiply_rows(x.cpu(), y.slice_mut(), vector.read().slice());
                let asks = [x.slot.place, of_vector];
                Ok(
                    x.computed((y, x.dims().to_vec()), &asks, |_| MultipliedRows {
                        x: of_vector.map(|_| x.data.clone()),
                        of_x: x.slot.clone(),
                        vector,
                        of_vector,
                    }),
                )
            }
        }
    }

    /// Each row plus a vector, as long as a row.
    pub fn add_to_rows(&self, vector: &Tensor) -> Result<Value> {
        self.check_vector(vector)?;
        match self {
            Self::Tensor(x) => Ok(Self::Tensor(x.broadcast_add(vector)?)),
            Self::Taped(x) => {
                let x = x.whole()?;
                let (vector, of_vector) = x.parameter(vector)?;
                let mut y = x.copy();
                elements::add_to_rows(x.cpu(), y.slice_mut(), vector.read().slice());
                let (slot, width) = (x.slot.clone(), x.slot.width);
                let asks = [slot.place, of_vector];
                Ok(x.computed((y, x.dims().to_vec()), &asks, |_| AddedToRows {
                    slot,
                    of_vector,
                    width,
                }))
            }
        }
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
        match self {
            Self::Tensor(x) => Ok(Self::Tensor(x.clamp(-limit, limit)?)),
            Self::Taped(x) => {
                let x = x.whole()?;
                let mut y = x.copy();
                elements::clamp(x.cpu(), y.slice_mut(), limit);
                let slot = x.slot.clone();
                Ok(
                    x.computed((y, x.dims().to_vec()), &[slot.place], |_| Clamped {
                        x: x.data.clone(),
                        slot,
                        limit,
                    }),
                )
            }
        }
    }

    /// The value in another type; on the CPU, between f32 and a half type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Value> {
        match self {
            other if other.dtype() == dtype => Ok(other.clone()),
            Self::Tensor(x) => Ok(Self::Tensor(x.to_dtype(dtype)?)),
            Self::Taped(x) => {
                let x = x.whole()?;
                let mut y = Numbers::new(dtype, x.elem_count())?;
                elements::convert(x.cpu(), x.data.read().slice(), y.slice_mut());
                let (slot, from) = (x.slot.clone(), x.dtype());
                Ok(
                    x.computed((y, x.dims().to_vec()), &[slot.place], |_| Converted {
                        slot,
                        from,
                    }),
                )
            }
        }
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

struct Sum {
    slots: [Slot; 2],
}

impl Step for Sum {
    fn backward(&self, pass: &mut Pass, dy: Numbers) -> Result<()> {
        if self.slots[0].place.is_some() && self.slots[1].place.is_some() {
            pass.add(&self.slots[1], Numbers::copied(dy.slice()))?;
            return pass.add(&self.slots[0], dy);
        }
        let asks = self.slots.iter().find(|slot| slot.place.is_some());
        asks.map_or(Ok(()), |slot| pass.add(slot, dy))
    }
}

struct Scaled {
    slot: Slot,
    factor: f64,
}

impl Step for Scaled {
    fn backward(&self, pass: &mut Pass, mut dy: Numbers) -> Result<()> {
        elements::scale(pass.cpu, dy.slice_mut(), self.factor);
        pass.add(&self.slot, dy)
    }
}

struct MultipliedRows {
    /// Read for the vector's gradient.
    x: Option<Data>,
    of_x: Slot,
    vector: Data,
    of_vector: Option<usize>,
}

impl Step for MultipliedRows {
    fn backward(&self, pass: &mut Pass, mut dy: Numbers) -> Result<()> {
        if let Some(x) = &self.x {
            let mut products = Numbers::copied(dy.slice());
            elements::multiply(pass.cpu, products.slice_mut(), x.read().slice());
            let mut dvector = Numbers::new(dy.dtype(), self.of_x.width)?;
            column_sums(pass.cpu, products.slice(), dvector.slice_mut());
            pass.add_parameter(self.of_vector, dvector)?;
        }
        if self.of_x.place.is_some() {
            elements::multiply_rows(pass.cpu, dy.slice_mut(), self.vector.read().slice());
        }
        pass.add(&self.of_x, dy)
    }
}

struct AddedToRows {
    slot: Slot,
    of_vector: Option<usize>,
    width: usize,
}

impl Step for AddedToRows {
    fn backward(&self, pass: &mut Pass, dy: Numbers) -> Result<()> {
        if self.of_vector.is_some() {
            let mut dvector = Numbers::new(dy.dtype(), self.width)?;
            column_sums(pass.cpu, dy.slice(), dvector.slice_mut());
            pass.add_parameter(self.of_vector, dvector)?;
        }
        pass.add(&self.slot, dy)
    }
}

struct Clamped {
    x: Data,
    slot: Slot,
    limit: f64,
}

impl Step for Clamped {
    fn backward(&self, pass: &mut Pass, mut dy: Numbers) -> Result<()> {
        elements::clamp_gradient(pass.cpu, dy.slice_mut(), self.x.read().slice(), self.limit);
        pass.add(&self.slot, dy)
    }
}

struct Converted {
    slot: Slot,
    from: DType,
}

impl Step for Converted {
    fn backward(&self, pass: &mut Pass, dy: Numbers) -> Result<()> {
        let mut dx = Numbers::new(self.from, dy.len())?;
        elements::convert(pass.cpu, dy.slice(), dx.slice_mut());
        pass.add(&self.slot, dx)
    }
}
