//! Parameters for layers: tensors by name, or a checkpoint's in another order.

use candle_blocks::{
    candle_core::{self, DType, Device, Result, Shape, Tensor},
    candle_nn::{Init, VarBuilder, var_builder::SimpleBackend},
};

/// Returns a builder over named tensors, with the first one's dtype and device.
pub fn builder<'a, N: ToString>(
    named: impl IntoIterator<Item = (N, &'a Tensor)>,
) -> VarBuilder<'static> {
    let named = named.into_iter();
    let named: Vec<_> = named
        .map(|(name, of)| (name.to_string(), of.clone()))
        .collect();
    let (dtype, device) = (named[0].1.dtype(), named[0].1.device().clone());
    VarBuilder::from_tensors(named.into_iter().collect(), dtype, &device)
}

/// An attention's parameters with outputs or inputs in another order: by the name of a layer in it, the axis of its weight
/// and the order there.
pub struct Reordered<'c> {
    pub of: VarBuilder<'c>,
    pub order: Vec<(&'static str, usize, Tensor)>,
}

impl SimpleBackend for Reordered<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> Result<Tensor> {
        let tensor = self.of.get_with_hints_dtype(shape, name, init, dtype)?;
        let layer = name.split('.').next();
        let mut order = self.order.iter();
        match order.find(|(of, axis, _)| Some(*of) == layer && *axis < tensor.rank()) {
            Some((_, axis, order)) => tensor.index_select(order, *axis),
            None => Ok(tensor),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.of.contains_tensor(name)
    }
}
