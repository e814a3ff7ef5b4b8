//! The layers around the experts that a mixture chooses.

use candle_blocks_kernels::rows::RowNorm;
use candle_core::{Result, Tensor};

use crate::config::ExpertBranch;
use crate::layers::linear::packed::PackedProduct;
use crate::layers::own::gemma::BranchNorms;
use crate::layers::packed::Packing;
use crate::layers::visit::parts;
use crate::layers::{Linear, Norm, ParameterSource};
use crate::ops::Value;

/// The layers that [`ExpertBranch`] describes.
#[derive(Clone, Debug)]
pub(crate) enum Branch<M = Linear, N = Norm, F = Tensor> {
    /// None.
    Plain,
    /// Projections `[width, d_model]` and `[d_model, width]`.
    Latent { latent_down: M, latent_up: M },
    /// Norms, and factors on the experts' weights.
    Normalized(Box<BranchNorms<N, F>>),
}

/// The layers for the kernels.
pub(super) type PackedBranch = Branch<PackedProduct, RowNorm, Vec<f32>>;

parts!(Branch:
    Self::Latent { latent_down, latent_up } => [] [latent_down, latent_up],
    Self::Plain | Self::Normalized(_) => [] []);

impl<M, N, F> Branch<M, N, F> {
    /// Returns the norms, if there are any.
    pub fn norms(&self) -> Option<&BranchNorms<N, F>> {
        match self {
            Self::Normalized(norms) => Some(norms),
            Self::Plain | Self::Latent { .. } => None,
        }
    }
}

impl Branch {
    /// Creates `latent_down` and `latent_up`, or the norms, for a mixture of this width.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(
        config: ExpertBranch,
        [d_model, n_experts]: [usize; 2],
        vb: &ParameterSource,
    ) -> Result<Self> {
        let linear = |name, d_in, d_out| Linear::unbiased([d_in, d_out], vb.pp(name));
        Ok(match config {
            ExpertBranch::Plain => Self::Plain,
            ExpertBranch::Latent { width } => Self::Latent {
                latent_down: linear("latent_down", d_model, width)?,
                latent_up: linear("latent_up", width, d_model)?,
            },
            ExpertBranch::Normalized { norm } => {
                Self::Normalized(Box::new(BranchNorms::new(&norm, n_experts, vb)?))
            }
        })
    }

    /// Returns the layers for the kernels.
    ///
    /// # Errors
    /// If a parameter is not on the CPU, or is f64.
    pub(super) fn packed(&self, packing: &Packing) -> Result<PackedBranch> {
        let product = |name: &str, of| PackedProduct::new(&packing.at(name), of);
        Ok(match self {
            Self::Plain => Branch::Plain,
            Self::Latent {
                latent_down,
                latent_up,
            } => Branch::Latent {
                latent_down: product("latent_down", latent_down)?,
                latent_up: product("latent_up", latent_up)?,
            },
            Self::Normalized(norms) => Branch::Normalized(Box::new(norms.packed()?)),
        })
    }

    /// Returns the rows that the chosen experts read.
    pub fn input(&self, rows: &Value, train: bool) -> Result<Value> {
        match self {
            Self::Plain => Ok(rows.clone()),
            Self::Latent { latent_down, .. } => latent_down.apply(rows, None, train),
            Self::Normalized(norms) => norms.input.apply(rows),
        }
    }

    /// Returns the branch's output for the weighted sum of the experts' outputs.
    pub fn output(&self, sum: Value, train: bool) -> Result<Value> {
        match self {
            Self::Plain => Ok(sum),
            Self::Latent { latent_up, .. } => latent_up.apply(&sum, None, train),
            Self::Normalized(norms) => norms.output.apply(&sum),
        }
    }
}
