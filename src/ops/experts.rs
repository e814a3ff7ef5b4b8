//! What a mixture of experts does between its router and its experts.

use std::sync::Arc;

use candle_blocks_kernels::{Cpu, Slice, SliceMut};
use candle_core::{Result, Tensor, bail};

use half::{bf16, f16};

use crate::config::Activation;

use super::kernels::{Data, same_type};
use super::numbers::Numbers;
use super::tape::{Slot, Taped};
use super::value::{Value, on_either};

impl Value {
    /// All numbers on the host, for which a device is waited for.
    pub fn on_host(&self) -> Result<Vec<f64>> {
        match self {
            Self::Kernels(x) => Ok(match x.whole()?.data.read().slice() {
                Slice::F32(numbers) => numbers.iter().map(|&v| v.into()).collect(),
                Slice::F64(numbers) => numbers.to_vec(),
                Slice::F16(numbers) => numbers.iter().map(|&v| v.into()).collect(),
                Slice::Bf16(numbers) => numbers.iter().map(|&v| v.into()).collect(),
            }),
            Self::Composed(x) => x.data.download(),
        }
    }

    /// Of each of these rows the columns with its numbers, `n` of each row.
    pub fn gather(&self, columns: &[u32], n: usize) -> Result<Value> {
        on_either!(self, x => Ok(x.gather(columns, n)?.into()))
    }

    /// For each list the rows with its numbers, of `[rows, width]`; a row may stand in several.
    pub fn deal_rows(&self, rows: &[Vec<u32>]) -> Result<Vec<Value>> {
        on_either!(self, x => Ok(x.deal_rows(rows)?.into_iter().map(Value::from).collect()))
    }

    /// `Σ weight · row` over the rows of `experts` that belong to a row of this value, in the order of the experts. For each
    /// expert `places` has the numbers in `weights`, this value's rows by `top_k`, of each of its rows.
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

    /// `sigmoid(gate) · self`, of a gate of one column.
    pub fn gated_rows(&self, gate: &Value) -> Result<Value> {
        let gate = gate.activate(Activation::Sigmoid)?;
        on_either!(self, x => Ok(x.times_column(&x.on_tape(&gate)?)?.into()))
    }

    /// This value, with a gradient of 0 for parameters that it does not depend on.
    pub fn beside_idle(&self, parameters: &[&Tensor]) -> Result<Value> {
        on_either!(self, x => Ok(x.beside_idle(parameters)?.into()))
    }
}

/// As `same_type`, with two shared slices.
macro_rules! same_types {
    ($to:expr, $from:expr, $with:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match ($to, $from, $with) {
            (SliceMut::F32($a), Slice::F32($b), Slice::F32($c)) => $body,
            (SliceMut::F64($a), Slice::F64($b), Slice::F64($c)) => $body,
            (SliceMut::F16($a), Slice::F16($b), Slice::F16($c)) => $body,
            (SliceMut::Bf16($a), Slice::Bf16($b), Slice::Bf16($c)) => $body,
            _ => bail!("mixture of experts: operands of two types"),
        }
    };
}

impl Taped<Cpu> {
    fn gather(&self, columns: &[u32], n: usize) -> Result<Self> {
        let x = self.whole()?;
        let (rows, width) = (x.rows(), x.slot.width);
        let of_each = Arc::new(columns.iter().map(|&c| c as usize).collect::<Vec<_>>());
        let mut y = Numbers::new(x.dtype(), rows * n)?;
        same_type!(y.slice_mut(), x.data.read().slice(), |to, from| {
            for (i, (to, &column)) in to.iter_mut().zip(of_each.iter()).enumerate() {
                *to = from[i / n * width + column];
            }
        });
        let slot = x.slot.clone();
        Ok(
            x.computed((y, vec![rows, n]), &[slot.place], move |pass, dy| {
                let mut dx = Numbers::zeros(dy.dtype(), rows * width)?;
                same_type!(dx.slice_mut(), dy.slice(), |to, from| {
                    for (i, (&from, &column)) in from.iter().zip(of_each.iter()).enumerate() {
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
            let (weights, rows) = (weights.data.read(), expert.data.read());
            same_types!(
                y.slice_mut(),
                rows.slice(),
                weights.slice(),
                |to, rows, weights| {
                    for (row, &place) in rows.chunks_exact(width.max(1)).zip(places) {
                        let to = &mut to[place / top_k * width..][..width];
                        to.iter_mut()
                            .zip(row)
                            .for_each(|(to, &from)| *to += from * weights[place]);
                    }
                }
            );
        }
        let asks = experts.iter().map(|(expert, _)| expert.slot.place);
        let asks: Vec<_> = asks.chain([weights.slot.place]).collect();
        let (of_weights, slot) = (weights.data.clone(), weights.slot.clone());
        let n_weights = weights.elem_count();
        let part = |(expert, places): (Self, _)| (expert.slot, expert.data, places);
        let experts: Vec<(Slot, Data, Vec<usize>)> = experts.into_iter().map(part).collect();
        // Of an expert's row `dy · weight`, of a weight `Σ dy · row`.
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let mut dweights = Numbers::zeros(dy.dtype(), n_weights)?;
            for (of_rows, rows, places) in &experts {
                let mut drows = Numbers::new(dy.dtype(), places.len() * width)?;
                let (weights, rows) = (of_weights.read(), rows.read());
                same_types!(
                    drows.slice_mut(),
                    dy.slice(),
                    weights.slice(),
                    |to, dy, weights| {
                        for (to, &place) in to.chunks_exact_mut(width.max(1)).zip(places) {
                            let dy = &dy[place / top_k * width..][..width];
                            to.iter_mut()
                                .zip(dy)
                                .for_each(|(to, &dy)| *to = dy * weights[place]);
                        }
                    }
                );
                same_types!(
                    dweights.slice_mut(),
                    dy.slice(),
                    rows.slice(),
                    |to, dy, rows| {
                        for (row, &place) in rows.chunks_exact(width.max(1)).zip(places) {
                            let dy = &dy[place / top_k * width..][..width];
                            let product = |(a, b): (&_, &_)| wide_product(a, b);
                            set(&mut to[place], dy.iter().zip(row).map(product).sum());
                        }
                    }
                );
                pass.add(of_rows, drows)?;
            }
            pass.add(&slot, dweights)
        }))
    }

    fn times_column(&self, column: &Self) -> Result<Self> {
        let places = (0..self.rows()).collect();
        self.mixed(column, vec![(self.clone(), places)], 1)
    }

    fn beside_idle(&self, parameters: &[&Tensor]) -> Result<Self> {
        let x = self.whole()?;
        let places: Vec<_> = parameters
            .iter()
            .map(|of| (self.place(of), of.elem_count()))
            .collect();
        let asks: Vec<_> = places
            .iter()
            .map(|(place, _)| *place)
            .chain([x.slot.place])
            .collect();
        if asks.iter().all(Option::is_none) {
            return Ok(x);
        }
        let slot = x.slot.clone();
        Ok(x.mapped(x.copy(), &asks, move |pass, dy| {
            for &(place, n) in places.iter().filter(|(place, _)| place.is_some()) {
                pass.add_parameter(place, Numbers::zeros(dy.dtype(), n)?)?;
            }
            pass.add(&slot, dy)
        }))
    }
}

/// Rounds once; f16 and bf16 as candle does, by way of f32.
fn set<T: Real>(to: &mut T, value: f64) {
    *to = T::rounded(value);
}

fn wide_product<T: Real>(a: &T, b: &T) -> f64 {
    a.wide() * b.wide()
}

trait Real {
    fn rounded(value: f64) -> Self;
    fn wide(&self) -> f64;
}

macro_rules! real {
    ($($type:ty: $value:ident => $rounded:expr, $of:ident => $wide:expr;)*) => {
        $(impl Real for $type {
            fn rounded($value: f64) -> Self {
                $rounded
            }

            fn wide(&self) -> f64 {
                let $of = *self;
                $wide
            }
        })*
    };
}

real! {
    f32: value => value as f32, of => of.into();
    f64: value => value, of => of;
    f16: value => f16::from_f32(value as f32), of => of.into();
    bf16: value => bf16::from_f32(value as f32), of => of.into();
}
