//! Where layers get their parameters from.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::config::getters;
use crate::ops::Weight;

/// The parameters that layers are made of, by role: those of a candle `VarBuilder`, or those of a
/// [`Loader`](crate::checkpoint::Loader), whose linear weights may stay quantized.
///
/// Every layer's `new(&config, vb)` takes a `VarBuilder` or a `ParameterSource`. The methods have the names and the meaning
/// of candle's [`VarBuilder`].
#[derive(Clone)]
pub struct ParameterSource<'a> {
    backend: Arc<dyn ParameterBackend + 'a>,
    prefix: String,
    dtype: DType,
    device: Device,
}

/// What a [`ParameterSource`] reads, by the whole role of a parameter.
pub(crate) trait ParameterBackend: Send + Sync {
    /// A parameter as a tensor.
    fn tensor(
        &self,
        role: &str,
        shape: Shape,
        init: Init,
        kind: (DType, &Device),
    ) -> Result<Tensor>;

    /// The weight `[d_out, d_in]` of a linear layer.
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

    /// Whether the parameter exists.
    fn contains(&self, role: &str) -> bool;
}

impl<'a> ParameterSource<'a> {
    /// The parameters of a backend, in this type and on this device.
    pub(crate) fn new(
        backend: impl ParameterBackend + 'a,
        (dtype, device): (DType, &Device),
    ) -> Self {
        Self {
            backend: Arc::new(backend),
            prefix: String::new(),
            dtype,
            device: device.clone(),
        }
    }

    getters! {
        /// The type of the parameters.
        dtype(&self) -> DType => self.dtype;
        /// The device of the parameters.
        device(&self) -> &Device => &self.device;
    }

    /// The parameters whose roles begin with `name` and a dot.
    pub fn pp(&self, name: impl ToString) -> Self {
        Self {
            prefix: self.role(&name.to_string()),
            ..self.clone()
        }
    }

    /// Gets a parameter.
    ///
    /// # Errors
    /// If it is missing, or has another shape.
    pub fn get(&self, shape: impl Into<Shape>, name: &str) -> Result<Tensor> {
        self.get_with_hints(shape, name, Init::default())
    }

    /// Gets a parameter, which a source of fresh parameters draws by `init`; errors as for [`Self::get`].
    pub fn get_with_hints(
        &self,
        shape: impl Into<Shape>,
        name: &str,
        init: Init,
    ) -> Result<Tensor> {
        self.get_with_hints_dtype(shape, name, init, self.dtype)
    }

    /// As [`Self::get_with_hints`], in another type.
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

    /// Gets the weight `[d_out, d_in]` of a linear layer, in the form in which the source keeps it.
    pub(super) fn weight(&self, dims: (usize, usize), init: Init) -> Result<Weight> {
        let kind = (self.dtype, &self.device);
        self.backend.weight(&self.role("weight"), dims, init, kind)
    }

    /// Whether the parameter exists.
    pub fn contains_tensor(&self, name: &str) -> bool {
        self.backend.contains(&self.role(name))
    }

    /// The same parameters, of which `other` gives the role of the one that is read in the place of another.
    pub(crate) fn renamed(&self, other: impl Fn(&str) -> String + Send + Sync + 'a) -> Self {
        let renamed = Renamed {
            source: self.clone(),
            other,
        };
        Self::new(renamed, (self.dtype, &self.device))
    }

    fn role(&self, name: &str) -> String {
        match &*self.prefix {
            "" => name.to_string(),
            prefix => format!("{prefix}.{name}"),
        }
    }
}

/// Parameters under other roles.
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
