//! A residual sublayer: an inner layer with its norm, dropout and residual connection.

use candle_core::{Module, ModuleT, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::{
    config::{NormConfig, NormPlacement, ResidualSource},
    layers::{Dropout, DropoutSource, Norm},
    ops,
};

/// The norms of a [`Sublayer`] and where they stand.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SublayerNorm {
    /// `x + inner(norm(x))` (GPT-2, Llama).
    Pre(Norm),
    /// `norm(x + inner(x))` (BERT).
    Post(Norm),
    /// `x + output(inner(input(x)))` (Gemma 2).
    Sandwich {
        /// Applied to the input of the inner layer.
        input: Norm,
        /// Applied to the output of the inner layer.
        output: Norm,
    },
    /// `x + norm(inner(x))` (OLMo 2).
    Output(Norm),
    /// `x + inner(x)`, without a norm.
    None,
}

impl SublayerNorm {
    /// Gets `<role>_norm` from `vb`, and for a sandwich also `<role>_output_norm`.
    pub fn new(
        placement: NormPlacement,
        config: &NormConfig,
        role: &str,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let norm = |name: String| Norm::new(config, vb.pp(name));
        let main = || norm(format!("{role}_norm"));
        let output = || norm(format!("{role}_output_norm"));
        Ok(match placement {
            NormPlacement::Pre => Self::Pre(main()?),
            NormPlacement::Post => Self::Post(main()?),
            NormPlacement::Sandwich => Self::Sandwich {
                input: main()?,
                output: output()?,
            },
            NormPlacement::Output => Self::Output(output()?),
            NormPlacement::None => Self::None,
        })
    }
}

/// The factor on the inner layer's output before the residual addition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BranchScale {
    /// No factor.
    One,
    /// A constant (Granite).
    Constant(f64),
    /// A learned vector `[d_model]`, layer scale (Touvron et al. 2021, <https://arxiv.org/abs/2103.17239>).
    Learned(Tensor),
}

impl BranchScale {
    /// Gets the vector `<role>_layer_scale.weight` from `vb`.
    pub fn learned(d_model: usize, role: &str, vb: &VarBuilder) -> Result<Self> {
        let vb = vb.pp(format!("{role}_layer_scale"));
        let init = Init::Const(1.0); // DINOv2's layerscale_value
        Ok(Self::Learned(vb.get_with_hints(d_model, "weight", init)?))
    }

    fn apply(&self, branch: &Tensor) -> Result<Tensor> {
        match self {
            Self::One => Ok(branch.clone()),
            Self::Constant(factor) => ops::scaled(branch, *factor),
            Self::Learned(vector) => branch.broadcast_mul(vector),
        }
    }
}

/// The intermediate results of a sublayer.
#[derive(Clone, Debug)]
pub struct SublayerStages {
    /// The input of the inner layer: `x`, normalised or not.
    pub input: Tensor,
    /// The output of the inner layer, before output norm, dropout, scale and residual.
    pub inner_output: Tensor,
    /// The sublayer's output.
    pub output: Tensor,
}

/// A residual sublayer: `x + drop_path(scale · dropout(inner(norm(x))))`, with the norm where
/// [`SublayerNorm`] places it.
///
/// ```
/// use candle_blocks::{Activation, FeedForward, Linear, Sublayer, SublayerNorm};
/// use candle_core::{Device, Tensor};
/// let linear = |w: [[f64; 2]; 2], b: [f64; 2]| {
///     Linear::from_parts(Tensor::new(&w, &Device::Cpu)?, Some(Tensor::new(&b, &Device::Cpu)?))
/// };
/// let (up, down) = (linear([[1., 2.], [3., 4.]], [0.5, -0.5])?, linear([[2., 1.], [0.5, 1.]], [0., 0.5])?);
/// let inner = FeedForward::from_parts(None, up, down, Activation::Relu)?;
/// let residual = Sublayer::from_parts(inner, SublayerNorm::None);
/// let y = residual.forward(&Tensor::new(&[1f64, -1.], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f64>()?, [1., -0.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sublayer<L> {
    inner: L,
    norm: SublayerNorm,
    dropout: Dropout,
    scale: BranchScale,
    drop_path: Dropout,
    source: ResidualSource,
}

impl<L> Sublayer<L> {
    /// Builds the sublayer from an inner layer and its norm, without dropout or scale.
    pub fn from_parts(inner: L, norm: SublayerNorm) -> Self {
        Self {
            inner,
            norm,
            dropout: Dropout::none(),
            scale: BranchScale::One,
            drop_path: Dropout::none(),
            source: ResidualSource::Input,
        }
    }

    /// Applies `dropout` to the inner layer's output.
    pub fn with_dropout(mut self, dropout: Dropout) -> Self {
        self.dropout = dropout;
        self
    }

    /// Multiplies the inner layer's output by `scale`.
    pub fn with_scale(mut self, scale: BranchScale) -> Self {
        self.scale = scale;
        self
    }

    /// Applies `drop_path` to the branch, after the scale.
    pub fn with_drop_path(mut self, drop_path: Dropout) -> Self {
        self.drop_path = drop_path;
        self
    }

    /// Sets what the inner layer's output is added to.
    pub fn with_source(mut self, source: ResidualSource) -> Self {
        self.source = source;
        self
    }

    /// The inner layer.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The inner layer, mutable.
    pub fn inner_mut(&mut self) -> &mut L {
        &mut self.inner
    }

    /// The dropout of the inner layer's output, and drop path.
    pub(super) fn dropouts(&self) -> [&Dropout; 2] {
        [&self.dropout, &self.drop_path]
    }

    /// The norms and where they stand.
    pub fn norm(&self) -> &SublayerNorm {
        &self.norm
    }

    /// The factor on the inner layer's output.
    pub fn scale(&self) -> &BranchScale {
        &self.scale
    }

    /// What the inner layer's output is added to.
    pub fn source(&self) -> ResidualSource {
        self.source
    }

    /// Makes residual dropout and drop path draw their masks from `source`; the inner layer keeps its own source.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.dropout.set_source(source.clone());
        self.drop_path.set_source(source.clone());
    }

    /// Runs the sublayer, calling `run` for the inner layer, and returns all intermediate results.
    ///
    /// # Shapes
    /// `[.., d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` is a scalar, a norm is of another width, `run` fails, or its result has another shape than `x`.
    pub fn stages(
        &self,
        x: &Tensor,
        train: bool,
        run: impl FnOnce(&L, &Tensor) -> Result<Tensor>,
    ) -> Result<SublayerStages> {
        let input = self.input(x)?;
        let inner_output = run(&self.inner, &input)?;
        let branch = self.branch(&inner_output, train)?;
        let sum = (self.residual(x, &input) + branch)?;
        let output = match &self.norm {
            SublayerNorm::Post(norm) => norm.forward(&sum)?,
            _ => sum,
        };
        Ok(SublayerStages {
            input,
            inner_output,
            output,
        })
    }

    /// The input of the inner layer: `x`, normalised if the norm stands before the layer.
    pub(crate) fn input(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 0 {
            bail!("sublayer: input is a scalar, expected [.., d_model]");
        }
        match &self.norm {
            SublayerNorm::Pre(norm) | SublayerNorm::Sandwich { input: norm, .. } => norm.forward(x),
            SublayerNorm::Post(_) | SublayerNorm::Output(_) | SublayerNorm::None => Ok(x.clone()),
        }
    }

    /// The residual that the branch is added to.
    pub(crate) fn residual<'t>(&self, x: &'t Tensor, input: &'t Tensor) -> &'t Tensor {
        match self.source {
            ResidualSource::Input => x,
            ResidualSource::Normalised => input,
        }
    }

    /// The branch that is added to the residual: the inner layer's output after output norm, dropout, scale and drop path.
    pub(crate) fn branch(&self, inner_output: &Tensor, train: bool) -> Result<Tensor> {
        let branch = match &self.norm {
            SublayerNorm::Sandwich { output: norm, .. } | SublayerNorm::Output(norm) => {
                norm.forward(inner_output)?
            }
            _ => inner_output.clone(),
        };
        let branch = self.scale.apply(&self.dropout.forward_t(&branch, train)?)?;
        self.drop_path.forward_t(&branch, train)
    }
}

impl<L: ModuleT> Sublayer<L> {
    /// The output in evaluation mode, in the shape of `x`.
    ///
    /// # Errors
    /// If the shape does not fit the inner layer.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

impl<L: ModuleT> ModuleT for Sublayer<L> {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let stages = self.stages(x, train, |inner, x| inner.forward_t(x, train))?;
        Ok(stages.output)
    }
}
