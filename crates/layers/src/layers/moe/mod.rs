//! Mixture of experts: a router selects a few feed-forwards for each position.

use std::sync::Arc;

use candle_core::{DType, Device, ModuleT, Result, Tensor, bail};
use candle_nn::Init;

use crate::config::{
    Activation, ExpertBranch, ExpertWeighting, FeedForwardConfig, LinearConfig, RoutingConfig,
    RoutingScores, RoutingWeights, getters,
};
use crate::layers::grouped_experts::GroupedExperts;
use crate::layers::own::sparse_mixer::{self, SparseMixer};
use crate::layers::routing::{Routing, choose_experts};
use crate::layers::{Dropout, FeedForward, Linear, ParameterSource, visit::parts};
use crate::ops::{ExpertColumns, Groups, SoftmaxInput, Value, wide, with_team};

mod branch;
pub(in crate::layers) mod packed;

use branch::Branch;
use packed::PackedMixture;

/// A mixture of experts: `Σ weightₑ · expertₑ(x)` over the `top_k` experts with the largest scores. The scores are
/// the softmax or the sigmoid of `router(x)`. A shared expert is added if configured (Shazeer et al. 2017,
/// <https://arxiv.org/abs/1701.06538>; transformers' `MixtralSparseMoeBlock`, `Qwen2MoeSparseMoeBlock` and
/// `DeepseekV3MoE`).
///
/// The selection has no gradient. The experts' weights have gradients, which are 0 for an expert that no position
/// selected.
#[derive(Clone, Debug)]
pub struct MixtureOfExperts {
    pub(crate) router: Linear,
    /// The correction, `[n_experts]`, added to the scores for the selection only. It has no gradient: a training loop
    /// adjusts it by each expert's load.
    pub(crate) correction: Option<Tensor>,
    pub(crate) experts: Vec<FeedForward>,
    pub(crate) branch: Branch,
    /// The bias on the sum of the experts' outputs, `[d_model]`.
    pub(crate) output_bias: Option<Tensor>,
    /// The grouped experts, if a device computes them without a copy of the selection to the host.
    pub(crate) grouped: Option<GroupedExperts>,
    /// The expert that every position uses.
    pub(crate) shared: Option<Box<FeedForward>>,
    /// `[1, d_model]`: the sigmoid of its output scales the shared expert's output.
    pub(crate) shared_gate: Option<Linear>,
    /// The rule by which each position selects its experts.
    pub(crate) routing: RoutingConfig,
    /// The side that the routing weights multiply: the experts' inputs or outputs.
    pub(crate) weighted: ExpertWeighting,
    /// The random numbers for experts that are sampled in training. The dropout's masks select the experts that count
    /// in full.
    pub(crate) drawn: Dropout,
    /// The parameters for the kernels, in a packed layer.
    pub(crate) packed: Option<Arc<PackedMixture>>,
}

/// The destination of a mixture's rows.
enum Routed<'a> {
    /// For each expert, the places in `[rows, top_k]` that selected it.
    Places(Vec<Vec<usize>>),
    /// Groups on the device. The host does not know the selection.
    Groups(&'a GroupedExperts, Groups),
}

impl MixtureOfExperts {
    /// Creates the layer with `router` and `experts.{e}` from `vb` and, if configured, `router.correction.weight` and
    /// `router.expert_scale.weight` `[n_experts]`, `shared`, `shared_gate`, `output_bias.weight` `[d_model]`, `latent_down`
    /// and `latent_up`, and the norms `router_norm`, `experts_norm`, `experts_output_norm`, `shared_norm` and `shared_output_norm`.
    ///
    /// # Errors
    /// If the configuration is invalid or has no experts, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &FeedForwardConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let Some(experts) = config.experts else {
            bail!(
                "mixture of experts: the configuration has no experts; set `experts`, or make a FeedForward"
            );
        };
        let d_model = config.d_model;
        let linear = |name: &str, d_in, d_out, bias| {
            let config = LinearConfig::new(d_in, d_out).with_bias(bias);
            Linear::new(&config, vb.pp(name))
        };
        let of_width = |d_model| FeedForwardConfig {
            d_model,
            experts: None,
            ..config.clone()
        };
        let one = of_width(match experts.branch {
            ExpertBranch::Latent { width } => width,
            ExpertBranch::Plain | ExpertBranch::Normalized { .. } => d_model,
        });
        let expert = |e| FeedForward::new(&one, vb.pp("experts").pp(e));
        let router = linear("router", d_model, experts.n_experts, experts.router_bias)?;
        let correction = experts.correction.then(|| {
            // In f32 beside half types, as in transformers: training adds up small changes.
            let dtype = wide(vb.dtype());
            let vb = vb.pp("router").pp("correction");
            vb.get_with_hints_dtype(experts.n_experts, "weight", Init::Const(0.0), dtype)
        });
        let output_bias = experts.output_bias.then(|| {
            let vb = vb.pp("output_bias");
            vb.get_with_hints(d_model, "weight", Init::Const(0.0))
        });
        let mut all = (0..experts.n_experts)
            .map(expert)
            .collect::<Result<Vec<_>>>()?;
        let shared = experts.shared.map(|shared| {
            let one = of_width(d_model).with_d_ff(shared.d_ff);
            FeedForward::new(&one, vb.pp("shared")).map(Box::new)
        });
        let is_gated = experts.shared.is_some_and(|shared| shared.gate);
        let shared_gate = is_gated.then(|| linear("shared_gate", d_model, 1, false));
        let (grouped, drawn) = match experts.routing.weights {
            // Sequential selection runs on the host.
            RoutingWeights::AmongNear { .. } => (None, sparse_mixer::noise()?),
            _ => (GroupedExperts::of(&mut all)?, Dropout::none()),
        };
        Ok(Self {
            router,
            correction: correction.transpose()?,
            branch: Branch::new(experts.branch, [d_model, experts.n_experts], &vb)?,
            output_bias: output_bias.transpose()?,
            experts: all,
            grouped,
            shared: shared.transpose()?,
            shared_gate: shared_gate.transpose()?,
            routing: experts.routing,
            weighted: experts.weighted,
            drawn,
            packed: None,
        })
    }

    getters! {
        /// The experts.
        experts(&self) -> &[FeedForward] => &self.experts;
        /// The router, `[n_experts, d_model]`.
        router(&self) -> &Linear => &self.router;
    }

    /// Returns the shared expert, and its gate `[1, d_model]` if it has one.
    pub fn shared(&self) -> Option<(&FeedForward, Option<&Linear>)> {
        Some((self.shared.as_deref()?, self.shared_gate.as_ref()))
    }

    /// Returns each row's experts and their weights, `[rows, top_k]`, in the dtype of `x`.
    fn route(&self, x: &Value, train: bool) -> Result<(Routed<'_>, Value)> {
        let RoutingConfig {
            top_k,
            scores: form,
            weights,
            scale,
            epsilon,
            ..
        } = self.routing;
        // In f32: a half type would round different scores to the same value.
        let logits = match self.branch.norms() {
            None => self.router.apply(x, None, train)?.widened()?,
            Some(norms) => {
                let logits = self.router.apply(&norms.router.apply(x)?, None, train)?;
                // Scaled after the product, which rounds once.
                logits.widened()?.scale(norms.logit_scale)?
            }
        }; // [rows, n_experts]
        if let RoutingWeights::AmongNear { tolerance } = weights {
            let mixer = SparseMixer {
                routing: &self.routing,
                tolerance,
                drawn: &self.drawn,
            };
            let (places, weights) = mixer.route(&logits, train)?;
            let weights = weights.scale(scale)?.to_dtype(x.dtype())?;
            return Ok((Routed::Places(places), weights));
        }
        let scores = match form {
            RoutingScores::Softmax => logits.softmax(SoftmaxInput::Finite)?,
            RoutingScores::Sigmoid => logits.activate(Activation::Sigmoid)?,
            RoutingScores::Logits => logits.clone(),
        };
        let on_device = match &self.grouped {
            Some(experts) => {
                let correction = self.correction.as_ref();
                let chosen =
                    experts.choose(&self.experts, &scores, correction, &self.routing, train)?;
                chosen.map(|(columns, groups)| (columns, Routed::Groups(experts, groups)))
            }
            None => None,
        };
        let (columns, routed) = match on_device {
            Some(chosen) => chosen,
            None => self.choose_on_host(&scores)?,
        };
        let mut weights = match (weights, form) {
            (RoutingWeights::Scores | RoutingWeights::AmongNear { .. }, _) => {
                scores.gather(&columns, top_k)?
            }
            // Softmax over the selected logits equals probabilities divided by their sum. In the backward pass of a
            // division, the contributions of the other experts would have to cancel, and would leave a rounding
            // error.
            (RoutingWeights::Renormalized, RoutingScores::Softmax) => logits
                .gather(&columns, top_k)?
                .softmax(SoftmaxInput::Finite)?,
            (RoutingWeights::Renormalized, _) => scores.gather(&columns, top_k)?.shares(epsilon)?,
        };
        if scale != 1.0 {
            weights = weights.scale(scale)?;
        }
        if let Some(norms) = self.branch.norms() {
            let factors = norms.expert_scale.to_dtype(scores.dtype())?;
            let of_all = scores.ones()?.multiply_rows(&factors)?;
            weights = weights.gate(&of_all.gather(&columns, top_k)?, Activation::Identity, None)?;
        }
        Ok((routed, weights.to_dtype(x.dtype())?))
    }

    /// Selects the experts on the host, which waits for the device.
    fn choose_on_host(&self, scores: &Value) -> Result<(ExpertColumns, Routed<'_>)> {
        let on_host = |numbers: &Tensor| {
            let numbers = numbers.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            numbers.to_vec1::<f32>()
        };
        let correction = self.correction.as_ref().map(on_host).transpose()?;
        let (known, n_experts) = (scores.on_host()?, self.experts.len());
        let Routing { chosen, places } =
            choose_experts(&known, n_experts, correction.as_deref(), &self.routing);
        Ok((ExpertColumns::Host(chosen), Routed::Places(places)))
    }

    /// Computes the output and adds it to `residual`.
    pub(in crate::layers) fn apply(
        &self,
        x: &Value,
        residual: Option<&Value>,
        train: bool,
    ) -> Result<Value> {
        if let Some(packed) = &self.packed {
            return packed.apply(x, residual, train);
        }
        let dims = x.dims().to_vec();
        let width = self.router.shape().1;
        // Rows with another width might fill whole rows of this width, and be mixed without an error.
        if dims.last() != Some(&width) {
            bail!("mixture of experts: input has shape {dims:?}, expected [.., {width}]");
        }
        let rows = x.reshape(vec![dims.iter().product::<usize>() / width, width])?;
        let (routed, weights) = self.route(&rows, train)?;
        let input = self.branch.input(&rows, train)?;
        let sum = match routed {
            Routed::Places(places) => self.dealt(&input, places, weights, train)?,
            Routed::Groups(experts, groups) => self.grouped(&input, experts, &groups, weights)?,
        };
        let sum = self.branch.output(sum, train)?;
        let sum = match &self.shared {
            None => sum,
            Some(shared) => {
                let y = match self.branch.norms() {
                    None => shared.apply(&rows, None, train)?,
                    Some(norms) => {
                        let y = shared.apply(&norms.shared_input.apply(&rows)?, None, train)?;
                        norms.shared_output.apply(&y)?
                    }
                };
                match &self.shared_gate {
                    None => sum.add(&y)?,
                    Some(gate) => sum.add(&y.gated_rows(&gate.apply(&rows, None, train)?)?)?,
                }
            }
        };
        let sum = match &self.output_bias {
            Some(bias) => sum.add_to_rows(bias)?,
            None => sum,
        };
        sum.reshape(dims)?.added_to(residual)
    }

    /// Computes the weighted sums of the experts' outputs. Each expert computes the rows that selected it.
    fn dealt(
        &self,
        rows: &Value,
        places: Vec<Vec<usize>>,
        mut weights: Value,
        train: bool,
    ) -> Result<Value> {
        let all = self.experts.iter().zip(places);
        let (used, idle): (Vec<_>, Vec<_>) = all.partition(|(_, places)| !places.is_empty());
        let top_k = self.routing.top_k;
        let row = |place: &usize| (place / top_k) as u32;
        let rows_of = used
            .iter()
            .map(|(_, places)| places.iter().map(row).collect());
        let mut dealt = rows.deal_rows(&rows_of.collect::<Vec<_>>())?;
        if self.weighted == ExpertWeighting::Inputs {
            let place = |place: &usize| *place as u32;
            let of_each = used
                .iter()
                .map(|(_, places)| places.iter().map(place).collect());
            let n = weights.dims().iter().product();
            let of_each = weights
                .reshape(vec![n, 1])?
                .deal_rows(&of_each.collect::<Vec<_>>())?;
            for (rows, weights) in dealt.iter_mut().zip(of_each) {
                *rows = rows.times_column(&weights)?;
            }
            weights = weights.ones()?;
        }
        let computed = dealt.into_iter().zip(used);
        let computed = computed
            .map(|(rows, (expert, places))| Ok((expert.apply(&rows, None, train)?, places)));
        let used = computed.collect::<Result<Vec<_>>>()?;
        let idle = idle.iter().flat_map(|(expert, _)| expert.parameters());
        let idle: Vec<&Tensor> = idle.collect();
        // The gradient of an unselected expert is 0, as in transformers, and not missing.
        rows.mixed(&weights, &used, top_k)?.beside_idle(&idle)
    }

    /// Computes the same sums with experts grouped on a device.
    fn grouped(
        &self,
        rows: &Value,
        experts: &GroupedExperts,
        groups: &Groups,
        mut weights: Value,
    ) -> Result<Value> {
        let mut rows = rows.repeated(self.routing.top_k)?;
        if self.weighted == ExpertWeighting::Inputs {
            let n = rows.dims()[0];
            rows = rows.times_column(&weights.reshape(vec![n, 1])?)?;
            weights = weights.ones()?;
        }
        let outputs = experts.apply(&self.experts, &rows, groups)?;
        weights.weighted_sums(&outputs)
    }

    /// Computes the output in evaluation mode.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

parts!(MixtureOfExperts: Self { router, branch, experts, shared, shared_gate, drawn, packed, .. }
    => [branch, drawn, packed] [router, experts, shared, shared_gate]);

impl ModuleT for MixtureOfExperts {
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match &self.packed {
            Some(_) => {
                let work = || {
                    Value::through_packed("mixture of experts", x, |x| self.apply(x, None, train))
                };
                with_team(work)
            }
            None => Value::through(x, |x| self.apply(x, None, train)),
        }
    }
}
