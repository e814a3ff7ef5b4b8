//! What must hold of any block whatever its numbers: no fixture, every committed checkpoint, f32 and f64.
//!
//! Runs of the same shape are compared bit for bit. Runs with another number of rows or keys are not: up
//! to 256 results (a few rows of the small checkpoints) candle's `gemm` sums by another kernel in
//! another order, and beyond that its blocks may depend on the number of rows. There the comparer judges by
//! its model of how rounding errors grow. (At MiniLM's width the bits were the same on the CPU it was tried on.)

mod common;

use std::fs;

use candle_blocks::{
    Activation, Attention, AttentionMask, BlockFeedForward, Checkpoint, CheckpointOptions, Dropout,
    DropoutSource, ForwardContext, Linear, QueryKeyValue, Stack, SublayerNorm, Visibility,
    candle_core::{DType, Device, Module, ModuleT, Result, Tensor, Var},
    candle_nn,
    verify::{Comparer, Expected},
};
use common::{bits, committed, device, present, weights};

const BATCH: usize = 3;
const SEQ: usize = 9;

/// A checkpoint's stack in one type.
struct Subject {
    label: String,
    checkpoint: Checkpoint,
    stack: Stack,
    dtype: DType,
}

/// Every committed checkpoint in every type.
fn subjects() -> impl Iterator<Item = Subject> {
    let types = |name| [DType::F32, DType::F64].map(|dtype| (name, dtype));
    present(committed::OTHERS, |&name| name)
        .into_iter()
        .flat_map(types)
        .map(|(name, dtype)| {
            let checkpoint = Checkpoint::open(weights(name)).unwrap();
            Subject {
                label: format!("{name} in {dtype:?}"),
                stack: checkpoint.stack(dtype, &device()).unwrap(),
                checkpoint,
                dtype,
            }
        })
}

impl Subject {
    fn d_model(&self) -> usize {
        self.checkpoint.config().blocks[0].d_model()
    }

    fn is_causal(&self) -> bool {
        self.checkpoint.config().blocks[0].attention.visibility == Visibility::Causal
    }

    /// `[BATCH, SEQ, d_model]`.
    fn input(&self, seed: u64) -> Tensor {
        self.random(&[BATCH, SEQ, self.d_model()], seed)
    }

    /// About normal: sums of coin flips, drawn by the crate's own dropout, which can be seeded.
    fn random(&self, dims: &[usize], seed: u64) -> Tensor {
        const FLIPS: usize = 24;
        let ones = Tensor::ones((FLIPS, dims.iter().product()), DType::F64, &Device::Cpu).unwrap();
        let coin = Dropout::new(0.5, DropoutSource::seeded(seed)).unwrap();
        let flips = coin.forward_t(&ones, true).unwrap(); // each 0 or 2
        let sum = (flips.sum(0).unwrap() - FLIPS as f64).unwrap();
        let x = (sum / (FLIPS as f64).sqrt())
            .unwrap()
            .reshape(dims)
            .unwrap();
        x.to_dtype(self.dtype)
            .unwrap()
            .to_device(&device())
            .unwrap()
    }

    /// Both are the same in exact arithmetic.
    #[track_caller]
    fn assert_close(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        let depth = self.checkpoint.config().blocks.len();
        let expected = Expected::new(theirs.clone(), None).unwrap();
        let comparison = Comparer::new().compare(what, ours, &expected.with_depth(depth));
        assert!(comparison.passed(), "{}: {comparison:#?}", self.label);
    }

    #[track_caller]
    fn assert_bits(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        assert_eq!(ours.dims(), theirs.dims(), "{}: {what}", self.label);
        let n = n_different(ours, theirs);
        assert_eq!(
            n,
            0,
            "{}: {what}, of {} elements",
            self.label,
            ours.elem_count()
        );
    }
}

fn n_different(a: &Tensor, b: &Tensor) -> usize {
    bits(a)
        .iter()
        .zip(bits(b))
        .filter(|(a, b)| **a != *b)
        .count()
}

/// Evaluation under the same mask for every sequence of the batch.
fn masked(mask: [u8; SEQ]) -> ForwardContext {
    masked_each([mask; BATCH])
}

fn masked_each(rows: [[u8; SEQ]; BATCH]) -> ForwardContext {
    let mask = Tensor::new(&rows, &device()).unwrap();
    ForwardContext::evaluation().with_mask(AttentionMask::padding(&mask).unwrap())
}

/// `x` with positions `at .. at + n` of `other`.
fn replaced(x: &Tensor, other: &Tensor, at: usize, n: usize) -> Tensor {
    let (before, after) = (x.narrow(1, 0, at), x.narrow(1, at + n, SEQ - at - n));
    let parts = [before, other.narrow(1, at, n), after].map(|part| part.unwrap());
    Tensor::cat(&parts, 1).unwrap()
}

const RIGHT: [u8; SEQ] = [1, 1, 1, 1, 1, 0, 0, 0, 0];
const LEFT: [u8; SEQ] = [0, 0, 0, 0, 1, 1, 1, 1, 1];

#[test]
fn what_stands_in_padding_does_not_change_a_bit_of_the_kept_rows() {
    for s in subjects() {
        let (x, other) = (s.input(1), s.input(2));
        for (mask, padding, kept) in [(RIGHT, 5, 0), (LEFT, 0, 4)] {
            let context = masked(mask);
            let run = |x: &Tensor| s.stack.forward_with(x, &context).unwrap();
            let (y, changed) = (run(&x), run(&replaced(&x, &other, padding, 4)));
            let rows = |y: &Tensor| y.narrow(1, kept, 5).unwrap();
            s.assert_bits("kept rows", &rows(&changed), &rows(&y));
            assert_ne!(
                n_different(&changed, &y),
                0,
                "{}: nothing was changed",
                s.label
            );
        }
    }
}

#[test]
fn padding_on_either_side_gives_what_the_sequence_gives_alone() {
    for s in subjects() {
        let x = s.input(1);
        for (mask, first) in [(RIGHT, 0), (LEFT, 4)] {
            let padded = s.stack.forward_with(&x, &masked(mask)).unwrap();
            let alone = s.stack.forward(&x.narrow(1, first, 5).unwrap()).unwrap();
            s.assert_close("kept rows", &padded.narrow(1, first, 5).unwrap(), &alone);
        }
    }
}

#[test]
fn a_mask_that_keeps_all_is_no_mask() {
    for s in subjects() {
        let x = s.input(1);
        let kept = s.stack.forward_with(&x, &masked([1; SEQ])).unwrap();
        s.assert_bits("output", &kept, &s.stack.forward(&x).unwrap());
    }
}

#[test]
fn a_sequence_does_not_see_its_neighbours_in_the_batch() {
    for s in subjects() {
        let (x, other) = (s.input(1), s.input(2));
        let row = |x: &Tensor, i| x.narrow(0, i, 1).unwrap();
        let y = s.stack.forward(&x).unwrap();
        let mixed = Tensor::cat(&[row(&other, 0), row(&x, 1), row(&other, 2)], 0).unwrap();
        let mixed = s.stack.forward(&mixed).unwrap();
        s.assert_bits("among others", &row(&mixed, 1), &row(&y, 1));
        let alone = s.stack.forward(&row(&x, 1)).unwrap();
        s.assert_close("alone", &alone, &row(&y, 1));
    }
}

#[test]
fn a_causal_block_cannot_see_the_future() {
    let mut n_causal = 0;
    for s in subjects() {
        let (x, other) = (s.input(1), s.input(2));
        let run = |x: &Tensor| s.stack.forward(x).unwrap();
        for n in 1..SEQ {
            let earlier = |y: &Tensor| y.narrow(1, 0, n).unwrap();
            let changed = run(&replaced(&x, &other, n, SEQ - n));
            if s.is_causal() {
                s.assert_bits("earlier rows", &earlier(&changed), &earlier(&run(&x)));
                s.assert_close("a prefix", &run(&earlier(&x)), &earlier(&run(&x)));
            } else {
                let n_seen = n_different(&earlier(&changed), &earlier(&run(&x)));
                assert_ne!(n_seen, 0, "{}: an encoder sees all", s.label);
            }
        }
        n_causal += usize::from(s.is_causal());
    }
    assert_eq!(n_causal, 4);
}

#[test]
fn the_order_of_heads_does_not_matter() {
    for s in subjects() {
        for block in s.stack.blocks() {
            let attention = block.attention().inner();
            let (n_heads, head_dim) = (attention.config().n_heads, attention.config().head_dim);
            let order: Vec<usize> = (0..n_heads).rev().collect();
            let features = order
                .iter()
                .flat_map(|head| head * head_dim..(head + 1) * head_dim);
            let features: Vec<u32> = features.map(|feature| feature as u32).collect();
            let features = Tensor::new(features, &device()).unwrap();
            let rows = |linear: &Linear| {
                let pick = |t: &Tensor| t.index_select(&features, 0).unwrap();
                Linear::from_parts(pick(linear.weight()), linear.bias().map(pick)).unwrap()
            };
            let QueryKeyValue::Separate { query, key, value } = attention.projections() else {
                panic!("these families load separate projections");
            };
            let projections = QueryKeyValue::Separate {
                query: rows(query),
                key: rows(key),
                value: rows(value),
            };
            let output = attention.output();
            let columns = output.weight().index_select(&features, 1).unwrap();
            let output = Linear::from_parts(columns, output.bias().cloned()).unwrap();
            let permuted =
                Attention::from_parts(projections, output, attention.config().clone()).unwrap();
            let (x, context) = (s.input(1), masked(RIGHT));
            let ours = permuted.forward_with(&x, &context).unwrap();
            let theirs = attention.forward_with(&x, &context).unwrap();
            s.assert_close("attention", &ours, &theirs);
        }
    }
}

#[test]
fn attention_to_a_memory_that_is_the_input_is_attention_to_the_input() {
    for s in subjects().filter(|s| !s.is_causal()) {
        let attention = s.stack.blocks()[0].attention().inner();
        let x = s.input(1);
        let context = ForwardContext::evaluation().with_memory(x.clone(), AttentionMask::none());
        let ours = attention.forward_cross(&x, &context).unwrap();
        s.assert_close("memory", &ours, &attention.forward(&x).unwrap());
    }
}

#[test]
fn a_matrix_is_one_sequence_and_a_vector_one_position() {
    for s in subjects() {
        let batch = s.input(1).narrow(0, 0, 1).unwrap(); // [1, seq, d_model]
        let y = s.stack.forward(&batch).unwrap();
        let matrix = s.stack.forward(&batch.squeeze(0).unwrap()).unwrap();
        s.assert_bits("matrix", &matrix, &y.squeeze(0).unwrap());
        let position = batch.narrow(1, 4, 1).unwrap(); // [1, 1, d_model]
        let y = s.stack.forward(&position).unwrap();
        let vector = s.stack.forward(&position.flatten_all().unwrap()).unwrap();
        s.assert_bits("vector", &vector, &y.flatten_all().unwrap());
    }
}

type View = fn(&Tensor) -> Result<Tensor>;

/// Views of a variable, from its shape to `[BATCH, SEQ, d_model]`.
fn views(d_model: usize) -> [(&'static str, Vec<usize>, View); 4] {
    [
        ("transposed", vec![SEQ, BATCH, d_model], |x| {
            x.transpose(0, 1)
        }),
        ("narrowed in seq", vec![BATCH, SEQ + 3, d_model], |x| {
            x.narrow(1, 2, SEQ)
        }),
        ("narrowed in width", vec![BATCH, SEQ, d_model + 5], |x| {
            x.narrow(2, 3, x.dims()[2] - 5)
        }),
        ("broadcast", vec![1, SEQ, d_model], |x| {
            x.broadcast_as((BATCH, SEQ, x.dims()[2]))
        }),
    ]
}

#[test]
fn a_view_gives_the_bits_and_the_gradients_of_its_copy() {
    for s in subjects() {
        let loader = s.checkpoint.trainable(s.dtype, &device()).unwrap();
        let stack = loader.stack().unwrap();
        let (context, cotangent) = (masked(RIGHT), s.input(2));
        for (name, dims, view) in views(s.d_model()) {
            let source = Var::from_tensor(&s.random(&dims, 1)).unwrap();
            let view = view(source.as_tensor()).unwrap();
            let copy = view.force_contiguous().unwrap();
            assert!(!view.is_contiguous() && copy.is_contiguous(), "{name}");
            let run = |x: &Tensor| {
                let y = stack.forward_with(x, &context).unwrap();
                let loss = (&y * &cotangent).unwrap().sum_all().unwrap();
                (y, loss.backward().unwrap())
            };
            let ((y, gradients), (y_copy, gradients_copy)) = (run(&view), run(&copy));
            s.assert_bits(name, &y, &y_copy);
            let mut variables = loader.parameters();
            variables.push(("input".to_string(), source));
            for (role, variable) in variables {
                let [ours, theirs] =
                    [&gradients, &gradients_copy].map(|g| g.get(&variable).unwrap());
                s.assert_bits(&format!("{name}: gradient of {role}"), ours, theirs);
            }
        }
    }
}

#[test]
fn a_sequence_without_any_real_token_gives_finite_numbers_and_gradients() {
    for s in subjects() {
        let context = masked_each([[1; SEQ], [0; SEQ], LEFT]);
        let loader = s.checkpoint.trainable(s.dtype, &device()).unwrap();
        let stack = loader.stack().unwrap();
        let x = Var::from_tensor(&s.input(1)).unwrap();
        let y = stack.forward_with(x.as_tensor(), &context).unwrap();
        let finite = |t: &Tensor| bits(t).into_iter().all(|v| f64::from_bits(v).is_finite());
        assert!(finite(&y), "{}", s.label);
        let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for (role, variable) in loader.parameters() {
            assert!(
                finite(gradients.get(&variable).unwrap()),
                "{}: {role}",
                s.label
            );
        }
        assert!(finite(gradients.get(&x).unwrap()), "{}", s.label);

        // No weight falls on any value: what is left of the attention is the bias of its output.
        let attention = stack.blocks()[0].attention().inner();
        let y = attention.forward_with(x.as_tensor(), &context).unwrap();
        let bias = attention
            .output()
            .bias()
            .unwrap()
            .broadcast_as((SEQ, s.d_model()));
        s.assert_bits("masked sequence", &y.get(1).unwrap(), &bias.unwrap());
    }
}

/// The stack in training, drawing from `source`.
fn train(s: &Subject, x: &Tensor, source: &DropoutSource) -> Tensor {
    let mut stack = s.stack.clone();
    stack.set_dropout_source(source);
    stack.forward_t(x, true).unwrap()
}

#[test]
fn evaluation_draws_no_random_numbers() {
    let draw = |source: &DropoutSource| {
        let ones = Tensor::ones(100, DType::F32, &Device::Cpu).unwrap();
        let dropout = Dropout::new(0.5, source.clone()).unwrap();
        bits(&dropout.forward_t(&ones, true).unwrap())
    };
    let sources: [fn() -> DropoutSource; 2] =
        [|| DropoutSource::seeded(7), || DropoutSource::numpy(7)];
    for s in subjects() {
        for source in sources {
            let (used, fresh) = (source(), source());
            let mut stack = s.stack.clone();
            stack.set_dropout_source(&used);
            let first = stack.forward(&s.input(1)).unwrap();
            let second = stack.forward_t(&s.input(1), false).unwrap();
            s.assert_bits("evaluation", &second, &first);
            assert_eq!(draw(&used), draw(&fresh), "{}", s.label);
            // The measure sees draws: training makes them.
            train(&s, &s.input(1), &used);
            assert_ne!(draw(&used), draw(&fresh), "{}", s.label);
        }
    }
}

#[test]
fn training_repeats_with_its_seed_and_changes_with_another() {
    for s in subjects() {
        let x = s.input(1);
        let run = |seed| train(&s, &x, &DropoutSource::seeded(seed));
        s.assert_bits("the same seed", &run(1), &run(1));
        assert_ne!(n_different(&run(1), &run(2)), 0, "{}", s.label);
        let evaluation = s.stack.forward(&x).unwrap();
        assert_ne!(n_different(&run(1), &evaluation), 0, "{}", s.label);
        // One stream is drawn from on and on.
        let source = DropoutSource::numpy(3);
        let (first, second) = (train(&s, &x, &source), train(&s, &x, &source));
        assert_ne!(n_different(&first, &second), 0, "{}", s.label);
    }
}

#[test]
fn dropout_of_probability_zero_is_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    for s in subjects() {
        let directory = s.checkpoint.files().directory();
        let text = fs::read_to_string(directory.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (key, value) in config.as_object_mut().unwrap() {
            if key.ends_with("dropout_prob") || key.ends_with("pdrop") {
                *value = 0.0.into();
            }
        }
        let path = folder.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        let options = CheckpointOptions::default().config(path);
        let checkpoint = options.open(directory).unwrap();
        let mut stack = checkpoint.stack(s.dtype, &device()).unwrap();
        stack.set_dropout_source(&DropoutSource::seeded(1));
        let x = s.input(1);
        let trained = stack.forward_t(&x, true).unwrap();
        s.assert_bits("training", &trained, &s.stack.forward(&x).unwrap());
    }
}

#[test]
fn layers_stand_in_candles_own_containers() {
    for s in subjects() {
        let block = &s.stack.blocks()[0];
        let (x, norm) = (s.input(1), block.attention().norm());
        let (SublayerNorm::Pre(norm) | SublayerNorm::Post(norm)) = norm else {
            panic!("these families have one norm per sublayer");
        };
        let BlockFeedForward::Dense(feed_forward) = block.feed_forward().inner() else {
            panic!("these families have one feed-forward per block");
        };
        let (up, down) = (feed_forward.up(), feed_forward.down());

        // `Module`s in a `Sequential`, and what has dropout as a function.
        let evaluated = block.clone();
        let sequence = candle_nn::seq()
            .add(norm.clone())
            .add(up.clone())
            .add(feed_forward.activation())
            .add(down.clone())
            .add_fn(move |x| evaluated.forward(x));
        let by_hand = feed_forward.forward(&norm.forward(&x).unwrap()).unwrap();
        let by_hand = block.forward(&by_hand).unwrap();
        s.assert_bits("seq", &sequence.forward(&x).unwrap(), &by_hand);

        // Generic code over `ModuleT` takes them all, and passes `train` on.
        let dropout = Dropout::new(0.5, DropoutSource::seeded(1)).unwrap();
        let chain: Vec<Box<dyn ModuleT>> = vec![
            Box::new(norm.clone()),
            Box::new(feed_forward.clone()),
            Box::new(block.attention().clone()),
            Box::new(block.attention().inner().clone()),
            Box::new(block.clone()),
            Box::new(s.stack.clone()),
            Box::new(Activation::Gelu),
            Box::new(dropout),
        ];
        let run = |train| {
            let mut layers = chain.iter();
            layers.try_fold(x.clone(), |x, layer| layer.forward_t(&x, train))
        };
        let (first, second) = (run(false).unwrap(), run(false).unwrap());
        s.assert_bits("evaluation", &first, &second);
        assert_ne!(n_different(&run(true).unwrap(), &first), 0, "{}", s.label);
        s.assert_bits("apply", &x.apply(norm).unwrap(), &norm.forward(&x).unwrap());
        let applied = x.apply_t(block, false).unwrap();
        s.assert_bits("apply_t", &applied, &block.forward(&x).unwrap());
    }
}
