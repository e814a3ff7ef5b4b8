//! The gate on a bias by distance (WavLM).

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::Init;

use crate::config::{Activation, AttentionConfig, LinearConfig, Position};
use crate::layers::{Linear, ParameterSource, visit::parts};
use crate::ops::{Content, Term, Value};

/// The columns to which a head's part of the input is projected: the first half is summed to one logit, the second to the other.
const COLUMNS: usize = 8;

/// The layers of [`Position::GatedBias`].
#[derive(Clone, Debug)]
pub(super) struct BiasGate {
    /// For the part of each head, `[8, head_dim]`.
    projection: Linear,
    /// `[n_heads, 1, 1]`.
    factor: Tensor,
}

impl BiasGate {
    /// Creates `position_gate` and `position_gate_factor` from `vb`, if configured.
    pub(super) fn new(config: &AttentionConfig, vb: &ParameterSource) -> Result<Option<Self>> {
        let Position::GatedBias(_) = config.position else {
            return Ok(None);
        };
        let projection = LinearConfig::new(config.head_dim, COLUMNS);
        let factor = vb.pp("position_gate_factor");
        let dims = (config.n_heads, 1, 1);
        Ok(Some(Self {
            projection: Linear::new(&projection, vb.pp("position_gate"))?,
            factor: factor.get_with_hints(dims, "weight", Init::Const(1.0))?,
        }))
    }

    /// Returns the term for scores: each query's gate, times the table `[rows, n_heads]`.
    pub(super) fn term(
        &self,
        x: &Value,
        table: Value,
        train: bool,
    ) -> Result<Term<Content, Value>> {
        let (n_heads, head_dim) = (table.width(), self.projection.shape().1);
        let mut dims = x.dims().to_vec();
        dims.pop();
        let heads = dims.iter().product::<usize>() * n_heads;
        dims.push(n_heads);
        let heads = x.reshape(vec![heads, head_dim])?;
        let columns = self.projection.apply(&heads, None, train)?.widened()?;
        let logits = |half: usize| -> Result<Value> {
            let column = |i: usize| columns.columns(i..i + 1);
            let others = half + 1..half + COLUMNS / 2;
            let sum = others
                .map(column)
                .try_fold(column(half), |sum, of| sum.add(&of))?;
            sum.reshape(dims.clone())
        };
        let [a, b] = [logits(0)?, logits(COLUMNS / 2)?];
        let factor = self.factor.flatten_all()?.to_dtype(b.dtype())?;
        let b = b.activate(Activation::Sigmoid)?.multiply_rows(&factor)?;
        let gate = a.gate(&b.shift(-1.0)?, Activation::Sigmoid, None)?;
        Ok(Term {
            content: Content::OfQueries(gate.shift(2.0)?),
            table,
        })
    }

    /// Returns the projection from the whole input to the heads' logits, `[2 · n_heads, d_model]`: first those of all heads that
    /// are multiplied, then those of the factor.
    pub(super) fn of_all_heads(&self) -> Result<Linear> {
        let (n_heads, head_dim) = (self.factor.dims()[0], self.projection.shape().1);
        let projection = self.projection.merged()?;
        let on_host = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32);
        let weight = on_host(&projection.weight()?)?.reshape((2, COLUMNS / 2, head_dim))?;
        let halves = weight.sum(1)?.to_vec2::<f32>()?;
        let mut all = vec![0.0; 2 * n_heads * n_heads * head_dim];
        for (row, to) in all.chunks_exact_mut(n_heads * head_dim).enumerate() {
            let (half, head) = (row / n_heads, row % n_heads);
            to[head * head_dim..][..head_dim].copy_from_slice(&halves[half]);
        }
        let weight = Tensor::from_vec(all, (2 * n_heads, n_heads * head_dim), &Device::Cpu)?;
        let bias = projection.bias().map(|bias| {
            let halves = on_host(bias)?.reshape((2, COLUMNS / 2))?.sum(1)?;
            halves.unsqueeze(1)?.repeat((1, n_heads))?.flatten_all()
        });
        Linear::from_parts(weight, bias.transpose()?)
    }

    /// The factors of all heads, `[n_heads, 1, 1]`.
    pub(super) fn factor(&self) -> &Tensor {
        &self.factor
    }
}

parts!(BiasGate: Self { projection: position_gate, .. } => [] [position_gate]);
