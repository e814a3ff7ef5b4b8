//! What passes through a stack have on a device in common: masks and tables, made once and read by every layer.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result, Shape, Tensor, TensorId};

use super::array::Array;
use super::cpu::{Route, route};
use super::visible::{Reach, Visible};

/// Masks and tables on devices. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constants(Arc<Mutex<Vec<(Key, Array)>>>);

/// How many are kept, the latest: a pass reads a few.
const KEPT: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub what: What,
    pub dtype: DType,
    pub location: DeviceLocation,
}

/// What an array holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// What is added to the scores of keys that a query does not see by its position, `[1, 1, queries, keys]`.
    Hidden {
        reach: Reach,
        queries: usize,
        keys: usize,
        lowest: f64,
    },
    /// What is added to the scores of keys that marks drop, `[batch, 1, 1, keys]`, and whether every query sees a key.
    Marked(TensorId, bool),
    /// Numbers of a layer's own, told apart by its text.
    Table(String),
}

impl Constants {
    /// What belongs to a key, which `make` makes the first time.
    pub fn get(&self, key: Key, make: impl FnOnce() -> Result<Array>) -> Result<Array> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, array)) = known.iter().find(|(of, _)| *of == key) {
            return Ok(array.clone());
        }
        let array = make()?;
        if known.len() >= KEPT {
            known.remove(0);
        }
        known.push((key, array.clone()));
        Ok(array)
    }
}

impl Constants {
    /// A tensor of a layer's own, told apart by its text.
    pub fn table(
        &self,
        text: String,
        (dtype, device): (DType, &Device),
        make: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let what = What::Table(text);
        let location = device.location();
        let made = self.get(
            Key {
                what,
                dtype,
                location,
            },
            || Ok(Array::of(&make()?)),
        );
        Ok(made?.into_tensor())
    }
}

/// Numbers of the host, rounded there and moved to a device: Metal has no f64.
pub(crate) fn uploaded(values: &Tensor, dtype: DType, device: &Device) -> Result<Tensor> {
    let rounded = values.to_dtype(dtype)?;
    match route(device) {
        Route::Kernels => Ok(rounded),
        Route::Composed => Array::of(&rounded).moved_to(device).map(Array::into_tensor),
    }
}

/// Marks (u8) of what to keep, drawn on a device: 1 with probability `1 - p`.
pub(crate) fn drawn_on_device(shape: &Shape, device: &Device, p: f64) -> Result<Tensor> {
    let uniform = Array::uniform(shape.dims(), device)?;
    uniform.ge(&uniform.full(p)?).map(Array::into_tensor)
}

/// What is added to scores `[batch, n_heads, queries, keys]`, so that queries do not see what is hidden.
pub(crate) struct Hidden {
    /// Broadcasts to the scores; `None` where nothing is hidden.
    pub added: Option<Array>,
    /// Whether every query sees a key.
    pub all_see: bool,
}

/// Below every score, and finite: a sum with a score is neither infinite nor seen beside others.
const LOWEST: f64 = -1e30;

impl Hidden {
    pub fn new(
        visible: &Visible,
        (queries, keys): (usize, usize),
        (dtype, device): (DType, &Device),
        constants: &Constants,
    ) -> Result<Self> {
        let reach = Reach::of(visible);
        let all_see = visible.all_see(queries, keys)?;
        let lowest = if all_see { LOWEST } else { f64::NEG_INFINITY };
        let by_position = (0..queries).any(|query| reach.range(query, keys) != (0..keys));
        let by_position = by_position.then(|| {
            let what = What::Hidden {
                reach,
                queries,
                keys,
                lowest,
            };
            let location = device.location();
            constants.get(
                Key {
                    what,
                    dtype,
                    location,
                },
                || {
                    let mut added = vec![lowest; queries * keys];
                    for query in 0..queries {
                        added[query * keys..][reach.range(query, keys)].fill(0.0);
                    }
                    Array::upload(added, &[1, 1, queries, keys], dtype, device)
                },
            )
        });
        let by_marks = visible.keep.map(|keep| {
            let what = What::Marked(keep.id(), all_see);
            let location = device.location();
            constants.get(
                Key {
                    what,
                    dtype,
                    location,
                },
                || {
                    let marks = Array::of(keep).to_dtype(dtype)?;
                    let added = match all_see {
                        true => marks.affine(-LOWEST, LOWEST)?,
                        false => marks.log()?, // 0 or `-inf`
                    };
                    added.reshape(&[keep.dims()[0], 1, 1, keys])
                },
            )
        });
        let added = match (by_position.transpose()?, by_marks.transpose()?) {
            (Some(a), Some(b)) => Some(a.add(&b)?),
            (a, b) => a.or(b),
        };
        Ok(Self { added, all_see })
    }
}
