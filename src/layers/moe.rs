//! A mixture of experts: many feed-forwards, of which a router chooses a few for each position.

use candle_core::{D, DType, Device, ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::config::{Activation, FeedForwardConfig, LinearConfig, RoutingWeights, getters};
use crate::layers::routing::{Routing, choose_experts};
use crate::layers::{Dropout, DropoutSource, FeedForward, Linear};
use crate::ops::{self, Value};

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

    /// For each expert the rows that chose it and their weights `[rows, 1]`.
    fn route(&self, x: &Tensor, train: bool) -> Result<Vec<Option<(Tensor, Tensor)>>> {
        let logits = self.router.apply(&Value::of(x)?, None, train)?; // [rows, n_experts]
        let logits = logits.in_product_type()?.tensor()?;
        let probabilities = ops::softmax(&logits)?;
        let known = probabilities
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?;
        let known = known.flatten_all()?.to_vec1::<f64>()?;
        let Routing { chosen, places } = choose_experts(&known, self.experts.len(), self.top_k);
        let chosen = Tensor::from_vec(chosen, (x.dim(0)?, self.top_k), x.device())?;
        let weights = match self.weights {
            RoutingWeights::Softmax => probabilities.gather(&chosen, D::Minus1)?,
            // Probabilities divided by their sum; backwards through a division, what the other experts add would have to
            // cancel, and leaves its rounding.
            RoutingWeights::Renormalized => ops::softmax(&logits.gather(&chosen, D::Minus1)?)?,
        };
        let weights = weights.to_dtype(x.dtype())?.flatten_all()?; // [rows · top_k]
        let routed = |places: &Vec<usize>| {
            if places.is_empty() {
                return Ok(None);
            }
            let indices = |of: &dyn Fn(usize) -> usize| {
                let values: Vec<u32> = places.iter().map(|&place| of(place) as u32).collect();
                Tensor::new(values, x.device())
            };
            let weight = weights.index_select(&indices(&|place| place)?, 0)?;
            let rows = indices(&|place| place / self.top_k)?;
            Ok(Some((rows, weight.unsqueeze(1)?)))
        };
        places.iter().map(routed).collect()
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
        let width = self.router.weight().dim(1)?;
        // Rows of another width might fill rows of this one, and be mixed without an error.
        if x.dims().last() != Some(&width) {
            let found = x.dims();
            bail!("mixture of experts: input has shape {found:?}, expected [.., {width}]");
        }
        let rows = x.reshape((x.elem_count() / width, width))?;
        let mut sum = rows.zeros_like()?;
        for (expert, routed) in self.experts.iter().zip(self.route(&rows, train)?) {
            if let Some((indices, weight)) = routed {
                let y = expert.forward_t(&rows.index_select(&indices, 0)?, train)?;
                sum = sum.index_add(&indices, &y.broadcast_mul(&weight)?, 0)?;
            } else if expert.is_tracked() && rows.dim(0)? > 0 {
                // Nobody chose it: its gradient is 0, as transformers' is, and not absent. Evaluated, to draw nothing.
                let zero = rows.narrow(0, 0, 1)?.zeros_like()?;
                let y = expert.forward_t(&zero, false)?;
                let y = (&y * y.zeros_like()?)?; // candle stops at a factor that is the number 0
                sum = sum.index_add(&Tensor::new(&[0u32], rows.device())?, &y, 0)?;
            }
        }
        if let Some(shared) = &self.shared {
            let gate = shared.gate.apply(&Value::of(&rows)?, None, train)?;
            let gate = gate.activate(Activation::Sigmoid)?.tensor()?;
            let y = shared.feed_forward.forward_t(&rows, train)?;
            sum = (sum + y.broadcast_mul(&gate)?)?;
        }
        sum.reshape(x.shape())
    }
}
