//! Experts computed together on a device, so that only the device knows which experts are selected.

use candle_core::{DType, Result, Tensor, TensorId};

use crate::config::RoutingConfig;
use crate::layers::{FeedForward, Linear, visit::Visit};
use crate::ops::{
    Chooser, Constants, ExpertColumns, GroupedLinear, Groups, Route, Value, has_grouped_kernel,
    route,
};

/// Selection and grouped weights of experts, for a device without this crate's kernels.
#[derive(Clone, Debug)]
pub(crate) struct GroupedExperts {
    chooser: Chooser,
    constants: Constants,
    /// For frozen experts: gate (if there is one), up and down, each with the ids of the tensors that were stacked.
    made: Vec<(GroupedLinear, Vec<TensorId>)>,
}

/// The dense weight and the bias of a layer without an adapter.
type DenseLayer<'a> = (&'a Tensor, Option<&'a Tensor>);

#[doc(hidden)]
pub fn plain(linear: &Linear) -> Option<DenseLayer<'_>> {
    let weight = linear.kept_weight().dense()?;
    linear
        .adapter()
        .is_none()
        .then_some((weight, linear.bias()))
}

/// Returns the `nth` layer of each expert.
fn nth(experts: &[FeedForward], nth: usize) -> Vec<DenseLayer<'_>> {
    let all = experts.iter().filter_map(|of| of.linears().nth(nth));
    all.filter_map(plain).collect()
}

fn tensors<'a>(of: &'a [DenseLayer]) -> impl Iterator<Item = &'a Tensor> {
    of.iter()
        .flat_map(|(weight, bias)| [*weight].into_iter().chain(*bias))
}

fn ids(of: &[DenseLayer]) -> Vec<TensorId> {
    tensors(of).map(Tensor::id).collect()
}

fn is_tracked(of: &[DenseLayer]) -> bool {
    tensors(of).any(Tensor::track_op)
}

fn stacked(of: &[DenseLayer]) -> Result<GroupedLinear> {
    let weights: Vec<_> = of.iter().map(|(weight, _)| *weight).collect();
    let biases: Option<Vec<_>> = of.iter().map(|(_, bias)| *bias).collect();
    GroupedLinear::new(&weights, biases.as_deref())
}

impl GroupedExperts {
    /// Groups experts on a device that composes its steps. Returns `None` on other devices, and for more experts than
    /// the device sorts. Frozen experts become views into the stacked weights.
    pub fn of(experts: &mut [FeedForward]) -> Result<Option<Self>> {
        let n = experts.len();
        let Some(first) = experts.first() else {
            return Ok(None);
        };
        let device = first.up().kept_weight().device().clone();
        if route(&device) != Route::Composed || n > Chooser::MOST {
            return Ok(None);
        }
        let (n_linears, can_keep) = (first.linears().count(), are_alike(experts));
        let mut made = Vec::new();
        for at in (0..n_linears).filter(|_| can_keep) {
            let layers = nth(experts, at);
            if is_tracked(&layers) {
                break;
            }
            let grouped = stacked(&layers)?;
            for (e, expert) in experts.iter_mut().enumerate() {
                if let Some((_, linear)) = expert.linears_mut().nth(at) {
                    *linear = Linear::from_parts(grouped.weight(e)?, linear.bias().cloned())?;
                }
            }
            made.push((grouped, ids(&nth(experts, at))));
        }
        Ok(Some(Self {
            chooser: Chooser::new(n, &device)?,
            constants: Constants::default(),
            made,
        }))
    }

    /// Selects the experts for rows with scores `[rows, experts]`, without a copy to the host. Returns `None` if the
    /// experts cannot be computed together: their forms differ, they have adapters or quantized weights, or they use
    /// dropout in training.
    pub fn choose(
        &self,
        experts: &[FeedForward],
        scores: &Value,
        correction: Option<&Tensor>,
        routing: &RoutingConfig,
        train: bool,
    ) -> Result<Option<(ExpertColumns, Groups)>> {
        let drops = |of: &FeedForward| of.drops(train);
        let n_choices = scores.dims()[0] * routing.top_k;
        if n_choices == 0 || experts.iter().any(drops) || !are_alike(experts) {
            return Ok(None);
        }
        let in_kernel = |linear: &Linear| {
            plain(linear).is_some_and(|(weight, bias)| {
                let kind = (weight.dtype(), weight.device());
                has_grouped_kernel(linear.shape().1, kind) && !is_tracked(&[(weight, bias)])
            })
        };
        let by_kernel = n_choices <= Groups::MOST_FOR_KERNEL
            && !scores.is_tracked()
            && experts.iter().flat_map(FeedForward::linears).all(in_kernel);
        let columns = self.chooser.choose(scores, correction, routing)?;
        let groups = Groups::of(&columns, experts.len(), by_kernel, &self.constants)?;
        Ok(Some((columns, groups)))
    }

    /// Computes an output row for each selected expert.
    pub fn apply(&self, experts: &[FeedForward], rows: &Value, of: &Groups) -> Result<Value> {
        let first = &experts[0];
        let through = |x: &Value, at: usize| {
            let layers = nth(experts, at);
            let made = self.made.get(at);
            match made.filter(|(_, made_of)| *made_of == ids(&layers)) {
                Some((linear, _)) => x.grouped_linear(linear, &layers, of),
                None => x.grouped_linear(&stacked(&layers)?, &layers, of),
            }
        };
        let rows = rows.dealt(of)?;
        let (hidden, down) = match first.gate() {
            Some(_) => {
                let up = through(&rows, 1)?;
                let gate = through(&rows, 0)?;
                (gate.gate(&up, first.activation(), first.clamp)?, 2)
            }
            None => (through(&rows, 0)?.activate(first.activation())?, 1),
        };
        through(&hidden, down)?.collected(of)
    }
}

/// Returns true if all experts have the same form, and differ only in the values of weights and biases.
fn are_alike(experts: &[FeedForward]) -> bool {
    let forms = |of: &FeedForward| of.linears().map(form).collect::<Option<Vec<_>>>();
    let Some(first) = experts.first().and_then(forms) else {
        return false;
    };
    let is_plain = |of: &FeedForward| of.xielu.is_none() && of.sparsity.is_none();
    let alike = |of: &FeedForward| is_plain(of) && forms(of).as_ref() == Some(&first);
    experts.iter().all(alike)
}

/// Returns the shape of a plain layer, and the dtypes of its weight and bias.
fn form(linear: &Linear) -> Option<((usize, usize), DType, Option<DType>)> {
    let (weight, bias) = plain(linear)?;
    Some((linear.shape(), weight.dtype(), bias.map(Tensor::dtype)))
}
