//! Additive masks with elements for each head: every rank takes those of its heads, on the device under test.

use candle_blocks::{
    AttentionMask, ForwardContext, Precision, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::TensorParallel,
    ops::{self, Route},
};

use crate::{
    device::device,
    even_llama::{WIDTH, even_llama},
    message::message,
    numbers::numbers,
    ranks::of_ranks,
    said::assert_says,
};

const SEQ: usize = 5;

fn wave(dims: &[usize]) -> Tensor {
    let n = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
        .unwrap()
        .to_device(&device())
        .unwrap()
}

fn context(mask: Tensor) -> ForwardContext {
    ForwardContext::evaluation().with_mask(AttentionMask::none().with_additive(mask))
}

#[test]
fn ranks_with_a_mask_for_each_head_compute_what_one_process_does() {
    // With three key heads a rank has one or two of them.
    for n_kv_heads in [2, 3] {
        let n_heads = 2 * n_kv_heads;
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = even_llama(folder.path(), n_kv_heads);
        let x = wave(&[2, SEQ, WIDTH]);
        for dims in [
            vec![1, n_heads, SEQ, SEQ],
            vec![2, n_heads, SEQ, SEQ],
            vec![n_heads, SEQ, SEQ],
            vec![1, n_heads, 1, SEQ],
            vec![2, 1, SEQ, SEQ],
            vec![SEQ, SEQ],
        ] {
            let mask = wave(&dims);
            let alone = checkpoint
                .load(Weights::Dense(DType::F32, &device()))
                .stack()
                .unwrap();
            let expected = alone.forward_with(&x, &context(mask.clone())).unwrap();
            let plain = numbers(&alone.forward(&x).unwrap());
            let expected = numbers(&expected);
            let largest = expected.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
            let apart = |a: &[f64], b: &[f64]| {
                let pairs = a.iter().zip(b);
                pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
            };
            assert!(
                apart(&plain, &expected) > 1e-2 * largest,
                "{dims:?}: the mask does nothing"
            );
            let outputs = of_ranks(2, |rank| {
                let parallel =
                    |rank, weights| TensorParallel::new(checkpoint.load(weights), rank).unwrap();
                let dense = Weights::Dense(DType::F32, &device());
                let stack = parallel(rank.clone(), dense).stack().unwrap();
                let mut outputs = vec![stack.forward_with(&x, &context(mask.clone())).unwrap()];
                if ops::route(&device()) == Route::Kernels {
                    let packed = parallel(rank, Weights::Packed(Precision::F32));
                    let packed = packed.stack().unwrap();
                    outputs.push(packed.forward_with(&x, &context(mask.clone())).unwrap());
                }
                outputs
            });
            for found in outputs.iter().flatten() {
                let apart = apart(&numbers(found), &expected);
                assert!(apart < 1e-5 * largest, "{dims:?}: {apart}");
            }
        }
    }
}

#[test]
fn a_rank_may_give_the_mask_of_its_own_heads_alone() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let (x, mask) = (wave(&[1, SEQ, WIDTH]), wave(&[1, 4, SEQ, SEQ]));
    for outputs in of_ranks(2, |rank| {
        let own = mask.narrow(1, 2 * rank.rank(), 2).unwrap();
        let loader = checkpoint.load(Weights::Dense(DType::F32, &device()));
        let stack = TensorParallel::new(loader, rank).unwrap().stack().unwrap();
        let of = |mask: &Tensor| numbers(&stack.forward_with(&x, &context(mask.clone())).unwrap());
        [of(&mask), of(&own)]
    }) {
        assert_eq!(outputs[0], outputs[1]);
    }
}

#[test]
fn a_mask_that_does_not_fit_is_refused_with_the_heads_of_the_model_and_of_the_rank() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let x = wave(&[2, SEQ, WIDTH]);
    for dims in [[1, 3, SEQ, SEQ], [1, 4, SEQ + 1, SEQ], [3, 4, SEQ, SEQ]] {
        let refused = of_ranks(2, |rank| {
            let loader = checkpoint.load(Weights::Dense(DType::F32, &device()));
            let stack = TensorParallel::new(loader, rank).unwrap().stack().unwrap();
            message(stack.forward_with(&x, &context(wave(&dims))))
        });
        for (rank, refused) in refused.iter().enumerate() {
            let own = format!("this rank computes {} to {}", 2 * rank, 2 * rank + 1);
            let words = [
                "additive mask",
                "= [2, 4, 5, 5] of the model",
                &format!("{dims:?}"),
                &own,
            ];
            assert_says(refused, &words);
        }
    }
    // One process names its own.
    let stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let refused = message(
        stack
            .forward(&x)
            .and(stack.forward_with(&x, &context(wave(&[1, 3, SEQ, SEQ])))),
    );
    assert_says(refused, &["[1, 3, 5, 5]", "[2, 4, 5, 5]"]);
}
