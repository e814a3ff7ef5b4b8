//! Device constants for a stack's passes: masks and tables that are created once and read by every layer.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::{DType, Device, DeviceLocation, Result, Shape, Tensor, TensorId};

use super::array::Array;
use super::cpu::{Route, route};
use super::visible::{Reach, Visible};

/// Cached masks and tables on devices. Clones share the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constants {
    arrays: Latest<Array>,
    hidden: Latest<Hidden>,
}

/// A cache for recent values.
#[derive(Clone, Debug)]
struct Latest<V>(Arc<Mutex<Vec<(ConstantKey, V)>>>);

/// The maximum number of cached values. A pass reads a few.
const KEPT: usize = 16;

/// The maximum element count in the cache, unless the latest value alone is larger: 64 MB in f32, the masks for four
/// causal passes with 2048 positions.
const MOST: usize = 16 * 1024 * 1024;

/// A cache key. Each thread has its own entries: on CUDA a thread works on its own stream, which waits for no other.
#[derive(Clone, Debug, PartialEq)]
struct ConstantKey {
    what: What,
    dtype: DType,
    location: DeviceLocation,
    thread: ThreadId,
}

/// The kind of a cached value.
#[derive(Clone, Debug, PartialEq)]
enum What {
    /// Values added to scores, which hide keys by position, `[1, 1, queries, keys]`.
    ByPosition {
        reach: Reach,
        queries: usize,
        keys: usize,
        lowest: f64,
    },
    /// Values added to scores, which hide keys by position and by the key mask.
    Hidden {
        reach: Reach,
        queries: usize,
        keys: usize,
        marks: Option<TensorId>,
        has_mask: bool,
    },
    /// A layer's own table, identified by its text.
    Table(String),
}

impl<V> Default for Latest<V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<V: Clone + CachedSize> Latest<V> {
    /// Returns the value for a key. `make` creates it the first time.
    fn get(
        &self,
        what: What,
        (dtype, device): (DType, &Device),
        make: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let (location, thread) = (device.location(), thread::current().id());
        let key = ConstantKey {
            what,
            dtype,
            location,
            thread,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, made)) = known.iter().find(|(of, _)| *of == key) {
            return Ok(made.clone());
        }
        let made = make()?;
        known.push((key, made.clone()));
        let size = |(_, made): &(ConstantKey, V)| made.elem_count();
        while known.len() > 1
            && (known.len() > KEPT || known.iter().map(size).sum::<usize>() > MOST)
        {
            known.remove(0);
        }
        Ok(made)
    }
}

/// A cached value with a size.
trait CachedSize {
    fn elem_count(&self) -> usize;
}

impl CachedSize for Array {
    fn elem_count(&self) -> usize {
        self.tensor().elem_count()
    }
}

impl CachedSize for Hidden {
    fn elem_count(&self) -> usize {
        self.added.as_ref().map_or(0, CachedSize::elem_count)
    }
}

impl Constants {
    /// Returns a layer's own table, identified by its text.
    pub fn table(
        &self,
        text: String,
        (dtype, device): (DType, &Device),
        make: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let made = self.arrays.get(What::Table(text), (dtype, device), || {
            Ok(Array::of(&make()?))
        });
        Ok(made?.into_tensor())
    }

    /// Returns `0, 1, 2 ..` in f32 with `n` elements: the first elements of a table whose length is a power of two.
    pub fn numbers(&self, n: usize, device: &Device) -> Result<Array> {
        let all = n.next_power_of_two();
        let what = What::Table(format!("{all} numbers"));
        let made = self.arrays.get(what, (DType::F32, device), || {
            let numbers = (0..all).map(|i| i as f64).collect();
            Array::upload(numbers, &[all], DType::F32, device)
        });
        made?.narrow(0, 0, n)
    }

    /// Returns an f32 matrix `[n, n]`: 1 where the column index is smaller than the row index, else 0.
    pub fn smaller(&self, n: usize, device: &Device) -> Result<Array> {
        let numbers = self.numbers(n, device)?;
        let what = What::Table(format!("{n} by {n}"));
        self.arrays.get(what, (DType::F32, device), || {
            numbers.lt(&numbers.reshape(&[n, 1])?)?.to_dtype(DType::F32)
        })
    }
}

/// Rounds values on the host and moves them to a device: Metal has no f64.
pub(crate) fn uploaded(values: &Tensor, dtype: DType, device: &Device) -> Result<Tensor> {
    let rounded = values.to_dtype(dtype)?;
    match route(device) {
        Route::Kernels => Ok(rounded),
        Route::Composed => Array::of(&rounded).moved_to(device).map(Array::into_tensor),
    }
}

/// Draws a dropout mask (u8) on a device: 1 with probability `1 - p`.
pub(crate) fn drawn_on_device(shape: &Shape, device: &Device, p: f64) -> Result<Tensor> {
    let uniform = Array::uniform(shape.dims(), device)?;
    uniform.ge(&uniform.full(p)?).map(Array::into_tensor)
}

/// Values added to scores `[batch, n_heads, queries, keys]`, which hide keys from queries.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    /// Broadcasts to the scores. `None` if nothing is hidden.
    pub added: Option<Array>,
    /// True if every query sees a key.
    pub all_see: bool,
}

/// Less than every score, and finite: its sum with a score is neither infinite nor visible beside other scores.
const LOWEST: f64 = -1e30;

impl Hidden {
    /// Returns the cached mask for all layers in a pass with the same visibility. With `has_mask`, a bias may hide
    /// the remaining keys.
    pub fn of(
        visible: &Visible,
        has_mask: bool,
        (queries, keys): (usize, usize),
        of: (DType, &Device),
        constants: &Constants,
    ) -> Result<Self> {
        let what = What::Hidden {
            reach: Reach::of(visible),
            queries,
            keys,
            marks: visible.keep.map(Tensor::id),
            has_mask,
        };
        let make = || Self::new(visible, has_mask, (queries, keys), of, &constants.arrays);
        constants.hidden.get(what, of, make)
    }

    fn new(
        visible: &Visible,
        has_mask: bool,
        (queries, keys): (usize, usize),
        (dtype, device): (DType, &Device),
        arrays: &Latest<Array>,
    ) -> Result<Self> {
        let reach = Reach::of(visible);
        let all_see = !has_mask && visible.all_see(queries, keys)?;
        let lowest = if all_see { LOWEST } else { f64::NEG_INFINITY };
        let by_position = (0..queries).any(|query| reach.range(query, keys) != (0..keys));
        let by_position = by_position.then(|| {
            let what = What::ByPosition {
                reach,
                queries,
                keys,
                lowest,
            };
            arrays.get(what, (dtype, device), || {
                let mut added = vec![lowest; queries * keys];
                for query in 0..queries {
                    added[query * keys..][reach.range(query, keys)].fill(0.0);
                }
                Array::upload(added, &[1, 1, queries, keys], dtype, device)
            })
        });
        let by_marks = visible.keep.map(|keep| {
            let marks = Array::of(keep).to_dtype(dtype)?;
            let added = match all_see {
                true => marks.affine(-LOWEST, LOWEST)?,
                false => marks.log()?, // 0 or `-inf`
            };
            added.reshape(&[keep.dims()[0], 1, 1, keys])
        });
        let added = match (by_position.transpose()?, by_marks.transpose()?) {
            (Some(a), Some(b)) => Some(a.add(&b)?),
            (a, b) => a.or(b),
        };
        Ok(Self { added, all_see })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often a table with `n` elements is created.
    fn made(constants: &Constants, n: usize) -> usize {
        let mut count = 0;
        let table = constants.table(n.to_string(), (DType::U8, &Device::Cpu), || {
            count += 1;
            Tensor::zeros(n, DType::U8, &Device::Cpu)
        });
        assert_eq!(table.unwrap().elem_count(), n);
        count
    }

    #[test]
    fn each_thread_creates_a_constant_once() {
        let constants = Constants::default();
        assert_eq!([made(&constants, 5), made(&constants, 5)], [1, 0]);
        let there = constants.clone();
        let other = std::thread::spawn(move || made(&there, 5));
        assert_eq!(other.join().unwrap(), 1);
    }

    #[test]
    fn the_oldest_are_dropped_if_there_are_many_or_they_are_large() {
        let constants = Constants::default();
        let all: usize = (1..=KEPT + 1).map(|n| made(&constants, n)).sum();
        assert_eq!(all, KEPT + 1);
        assert_eq!([made(&constants, 2), made(&constants, 1)], [0, 1]);
        assert_eq!(made(&constants, MOST + 1), 1);
        assert_eq!([made(&constants, MOST + 1), made(&constants, 1)], [0, 1]);
        assert_eq!(made(&constants, MOST + 1), 1);
    }
}
