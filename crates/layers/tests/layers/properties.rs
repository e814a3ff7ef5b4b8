//! Properties of every block for any parameters: without fixtures, for every committed checkpoint, in f32 and f64.
//!
//! Runs with the same shape are compared bit for bit. Runs with another number of rows or keys are not: on CUDA and Metal,
//! sums may then be taken in another order. There the comparer judges by its model of rounding errors.

use candle_blocks::{
    Attention, AttentionMask, ForwardContext, Weights,
    candle_core::{Result, Tensor, Var},
    candle_nn::VarBuilder,
};

use crate::{
    device::device,
    double::has_f64,
    numbers::bits,
    subject::{BATCH, LEFT, RIGHT, SEQ, masked, masked_each, n_different, replaced, subjects},
    tensors::Reordered,
};

#[test]
fn the_contents_of_padding_do_not_change_a_bit_of_the_kept_rows() {
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
fn a_sequence_does_not_see_its_neighbors_in_the_batch() {
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
    let n_types = 1 + usize::from(has_f64("a causal block in f64"));
    assert_eq!(n_causal, 2 * n_types);
}

#[test]
fn the_order_of_heads_does_not_matter() {
    for s in subjects() {
        let loader = s.checkpoint.load(Weights::Dense(s.dtype, &device()));
        assert!(!s.stack.blocks().is_empty());
        for (i, block) in s.stack.blocks().iter().enumerate() {
            let attention = block.mixer().inner().attention().unwrap();
            let (n_heads, head_dim) = (attention.config().n_heads, attention.config().head_dim);
            let order: Vec<usize> = (0..n_heads).rev().collect();
            let features = order
                .iter()
                .flat_map(|head| head * head_dim..(head + 1) * head_dim);
            let features: Vec<u32> = features.map(|feature| feature as u32).collect();
            let features = Tensor::new(features, &device()).unwrap();
            let order = [("query", 0), ("key", 0), ("value", 0), ("output", 1)];
            let order = order.map(|(name, axis)| (name, axis, features.clone()));
            let parameters = Reordered {
                of: loader.var_builder().pp("blocks").pp(i).pp("attention"),
                order: order.to_vec(),
            };
            let vb = VarBuilder::from_backend(Box::new(parameters), s.dtype, device());
            let permuted = Attention::new(attention.config(), vb).unwrap();
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
        let attention = s.stack.blocks()[0].mixer().inner().attention().unwrap();
        let x = s.input(1);
        let context =
            ForwardContext::evaluation().with_encoder_output(x.clone(), AttentionMask::none());
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
            variables.push("input".to_string(), source);
            for (role, variable) in variables {
                let [ours, theirs] =
                    [&gradients, &gradients_copy].map(|g| g.get(&variable).unwrap());
                s.assert_bits(&format!("{name}: gradient of {role}"), ours, theirs);
            }
        }
    }
}

#[test]
fn a_sequence_without_any_real_token_gives_finite_outputs_and_gradients() {
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
        let attention = stack.blocks()[0].mixer().inner().attention().unwrap();
        let y = attention.forward_with(x.as_tensor(), &context).unwrap();
        let bias = attention
            .output()
            .bias()
            .unwrap()
            .broadcast_as((SEQ, s.d_model()));
        s.assert_bits("masked sequence", &y.get(1).unwrap(), &bias.unwrap());
    }
}
