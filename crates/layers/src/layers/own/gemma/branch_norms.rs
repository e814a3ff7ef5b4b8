//! The norms in a mixture's branches (Gemma 4).

use std::sync::Arc;

use candle_blocks_kernels::rows::RowNorm;
use candle_core::Result;

use crate::config::NormConfig;
use crate::layers::norm::packed::row_norm;
use crate::layers::{Norm, ParameterSource};

/// The norms around a mixture's branches. The mixture reads rows that are not normalized:
/// `output(Σ weightₑ · expertₑ(input(x))) + shared_output(shared(shared_input(x)))`, routed by
/// `router · norm(x) / √d_model` (transformers' `Gemma4TextDecoderLayer` and `Gemma4TextRouter`,
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>).
#[derive(Clone, Debug)]
pub(crate) struct BranchNorms<N = Norm> {
    /// For the router's input.
    pub router: N,
    /// For the chosen experts' input.
    pub input: N,
    /// For the weighted sum of their outputs.
    pub output: N,
    /// For the shared expert's input.
    pub shared_input: N,
    /// For the shared expert's output.
    pub shared_output: N,
}

impl BranchNorms {
    /// Creates `router_norm`, `experts_norm`, `experts_output_norm`, `shared_norm` and `shared_output_norm` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(config: &NormConfig, vb: &ParameterSource) -> Result<Self> {
        let norm = |name: &str| Norm::new(config, vb.pp(name));
        Ok(Self {
            router: norm("router_norm")?,
            input: norm("experts_norm")?,
            output: norm("experts_output_norm")?,
            shared_input: norm("shared_norm")?,
            shared_output: norm("shared_output_norm")?,
        })
    }

    /// Returns the factor on the router's logits.
    pub fn logit_scale(&self) -> f64 {
        (self.router.config().d_model as f64).powf(-0.5)
    }

    /// Returns the norms for the kernels.
    ///
    /// # Errors
    /// If a norm is not on the CPU, or is f64.
    pub fn packed(&self) -> Result<Arc<BranchNorms<RowNorm>>> {
        Ok(Arc::new(BranchNorms {
            router: row_norm(&self.router)?,
            input: row_norm(&self.input)?,
            output: row_norm(&self.output)?,
            shared_input: row_norm(&self.shared_input)?,
            shared_output: row_norm(&self.shared_output)?,
        }))
    }
}
