//! Parameter gradients on their way from the operations to the optimizer, bypassing candle's gradient store.
//!
//! candle's backward pass adds every gradient to a new tensor of zeros: three passes over freshly allocated memory.
//! While [`collecting`], our operations keep variables' gradients here instead, and their memory is recycled for the
//! next step.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use candle_core::{Result, Tensor, TensorId};

use super::array::Array;
use super::cpu::{Route, route};
use super::numbers::{Numbers, give_back};
use super::recorder::issued;

/// A gradient whose memory may be recycled. Clones share the gradient.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Collected(Arc<GradientStorage>);

#[derive(Debug)]
enum GradientStorage {
    Plain(Tensor),
    /// In recycled memory. Nobody else holds its storage.
    Lent(Tensor),
}

impl Collected {
    /// Wraps a gradient tensor that others may hold too.
    pub fn plain(tensor: Tensor) -> Self {
        Self(Arc::new(GradientStorage::Plain(tensor)))
    }

    /// Returns the gradient. Read it only while `self` lives: its memory may be recycled with the last clone.
    pub fn tensor(&self) -> &Tensor {
        match &*self.0 {
            GradientStorage::Plain(tensor) | GradientStorage::Lent(tensor) => tensor,
        }
    }

    /// Adds another gradient.
    pub fn plus(&self, other: &Tensor) -> Result<Self> {
        if route(other.device()) == Route::Composed {
            issued("add", &[self.tensor(), other], None)?;
        }
        Ok(Self::plain((self.tensor() + other)?.detach()))
    }

    /// Multiplies the gradient by a factor.
    pub fn scaled(&self, factor: f64) -> Result<Tensor> {
        let x = self.tensor();
        match route(x.device()) {
            Route::Kernels => x.affine(factor, 0.0),
            Route::Composed if factor == 1.0 => Ok(x.clone()),
            // CUDA rounds factors to the array's type.
            Route::Composed => {
                let scaled = Array::of(x).widened()?.affine(factor, 0.0)?;
                scaled.to_dtype(x.dtype()).map(Array::into_tensor)
            }
        }
    }
}

impl Drop for GradientStorage {
    fn drop(&mut self) {
        if let Self::Lent(tensor) = self {
            give_back(tensor);
        }
    }
}

thread_local! {
    static COLLECTED: RefCell<Option<Collection>> = const { RefCell::new(None) };
}

/// The results of a backward pass beside candle's store.
#[derive(Default)]
struct Collection {
    gradients: HashMap<TensorId, Collected>,
    /// The tensor that changed since the forward pass, if that stopped the pass.
    changed: Option<Tensor>,
}

/// An error in a backward pass.
#[derive(Debug)]
#[doc(hidden)]
pub struct Stopped {
    pub error: candle_core::Error,
    /// The tensor that changed since the forward pass, if that is the reason.
    pub changed: Option<Tensor>,
}

/// Runs a backward pass. Returns its result, and the variables' gradients that bypassed candle's store.
#[doc(hidden)]
pub fn collecting<R>(
    backward: impl FnOnce() -> Result<R>,
) -> std::result::Result<(R, HashMap<TensorId, Collected>), Stopped> {
    /// Ends the collection, also in a panic.
    struct CollectionGuard;
    impl Drop for CollectionGuard {
        fn drop(&mut self) {
            COLLECTED.take();
        }
    }
    COLLECTED.set(Some(Collection::default()));
    let ending = CollectionGuard;
    let result = backward();
    let Collection { gradients, changed } = COLLECTED.take().unwrap_or_default();
    drop(ending);
    match result {
        Ok(result) => Ok((result, gradients)),
        Err(error) => Err(Stopped { error, changed }),
    }
}

/// Notes the tensor whose change stops the backward pass, for its caller, which may know a name for it.
pub fn stopped_by(changed: &Tensor) {
    COLLECTED.with_borrow_mut(|collection| {
        if let Some(collection) = collection {
            collection.changed = Some(changed.clone());
        }
    });
}

/// Like [`handed_over`], for a tensor on a device.
pub fn handed_over_from_device(gradient: Tensor, of: &Tensor) -> Result<Option<Tensor>> {
    if !is_collected(of) {
        return Ok(Some(gradient));
    }
    collect(Collected::plain(gradient), of)
}

/// Hands over a tensor's gradient: returns it for candle, or `None` if it is collected.
pub fn handed_over(gradient: Numbers, of: &Tensor) -> Result<Option<Tensor>> {
    if !is_collected(of) {
        return gradient.into_tensor(of.shape()).map(Some);
    }
    let lent = gradient.into_lent_tensor(of.shape())?;
    collect(Collected(Arc::new(GradientStorage::Lent(lent))), of)
}

/// Returns whether this thread is in [`collecting`].
pub fn is_collecting() -> bool {
    COLLECTED.with_borrow(Option::is_some)
}

/// Returns whether a tensor's gradient bypasses candle's store.
fn is_collected(of: &Tensor) -> bool {
    of.is_variable() && is_collecting()
}

fn collect(found: Collected, of: &Tensor) -> Result<Option<Tensor>> {
    COLLECTED.with_borrow_mut(|all| {
        let Some(Collection { gradients, .. }) = all else {
            return Ok(());
        };
        let sum = match gradients.get(&of.id()) {
            Some(known) => known.plus(found.tensor())?,
            None => found,
        };
        gradients.insert(of.id(), sum);
        Ok::<(), candle_core::Error>(())
    })?;
    Ok(None)
}
