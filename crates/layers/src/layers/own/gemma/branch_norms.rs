//! The norms in a mixture's branches (Gemma 4).

use candle_blocks_kernels::rows::RowNorm;
use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::config::NormConfig;
use crate::layers::norm::packed::row_norm;
use crate::layers::packed::elements;
use crate::layers::{Norm, ParameterSource};

/// The norms around a mixture's branches, and the experts' factors. The mixture reads rows that are not normalized:
/// `output(Σ expert_scaleₑ · weightₑ · expertₑ(input(x))) + shared_output(shared(shared_input(x)))`, routed by
/// `router · norm(x) / √d_model` (transformers' `Gemma4TextDecoderLayer` and `Gemma4TextRouter`,
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/gemma4/modeling_gemma4.py>).
#[derive(Clone, Debug)]
pub(crate) struct BranchNorms<N = Norm, F = Tensor> {
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
    /// The factors on the experts' weights, `[n_experts]`.
    pub expert_scale: F,
    /// The factor on the router's logits.
    pub logit_scale: f64,
}

impl BranchNorms {
    /// Creates `router_norm`, `experts_norm`, `experts_output_norm`, `shared_norm`, `shared_output_norm` and
    /// `router.expert_scale.weight` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(config: &NormConfig, n_experts: usize, vb: &ParameterSource) -> Result<Self> {
        let norm = |name: &str| Norm::new(config, vb.pp(name));
        let scale = vb.pp("router").pp("expert_scale");
        Ok(Self {
            router: norm("router_norm")?,
            input: norm("experts_norm")?,
            output: norm("experts_output_norm")?,
            shared_input: norm("shared_norm")?,
            shared_output: norm("shared_output_norm")?,
            expert_scale: scale.get_with_hints(n_experts, "weight", Init::Const(1.0))?,
            logit_scale: (config.d_model as f64).powf(-0.5),
        })
    }

    /// Returns the norms for the kernels.
    ///
    /// # Errors
    /// If a norm is not on the CPU, or is f64.
    pub fn packed(&self) -> Result<BranchNorms<RowNorm, Vec<f32>>> {
        Ok(BranchNorms {
            router: row_norm(&self.router)?,
            input: row_norm(&self.input)?,
            output: row_norm(&self.output)?,
            shared_input: row_norm(&self.shared_input)?,
            shared_output: row_norm(&self.shared_output)?,
            expert_scale: elements(&self.expert_scale)?,
            logit_scale: self.logit_scale,
        })
    }
}
