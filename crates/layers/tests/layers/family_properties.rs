//! Properties of every stack for any parameters: without fixtures, for every family's checkpoint, in f32.
//!
//! Runs with the same shape are compared bit for bit. Runs with another shape are compared by the comparer's model of
//! rounding errors, because sums may be taken in another order. `properties.rs` has more properties for fewer checkpoints.

use candle_blocks::{
    Attention, AttentionMask, BlockConfig, Checkpoint, ForwardContext, Position, Stack,
    StackConfig, Weights,
    candle_core::{DType, Device, Tensor},
    candle_nn::VarBuilder,
    config::{OutputGateSpan, PositionTemperature, QueryKeyNormSpan, RotaryScaling, TemperatureBy},
    layers::QueryKeyValue,
    verify::{Comparer, Expected},
};

use crate::{
    committed,
    device::device,
    numbers::bits,
    patches::{in_one_row, n_front},
    tensors::Reordered,
    weights::left_out,
};

const BATCH: usize = 2;
const SEQ: usize = 7;
const KEPT: usize = 4;
const MEMORY: usize = 5;

struct Subject {
    label: String,
    checkpoint: Checkpoint,
    stack: Stack,
    config: StackConfig,
}

fn subjects() -> Vec<Subject> {
    let subject = |committed: committed::Committed| {
        let checkpoint = committed.open();
        Subject {
            label: committed.label(),
            stack: checkpoint
                .load(Weights::Dense(DType::F32, &device()))
                .stack()
                .unwrap(),
            config: checkpoint.config().clone(),
            checkpoint,
        }
    };
    committed::families().into_iter().map(subject).collect()
}

impl Subject {
    fn d_model(&self) -> usize {
        self.config.blocks[0].d_model()
    }

    fn is_causal(&self) -> bool {
        let mut blocks = self.config.blocks.iter();
        blocks.all(|block| block.facts().is_causal)
    }

    /// Returns whether rotary angles depend on the sequence length.
    fn depends_on_length(&self) -> bool {
        if n_front(&self.config).is_some() {
            return true;
        }
        self.config.blocks.iter().any(|block| {
            let Ok(Position::Rotary(rotary)) = block.attention().map(|of| &of.position) else {
                return false;
            };
            matches!(
                rotary.scaling,
                RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
            )
        })
    }

    /// Returns values that differ everywhere, without a random generator: `[batch, seq, width]`.
    fn waves(&self, batch: usize, seq: usize, width: usize, shift: f32) -> Tensor {
        let n = (batch * seq * width) as f32;
        let x = Tensor::arange(0f32, n, &Device::Cpu).unwrap();
        let x = x.affine(1.7, f64::from(shift)).unwrap().sin().unwrap();
        let x = x.affine(1.5, 0.1).unwrap().reshape((batch, seq, width));
        x.unwrap().to_device(&device()).unwrap()
    }

    fn input(&self, shift: f32) -> Tensor {
        self.waves(BATCH, SEQ, self.d_model(), shift)
    }

    /// With something to attend to where the stack has cross-attention.
    fn context(&self, batch: usize, seq: usize) -> ForwardContext {
        let context = in_one_row(ForwardContext::evaluation(), &self.config, seq);
        let cross = self.config.blocks[0].cross_attention.as_ref();
        match cross {
            Some(cross) => {
                let memory = self.waves(1, MEMORY, cross.d_encoder, 0.3);
                let memory = memory.repeat((batch, 1, 1)).unwrap();
                context.with_encoder_output(memory, AttentionMask::none())
            }
            None => context,
        }
    }

    fn run(&self, x: &Tensor, context: &ForwardContext) -> Tensor {
        let y = self.stack.forward_with(x, context);
        y.unwrap_or_else(|e| panic!("{}: {e}", self.label))
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        self.run(x, &self.context(x.dims()[0], x.dims()[1]))
    }

    /// Returns whether left padding shifts the positions that a temperature depends on.
    fn counts_padding(&self) -> bool {
        let by_place = |by: PositionTemperature| by.by == TemperatureBy::Place;
        let mut blocks = self.config.blocks.iter();
        let temperature = |block: &BlockConfig| block.attention().ok()?.temperature;
        blocks.any(|block| temperature(block).is_some_and(by_place))
    }

    #[track_caller]
    fn assert_bits(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        assert_eq!(bits(ours), bits(theirs), "{}: {what}", self.label);
    }

    /// Both are the same in exact arithmetic.
    #[track_caller]
    fn assert_close(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        let expected = Expected::new(theirs.clone(), None).unwrap();
        let expected = expected.with_depth(self.config.layers.len());
        let comparison = Comparer::new().compare(what, ours, &expected);
        assert!(comparison.passed(), "{}: {comparison:#?}", self.label);
    }
}

fn tokens(x: &Tensor, start: usize, n: usize) -> Tensor {
    x.narrow(1, start, n).unwrap()
}

/// Returns `x` with `n` positions from `start` on taken from `other`.
fn replaced(x: &Tensor, other: &Tensor, start: usize, n: usize) -> Tensor {
    let end = start + n;
    let parts = [
        tokens(x, 0, start),
        tokens(other, start, n),
        tokens(x, end, SEQ - end),
    ];
    let parts: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[1] > 0).collect();
    Tensor::cat(&parts, 1).unwrap()
}

/// Masks with padding on the right and on the left, each with where the kept positions start.
fn paddings() -> [([u8; SEQ], usize); 2] {
    [([1, 1, 1, 1, 0, 0, 0], 0), ([0, 0, 0, 1, 1, 1, 1], 3)]
}

/// Returns the context with positions that count the kept tokens from 0, as decoders do; all others are 0.
fn with_padding(context: ForwardContext, mask: [u8; SEQ], first: usize) -> ForwardContext {
    let rows = Tensor::new(&[mask; BATCH], &device()).unwrap();
    let position = |i: usize| if mask[i] == 1 { (i - first) as u32 } else { 0 };
    let positions: Vec<u32> = (0..SEQ).map(position).collect();
    let positions = Tensor::from_vec(positions, (1, SEQ), &Device::Cpu).unwrap();
    let context = context.with_mask(AttentionMask::padding(&rows).unwrap());
    context.with_position_ids(&positions).unwrap()
}

#[test]
fn padding_does_not_change_kept_rows() {
    for s in subjects() {
        let (x, other) = (s.input(0.0), s.input(5.0));
        for (mask, first) in paddings() {
            let context = with_padding(s.context(BATCH, SEQ), mask, first);
            let y = tokens(&s.run(&x, &context), first, KEPT);
            let padding = if first == 0 { KEPT } else { 0 };
            let changed = replaced(&x, &other, padding, SEQ - KEPT);
            assert_ne!(bits(&changed), bits(&x));
            let changed = s.run(&changed, &context);
            s.assert_bits("what stands in padding", &tokens(&changed, first, KEPT), &y);
            if n_front(&s.config).is_some() {
                left_out(&format!(
                    "{}: alone: patches turn by the whole image",
                    s.label
                ));
                continue;
            }
            if first > 0 && s.counts_padding() {
                continue;
            }
            let alone = s.forward(&tokens(&x, first, KEPT));
            s.assert_close("the sequence alone", &alone, &y);
        }
    }
}

#[test]
fn a_row_of_a_batch_equals_its_single_run() {
    for s in subjects() {
        let (x, other) = (s.input(0.0), s.input(5.0));
        let row = |x: &Tensor, i| x.narrow(0, i, 1).unwrap();
        let y = row(&s.forward(&x), 1);
        let mixed = Tensor::cat(&[row(&other, 0), row(&x, 1)], 0).unwrap();
        s.assert_bits("another neighbor", &row(&s.forward(&mixed), 1), &y);
        s.assert_close("alone", &s.forward(&row(&x, 1)), &y);
    }
}

#[test]
fn a_causal_stack_cannot_see_the_future_and_another_does() {
    let subjects = subjects();
    for s in &subjects {
        let (x, other) = (s.input(0.0), s.input(5.0));
        let y = s.forward(&x);
        for n in [1, 3, SEQ - 1] {
            let changed = s.forward(&replaced(&x, &other, n, SEQ - n));
            let (earlier, changed) = (tokens(&y, 0, n), tokens(&changed, 0, n));
            if !s.is_causal() {
                assert_ne!(bits(&changed), bits(&earlier), "{}", s.label);
                continue;
            }
            s.assert_bits("earlier rows", &changed, &earlier);
            if !s.depends_on_length() {
                s.assert_close("a prefix", &s.forward(&tokens(&x, 0, n)), &earlier);
            }
        }
    }
    let n_causal = subjects.iter().filter(|s| s.is_causal()).count();
    assert!(subjects.is_empty() || (20..subjects.len()).contains(&n_causal));
}

/// Returns the features of a projection's heads in the given order.
fn features(order: impl Iterator<Item = usize>, head_dim: usize) -> Tensor {
    let features = order.flat_map(|head| head * head_dim..(head + 1) * head_dim);
    let features: Vec<u32> = features.map(|feature| feature as u32).collect();
    Tensor::new(features, &device()).unwrap()
}

/// Returns why an attention's heads are not interchangeable, if they are not.
fn own_heads(config: &StackConfig) -> Option<&'static str> {
    let mut attentions = config.blocks.iter().flat_map(BlockConfig::attention);
    let attention = attentions.next()?;
    let span = attention.query_key_norm.map(|norm| norm.span);
    match (&attention.position, span) {
        (Position::Alibi(_), _) => Some("each head has its own slope"),
        (Position::GatedBias(_), _) => Some("each head reads its own part of the input"),
        (_, Some(QueryKeyNormSpan::EachHead | QueryKeyNormSpan::Whole)) => {
            Some("queries and keys are normalized with weights of each head")
        }
        _ => None,
    }
}

/// Attention alone, without the stack's position biases and caches.
#[test]
fn permuted_heads_give_the_same_output() {
    let mut n_permuted = 0;
    for s in subjects() {
        if let Some(reason) = own_heads(&s.config) {
            left_out(&format!("{}: permuted heads: {reason}", s.label));
            continue;
        }
        let loader = s.checkpoint.load(Weights::Dense(DType::F32, &device()));
        for (i, block) in s.stack.blocks().iter().enumerate() {
            let Ok(attention) = block.mixer().inner().attention() else {
                continue;
            };
            let config = attention.config();
            // The last key/value head first, each with the queries it serves.
            let group = config.n_heads / config.n_kv_heads;
            let groups = || (0..config.n_kv_heads).rev();
            let queries = groups().flat_map(|g| (g * group..(g + 1) * group).rev());
            let queries = features(queries, config.head_dim);
            let keys = features(groups(), config.head_dim);
            let reason = match attention.projections() {
                QueryKeyValue::Query(_) => Some("the keys are of another layer"),
                QueryKeyValue::Fused(_) => Some("fused projections"),
                _ => None,
            };
            if let Some(reason) = reason {
                left_out(&format!("{}: permuted heads: {reason}", s.label));
                continue;
            }
            let plain = config
                .latent
                .map_or(0, |of| config.head_dim - of.rotary_dim);
            let of_latent = features(groups(), plain + config.value_dim());
            let mixed = match config.latent {
                Some(_) => features(groups(), config.value_dim()),
                None => queries.clone(),
            };
            let heads = groups().flat_map(|g| (g * group..(g + 1) * group).rev());
            let heads = features(heads, 1);
            let gates = match config.output_gate.map(|gate| gate.span) {
                Some(OutputGateSpan::Head) => heads.clone(),
                _ => mixed.clone(),
            };
            let parameters = Reordered {
                of: loader.var_builder().pp("blocks").pp(i).pp("attention"),
                order: vec![
                    ("query", 0, queries.clone()),
                    ("key", 0, keys.clone()),
                    ("value", 0, keys),
                    ("key_value", 0, of_latent),
                    ("gate", 0, gates),
                    ("sub_norm", 0, mixed.clone()),
                    ("output", 1, mixed),
                    ("sinks", 0, heads),
                    ("position_key", 0, queries.clone()),
                    ("position_query", 0, queries),
                ],
            };
            let vb = VarBuilder::from_backend(Box::new(parameters), DType::F32, device());
            let permuted = Attention::new(config, vb).unwrap();
            let x = s.input(0.0);
            let context = in_one_row(ForwardContext::evaluation(), &s.config, SEQ);
            let context = match s.stack.relative_embeddings() {
                Some(table) => context.with_relative_embeddings(table.rows().unwrap()),
                None => context,
            };
            let [ours, theirs] = [&permuted, attention].map(|of| of.forward_with(&x, &context));
            s.assert_close("attention", &ours.unwrap(), &theirs.unwrap());
            n_permuted += 1;
        }
    }
    assert!(
        committed::families().is_empty() || n_permuted > 100,
        "{n_permuted}"
    );
}
