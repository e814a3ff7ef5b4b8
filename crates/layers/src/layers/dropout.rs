//! Inverted dropout and its random number generator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, ModuleT, Result, Shape, Tensor, bail};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use rand_mt::Mt;

use crate::config::getters;
use crate::ops::{self, Route, Value};

/// The random number generator for the masks of a [`Dropout`]. Clones share one stream, so several layers draw from
/// it in the order in which they run. Pass it to `Model::set_dropout_source`.
#[derive(Clone, Default)]
pub struct DropoutSource(MaskStream);

#[derive(Clone, Default)]
enum MaskStream {
    #[default]
    Candle,
    Seeded(Arc<Mutex<ChaCha12Rng>>),
    NumPy(Arc<Mutex<Mt>>),
    /// Refuses to draw, for this reason.
    Refused(&'static str),
}

impl DropoutSource {
    /// Uses candle's own generator on the input's device: the default. candle cannot seed it on the CPU.
    pub fn candle() -> Self {
        Self(MaskStream::Candle)
    }

    /// Starts a reproducible stream from `seed`: ChaCha12, with the same values on every device. Its position can be
    /// read and set.
    pub fn seeded(seed: u64) -> Self {
        let stream = ChaCha12Rng::seed_from_u64(seed);
        Self(MaskStream::Seeded(Arc::new(Mutex::new(stream))))
    }

    /// Uses NumPy's legacy generator: after `np.random.seed(seed)`, each mask is `np.random.rand(*shape) >= p`.
    pub fn numpy(seed: u32) -> Self {
        Self(MaskStream::NumPy(Arc::new(Mutex::new(Mt::new(seed)))))
    }

    /// Creates a source that refuses to draw.
    #[doc(hidden)]
    pub fn refused(reason: &'static str) -> Self {
        Self(MaskStream::Refused(reason))
    }

    /// Returns the number of 32-bit words drawn from a seeded stream, or `None` for other sources.
    ///
    /// ```
    /// use candle_blocks::DropoutSource;
    /// let source = DropoutSource::seeded(7);
    /// assert_eq!(source.position(), Some(0));
    /// // An interrupted training goes on where it was.
    /// source.set_position(4_000)?;
    /// assert_eq!(source.position(), Some(4_000));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn position(&self) -> Option<u128> {
        match &self.0 {
            MaskStream::Seeded(stream) => Some(lock(stream).get_word_pos()),
            _ => None,
        }
    }

    /// Moves a seeded stream to a position returned by [`Self::position`].
    ///
    /// # Errors
    /// If the source is not seeded.
    pub fn set_position(&self, position: u128) -> Result<()> {
        match &self.0 {
            MaskStream::Seeded(stream) => lock(stream).set_word_pos(position),
            _ => bail!("dropout: a {self:?} stream has no position; use DropoutSource::seeded"),
        }
        Ok(())
    }

    /// Returns the state of the stream, so that the same values can be drawn again.
    ///
    /// # Errors
    /// If the source is candle's generator.
    #[doc(hidden)]
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(match &self.0 {
            MaskStream::Candle => bail!(
                "dropout: candle's generator cannot draw the same masks twice; give the layers \
                 DropoutSource::seeded with set_dropout_source"
            ),
            MaskStream::Seeded(stream) => {
                Snapshot::Seeded(stream.clone(), lock(stream).get_word_pos())
            }
            MaskStream::NumPy(stream) => {
                let state = Box::new(lock(stream).clone());
                Snapshot::NumPy(stream.clone(), state)
            }
            MaskStream::Refused(reason) => bail!("dropout: {reason}"),
        })
    }

    /// Returns true if both draw from the same stream.
    #[doc(hidden)]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (MaskStream::Candle, MaskStream::Candle) => true,
            (MaskStream::Seeded(a), MaskStream::Seeded(b)) => Arc::ptr_eq(a, b),
            (MaskStream::NumPy(a), MaskStream::NumPy(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Draws uniform values in `[0, 1)` on the host.
    pub(super) fn uniform(&self, n: usize) -> Result<Vec<f64>> {
        Ok(match &self.0 {
            MaskStream::Candle => Tensor::rand(0f64, 1f64, n, &Device::Cpu)?.to_vec1()?,
            MaskStream::Seeded(stream) => {
                let mut rng = lock(stream);
                (0..n).map(|_| rng.random()).collect()
            }
            MaskStream::NumPy(stream) => {
                let mut rng = lock(stream);
                (0..n).map(|_| numpy_double(&mut rng)).collect()
            }
            MaskStream::Refused(reason) => bail!("dropout: {reason}"),
        })
    }

    /// Draws a mask: 1 if a uniform value in `[0, 1)` is at least `p`, else 0.
    fn draw(&self, shape: &Shape, device: &Device, p: f64) -> Result<Tensor> {
        let n = shape.elem_count();
        let keep: Vec<u8> = match &self.0 {
            MaskStream::Candle => {
                if ops::route(device) == Route::Composed {
                    return ops::drawn_on_device(shape, device, p);
                }
                let uniform = Tensor::rand(0f32, 1f32, shape, device)?;
                return uniform.ge(p as f32);
            }
            MaskStream::Seeded(stream) => {
                let mut rng = lock(stream);
                let start = rng.get_word_pos();
                let keep = ops::draw_mask((rng.get_seed(), start), n, p)?;
                rng.set_word_pos(start + 2 * n as u128); // 64 bits for each element
                keep
            }
            MaskStream::NumPy(stream) => {
                let mut rng = lock(stream);
                (0..n)
                    .map(|_| u8::from(numpy_double(&mut rng) >= p))
                    .collect()
            }
            MaskStream::Refused(reason) => bail!("dropout: {reason}"),
        };
        ops::uploaded(
            &Tensor::from_vec(keep, shape, &Device::Cpu)?,
            DType::U8,
            device,
        )
    }
}

/// A stream and its saved state.
#[doc(hidden)]
pub enum Snapshot {
    Seeded(Arc<Mutex<ChaCha12Rng>>, u128),
    NumPy(Arc<Mutex<Mt>>, Box<Mt>),
}

impl Snapshot {
    /// Restores the saved state.
    pub fn restore(&self) {
        match self {
            Self::Seeded(stream, position) => lock(stream).set_word_pos(*position),
            Self::NumPy(stream, state) => *lock(stream) = (**state).clone(),
        }
    }
}

fn lock<T>(stream: &Mutex<T>) -> MutexGuard<'_, T> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns NumPy's legacy `random_sample`: 53 bits from two draws, the high 27 and the high 26.
fn numpy_double(rng: &mut Mt) -> f64 {
    let high = f64::from(rng.next_u32() >> 5);
    let low = f64::from(rng.next_u32() >> 6);
    (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
}

impl std::fmt::Debug for DropoutSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            MaskStream::Candle => "Candle",
            MaskStream::Seeded(_) => "Seeded",
            MaskStream::NumPy(_) => "NumPy",
            MaskStream::Refused(_) => "Refused",
        })
    }
}

/// The unit that a [`Dropout`] keeps or drops as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropoutUnit {
    /// Each element independently.
    Element,
    /// Each sample along the first dimension of `[batch, .., d_model]`; an input of rank 2 or less is a single sample.
    Sample,
}

/// Inverted dropout (Srivastava et al. 2014). In training, each element becomes zero with probability `p`, and the
/// others are divided by `1 - p`. In evaluation the input passes unchanged and nothing is drawn.
///
/// ```
/// use candle_blocks::{Dropout, DropoutSource};
/// use candle_core::{Device, ModuleT, Tensor};
/// let dropout = Dropout::new(0.5, DropoutSource::numpy(0))?;
/// let x = Tensor::new(&[1f64, 1., 1., 1.], &Device::Cpu)?;
/// // np.random.seed(0); np.random.rand(4) -> .549, .715, .603, .545
/// assert_eq!(dropout.forward_t(&x, true)?.to_vec1::<f64>()?, [2., 2., 2., 2.]);
/// assert_eq!(dropout.forward_t(&x, false)?.to_vec1::<f64>()?, [1., 1., 1., 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f64,
    source: DropoutSource,
    unit: DropoutUnit,
}

impl Dropout {
    /// Creates a dropout for single elements, with probability `p`.
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`.
    pub fn new(p: f64, source: DropoutSource) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            bail!("dropout: probability {p}, expected 0 <= p < 1");
        }
        let unit = DropoutUnit::Element;
        Ok(Self { p, source, unit })
    }

    /// Creates drop path (stochastic depth), which drops each sample as a whole with probability `p` (Huang et al.
    /// 2016, <https://arxiv.org/abs/1603.09382>; transformers' `Dinov2DropPath`).
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`.
    pub fn of_samples(p: f64, source: DropoutSource) -> Result<Self> {
        let unit = DropoutUnit::Sample;
        Ok(Self {
            unit,
            ..Self::new(p, source)?
        })
    }

    /// Creates a dropout that drops nothing.
    pub fn none() -> Self {
        Self {
            p: 0.0,
            source: DropoutSource::default(),
            unit: DropoutUnit::Element,
        }
    }

    getters! {
        /// The probability of dropping an element or sample.
        p(&self) -> f64 => self.p;
        /// The unit that is kept or dropped as a whole.
        unit(&self) -> DropoutUnit => self.unit;
        /// The random number generator for the masks.
        source(&self) -> &DropoutSource => &self.source;
    }

    /// Sets the random number generator for the masks.
    pub fn set_source(&mut self, source: DropoutSource) {
        self.source = source;
    }

    /// Returns true if the dropout is active.
    pub(super) fn is_on(&self, train: bool) -> bool {
        train && self.p > 0.0
    }

    pub(super) fn apply(&self, x: &Value, train: bool) -> Result<Value> {
        match self.mask(x.dims(), &x.device(), train)? {
            Some(keep) => x.dropout(&keep, self.p),
            None => Ok(x.clone()),
        }
    }

    /// Applies dropout to a value that nothing else reads.
    pub(super) fn apply_to(&self, x: Value, train: bool) -> Result<Value> {
        match self.is_on(train) {
            true => self.apply(&x, train),
            false => Ok(x),
        }
    }

    /// Returns a mask with these dimensions, 1 = keep, or `None` if nothing is dropped.
    pub(super) fn mask(
        &self,
        dims: &[usize],
        device: &Device,
        train: bool,
    ) -> Result<Option<Tensor>> {
        if !self.is_on(train) {
            return Ok(None);
        }
        let draw = |dims: &[usize]| self.source.draw(&dims.into(), device, self.p);
        Ok(Some(match self.unit {
            DropoutUnit::Element => draw(dims)?,
            DropoutUnit::Sample => {
                let mut sample_dims = vec![1; dims.len()];
                if dims.len() > 2 {
                    sample_dims[0] = dims[0]; // [batch, 1, .., 1]
                }
                draw(&sample_dims)?.broadcast_as(dims)?
            }
        }))
    }

    /// Draws once and returns true if everything is dropped.
    #[doc(hidden)]
    pub fn drops_all(&self, train: bool) -> Result<bool> {
        if !self.is_on(train) {
            return Ok(false);
        }
        let keep = self.source.draw(&().into(), &Device::Cpu, self.p)?;
        Ok(keep.to_scalar::<u8>()? == 0)
    }
}

impl ModuleT for Dropout {
    /// `torch.nn.functional.dropout(x, p, training=train)`; any shape.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self.is_on(train) {
            true => Value::through(x, |x| self.apply(x, train)),
            false => Ok(x.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_those_of_one_number_after_the_other() {
        for (n, p, position) in [(1, 0.5, 0), (4000, 0.1, 0), (300_000, 0.3, 7)] {
            let source = DropoutSource::seeded(9);
            source.set_position(position).unwrap();
            let ours = source.draw(&n.into(), &Device::Cpu, p).unwrap();
            let mut rng = ChaCha12Rng::seed_from_u64(9);
            rng.set_word_pos(position);
            let theirs = (0..n).map(|_| u8::from(rng.random::<f64>() >= p));
            assert_eq!(ours.to_vec1::<u8>().unwrap(), theirs.collect::<Vec<_>>());
            assert_eq!(source.position(), Some(rng.get_word_pos()));
        }
    }
}
