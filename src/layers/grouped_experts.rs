//! Experts of a mixture whose rows only the device knows: what candle's kernel for that reads.

use candle_core::{Result, Tensor, TensorId};

use crate::config::RoutingConfig;
use crate::layers::{FeedForward, Linear};
use crate::ops::{Chooser, Columns, GroupedLinear, Groups, Value, has_grouped};

/// The linear layers of all experts, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct GroupedExperts {
    /// Gate, if there is one, up and down.
    linears: Vec<GroupedLinear>,
    chooser: Chooser,
    /// Of the weights of each expert, which are views of those in `linears`.
    views: Vec<TensorId>,
}

/// The tensor of a frozen weight without an adapter.
fn plain(linear: &Linear) -> Option<&Tensor> {
    let frozen = |of: &&Tensor| !of.track_op();
    let weight = linear.kept_weight().dense().filter(frozen)?;
    let is_plain = linear.adapter().is_none() && linear.bias().is_none_or(|bias| frozen(&bias));
    is_plain.then_some(weight)
}

impl GroupedExperts {
    /// Of experts that are alike, on a device where candle has the kernel; each keeps views of what is put together here.
    pub fn of(experts: &mut [FeedForward]) -> Result<Option<Self>> {
        let n = experts.len();
        let shapes = |of: &FeedForward| -> Vec<_> {
            let shape = |linear: &Linear| (linear.shape(), linear.bias().is_some());
            of.linears().map(shape).collect()
        };
        let alike = |of: &FeedForward| {
            let is_plain = |linear: &Linear| {
                let kind = plain(linear).map(|weight| (weight.dtype(), weight.device()));
                kind.is_some_and(|kind| has_grouped((n, linear.shape().1), kind))
            };
            of.xielu().is_none() && of.sparsity().is_none() && of.linears().all(is_plain)
        };
        let Some(first) = experts.first().map(shapes) else {
            return Ok(None);
        };
        if !experts.iter().all(|of| alike(of) && shapes(of) == first) {
            return Ok(None);
        }
        let device = experts[0].up().kept_weight().device().clone();
        let mut linears = Vec::with_capacity(first.len());
        for (nth, (_, has_bias)) in first.into_iter().enumerate() {
            let all = experts.iter().filter_map(|of| of.linears().nth(nth));
            let weights: Vec<Tensor> = all.clone().filter_map(plain).cloned().collect();
            let biases: Vec<Tensor> = all.filter_map(Linear::bias).cloned().collect();
            let grouped = GroupedLinear::new(&weights, has_bias.then_some(&biases))?;
            for (e, expert) in experts.iter_mut().enumerate() {
                if let Some((_, linear)) = expert.linears_mut("").into_iter().nth(nth) {
                    *linear = Linear::from_parts(grouped.weight(e)?, linear.bias().cloned())?;
                }
            }
            linears.push(grouped);
        }
        let views = experts.iter().flat_map(FeedForward::linears);
        Ok(Some(Self {
            linears,
            chooser: Chooser::new(n, &device)?,
            views: views.filter_map(plain).map(Tensor::id).collect(),
        }))
    }

    /// The experts of rows with these scores `[rows, experts]`, known to the device alone; `None` where it cannot compute them
    /// together: there are many rows, gradients are asked for, or an expert has been given other weights.
    pub fn choose(
        &self,
        experts: &[FeedForward],
        (scores, correction): (&Value, Option<&Tensor>),
        routing: &RoutingConfig,
    ) -> Result<Option<(Columns, Groups)>> {
        let found = experts.iter().flat_map(FeedForward::linears);
        let found = found.map(|linear| plain(linear).map(Tensor::id));
        let is_view = found.eq(self.views.iter().copied().map(Some));
        let n_rows = scores.dims()[0] * routing.top_k;
        if !is_view || scores.is_tracked() || !(1..=Groups::MOST_ROWS).contains(&n_rows) {
            return Ok(None);
        }
        let columns = self.chooser.choose(scores, correction, routing)?;
        let groups = Groups::of(&columns)?;
        Ok(Some((columns, groups)))
    }

    /// The outputs for rows, each of its expert; `form` is one of them.
    pub fn apply(&self, form: &FeedForward, rows: &Value, of: &Groups) -> Result<Value> {
        let through = |x: &Value, linear| x.grouped_linear(linear, of);
        let hidden = match &self.linears[..] {
            [gate, up, _] => {
                let up = through(rows, up)?;
                through(rows, gate)?.gate(&up, form.activation(), form.clamp())?
            }
            linears => through(rows, &linears[0])?.activate(form.activation())?,
        };
        through(&hidden, &self.linears[self.linears.len() - 1])
    }
}
