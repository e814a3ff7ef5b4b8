//! Random numbers that are the same in every run.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use candle_blocks::candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_blocks::candle_nn::var_builder::SimpleBackend;
use candle_blocks::candle_nn::{Init, VarBuilder};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Any tensor that a layer asks for, by its name.
struct SeededWeights;

/// Weights of f32 for any layer.
pub fn weights() -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(SeededWeights), DType::F32, Device::Cpu)
}

/// Hidden states of mean 0 and variance 1.
pub fn hidden_states(shape: impl Into<Shape>) -> Result<Tensor> {
    uniform(shape.into(), "hidden_states", 3f32.sqrt())
}

/// Evenly between plus and minus `bound`.
fn uniform(shape: Shape, name: &str, bound: f32) -> Result<Tensor> {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let mut rng = StdRng::seed_from_u64(hasher.finish());
    let numbers: Vec<f32> = (0..shape.elem_count())
        .map(|_| rng.random_range(-bound..bound))
        .collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

impl SimpleBackend for SeededWeights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> Result<Tensor> {
        let tensor = match init {
            // Norms: near to their constant, and not all one number.
            Init::Const(constant) => (uniform(shape, name, 0.1)? + constant)?,
            // As PyTorch draws a linear layer's.
            _ => {
                let d_in = shape.dims().last().copied().unwrap_or(1).max(1);
                uniform(shape, name, 1.0 / (d_in as f32).sqrt())?
            }
        };
        tensor.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name}: a random tensor needs a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
