//! The source from which layers read their parameters.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder};

use super::visit::join;
use crate::config::getters;
use crate::ops::Weight;

/// A source of parameters for layers, addressed by role. It reads a candle `VarBuilder`, or a
/// `Loader`, whose linear weights may stay quantized.
///
/// Every layer's `new(&config, vb)` takes a `VarBuilder` or a `ParameterSource`. The methods have the names and the
/// meaning of candle's [`VarBuilder`].
#[derive(Clone)]
pub struct ParameterSource<'a> {
    backend: Arc<dyn ParameterBackend + 'a>,
    prefix: String,
    dtype: DType,
    device: Device,
}

/// A backend of a [`ParameterSource`], which gets the full role of each parameter.
#[doc(hidden)]
pub trait ParameterBackend: Send + Sync {
    /// Returns a parameter as a tensor.
    fn tensor(
        &self,
        role: &str,
        shape: Shape,
        init: Init,
        kind: (DType, &Device),
    ) -> Result<Tensor>;

    /// Returns the weight `[d_out, d_in]` of a linear layer.
    fn weight(
        &self,
        role: &str,
        dims: (usize, usize),
        init: Init,
        kind: (DType, &Device),
    ) -> Result<Weight> {
        self.tensor(role, dims.into(), init, kind)
            .map(Weight::Dense)
    }

    /// Returns true if the parameter exists.
    fn contains(&self, role: &str) -> bool;
}

impl<'a> ParameterSource<'a> {
    /// Creates a source from a backend, with a default dtype and device.
    #[doc(hidden)]
    pub fn new(backend: impl ParameterBackend + 'a, (dtype, device): (DType, &Device)) -> Self {
        Self {
            backend: Arc::new(backend),
            prefix: String::new(),
            dtype,
            device: device.clone(),
        }
    }

    getters! {
        /// The dtype of the parameters.
        dtype(&self) -> DType => self.dtype;
        /// The device of the parameters.
        device(&self) -> &Device => &self.device;
    }

    /// Returns the source for parameters whose roles begin with `name` and a dot.
    pub fn pp(&self, name: impl ToString) -> Self {
        Self {
            prefix: self.role(&name.to_string()),
            ..self.clone()
        }
    }

    /// Returns a parameter.
    ///
    /// # Errors
    /// If the parameter is missing, or has another shape.
    pub fn get(&self, shape: impl Into<Shape>, name: &str) -> Result<Tensor> {
        self.get_with_hints(shape, name, Init::default())
    }

    /// Returns a parameter. A source of fresh parameters initializes it by `init`. Errors are those of [`Self::get`].
    pub fn get_with_hints(
        &self,
        shape: impl Into<Shape>,
        name: &str,
        init: Init,
    ) -> Result<Tensor> {
        self.get_with_hints_dtype(shape, name, init, self.dtype)
    }

    /// Returns a parameter like [`Self::get_with_hints`], in another dtype.
    pub(super) fn get_with_hints_dtype(
        &self,
        shape: impl Into<Shape>,
        name: &str,
        init: Init,
        dtype: DType,
    ) -> Result<Tensor> {
        let kind = (dtype, &self.device);
        self.backend
            .tensor(&self.role(name), shape.into(), init, kind)
    }

    /// Returns the weight `[d_out, d_in]` of a linear layer, in the source's own form.
    pub(super) fn weight(&self, dims: (usize, usize), init: Init) -> Result<Weight> {
        let kind = (self.dtype, &self.device);
        self.backend.weight(&self.role("weight"), dims, init, kind)
    }

    /// Returns true if the parameter exists.
    pub fn contains_tensor(&self, name: &str) -> bool {
        self.backend.contains(&self.role(name))
    }

    /// Returns a source that reads each parameter under the role `other(role)`.
    #[doc(hidden)]
    pub fn renamed(&self, other: impl Fn(&str) -> String + Send + Sync + 'a) -> Self {
        let renamed = Renamed {
            source: self.clone(),
            other,
        };
        Self::new(renamed, (self.dtype, &self.device))
    }

    fn role(&self, name: &str) -> String {
        join(&self.prefix, name)
    }
}

/// A source that reads parameters under other roles.
struct Renamed<'a, F> {
    source: ParameterSource<'a>,
    other: F,
}

impl<F: Fn(&str) -> String + Send + Sync> ParameterBackend for Renamed<'_, F> {
    fn tensor(
        &self,
        role: &str,
        shape: Shape,
        init: Init,
        kind: (DType, &Device),
    ) -> Result<Tensor> {
        let role = self.source.role(&(self.other)(role));
        self.source.backend.tensor(&role, shape, init, kind)
    }

    fn weight(
        &self,
        role: &str,
        dims: (usize, usize),
        init: Init,
        kind: (DType, &Device),
    ) -> Result<Weight> {
        let role = self.source.role(&(self.other)(role));
        self.source.backend.weight(&role, dims, init, kind)
    }

    fn contains(&self, role: &str) -> bool {
        self.source.contains_tensor(&(self.other)(role))
    }
}

impl ParameterBackend for VarBuilder<'_> {
    fn tensor(
        &self,
        role: &str,
        shape: Shape,
        init: Init,
        (dtype, _): (DType, &Device),
    ) -> Result<Tensor> {
        self.get_with_hints_dtype(shape, role, init, dtype)
    }

    fn contains(&self, role: &str) -> bool {
        self.contains_tensor(role)
    }
}

impl<'a> From<VarBuilder<'a>> for ParameterSource<'a> {
    fn from(vb: VarBuilder<'a>) -> Self {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        Self::new(vb, (dtype, &device))
    }
}

impl fmt::Debug for ParameterSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ParameterSource")
            .field("prefix", &self.prefix)
            .field("dtype", &self.dtype)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
