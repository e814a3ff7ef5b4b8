//! A mixture of experts: many feed-forwards, of which a router chooses a few for each position.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::config::{FeedForwardConfig, LinearConfig, RoutingWeights, getters};
use crate::layers::routing::{Routing, choose_experts};
use crate::layers::{Dropout, DropoutSource, FeedForward, Linear};
use crate::ops::{Scores, Value};

/// A mixture of experts: `Σ weightₑ · expertₑ(x)` over the `top_k` experts with the largest softmax(router(x)), plus a
/// shared expert where configured (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>; transformers'
/// `MixtralSparseMoeBlock` and `Qwen2MoeSparseMoeBlock`).
///
/// The choice of experts has no gradient; their weights have one, which is 0 for an expert that no position chose.
#[derive(Clone, Debug)]
pub struct MixtureOfExperts {
    router: Linear,
    experts: Vec<FeedForward>,
    shared: Option<SharedExpert>,
    top_k: usize,
    weights: RoutingWeights,
}

/// The expert that every position uses, times the sigmoid of a gate.
#[derive(Clone, Debug)]
struct SharedExpert {
    feed_forward: FeedForward,
    gate: Linear, // [1, d_model]
}

impl MixtureOfExperts {
    /// Gets `router`, `experts.{e}` and, if configured, `shared` and `shared_gate` from `vb`.
    ///
    /// # Errors
    /// If the configuration is invalid or has no experts, or a parameter is missing or has another shape.
    pub fn new(config: &FeedForwardConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let Some(experts) = config.experts else {
            bail!(
                "mixture of experts: the configuration has none; set `experts`, or make a FeedForward"
            );
        };
        let linear = |name: &str, d_out| {
            let config = LinearConfig::new(config.d_model, d_out).with_bias(false);
            Linear::new(&config, vb.pp(name))
        };
        let one = FeedForwardConfig {
            experts: None,
            ..config.clone()
        };
        let expert = |e| FeedForward::new(&one, vb.pp("experts").pp(e));
        let shared = |d_ff| -> Result<(FeedForward, Linear)> {
            let gate = linear("shared_gate", 1)?;
            let one = one.clone().with_d_ff(d_ff);
            Ok((FeedForward::new(&one, vb.pp("shared"))?, gate))
        };
        let router = linear("router", experts.n_experts)?;
        let all = (0..experts.n_experts).map(expert).collect::<Result<_>>()?;
        let shared = experts.shared_d_ff.map(shared).transpose()?;
        Self::from_parts(router, all, shared, experts.top_k, experts.weights)
    }

    /// Builds the layer from its router `[n_experts, d_model]`, its experts, an optional shared expert with its gate
    /// `[1, d_model]`, the number of experts that each position uses, and how their probabilities are normalised.
    ///
    /// # Errors
    /// If the parts' shapes do not fit each other, or `top_k` is 0 or more than there are experts.
    pub fn from_parts(
        router: Linear,
        experts: Vec<FeedForward>,
        shared: Option<(FeedForward, Linear)>,
        top_k: usize,
        weights: RoutingWeights,
    ) -> Result<Self> {
        if top_k == 0 || top_k > experts.len() {
            bail!(
                "mixture of experts: each position uses {top_k} of {} experts, expected one to all",
                experts.len()
            );
        }
        let mixture = Self {
            router,
            experts,
            shared: shared.map(|(feed_forward, gate)| SharedExpert { feed_forward, gate }),
            top_k,
            weights,
        };
        mixture.check_shapes()?;
        Ok(mixture)
    }

    /// # Errors
    /// If the parts' shapes do not fit each other.
    pub(crate) fn check_shapes(&self) -> Result<()> {
        let (of, d_model) = ("mixture of experts", self.router.weight().dim(1)?);
        let n_experts = self.experts.len();
        self.router
            .expect_shape(of, "router", [n_experts, d_model])?;
        if let Some(shared) = &self.shared {
            shared.gate.expect_shape(of, "shared gate", [1, d_model])?;
        }
        let shared = self.shared.iter().map(|shared| &shared.feed_forward);
        for expert in self.experts.iter().chain(shared) {
            expert.check_shapes()?;
            let d_ff = expert.up().weight().dim(0)?;
            expert
                .up()
                .expect_shape(of, "an expert's up", [d_ff, d_model])?;
            expert
                .down()
                .expect_shape(of, "an expert's down", [d_model, d_ff])?;
        }
        Ok(())
    }

    getters! {
        /// The experts.
        experts(&self) -> &[FeedForward] => &self.experts;
        /// The router, `[n_experts, d_model]`.
        router(&self) -> &Linear => &self.router;
        /// How many experts each position uses.
        top_k(&self) -> usize => self.top_k;
        /// How the probabilities of the chosen experts are normalised.
        weights(&self) -> RoutingWeights => self.weights;
    }

    /// The linear layers, each named by its role under the given one.
    pub(super) fn linears_mut(&mut self, role: &str) -> Vec<(String, &mut Linear)> {
        let mut linears = vec![(format!("{role}.router"), &mut self.router)];
        for (e, expert) in self.experts.iter_mut().enumerate() {
            linears.extend(expert.linears_mut(&format!("{role}.experts.{e}")));
        }
        if let Some(shared) = &mut self.shared {
            linears.extend(shared.feed_forward.linears_mut(&format!("{role}.shared")));
            linears.push((format!("{role}.shared_gate"), &mut shared.gate));
        }
        linears
    }

    /// Every dropout of the layer.
    pub(super) fn dropouts(&self) -> Vec<&Dropout> {
        let shared = self.shared.as_ref();
        let linears = [Some(&self.router), shared.map(|shared| &shared.gate)];
        let adapters = linears.into_iter().flatten().filter_map(Linear::dropout);
        let shared = shared.map(|shared| &shared.feed_forward);
        let feed_forwards = self.experts.iter().chain(shared);
        let of_feed_forwards = feed_forwards.flat_map(FeedForward::dropouts);
        of_feed_forwards.chain(adapters).collect()
    }

    /// The shared expert that every position uses, and its gate `[1, d_model]`.
    pub fn shared(&self) -> Option<(&FeedForward, &Linear)> {
        let shared = self.shared.as_ref()?;
        Some((&shared.feed_forward, &shared.gate))
    }

    /// Makes every expert draw its dropout masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        for (_, linear) in self.linears_mut("") {
            linear.set_dropout_source(source);
        }
        for expert in &mut self.experts {
            expert.set_dropout_source(source);
        }
        if let Some(shared) = &mut self.shared {
            shared.feed_forward.set_dropout_source(source);
        }
    }

    /// For each expert the places in `[rows, top_k]` that chose it, and the weights of all places.
    fn route(&self, x: &Value, train: bool) -> Result<(Vec<Vec<usize>>, Value)> {
        // In f32: rounded to a half type, probabilities would be equal that are not.
        let logits = self.router.apply(x, None, train)?.widened()?; // [rows, n_experts]
        let probabilities = logits.softmax(Scores::Finite)?;
        let known = probabilities.on_host()?;
        let Routing { chosen, places } = choose_experts(&known, self.experts.len(), self.top_k);
        let weights = match self.weights {
            RoutingWeights::Softmax => probabilities.gather(&chosen, self.top_k)?,
            // Probabilities divided by their sum; backwards through a division, what the other experts add would have to
            // cancel, and leaves its rounding.
            RoutingWeights::Renormalized => logits
                .gather(&chosen, self.top_k)?
                .softmax(Scores::Finite)?,
        };
        Ok((places, weights.to_dtype(x.dtype())?))
    }

    /// The output, added to `residual`.
    pub(super) fn apply(&self, x: &Value, residual: Option<&Value>, train: bool) -> Result<Value> {
        let dims = x.dims().to_vec();
        let width = self.router.weight().dim(1)?;
        // Rows of another width might fill rows of this one, and be mixed without an error.
        if dims.last() != Some(&width) {
            bail!("mixture of experts: input has shape {dims:?}, expected [.., {width}]");
        }
        let rows = x.reshape(vec![dims.iter().product::<usize>() / width, width])?;
        let (places, weights) = self.route(&rows, train)?;
        let all = self.experts.iter().zip(places);
        let (used, idle): (Vec<_>, Vec<_>) = all.partition(|(_, places)| !places.is_empty());
        let row = |place: &usize| (place / self.top_k) as u32;
        let rows_of = used
            .iter()
            .map(|(_, places)| places.iter().map(row).collect());
        let dealt = rows.deal_rows(&rows_of.collect::<Vec<_>>())?;
        let computed = dealt.into_iter().zip(used);
        let computed = computed
            .map(|(rows, (expert, places))| Ok((expert.apply(&rows, None, train)?, places)));
        let used = computed.collect::<Result<Vec<_>>>()?;
        let idle = idle.iter().flat_map(|(expert, _)| expert.parameters());
        let idle: Vec<&Tensor> = idle.collect();
        // The gradient of an expert that nobody chose is 0, as transformers' is, and not absent.
        let sum = rows
            .mixed(&weights, &used, self.top_k)?
            .beside_idle(&idle)?;
        let sum = match &self.shared {
            None => sum,
            Some(shared) => {
                let gate = shared.gate.apply(&rows, None, train)?;
                let y = shared.feed_forward.apply(&rows, None, train)?;
                sum.add(&y.gated_rows(&gate)?)?
            }
        };
        sum.reshape(dims)?.added_to(residual)
    }

    /// The output in evaluation mode.
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

impl ModuleT for MixtureOfExperts {
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x, None, train))
    }
}
