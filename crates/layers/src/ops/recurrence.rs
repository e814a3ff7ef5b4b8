//! A recurrence over the sequences of a pass.

use std::sync::Arc;

use candle_blocks_kernels::recurrence::{self, Rule, StateHeads};
use candle_blocks_kernels::{Cpu, Slice};
use candle_core::{Result, Tensor};

use super::states::{Sequences, WithInputs, check_inputs, check_tensor};
use super::tape::Taped;
use super::value::{Value, on_either};

const OP: &str = "recurrence";

/// The inputs of a recurrence in f32 or f64, with one row for each position.
pub(crate) struct Recurrence<'a> {
    /// The term that each position adds to a state.
    pub rule: Rule,
    /// The heads and their widths.
    pub heads: StateHeads,
    /// The queries, `[.., n_keys · key_dim]`.
    pub query: &'a Value,
    /// The keys.
    pub key: &'a Value,
    /// The values, `[.., n_values · value_dim]`.
    pub value: &'a Value,
    /// The logarithms of the states' decay, `[.., n_values]`; by [`Rule::ChannelDelta`], `[.., n_values · key_dim]`.
    pub decay: &'a Value,
    /// The strengths with which the states are written, `[.., n_values]`.
    pub write: &'a Value,
    /// The sequences, with states `[batch, n_values, key_dim, value_dim]`.
    pub sequences: Sequences<'a>,
}

impl Recurrence<'_> {
    /// Computes `S = α S + k ⊗ ..` by the rule and `y = Sᵀ q` at each position, with `α = exp(decay)` and `β = write`.
    /// Returns `y`, `[.., n_values · value_dim]`, and the states after. Rows outside all sequences are zeros.
    pub fn compute(&self) -> Result<(Value, Tensor)> {
        self.check()?;
        on_either!(self.query, x => {
            let others = [self.key, self.value, self.decay, self.write];
            let [key, value, decay, write] = others.map(|of| x.on_tape(of)?.whole());
            let (y, state) = x.whole()?.recur(self, [key?, value?, decay?, write?])?;
            Ok((y.into(), state))
        })
    }

    /// Returns the states' dimensions.
    pub(super) fn state_dims(&self) -> [usize; 4] {
        let StateHeads {
            n_values,
            key_dim,
            value_dim,
            ..
        } = self.heads;
        [self.sequences.rows.len(), n_values, key_dim, value_dim]
    }

    fn check(&self) -> Result<()> {
        let StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        } = self.heads;
        let keys = n_keys * key_dim;
        let inputs = [
            (self.query, keys),
            (self.key, keys),
            (self.value, n_values * value_dim),
            (self.decay, self.heads.decay_width(self.rule)),
            (self.write, n_values),
        ];
        check_inputs(OP, self.query, &inputs)?;
        let (before, dims) = (self.sequences.before, self.state_dims());
        check_tensor(OP, "the state", before, self.query, &dims)
    }
}

/// The kernel for queries, keys, values, decay and write.
struct Kernel {
    rule: Rule,
    heads: StateHeads,
    rows: Arc<Vec<Vec<u32>>>,
}

impl WithInputs for Kernel {
    type Kernel<'a> = recurrence::Recurrence<'a>;

    fn with<'a>(&'a self, inputs: [Slice<'a>; 5]) -> Self::Kernel<'a> {
        let [query, key, value, decay, write] = inputs;
        recurrence::Recurrence {
            rule: self.rule,
            heads: self.heads,
            query,
            key,
            value,
            decay,
            write,
            sequences: &self.rows,
        }
    }
}

impl Taped<Cpu> {
    /// `others` are keys, values, decay and write.
    fn recur(&self, of: &Recurrence, others: [Self; 4]) -> Result<(Self, Tensor)> {
        let [key, value, decay, write] = &others;
        let kernel = Kernel {
            rule: of.rule,
            heads: of.heads,
            rows: of.sequences.rows.clone(),
        };
        let inputs = [self, key, value, decay, write];
        let inputs = inputs.map(|of| (of.data.clone(), of.slot.clone()));
        value.with_states(kernel, inputs, &of.sequences, &of.state_dims())
    }
}
