//! A residual sublayer: an inner layer with its norm, dropout and residual connection.

use std::sync::Arc;

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::Init;

use crate::config::{BlockConfig, NormConfig, NormPlacement, ResidualSource, getters};
use crate::layers::{Dropout, DropoutSource, Norm, ParameterSource, visit::parts};
use crate::ops::{Ranks, Value};

/// The norms of a [`Sublayer`] and their placement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SublayerNorm<N = Norm> {
    /// `x + inner(norm(x))` (GPT-2, Llama).
    Pre(N),
    /// `norm(x + inner(x))` (BERT).
    Post(N),
    /// `x + output(inner(input(x)))` (Gemma 2).
    Sandwich {
        /// The norm of the inner layer's input.
        input: N,
        /// The norm of the inner layer's output.
        output: N,
    },
    /// `x + norm(inner(x))` (OLMo 2).
    Output(N),
    /// `x + inner(x)`, without a norm.
    None,
}

impl<N> SublayerNorm<N> {
    /// Returns the norm of the inner layer's input.
    pub(crate) fn of_input(&self) -> Option<&N> {
        match self {
            Self::Pre(norm) | Self::Sandwich { input: norm, .. } => Some(norm),
            Self::Post(_) | Self::Output(_) | Self::None => None,
        }
    }

    /// Returns the norm of the inner layer's output.
    pub(crate) fn of_output(&self) -> Option<&N> {
        match self {
            Self::Sandwich { output: norm, .. } | Self::Output(norm) => Some(norm),
            Self::Pre(_) | Self::Post(_) | Self::None => None,
        }
    }

    /// Returns the norm after the residual addition.
    pub(crate) fn of_sum(&self) -> Option<&N> {
        match self {
            Self::Post(norm) => Some(norm),
            _ => None,
        }
    }

    /// Returns the norms in the order in which they are applied.
    pub(crate) fn all(&self) -> impl Iterator<Item = &N> {
        let norms = [self.of_input(), self.of_output(), self.of_sum()];
        norms.into_iter().flatten()
    }

    /// Returns the same placement with each norm replaced by `map(norm)`.
    pub(crate) fn try_map<M>(
        &self,
        mut map: impl FnMut(&N) -> Result<M>,
    ) -> Result<SublayerNorm<M>> {
        Ok(match self {
            Self::Pre(norm) => SublayerNorm::Pre(map(norm)?),
            Self::Post(norm) => SublayerNorm::Post(map(norm)?),
            Self::Sandwich { input, output } => SublayerNorm::Sandwich {
                input: map(input)?,
                output: map(output)?,
            },
            Self::Output(norm) => SublayerNorm::Output(map(norm)?),
            Self::None => SublayerNorm::None,
        })
    }
}

impl SublayerNorm {
    /// Creates the norm from `<role>_norm` in `vb`. A sandwich also needs `<role>_output_norm`.
    pub fn new<'p>(
        placement: NormPlacement,
        config: &NormConfig,
        role: &str,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        Self::with_output(placement, [config; 2], role, &vb.into())
    }

    /// Creates the same norms, with another configuration for `<role>_output_norm`.
    fn with_output(
        placement: NormPlacement,
        [config, of_output]: [&NormConfig; 2],
        role: &str,
        vb: &ParameterSource,
    ) -> Result<Self> {
        let main = || Norm::new(config, vb.pp(format!("{role}_norm")));
        let output = || Norm::new(of_output, vb.pp(format!("{role}_output_norm")));
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

/// The factor by which the inner layer's output is multiplied before the residual addition.
#[derive(Clone, Debug)]
pub(crate) enum BranchScale {
    /// No factor.
    One,
    /// A constant (Granite).
    Constant(f64),
    /// A learned vector `[d_model]`, layer scale (Touvron et al. 2021, <https://arxiv.org/abs/2103.17239>).
    Learned(Tensor),
}

impl BranchScale {
    /// Reads the vector `<role>_layer_scale.weight` from `vb`.
    fn learned(d_model: usize, role: &str, vb: &ParameterSource) -> Result<Self> {
        let vb = vb.pp(format!("{role}_layer_scale"));
        let init = Init::Const(1.0); // DINOv2's layerscale_value
        Ok(Self::Learned(vb.get_with_hints(d_model, "weight", init)?))
    }

    fn apply(&self, branch: Value) -> Result<Value> {
        match self {
            Self::One => Ok(branch),
            Self::Constant(factor) => branch.scale(*factor),
            Self::Learned(vector) => branch.multiply_rows(vector),
        }
    }
}

/// The intermediate results of a sublayer. [`Sublayer::stages`](crate::Sublayer::stages) returns them.
#[derive(Clone, Debug)]
pub struct SublayerStages {
    /// The inner layer's input: `x`, after the input norm if there is one.
    pub input: Tensor,
    /// The inner layer's output, before output norm, dropout, scale and residual.
    pub inner_output: Tensor,
    /// The sublayer's output.
    pub output: Tensor,
}

/// A residual sublayer: `x + drop_path(scale · dropout(inner(norm(x))))`. [`SublayerNorm`] places the norm.
///
/// ```
/// use candle_blocks::{Activation, FeedForward, Linear, Sublayer, SublayerNorm};
/// use candle_core::{Device, Tensor};
/// let linear = |w: [[f64; 2]; 2], b: [f64; 2]| {
///     Linear::from_parts(Tensor::new(&w, &Device::Cpu)?, Some(Tensor::new(&b, &Device::Cpu)?))
/// };
/// let (up, down) = (linear([[1., 2.], [3., 4.]], [0.5, -0.5])?, linear([[2., 1.], [0.5, 1.]], [0., 0.5])?);
/// let inner = FeedForward::from_parts(None, up, down, Activation::Relu)?;
/// let residual = Sublayer::new(inner, SublayerNorm::None);
/// let y = residual.forward(&Tensor::new(&[1f64, -1.], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f64>()?, [1., -0.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sublayer<L> {
    inner: L,
    norm: SublayerNorm,
    dropout: Dropout,
    pub(crate) scale: BranchScale,
    drop_path: Dropout,
    /// The residual to which the inner layer's output is added.
    pub(crate) source: ResidualSource,
    /// The factor on the residual.
    carry: f64,
    /// The tensor-parallel group, if this layer is sharded.
    pub(crate) ranks: Option<Arc<Ranks>>,
}

impl<L> Sublayer<L> {
    /// Creates a sublayer from an inner layer and its norms, without dropout or scale.
    pub fn new(inner: L, norm: SublayerNorm) -> Self {
        Self {
            inner,
            norm,
            dropout: Dropout::none(),
            scale: BranchScale::One,
            drop_path: Dropout::none(),
            source: ResidualSource::Input,
            carry: 1.0,
            ranks: None,
        }
    }

    /// Creates the sublayer with this role in a block. `p` is the dropout probability for the inner layer's output.
    pub(super) fn of_block(
        role: &str,
        inner: L,
        placement: NormPlacement,
        p: f64,
        config: &BlockConfig,
        vb: &ParameterSource,
    ) -> Result<Self> {
        let (residual, source) = (&config.residual, DropoutSource::default);
        Ok(Self {
            inner,
            norm: SublayerNorm::with_output(
                placement,
                [&config.norm, &config.output_norm()],
                role,
                vb,
            )?,
            dropout: Dropout::new(p, source())?,
            scale: match (residual.layer_scale, residual.multiplier) {
                (true, _) => BranchScale::learned(config.d_model(), role, vb)?,
                (false, 1.0) => BranchScale::One,
                (false, factor) => BranchScale::Constant(factor),
            },
            drop_path: Dropout::of_samples(residual.drop_path, source())?,
            source: residual.source,
            carry: residual.carry,
            ranks: None,
        })
    }

    /// Returns this sublayer with another inner layer, norm and scale.
    pub(crate) fn with_parts(&self, inner: L, norm: SublayerNorm, scale: BranchScale) -> Self {
        Self {
            inner,
            norm,
            scale,
            dropout: self.dropout.clone(),
            drop_path: self.drop_path.clone(),
            source: self.source,
            carry: self.carry,
            ranks: self.ranks.clone(),
        }
    }

    /// Applies `dropout` to the inner layer's output.
    pub fn with_dropout(mut self, dropout: Dropout) -> Self {
        self.dropout = dropout;
        self
    }

    getters! {
        /// The inner layer.
        inner(&self) -> &L => &self.inner;
        /// The norms and their placement.
        norm(&self) -> &SublayerNorm => &self.norm;
    }

    /// Computes the sublayer with the closure `inner` as inner layer, and returns all intermediate results.
    ///
    /// # Shapes
    /// `[.., d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` is a scalar, a norm has another width, `inner` fails, or the result of `inner` has another shape than
    /// `x`.
    pub fn stages(
        &self,
        x: &Tensor,
        train: bool,
        inner: impl FnOnce(&L, &Tensor) -> Result<Tensor>,
    ) -> Result<SublayerStages> {
        let mut recorder = StageRecorder::on();
        let inner = |layer: &L, x: &Value, _: Option<&Value>| {
            Value::of(&inner(layer, &x.clone().tensor()?)?)
        };
        self.apply(&Value::of(x)?, None, train, &mut recorder, inner)?;
        recorder.sublayer()
    }

    /// Computes the output. The closure `inner` runs the inner layer and adds its output to the given residual.
    /// `last` holds the rows of `x` whose output is requested, or `None` for all rows; the residual comes from these
    /// rows.
    pub(super) fn apply(
        &self,
        x: &Value,
        last: Option<&Value>,
        train: bool,
        recorder: &mut StageRecorder,
        inner: impl FnOnce(&L, &Value, Option<&Value>) -> Result<Value>,
    ) -> Result<Value> {
        let output = self.unrecorded(x, last, train, recorder, inner)?;
        recorder.record(output)
    }

    /// Computes the output like [`Self::apply`], for a caller that records it.
    pub(super) fn unrecorded(
        &self,
        x: &Value,
        last: Option<&Value>,
        train: bool,
        recorder: &mut StageRecorder,
        inner: impl FnOnce(&L, &Value, Option<&Value>) -> Result<Value>,
    ) -> Result<Value> {
        let input = recorder.record(self.input(x)?)?;
        let residual = match (self.source, last) {
            (ResidualSource::Input, last) => last.unwrap_or(x),
            (ResidualSource::Normalized, None) => &input,
            (ResidualSource::Normalized, Some(last)) => &self.input(last)?,
        };
        let residual = match self.carry {
            1.0 => residual,
            factor => &residual.scale(factor)?,
        };
        let sum = self.added(&input, Some(residual), train, recorder, inner)?;
        match self.norm.of_sum() {
            Some(norm) => norm.apply_in_place(sum),
            None => Ok(sum),
        }
    }

    /// Computes the branch like [`Self::apply`], without the residual and the norm after it.
    pub(super) fn branch(
        &self,
        x: &Value,
        train: bool,
        recorder: &mut StageRecorder,
        inner: impl FnOnce(&L, &Value, Option<&Value>) -> Result<Value>,
    ) -> Result<Value> {
        let input = recorder.record(self.input(x)?)?;
        let branch = self.added(&input, None, train, recorder, inner)?;
        recorder.record(branch)
    }

    /// Returns the inner layer's input: `x`, normalized if the sublayer has an input norm.
    pub(super) fn input(&self, x: &Value) -> Result<Value> {
        if x.dims().is_empty() {
            bail!("sublayer: input is a scalar, expected [.., d_model]");
        }
        match self.norm.of_input() {
            Some(norm) => norm.apply(x),
            None => Ok(x.clone()),
        }
    }

    /// Returns the residual to which the branch is added.
    pub(super) fn residual<'v>(&self, x: &'v Value, input: &'v Value) -> &'v Value {
        match self.source {
            ResidualSource::Input => x,
            ResidualSource::Normalized => input,
        }
    }

    /// Computes the branch (the inner layer's output after output norm, dropout, scale and drop path) and adds it to
    /// `residual`.
    pub(super) fn added(
        &self,
        input: &Value,
        residual: Option<&Value>,
        train: bool,
        recorder: &mut StageRecorder,
        inner: impl FnOnce(&L, &Value, Option<&Value>) -> Result<Value>,
    ) -> Result<Value> {
        if self.is_plain(train) && !recorder.is_on() {
            return inner(&self.inner, input, residual);
        }
        let branch = match &self.ranks {
            Some(ranks) => {
                let part = inner(&self.inner, &input.split_among(ranks)?, None)?;
                part.summed_over(ranks)?
            }
            None => inner(&self.inner, input, None)?,
        };
        let branch = recorder.record(branch)?;
        let branch = match self.norm.of_output() {
            Some(norm) => norm.apply_in_place(branch)?,
            None => branch,
        };
        let branch = self.scale.apply(self.dropout.apply_to(branch, train)?)?;
        let branch = self.drop_path.apply_to(branch, train)?;
        branch.added_to(residual)
    }

    /// Returns true if the branch is just the inner layer's output.
    fn is_plain(&self, train: bool) -> bool {
        self.ranks.is_none()
            && self.norm.of_output().is_none()
            && matches!(self.scale, BranchScale::One)
            && !(self.dropout.is_on(train) || self.drop_path.is_on(train))
    }
}

parts!(Sublayer<L>, L: Self { inner, dropout, drop_path, ranks, .. } => [inner, dropout, drop_path, ranks] []);

/// Collects the intermediate results of sublayers as tensors, if it is on.
pub(super) struct StageRecorder(Option<Vec<Tensor>>);

impl StageRecorder {
    pub fn on() -> Self {
        Self(Some(Vec::new()))
    }

    pub fn off() -> Self {
        Self(None)
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records a value. Later steps start a new graph from its tensor, so that no step is part of two graphs.
    pub fn record(&mut self, value: Value) -> Result<Value> {
        let Some(seen) = &mut self.0 else {
            return Ok(value);
        };
        let (route, precision) = (value.route(), value.precision());
        let tensor = value.tensor()?;
        seen.push(tensor.clone());
        Value::on(route, precision, &tensor)
    }

    /// Removes and returns the results of the first sublayer that remains.
    pub fn sublayer(&mut self) -> Result<SublayerStages> {
        let mut first = self
            .0
            .iter_mut()
            .flat_map(|seen| seen.drain(..3.min(seen.len())));
        match [first.next(), first.next(), first.next()] {
            [Some(input), Some(inner_output), Some(output)] => Ok(SublayerStages {
                input,
                inner_output,
                output,
            }),
            _ => bail!("sublayer: no intermediate results were recorded"),
        }
    }
}

impl<L: ModuleT> Sublayer<L> {
    /// Computes the output in evaluation mode, in the shape of `x`.
    ///
    /// # Errors
    /// If the shape does not fit the inner layer.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

impl<L: ModuleT> ModuleT for Sublayer<L> {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let inner = |layer: &L, x: &Value, residual: Option<&Value>| {
            let y = layer.forward_t(&x.clone().tensor()?, train)?;
            Value::of(&y)?.added_to(residual)
        };
        self.apply(
            &Value::of(x)?,
            None,
            train,
            &mut StageRecorder::off(),
            inner,
        )?
        .tensor()
    }
}
