//! Operations between the router and the experts in a mixture.

use std::ops::{AddAssign, Mul, Range};
use std::sync::Arc;

use candle_blocks_kernels::Cpu;
use candle_core::{Device, Result, Tensor, bail};

use super::array::Array;
use super::engine::Engine;
use super::kernels::{Data, same_type, same_types};
use super::numbers::{Number, Numbers, widened};
use super::slot::Slot;
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};
use crate::config::Activation;

/// Column indices in a matrix, with the same count for each row, row by row.
pub(crate) enum ExpertColumns {
    Host(Vec<u32>),
    /// Known on a device only.
    Device(Array),
}

impl Value {
    /// Downloads all elements, and waits for the device.
    pub fn on_host(&self) -> Result<Vec<f64>> {
        match self {
            Self::Kernels(x) => Ok(widened(x.whole()?.data.read().slice())),
            Self::Composed(x) => x.data.download(),
        }
    }

    /// Gathers `n` columns from each row.
    pub(crate) fn gather(&self, columns: &ExpertColumns, n: usize) -> Result<Value> {
        match (self, columns) {
            (Self::Kernels(x), ExpertColumns::Host(columns)) => Ok(x.gather(columns, n)?.into()),
            (Self::Composed(x), ExpertColumns::Host(columns)) => {
                let dims = [x.rows(), n];
                let ids = Array::upload_ids(columns.clone(), &dims, x.data.device())?;
                Ok(x.gather(ids)?.into())
            }
            (Self::Composed(x), ExpertColumns::Device(ids)) => Ok(x.gather(ids.clone())?.into()),
            (Self::Kernels(_), ExpertColumns::Device(_)) => {
                bail!("column indices on a device do not fit a value on the CPU")
            }
        }
    }

    /// Returns, for each list, the rows `[rows, width]` with its indices. A row may occur in several lists.
    pub fn deal_rows(&self, rows: &[Vec<u32>]) -> Result<Vec<Value>> {
        on_either!(self, x => Ok(x.deal_rows(rows)?.into_iter().map(Value::from).collect()))
    }

    /// Returns `Σ weight · row` over the experts' rows that belong to each row in this value, in expert order. For
    /// each expert's rows, `places` holds their indices in `weights`, a matrix with this value's rows and `top_k`
    /// columns.
    pub fn mixed(
        &self,
        weights: &Value,
        experts: &[(Value, Vec<usize>)],
        top_k: usize,
    ) -> Result<Value> {
        on_either!(self, x => {
            let on_tape = |(rows, places): &(Value, Vec<usize>)| Ok((x.on_tape(rows)?, places.clone()));
            let experts = experts.iter().map(on_tape).collect::<Result<Vec<_>>>()?;
            Ok(x.mixed(&x.on_tape(weights)?, experts, top_k)?.into())
        })
    }

    /// Returns ones in the same shape.
    pub fn ones(&self) -> Result<Value> {
        let ones = match self {
            Self::Kernels(x) => Tensor::ones(x.dims(), x.dtype(), &Device::Cpu)?,
            Self::Composed(x) => {
                Array::filled(1.0, x.dims(), x.dtype(), x.data.device())?.into_tensor()
            }
        };
        self.beside(&ones)
    }

    /// Computes `sigmoid(gate) · self`, for a gate with one column.
    pub fn gated_rows(&self, gate: &Value) -> Result<Value> {
        self.times_column(&gate.activate(Activation::Sigmoid)?)
    }

    /// Multiplies each row by its element in a column.
    pub fn times_column(&self, column: &Value) -> Result<Value> {
        on_either!(self, x => Ok(x.times_column(&x.on_tape(column)?)?.into()))
    }

    /// Returns this value, and gives parameters on which it does not depend a gradient of 0.
    pub fn beside_idle(&self, parameters: &[&Tensor]) -> Result<Value> {
        on_either!(self, x => Ok(x.beside_idle(parameters)?.into()))
    }
}

impl Taped<Cpu> {
    fn gather(&self, columns: &[u32], n: usize) -> Result<Self> {
        let x = self.whole()?;
        let (rows, width) = (x.rows(), x.slot.width);
        let column_places = Arc::new(columns.iter().map(|&c| c as usize).collect::<Vec<_>>());
        let mut y = Numbers::new(x.dtype(), rows * n)?;
        same_type!(y.slice_mut(), x.data.read().slice(), |to, from| {
            for (i, (to, &column)) in to.iter_mut().zip(column_places.iter()).enumerate() {
                *to = from[i / n * width + column];
            }
        });
        let slot = x.slot.clone();
        Ok(
            x.computed((y, vec![rows, n]), &[slot.place], move |pass, dy| {
                let mut dx = Numbers::zeros(dy.dtype(), rows * width)?;
                same_type!(dx.slice_mut(), dy.slice(), |to, from| {
                    for (i, (&from, &column)) in from.iter().zip(column_places.iter()).enumerate() {
                        to[i / n * width + column] += from;
                    }
                });
                pass.add(&slot, dx)
            }),
        )
    }

    fn deal_rows(&self, rows: &[Vec<u32>]) -> Result<Vec<Self>> {
        rows.iter()
            .map(|rows| self.select_rows(rows.clone()))
            .collect()
    }

    fn select_rows(&self, rows: Vec<u32>) -> Result<Self> {
        let x = self.whole()?;
        let (n_rows, width) = (x.rows(), x.slot.width);
        let mut y = Numbers::new(x.dtype(), rows.len() * width)?;
        same_type!(y.slice_mut(), x.data.read().slice(), |to, from| {
            for (to, &row) in to.chunks_exact_mut(width.max(1)).zip(&rows) {
                to.copy_from_slice(&from[row as usize * width..][..width]);
            }
        });
        let (slot, dims) = (x.slot.clone(), vec![rows.len(), width]);
        Ok(x.computed((y, dims), &[slot.place], move |pass, dy| {
            let mut sum = match pass.take(&slot) {
                Some(sum) => sum,
                None => Numbers::zeros(dy.dtype(), n_rows * width)?,
            };
            same_type!(sum.slice_mut(), dy.slice(), |to, from| {
                for (from, &row) in from.chunks_exact(width.max(1)).zip(&rows) {
                    let to = &mut to[row as usize * width..][..width];
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
                }
            });
            pass.add(&slot, sum)
        }))
    }

    fn mixed(
        &self,
        weights: &Self,
        experts: Vec<(Self, Vec<usize>)>,
        top_k: usize,
    ) -> Result<Self> {
        let width = self.slot.width;
        let weights = weights.whole()?;
        let mut y = Numbers::zeros(self.dtype(), self.elem_count())?;
        for (expert, places) in &experts {
            let among = Among {
                places,
                top_k,
                width,
            };
            let (rows, weights) = (expert.data.read(), weights.data.read());
            same_types!(
                y.slice_mut(),
                rows.slice(),
                weights.slice(),
                |to, rows, weights| { among.add(to, rows, weights) }
            );
        }
        let asks = experts.iter().map(|(expert, _)| expert.slot.place);
        let asks: Vec<_> = asks.chain([weights.slot.place]).collect();
        let (weights_data, slot) = (weights.data.clone(), weights.slot.clone());
        let n_weights = weights.elem_count();
        let part = |(expert, places): (Self, _)| (expert.slot, expert.data, places);
        let experts: Vec<(Slot, Data, Vec<usize>)> = experts.into_iter().map(part).collect();
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let mut dweights = Numbers::zeros(dy.dtype(), n_weights)?;
            for (of_rows, rows, places) in &experts {
                let among = Among {
                    places,
                    top_k,
                    width,
                };
                if of_rows.place.is_some() {
                    let mut drows = Numbers::new(dy.dtype(), places.len() * width)?;
                    let weights = weights_data.read();
                    same_types!(
                        drows.slice_mut(),
                        dy.slice(),
                        weights.slice(),
                        |to, dy, weights| { among.row_gradients(to, dy, weights) }
                    );
                    pass.add(of_rows, drows)?;
                }
                if slot.place.is_some() {
                    let rows = rows.read();
                    same_types!(
                        dweights.slice_mut(),
                        dy.slice(),
                        rows.slice(),
                        |to, dy, rows| { among.weight_gradients(to, dy, rows) }
                    );
                }
            }
            pass.add(&slot, dweights)
        }))
    }

    fn times_column(&self, column: &Self) -> Result<Self> {
        let x = self.whole()?;
        let places = (0..x.rows()).collect();
        x.mixed(column, vec![(x.clone(), places)], 1)
    }
}

/// An expert's rows in a mixture: their indices in the weights, `top_k` per row in the mixture.
struct Among<'a> {
    places: &'a [usize],
    top_k: usize,
    width: usize,
}

impl Among<'_> {
    /// Returns the mixture's row for a weight index.
    fn row(&self, place: usize) -> Range<usize> {
        let start = place / self.top_k * self.width;
        start..start + self.width
    }

    /// Computes `to += weight · row`.
    fn add<T: Number + Mul<Output = T> + AddAssign>(
        &self,
        to: &mut [T],
        rows: &[T],
        weights: &[T],
    ) {
        for (row, &place) in rows.chunks_exact(self.width.max(1)).zip(self.places) {
            let to = to[self.row(place)].iter_mut().zip(row);
            to.for_each(|(to, &from)| *to += from * weights[place]);
        }
    }

    /// Computes `to = weight · dy`.
    fn row_gradients<T: Number + Mul<Output = T>>(&self, to: &mut [T], dy: &[T], weights: &[T]) {
        for (to, &place) in to.chunks_exact_mut(self.width.max(1)).zip(self.places) {
            let to = to.iter_mut().zip(&dy[self.row(place)]);
            to.for_each(|(to, &dy)| *to = dy * weights[place]);
        }
    }

    /// Computes `to = Σ dy · row`, rounded once.
    fn weight_gradients<T: Number>(&self, to: &mut [T], dy: &[T], rows: &[T]) {
        for (row, &place) in rows.chunks_exact(self.width.max(1)).zip(self.places) {
            let products = dy[self.row(place)].iter().zip(row);
            let products = products.map(|(dy, row)| dy.wide() * row.wide());
            to[place] = T::rounded(products.sum());
        }
    }
}

impl<E: Engine> Taped<E> {
    fn beside_idle(&self, parameters: &[&Tensor]) -> Result<Self> {
        let idle = parameters
            .iter()
            .filter_map(|of| Some((self.place(of, Reads::Forward)?, of.dims().to_vec())));
        let idle: Vec<(usize, Vec<usize>)> = idle.collect();
        let x = self.whole()?;
        if idle.is_empty() {
            return Ok(x);
        }
        let slot = x.slot.clone();
        Ok(x.mapped(
            x.data.clone(),
            &[Some(idle[0].0), slot.place],
            move |pass, dy| {
                for (place, dims) in &idle {
                    let width = dims.last().copied().unwrap_or(1);
                    pass.add(&Slot::whole(Some(*place), width), E::zeros(&dy, dims)?)?;
                }
                pass.add(&slot, dy)
            },
        ))
    }
}
