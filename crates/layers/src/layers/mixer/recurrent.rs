//! Parts that recurrent mixers with a state for each head share: convolved projections, the decay, and a pass over the
//! state.

use std::sync::Arc;

use candle_blocks_kernels::recurrence::{Rule, StateHeads};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::Init;

use crate::config::{Activation, LinearConfig};
use crate::layers::linear::{ThroughRank, packed::plain};
use crate::layers::state::{LayerState, Recurrent};
use crate::layers::visit::parts;
use crate::layers::{Linear, ParameterSource, packed::Packing, pass::Pass};
use crate::ops::{
    Recurrence, SelectiveScan, Sequences, TapTable, Value, record, record_conversion,
};

/// A projection, a short convolution of its rows, and an activation.
#[derive(Clone, Debug)]
pub(super) struct ConvolvedProjection {
    projection: Linear,
    /// `[width, 1, taps]`.
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
}

parts!(ConvolvedProjection: Self { projection, .. } => [projection] []);

impl ConvolvedProjection {
    /// Creates the projection `name`, without a bias, and the convolution `{name}_convolution`, before SiLU.
    pub fn new(
        vb: &ParameterSource,
        name: &str,
        sizes: [usize; 3],
        has_bias: bool,
    ) -> Result<Self> {
        Self::of(vb, name, sizes, [false, has_bias], Activation::Silu)
    }

    /// Creates the same with biases for both, and without an activation.
    pub fn linear(vb: &ParameterSource, name: &str, sizes: [usize; 3]) -> Result<Self> {
        Self::of(vb, name, sizes, [true, true], Activation::Identity)
    }

    fn of(
        vb: &ParameterSource,
        name: &str,
        [d_in, width, taps]: [usize; 3],
        has_bias: [bool; 2],
        activation: Activation,
    ) -> Result<Self> {
        let convolution = vb.pp(format_args!("{name}_convolution"));
        let linear = LinearConfig::new(d_in, width).with_bias(has_bias[0]);
        let of_convolution = has_bias[1].then(|| convolution.get(width, "bias"));
        Ok(Self {
            projection: Linear::new(&linear, vb.pp(name))?,
            weight: convolution.get((width, 1, taps), "weight")?,
            bias: of_convolution.transpose()?,
            activation,
        })
    }

    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            projection: self.projection.packed(packing)?,
            weight: taps_apart(&self.weight)?,
            bias: self.bias.as_ref().map(single).transpose()?,
            activation: self.activation,
        })
    }
}

/// A pass through the convolutions and the recurrence of one mixer, in the order of its state's tensors.
pub(super) struct RecurrentPass<'a> {
    x: &'a Value,
    pass: &'a Pass<'a>,
    state: Option<&'a mut Recurrent>,
    table: Arc<TapTable>,
    /// The state after the pass, as far as it is computed.
    after: Vec<Tensor>,
}

impl<'a> RecurrentPass<'a> {
    /// Begins a pass of a mixer whose convolutions have this number of taps.
    pub fn new(
        taps: usize,
        x: &'a Value,
        pass: &'a Pass,
        state: Option<&'a mut LayerState>,
    ) -> Result<Self> {
        let state = state.map(LayerState::as_recurrent).transpose()?;
        let has_state = state
            .as_ref()
            .is_some_and(|state| state.tensor(0).is_some());
        Ok(Self {
            x,
            pass,
            state,
            table: pass.tap_table(taps, has_state)?,
            after: Vec::new(),
        })
    }

    /// Returns true in training mode.
    pub fn train(&self) -> bool {
        self.pass.context.train()
    }

    /// Returns the next tensor of the state before the pass.
    fn earlier(&self) -> Option<&Tensor> {
        self.state.as_ref()?.tensor(self.after.len())
    }

    /// Returns a convolved projection's rows in f32 or f64. The projection is multiplied by a factor.
    pub fn convolved(&mut self, by: &ConvolvedProjection, factor: f64) -> Result<Value> {
        let train = self.pass.context.train();
        let rows = by.projection.apply(self.x, None, train)?;
        let rows = rows.multiplied(factor)?;
        let (earlier, table) = (self.earlier(), &self.table);
        let after = rows.rows_after(earlier, table)?;
        let mixed = rows.convolve(&by.weight, by.bias.as_ref(), earlier, table)?;
        self.after.push(after);
        mixed.activate(by.activation)?.widened()
    }

    /// Returns the steps with one at each sequence's first position after which nothing is left: `exp(-step)` is 0.
    pub fn beginning(&self, steps: Value) -> Result<Value> {
        let (first, width) = (self.pass.first_rows()?, steps.width());
        if first.is_empty() {
            return Ok(steps);
        }
        let mut added = vec![0f32; steps.dims().iter().product()];
        for &row in first.iter() {
            added[row as usize * width..][..width].fill(1e4);
        }
        let added = Tensor::from_vec(added, steps.dims(), &Device::Cpu)?;
        let added = added.to_dtype(steps.dtype())?.to_device(&steps.device())?;
        steps.add(&steps.beside(&added)?)
    }

    fn sequences<'s>(&'s mut self, rows: &'s Arc<Vec<Vec<u32>>>) -> Sequences<'s> {
        let spare = self.state.as_mut().and_then(|state| state.take_spare());
        Sequences {
            rows,
            before: self.earlier(),
            spare,
        }
    }

    /// Computes the recurrence for queries, keys and values, and for the decay's logarithms and the strengths of writing,
    /// and replaces the state.
    pub fn recur(
        mut self,
        rule: Rule,
        heads: StateHeads,
        [query, key, value]: [&Value; 3],
        [decay, write]: [&Value; 2],
    ) -> Result<Value> {
        let rows = self.pass.sequence_rows()?;
        let recurrence = Recurrence {
            rule,
            heads,
            query,
            key,
            value,
            decay,
            write,
            sequences: self.sequences(&rows),
        };
        let (read, states) = recurrence.compute()?;
        self.after.push(states);
        self.finish();
        Ok(read)
    }

    /// Computes the selective scan of a head for steps, queries, keys and values. [`Self::finish`] replaces the state.
    pub fn scan(&mut self, rate: &Tensor, [step, query, key, value]: [&Value; 4]) -> Result<Value> {
        let rows = self.pass.sequence_rows()?;
        let scan = SelectiveScan {
            rate,
            step,
            query,
            key,
            value,
            sequences: self.sequences(&rows),
        };
        let (read, states) = scan.compute()?;
        self.after.push(states);
        Ok(read)
    }

    /// Replaces the state.
    pub fn finish(self) {
        if let Some(state) = self.state {
            state.advance(self.pass.seen + self.pass.seq, self.after);
        }
    }
}

/// Each head's decay, or that of each of its channels: `exp(-exp(rate) · step)` with `step = softplus(projection(x) + bias)`,
/// or `exp(bound · sigmoid(exp(rate) · step))` with `step = projection(x) + bias`.
#[derive(Clone, Debug)]
pub(super) struct Decay {
    projection: ThroughRank,
    bias: Tensor,
    /// `[n_heads]`, or `[n_heads, 1]` with a rank; a packed layer has the factors of the steps.
    rate: Tensor,
    bound: Option<f64>,
    is_packed: bool,
}

/// The decay of a head's channels.
pub(super) struct ChannelDecay {
    pub n_channels: usize,
    pub rank: Option<usize>,
    pub bound: Option<f64>,
}

parts!(Decay: Self { projection, .. } => [projection] []);

impl Decay {
    /// Creates the projection `decay` with its bias, and `rate`.
    pub fn new(
        vb: &ParameterSource,
        [d_in, n_heads]: [usize; 2],
        channels: Option<ChannelDecay>,
    ) -> Result<Self> {
        let one = Init::Const(1.0);
        let (decay, rate) = (vb.pp("decay"), vb.pp("rate"));
        let n = n_heads * channels.as_ref().map_or(1, |of| of.n_channels);
        let rank = channels.as_ref().and_then(|of| of.rank);
        let rate = match rank {
            None => rate.get_with_hints(n_heads, "weight", one)?,
            Some(_) => rate.get_with_hints((n_heads, 1), "weight", one)?,
        };
        Ok(Self {
            projection: ThroughRank::new(&decay, [d_in, n], rank)?,
            bias: decay.get_with_hints(n, "bias", one)?,
            rate,
            bound: channels.and_then(|of| of.bound),
            is_packed: false,
        })
    }

    /// Returns the steps, in f32 or f64. The projection is multiplied by a factor.
    pub fn steps(&self, x: &Value, factor: f64, train: bool) -> Result<Value> {
        let steps = self.projection.apply(x, train)?;
        let steps = steps.multiplied(factor)?.widened()?;
        let steps = steps.add_to_rows(&widened(&self.bias, steps.dtype())?)?;
        match self.bound {
            Some(_) => Ok(steps),
            None => steps.activate(Activation::Softplus),
        }
    }

    /// Returns the decay's logarithms for these steps.
    pub fn logarithms(&self, steps: &Value) -> Result<Value> {
        let rows = steps.multiply_rows(&self.factors(steps.dtype())?)?;
        match self.bound {
            Some(bound) => rows.activate(Activation::Sigmoid)?.scale(bound),
            None => Ok(rows),
        }
    }

    /// Returns `-exp(rate)`, or `exp(rate)` with a bound, for each column of the steps.
    fn factors(&self, dtype: DType) -> Result<Tensor> {
        let rate = widened(&self.rate, dtype)?;
        if self.is_packed {
            return Ok(rate);
        }
        record("exp", &rate)?;
        let rate = rate.exp()?;
        let rate = match self.bound {
            Some(_) => rate,
            None => {
                record("neg", &rate)?;
                rate.neg()?
            }
        };
        let (n, n_heads) = (self.bias.elem_count(), rate.elem_count());
        if n == n_heads {
            return rate.flatten_all();
        }
        record("copy", &rate)?;
        let each = rate.reshape((n_heads, 1))?;
        let each = each.broadcast_as((n_heads, n / n_heads))?;
        each.contiguous()?.flatten_all()
    }

    /// The projection stays in f32 in every precision: few weights, on which all later positions depend.
    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            projection: self.projection.packed(&packing.exact())?,
            bias: single(&self.bias)?,
            rate: single(&self.factors(DType::F32)?)?,
            bound: self.bound,
            is_packed: true,
        })
    }
}

/// Returns a parameter in another type, through the graph.
pub(super) fn widened(of: &Tensor, dtype: DType) -> Result<Tensor> {
    if of.dtype() != dtype {
        record_conversion(of, dtype)?;
    }
    of.to_dtype(dtype)
}

/// Returns a packed layer's parameter.
pub(super) fn single(of: &Tensor) -> Result<Tensor> {
    plain(of)?.to_dtype(DType::F32)
}

/// Returns the weights of a packed layer's convolution, in memory tap by tap.
pub(super) fn taps_apart(weight: &Tensor) -> Result<Tensor> {
    let by_tap = single(weight)?.permute((2, 1, 0))?.contiguous()?;
    by_tap.permute((2, 1, 0))
}

/// Returns the rows with a dimension for heads of this width.
pub(super) fn in_heads(rows: &Value, width: usize) -> Result<Value> {
    let mut dims = rows.dims().to_vec();
    let of_all = dims.pop().unwrap_or(0);
    dims.extend([of_all / width, width]);
    rows.reshape(dims)
}
