//! Random stack configurations and inputs for them, from a seed or from bytes.

pub mod properties;
mod request;

use candle_blocks::{
    Activation, AttentionConfig, BlockConfig, ExpertsConfig, FeedForwardConfig, FeedForwardForm,
    NormConfig, NormPlacement, Position, RotaryConfig, RotaryPairing, StackConfig, Topology,
    Visibility,
    candle_core::{self, DType, Device, Tensor, Var},
    candle_nn::VarBuilder,
    config::{
        AlibiConfig, AlibiRounding, AlibiSlopes, AltUpConfig, AttentionBias, DisentangledConfig,
        ExpertGroups, ExpertWeighting, GateClamp, GemmaConfig, LatentConfig, LayerInputConfig,
        NormWeight, OwnConfig, ParallelNorm, PositionProjections, PositionTemperature,
        QueryKeyNorm, QueryKeyNormSpan, RelativeBiasConfig, RelativeBiasSpan,
        RelativeEmbeddingsConfig, ResidualConfig, ResidualSource, RotaryScaling, RoutingConfig,
        RoutingScores, RoutingWeights, SharedExpertConfig, TemperatureBy, XieluConfig,
    },
};

pub use request::Request;

use crate::small::made_on;

/// A layer made by `make` on a device in a type, from parameters by rule, the same in every type but for rounding.
pub fn made<L>(
    device: &Device,
    dtype: DType,
    make: impl FnOnce(VarBuilder) -> candle_core::Result<L>,
) -> L {
    made_with_parameters(device, dtype, make).0
}

/// Like [`made`], with the parameters by name.
pub fn made_with_parameters<L>(
    device: &Device,
    dtype: DType,
    make: impl FnOnce(VarBuilder) -> candle_core::Result<L>,
) -> (L, Vec<(String, Var)>) {
    let value = |i, around, dims: &[usize]| {
        let value = Draws::new(1000 + i as u64).tensor(dims);
        let value = value.affine(0.5, around).unwrap();
        // Rounded to f32, so that the parameters of f32 and f64 are the same.
        let value = value.to_dtype(DType::F32).unwrap();
        value.to_dtype(dtype).unwrap()
    };
    let (layer, parameters) = made_on(device, dtype, make, value);
    (layer, parameters.into_iter().collect())
}

/// Returns whether self-attention has a position bias (ALiBi).
pub fn has_alibi(config: &StackConfig) -> bool {
    let is_alibi =
        |block: &BlockConfig| matches!(block.attention().unwrap().position, Position::Alibi(_));
    config.blocks.iter().any(is_alibi)
}

/// Returns true if the attention reads its stack's table by distance.
fn reads_table(position: &Position) -> bool {
    matches!(position, Position::Disentangled(_) | Position::GatedBias(_))
}

/// A stream of random choices.
pub struct Draws {
    /// The next ones, in reverse.
    bytes: Vec<u8>,
    /// The state of the generator that continues after the given bytes.
    state: u64,
}

impl Draws {
    pub fn new(seed: u64) -> Self {
        Self {
            bytes: vec![],
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d,
        }
    }

    /// A byte a choice, while there are any.
    #[allow(dead_code, reason = "for the fuzzer")]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut bytes = bytes.to_vec();
        bytes.reverse();
        Self {
            bytes,
            ..Self::new(0)
        }
    }

    /// Returns a stack's configuration and an input.
    pub fn case(&mut self) -> (StackConfig, Request) {
        let mut config = self.stack();
        let request = self.request(&config);
        self.add_to(&mut config);
        (config, request)
    }

    fn next(&mut self) -> u64 {
        if let Some(byte) = self.bytes.pop() {
            return u64::from(byte);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn number(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Returns values in ±1, exact in f32.
    pub fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| f64::from(self.number() as f32)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    pub fn stack(&mut self) -> StackConfig {
        let d_model = self.of(&[8, 12, 20, 36]);
        let n_blocks = 1 + self.below(2);
        let visibility = self.of(&[
            Visibility::Causal,
            Visibility::Causal,
            Visibility::Bidirectional,
        ]);
        let d_encoder = self.one_in(4).then(|| self.of(&[6, 10, d_model]));
        let n_heads = self.of(&[1, 2, 3, 4, 6]);
        let blocks = (0..n_blocks)
            .map(|_| self.block(d_model, n_heads, visibility, d_encoder))
            .collect::<Vec<_>>();
        let final_norm = self.one_in(2).then(|| self.norm(d_model));
        let mut stack = StackConfig::new(blocks, final_norm);
        if self.one_in(4) {
            let n_layers = self.below(4);
            stack.layers = (0..n_layers).map(|_| self.below(n_blocks)).collect();
            for block in 0..n_blocks {
                if !stack.layers.contains(&block) {
                    stack.layers.push(block); // every block runs
                }
            }
        }
        if self.one_in(5) {
            let bias =
                RelativeBiasConfig::new(self.of(&[4, 8, 32]), self.of(&[17, 40, 128]), n_heads);
            // Without a draw, so that the others are as they were.
            if bias.n_buckets == 8 {
                stack.relative_bias_span = RelativeBiasSpan::Block;
            }
            stack.relative_bias = Some(bias);
        }
        if visibility == Visibility::Bidirectional && d_encoder.is_none() && self.one_in(3) {
            stack = self.disentangled(stack);
        }
        for block in &mut stack.blocks {
            let has_table = reads_table(&block.attention().unwrap().position);
            if !has_table && self.one_in(6) {
                self.make_latent(block.attention_mut().unwrap());
            }
        }
        stack.validate().unwrap();
        stack
    }

    fn make_latent(&mut self, attention: &mut AttentionConfig) {
        let rotary_dim = match &attention.position {
            Position::Rotary(rotary) => rotary.dim,
            _ => 1 + self.below(4),
        };
        if matches!(attention.position, Position::Alibi(_)) {
            attention.position = Position::None;
        }
        let norm = self.norm(1);
        attention.latent = Some(LatentConfig::new(
            self.one_in(2).then(|| 1 + self.below(9)),
            1 + self.below(12),
            rotary_dim,
            1 + self.below(9),
            norm,
        ));
        attention.head_dim = rotary_dim + 1 + self.below(7);
        attention.n_kv_heads = attention.n_heads;
        (attention.query_key_norm, attention.clip) = (None, None);
        attention.temperature = None;
    }

    /// The same stack with scores by distance in every block.
    fn disentangled(&mut self, stack: StackConfig) -> StackConfig {
        let span = self.of(&[2, 3, 4, 16]);
        let table = RelativeEmbeddingsConfig::new(
            2 * span,
            self.one_in(2).then(|| self.norm(stack.blocks[0].d_model())),
        );
        let stack = stack.with_each(|_, block| {
            let terms = self.of(&[[true, true], [true, false], [false, true]]);
            let own = PositionProjections::Own {
                key_bias: self.one_in(2),
                query_bias: self.one_in(2),
            };
            block.attention_mut().unwrap().n_kv_heads = block.attention().unwrap().n_heads;
            block.attention_mut().unwrap().soft_cap = None;
            let mut position = DisentangledConfig::new(span);
            position.max_distance = self.of(&[None, Some(span + 2), Some(512)]);
            [position.content_to_position, position.position_to_content] = terms;
            position.projections = self.of(&[PositionProjections::Shared, own]);
            block.attention_mut().unwrap().position = Position::Disentangled(position);
        });
        // Without a draw, so that the others are as they were.
        let is_divided = |block: &BlockConfig| {
            let attention = block.attention().unwrap();
            let is_of_any_width =
                attention.temperature.is_none() && attention.query_key_norm.is_none();
            is_of_any_width && block.d_model().is_multiple_of(attention.n_heads)
        };
        if span == 4 && stack.blocks.iter().all(is_divided) {
            let n_heads = stack.blocks[0].attention().unwrap().n_heads;
            let stack = stack.with_each(|_, block| {
                let head_dim = block.d_model() / n_heads;
                let attention = block.attention_mut().unwrap();
                attention.head_dim = head_dim;
                attention.position = Position::GatedBias(RelativeBiasConfig::new(8, 9, n_heads));
            });
            return stack.with_relative_embeddings(RelativeEmbeddingsConfig::new(8, None));
        }
        stack.with_relative_embeddings(table)
    }

    fn norm(&mut self, width: usize) -> NormConfig {
        let eps = self.of(&[1e-5, 1e-12, 0.1]);
        let norm = match self.below(2) {
            0 => NormConfig::layer_norm(width, eps),
            _ => NormConfig::rms_norm(width, eps),
        };
        let bias = self.one_in(2);
        let weight = self.of(&[
            NormWeight::Plain,
            NormWeight::Plain,
            NormWeight::OnePlus,
            NormWeight::Absent,
        ]);
        norm.with_bias(bias).with_weight(weight)
    }

    fn block(
        &mut self,
        d_model: usize,
        n_heads: usize,
        visibility: Visibility,
        d_encoder: Option<usize>,
    ) -> BlockConfig {
        let placements = [
            NormPlacement::Pre,
            NormPlacement::Post,
            NormPlacement::Sandwich,
            NormPlacement::Output,
            NormPlacement::None,
        ];
        let attention = self.attention(d_model, n_heads).with_visibility(visibility);
        let feed_forward = self.feed_forward(d_model);
        let norm = self.norm(d_model);
        let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
        block.attention_placement = self.of(&placements);
        block.feed_forward_placement = self.of(&placements);
        if let Some(d_encoder) = d_encoder {
            let cross = self
                .attention(d_model, n_heads)
                .with_encoder_width(d_encoder);
            block.cross_attention = Some(cross);
        } else if self.one_in(3) {
            block.topology =
                Topology::Parallel(self.of(&[ParallelNorm::Shared, ParallelNorm::Separate]));
            block.attention_placement = NormPlacement::Pre;
            if block.validate().is_err() {
                block.feed_forward_placement = NormPlacement::Pre;
            }
        }
        block.residual = ResidualConfig::default();
        block.residual.source = self.of(&[
            ResidualSource::Input,
            ResidualSource::Input,
            ResidualSource::Normalized,
        ]);
        block.residual.multiplier = self.of(&[1.0, 1.0, 0.5, -2.0]);
        block.residual.layer_scale = self.one_in(4);
        block
    }

    fn attention(&mut self, d_model: usize, n_heads: usize) -> AttentionConfig {
        let head_dim = self.of(&[2, 4, 6, 10, 18]);
        let divisors: Vec<usize> = (1..=n_heads)
            .filter(|&n| n_heads.is_multiple_of(n))
            .collect();
        let mut attention = AttentionConfig::with_head_dim(d_model, n_heads, head_dim)
            .with_kv_heads(self.of(&divisors));
        if self.one_in(3) {
            attention.scale = self.of(&[1.0, 0.3, -0.5]);
        }
        if self.one_in(3) {
            attention.window = Some(self.of(&[1, 2, 3, 5, 100, usize::MAX]));
        }
        attention.position = match self.below(4) {
            0 | 1 => Position::None,
            2 => Position::Rotary(self.rotary(head_dim)),
            _ => Position::Alibi(AlibiConfig::new(
                self.of(&[AlibiSlopes::Appended, AlibiSlopes::Interleaved { max: 8.0 }]),
                self.of(&[1.0, 0.25]),
                AlibiRounding::None,
            )),
        };
        if self.one_in(4) {
            let norm = self.norm(head_dim);
            let span = self.of(&[
                QueryKeyNormSpan::Head,
                QueryKeyNormSpan::EachHead,
                QueryKeyNormSpan::Whole,
            ]);
            let mut norm = QueryKeyNorm::new(norm, span);
            norm.after_rotation = self.one_in(2);
            attention.query_key_norm = Some(norm);
        }
        attention.soft_cap = self.one_in(5).then(|| self.of(&[0.5, 5.0, 50.0]));
        attention.clip = self.one_in(5).then(|| self.of(&[0.1, 1.0]));
        // Without a draw, so that the others are as they were.
        attention.temperature =
            (head_dim == 6).then_some(PositionTemperature::new(0.5, 3, 1, TemperatureBy::Position));
        attention.bias = AttentionBias {
            query: self.one_in(2),
            key: self.one_in(2),
            value: self.one_in(2),
            output: self.one_in(2),
        };
        attention
    }

    fn rotary(&mut self, head_dim: usize) -> RotaryConfig {
        let dim = 2 * (1 + self.below(head_dim / 2));
        let divisors = |draws: &mut Self| (0..dim / 2).map(|_| 1.5 + draws.number()).collect();
        let scaling = match self.below(9) {
            0 => RotaryScaling::Linear { factor: 2.0 },
            1 if dim > 2 => RotaryScaling::DynamicNtk {
                factor: 2.0,
                max_positions: 4,
            },
            2 => RotaryScaling::Yarn {
                factor: 4.0,
                attention_factor: 1.2,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_positions: 4096,
                truncate: self.one_in(2),
            },
            3 => RotaryScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_positions: 64,
            },
            4 => RotaryScaling::LongRope {
                short_factor: divisors(self),
                long_factor: divisors(self),
                attention_factor: 1.1,
                long_attention_factor: Some(1.3),
                original_positions: 5,
            },
            _ => RotaryScaling::None,
        };
        RotaryConfig::new(dim, self.of(&[100.0, 10_000.0]))
            .with_pairing(self.of(&[RotaryPairing::Halves, RotaryPairing::Interleaved]))
            .with_scaling(scaling)
    }

    /// Adds to some blocks what was built after all else, so that the other draws of a seed stay what they were.
    pub fn add_to(&mut self, stack: &mut StackConfig) {
        for block in &mut stack.blocks {
            let own = block.mixer.attention_mut().ok();
            let cross = block.cross_attention.as_mut();
            for attention in own.into_iter().chain(cross) {
                let is_alibi = matches!(attention.position, Position::Alibi(_));
                attention.sinks = !is_alibi && self.one_in(4);
            }
            let feed_forward = &mut block.feed_forward;
            if feed_forward.form == FeedForwardForm::Gated && self.one_in(4) {
                feed_forward.clamp =
                    Some(GateClamp::new(self.of(&[0.1, 1.0]), self.of(&[0.0, 1.0])));
            }
            if let Some(experts) = &mut feed_forward.experts {
                experts.router_bias = self.one_in(2);
            }
        }
        for block in &mut stack.blocks {
            let attention = block.attention_mut().unwrap();
            if attention.visibility == Visibility::Causal
                && attention.window.is_none()
                && self.one_in(3)
            {
                attention.chunk = Some(self.of(&[1, 2, 3, 5]));
            }
            if let Some(temperature) = &mut attention.temperature {
                temperature.by = self.of(&[TemperatureBy::Position, TemperatureBy::Place]);
            }
            let feed_forward = &mut block.feed_forward;
            if feed_forward.clamp.is_none() && self.one_in(4) {
                feed_forward.xielu = Some(XieluConfig::default());
            }
            if let Some(experts) = &mut feed_forward.experts {
                experts.weighted = self.of(&[ExpertWeighting::Outputs, ExpertWeighting::Inputs]);
            }
            if let Some(experts) = &mut feed_forward.experts
                && !experts.correction
                && self.one_in(2)
            {
                let tolerance = self.of(&[0.1, 2.0]);
                experts.routing.scores = RoutingScores::Logits;
                experts.routing.weights = RoutingWeights::AmongNear { tolerance };
                experts.routing.groups = None;
            }
        }
        let mut gemma = vec![GemmaConfig::default(); stack.blocks.len()];
        for (block, gemma) in stack.blocks.iter_mut().zip(&mut gemma) {
            let attention = block.attention_mut().unwrap();
            if attention.latent.is_none() && !reads_table(&attention.position) {
                let norm = self.one_in(4).then(|| self.of(&[1e-3, 0.1]));
                attention.value_norm = norm;
                attention.values_are_keys = self.one_in(5);
            }
            if let Position::Rotary(rotary) = &mut attention.position
                && rotary.scaling == RotaryScaling::None
                && self.one_in(3)
            {
                rotary.scaling = RotaryScaling::Proportional {
                    n_turning: self.below(rotary.dim / 2 + 1),
                    factor: self.of(&[1.0, 2.0]),
                };
            }
            gemma.output_scale = self.one_in(5);
        }
        if self.one_in(4) {
            let norm = self.norm(5);
            stack.layer_inputs = Some(norm);
            for gemma in &mut gemma {
                gemma.layer_input = Some(LayerInputConfig::new(
                    norm.d_model,
                    self.of(&Activation::all()),
                ));
            }
            if self.one_in(2) {
                let n_streams = 2 + self.below(2);
                let active = self.below(n_streams);
                for gemma in &mut gemma {
                    gemma.altup = Some(AltUpConfig::new(n_streams, active));
                    gemma.output_scale = false;
                }
            }
        }
        for (block, gemma) in stack.blocks.iter_mut().zip(&mut gemma) {
            if block.topology == Topology::Sequential && self.one_in(5) {
                gemma.laurel_rank = Some(1 + self.below(3));
            }
            if *gemma != GemmaConfig::default() {
                block.own = OwnConfig::Gemma(*gemma);
            }
            let network = &mut block.feed_forward;
            if network.form == FeedForwardForm::Gated && network.clamp.is_none() && self.one_in(4) {
                network.sparsity = Some(self.of(&[0.3, 0.8]));
            }
        }
        if stack.layers == [0, 1] && self.one_in(2) {
            let shared = stack.blocks[0].attention().unwrap().clone();
            let shared = shared.with_shared_keys(Some(0)).with_values_as_keys(false);
            if shared.validate().is_ok() {
                *stack.blocks[1].attention_mut().unwrap() = shared;
            }
        }
        for block in &mut stack.blocks {
            let attention = block.attention_mut().unwrap();
            let is_bidirectional = attention.visibility == Visibility::Bidirectional;
            if let Position::Alibi(alibi) = &mut attention.position {
                alibi.both_sides = is_bidirectional && self.one_in(2);
            }
            if let Some(experts) = &mut block.feed_forward.experts {
                experts.output_bias = self.one_in(3);
            }
            // A draw for each, so that later ones are as they were.
            let placements = [block.attention_placement, block.feed_forward_placement];
            let is_twice = placements.map(|of| of == NormPlacement::Post && self.one_in(3));
            if is_twice[0] && block.own == OwnConfig::None {
                block.own = OwnConfig::JinaCode;
            }
        }
        for block in &mut stack.blocks {
            let own = block.mixer.attention_mut().ok();
            let cross = block.cross_attention.as_mut();
            for attention in own.into_iter().chain(cross) {
                attention.sub_norm = self.one_in(5).then(|| self.norm(1));
            }
            if block.feed_forward.experts.is_none() {
                block.feed_forward.sub_norm = self.one_in(5).then(|| self.norm(1));
            }
        }
        for block in &mut stack.blocks {
            if self.one_in(4) && block.own == OwnConfig::None {
                block.own = OwnConfig::MuseGlimmer {
                    output_norm_eps: 0.2,
                };
            }
        }
        stack.validate().unwrap();
    }

    fn experts(&mut self) -> ExpertsConfig {
        let n_experts = 1 + self.below(6);
        let groups = (n_experts.is_multiple_of(2) && self.one_in(2))
            .then(|| ExpertGroups::new(2, 1 + self.below(2), 1 + self.below(n_experts / 2)));
        let most = groups.map_or(n_experts, |g| n_experts / 2 * g.top_groups);
        let mut routing = RoutingConfig::new(1 + self.below(most));
        routing.scores = self.of(&[RoutingScores::Softmax, RoutingScores::Sigmoid]);
        routing.weights = self.of(&[RoutingWeights::Scores, RoutingWeights::Renormalized]);
        routing.scale = self.of(&[1.0, 2.5]);
        routing.groups = groups;
        let shared = self
            .one_in(2)
            .then(|| SharedExpertConfig::new(self.of(&[3, 8]), self.one_in(2)));
        ExpertsConfig::new(n_experts, routing)
            .with_correction(self.one_in(2))
            .with_shared(shared)
    }

    fn feed_forward(&mut self, d_model: usize) -> FeedForwardConfig {
        let mut config = FeedForwardConfig::new(d_model)
            .with_d_ff(self.of(&[1, 5, 16, 33]))
            .with_activation(self.of(&Activation::all()))
            .with_form(self.of(&[FeedForwardForm::Plain, FeedForwardForm::Gated]));
        (config.up_bias, config.down_bias) = (self.one_in(2), self.one_in(2));
        if self.one_in(4) {
            config.experts = Some(self.experts());
        }
        config
    }
}
