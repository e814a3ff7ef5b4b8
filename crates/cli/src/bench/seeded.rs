//! Random weights and inputs that are the same in every run.

use candle_blocks::candle_core::{DType, Device, Result, Shape, Tensor};
use candle_blocks::candle_nn::{Init, VarBuilder};
use candle_blocks::{config::Initialization, train::Fresh};

fn fresh() -> Fresh {
    Fresh::new(Initialization::layers(), 42, DType::F32, &Device::Cpu)
}

/// Builds a layer from fresh f32 weights, as plain tensors.
pub fn weights<T>(build: impl Fn(VarBuilder<'static>) -> Result<T>) -> Result<T> {
    let fresh = fresh();
    build(fresh.var_builder())?;
    let parameters = fresh.parameters().into_iter();
    let tensors = parameters.map(|(role, variable)| (role, variable.as_detached_tensor()));
    let (dtype, device) = (DType::F32, &Device::Cpu);
    build(VarBuilder::from_tensors(tensors.collect(), dtype, device))
}

/// Returns random hidden states with mean 0 and variance 1.
pub fn hidden_states(shape: impl Into<Shape>) -> Result<Tensor> {
    let normal = Init::Randn {
        mean: 0.0,
        stdev: 1.0,
    };
    let states = fresh()
        .var_builder()
        .get_with_hints(shape.into(), "hidden_states", normal)?;
    Ok(states.detach())
}
