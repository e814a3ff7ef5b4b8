//! Packed streams of hidden states, of which blocks compute one.

use candle_blocks_kernels::products::{Scale, WeightFormat};
use candle_blocks_kernels::rows::{ActivationFunction, RowNorm, Source};
use candle_blocks_kernels::{Cpu, memory::lend, scratch};
use candle_core::Result;

use super::linear::{Finishing, Product};
use super::{Packing, elements, norm::row_norm};
use crate::config::{AltUpConfig, getters};
use crate::layers::own::gemma::{AltUp, LEAST_SQUARE, Streams};

scratch!(ACTIVE_ROWS);
scratch!(MAPPED_ROWS);

/// The packed form of [`AltUp`]. What its coefficients are made by stays in f32 in every precision.
#[derive(Clone, Debug)]
pub(super) struct PackedAltUp {
    pub config: AltUpConfig,
    router_norm: RowNorm,
    router: Product,
    prediction: Product,
    correction: Product,
    pub input_scale: Vec<f32>,
    cpu: Cpu,
}

impl PackedAltUp {
    pub fn new(packing: &Packing, altup: &AltUp) -> Result<Self> {
        let exact = Packing {
            format: Some(WeightFormat::F32),
            ..packing.clone()
        };
        Ok(Self {
            config: altup.config,
            router_norm: row_norm(&altup.router_norm)?,
            router: Product::new(&exact.at("router"), &altup.router)?,
            prediction: Product::new(&exact.at("prediction"), &altup.prediction)?,
            correction: Product::new(&exact.at("correction"), &altup.correction)?,
            input_scale: elements(&altup.input_scale)?,
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The size of the packed weights in bytes.
        bytes(&self) -> usize => self.router.bytes() + self.prediction.bytes() + self.correction.bytes();
        /// The width of one stream.
        d_model(&self) -> usize => self.router.d_in();
    }

    /// The coefficients that `map` makes of rows, which it leaves normalized.
    fn coefficients(&self, rows: &mut [f32], map: &Product) -> Vec<f32> {
        let (d_model, n) = (self.d_model(), self.config.n_streams);
        let n_rows = rows.len() / d_model;
        self.router_norm.rows_in_place(self.cpu, rows);
        let scaled = Finishing {
            scale: Scale::Constant(1.0 / d_model as f32),
            ..Finishing::NONE
        };
        let mut routed = vec![0.0; n_rows * n];
        let normal = Source::new(rows, d_model);
        self.router.apply(&normal, &scaled, &mut routed);
        let mut tanh = vec![0.0; routed.len()];
        let (from, to) = (routed[..].into(), (&mut tanh[..]).into());
        ActivationFunction::Tanh.forward(self.cpu, from, to);
        let mut coefficients = vec![0.0; n_rows * map.d_out()];
        map.apply(&Source::new(&tanh, n), &Finishing::NONE, &mut coefficients);
        coefficients
    }

    /// Calls `work` with rows of the active stream.
    fn with_active<R>(&self, streams: &[f32], work: impl FnOnce(&mut [f32]) -> R) -> R {
        let d_model = self.d_model();
        let n_rows = streams.len() / (self.config.n_streams * d_model);
        lend(ACTIVE_ROWS, n_rows * d_model, |active: &mut [f32]| {
            self.copy_active(streams, active);
            work(active)
        })
    }

    /// Of rows of streams, the active one.
    pub fn copy_active(&self, streams: &[f32], active: &mut [f32]) {
        let d_model = self.d_model();
        let rows = streams.chunks_exact(self.config.n_streams * d_model);
        for (to, from) in active.chunks_exact_mut(d_model).zip(rows) {
            to.copy_from_slice(&from[self.config.active * d_model..][..d_model]);
        }
    }

    /// What the streams `x` are predicted to be.
    pub fn predict(&self, x: &[f32], predicted: &mut [f32]) {
        let (n, d_model) = (self.config.n_streams, self.d_model());
        let coefficients = self.with_active(x, |rows| self.coefficients(rows, &self.prediction));
        let rows = x
            .chunks_exact(n * d_model)
            .zip(coefficients.chunks_exact(n * n));
        for (to, (from, coefficients)) in predicted.chunks_exact_mut(n * d_model).zip(rows) {
            to.copy_from_slice(from);
            for (to, coefficients) in to
                .chunks_exact_mut(d_model)
                .zip(coefficients.chunks_exact(n))
            {
                for (from, coefficient) in from.chunks_exact(d_model).zip(coefficients) {
                    add_scaled(to, *coefficient, from);
                }
            }
        }
    }

    /// Corrects predictions by what the block made of the active ones, the rows `y`, of which it keeps nothing.
    pub fn correct(&self, y: &mut [f32], predicted: &mut [f32]) {
        let (n, d_model) = (self.config.n_streams, self.d_model());
        lend(MAPPED_ROWS, y.len(), |new: &mut [f32]| {
            let rows = new.chunks_exact_mut(d_model).zip(y.chunks_exact(d_model));
            for ((new, y), row) in rows.zip(predicted.chunks_exact(n * d_model)) {
                let expected = &row[self.config.active * d_model..][..d_model];
                for ((new, y), expected) in new.iter_mut().zip(y).zip(expected) {
                    *new = y - expected;
                }
            }
            let coefficients = self.coefficients(y, &self.correction);
            let rows = new.chunks_exact(d_model).zip(coefficients.chunks_exact(n));
            for (row, (new, coefficients)) in predicted.chunks_exact_mut(n * d_model).zip(rows) {
                for (to, coefficient) in row.chunks_exact_mut(d_model).zip(coefficients) {
                    add_scaled(to, 1.0 + coefficient, new);
                }
            }
        });
    }
}

/// The packed form of [`Streams`].
#[derive(Clone, Debug)]
pub(super) struct PackedStreams {
    spread: Vec<Product>,
    merge: Vec<Product>,
}

impl PackedStreams {
    pub fn new(packing: &Packing, streams: &Streams) -> Result<Self> {
        let all = |role: &str, linears: &[crate::Linear]| {
            let each = linears.iter().enumerate();
            let each = each.map(|(i, linear)| {
                Product::new(&packing.at(format_args!("altup.{role}.{i}")), linear)
            });
            each.collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            spread: all("spread", &streams.spread)?,
            merge: all("merge", &streams.merge)?,
        })
    }

    pub fn n_streams(&self) -> usize {
        1 + self.spread.len()
    }

    /// The size of the packed weights in bytes.
    pub fn bytes(&self) -> usize {
        let all = self.spread.iter().chain(&self.merge);
        all.map(Product::bytes).sum()
    }

    /// The streams of the rows `x` of `width` columns, side by side.
    pub fn open(&self, x: &[f32], width: usize, streams: &mut [f32]) {
        let n = self.n_streams();
        for (to, from) in streams
            .chunks_exact_mut(n * width)
            .zip(x.chunks_exact(width))
        {
            to[..width].copy_from_slice(from);
        }
        lend(MAPPED_ROWS, x.len(), |mapped: &mut [f32]| {
            for (i, map) in self.spread.iter().enumerate() {
                map.apply(&Source::new(x, width), &Finishing::NONE, mapped);
                let rows = x.chunks_exact(width).zip(mapped.chunks_exact(width));
                for (to, (x, mapped)) in streams.chunks_exact_mut(n * width).zip(rows) {
                    let to = &mut to[(i + 1) * width..][..width];
                    to.fill(0.0);
                    add_scaled(to, factor_to(mapped, x), mapped);
                }
            }
        });
    }

    /// The output of streams of `width` columns each.
    pub fn merge(&self, streams: &[f32], width: usize, y: &mut [f32]) {
        let n = self.n_streams();
        for (to, from) in y
            .chunks_exact_mut(width)
            .zip(streams.chunks_exact(n * width))
        {
            to.copy_from_slice(&from[..width]);
        }
        lend(ACTIVE_ROWS, y.len(), |stream: &mut [f32]| {
            lend(MAPPED_ROWS, y.len(), |mapped: &mut [f32]| {
                for (i, map) in self.merge.iter().enumerate() {
                    let rows = stream.chunks_exact_mut(width);
                    for (to, from) in rows.zip(streams.chunks_exact(n * width)) {
                        to.copy_from_slice(&from[(i + 1) * width..][..width]);
                    }
                    map.apply(&Source::new(stream, width), &Finishing::NONE, mapped);
                    let rows = streams
                        .chunks_exact(n * width)
                        .zip(mapped.chunks_exact(width));
                    for (to, (first, mapped)) in y.chunks_exact_mut(width).zip(rows) {
                        add_scaled(to, factor_to(mapped, &first[..width]), mapped);
                    }
                }
            });
        });
        let share = 1.0 / n as f32;
        y.iter_mut().for_each(|y| *y *= share);
    }
}

/// What gives a row the root mean square of another: see [`Streams`].
fn factor_to(x: &[f32], like: &[f32]) -> f32 {
    let mean_square = |row: &[f32]| {
        let squares = row.iter().map(|&x| f64::from(x) * f64::from(x));
        squares.sum::<f64>() / row.len() as f64
    };
    (mean_square(like) / mean_square(x).max(LEAST_SQUARE)).sqrt() as f32
}

/// `y += factor · x`.
pub(super) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}
