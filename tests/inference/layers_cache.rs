//! The cache of unpacked layers consists of tensors: it holds no graph, and a refused call leaves it unchanged.

use candle_blocks::{
    AttentionMask, ForwardContext, KvCache, Precision, Stack,
    candle_core::{DType, Tensor, Var},
    candle_nn::VarBuilder,
};

use crate::{
    device::device,
    double::has_f64,
    kinds::{self, MEMORY},
    memory::with_memory_on_device as with_memory,
    refused::refusal,
    same::assert_same,
    small::{self, WIDTH},
    small_on_device::{numbers, stack},
};

/// Returns a cache after two sequences with five positions.
fn after_five(stack: &Stack, context: &ForwardContext) -> KvCache {
    let mut cache = stack.new_cache();
    let x = numbers(&[2, 5, WIDTH], 1);
    stack.forward_cached(&x, context, &mut cache).unwrap();
    cache
}

/// Returns the next two positions' output.
fn next(stack: &Stack, context: &ForwardContext, cache: &mut KvCache) -> Tensor {
    let x = numbers(&[2, 2, WIDTH], 2);
    stack.forward_cached(&x, context, cache).unwrap()
}

#[test]
fn a_cache_of_another_type_is_refused_and_stays_as_it_was() {
    if !has_f64("a stack in f64") {
        return;
    }
    let config = small::decoder();
    let layers = stack(&config);
    let vb = VarBuilder::zeros(DType::F64, &device());
    let others = Stack::new(&config, vb).unwrap();
    let plain = ForwardContext::evaluation();
    let begun = || after_five(&layers, &plain);
    let next = |cache: &mut KvCache| next(&layers, &plain, cache);
    let mut cache = begun();
    let x = numbers(&[2, 1, WIDTH], 3).to_dtype(DType::F64).unwrap();
    let refused = others.forward_cached(&x, &plain, &mut cache);
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("in F32") && message.contains("new_cache"),
        "{message}"
    );
    assert_eq!(cache.seen(), 5);
    assert_same(&next(&mut cache), &next(&mut begun()), "after the refusal");
}

/// Token by token through every length, of which each has a clone that goes on with other tokens, and a refused call.
#[test]
fn clones_go_on_differently_and_each_as_if_alone() {
    let layers = stack(&small::decoder());
    let plain = ForwardContext::evaluation();
    let token = |seed: usize| numbers(&[2, 1, WIDTH], seed);
    let step =
        |cache: &mut KvCache, seed| layers.forward_cached(&token(seed), &plain, cache).unwrap();
    let alone = |seeds: &[usize]| {
        let mut cache = layers.new_cache();
        let last = seeds.iter().map(|&seed| step(&mut cache, seed)).last();
        last.unwrap()
    };
    let mut cache = layers.new_cache();
    for n in 0..24 {
        let seeds: Vec<usize> = (0..n).collect();
        let mut other = cache.clone();
        let ours = step(&mut cache, n);
        let theirs = [90, 91, 92].map(|seed| step(&mut other, seed));
        let wide = numbers(&[2, 1, WIDTH + 1], 1);
        assert!(layers.forward_cached(&wide, &plain, &mut cache).is_err());
        let after = |seed: &[usize]| alone(&[&seeds[..], seed].concat());
        assert_same(&ours, &after(&[n]), n);
        assert_same(&theirs[0], &after(&[90]), n);
        assert_same(&theirs[2], &after(&[90, 91, 92]), n);
    }
}

/// Otherwise each step of a stack with variables would keep the graph of all earlier steps.
#[test]
fn outputs_with_a_cache_have_no_graph() {
    for config in [small::decoder(), kinds::cross_decoder()] {
        let layers = stack(&config);
        let plain = with_memory(&[2, 4, MEMORY]);
        let mut cache = layers.new_cache();
        for seed in 1..4 {
            let x = numbers(&[2, 1, WIDTH], seed);
            let y = layers.forward_cached(&x, &plain, &mut cache);
            assert!(!y.unwrap().track_op());
            assert!(layers.forward_with(&x, &plain).unwrap().track_op());
        }
    }
}

#[test]
fn an_encoder_of_distances_has_no_cache() {
    for kind in [kinds::disentangled(), kinds::gated_bias()] {
        let layers = stack(&kind);
        let packed = small::stack(&kind);
        let packed = packed.pack(Precision::F32).unwrap();
        let (x, plain) = (numbers(&[2, 1, WIDTH], 1), ForwardContext::evaluation());
        let on_cpu = small::numbers(&[2, 1, WIDTH], 1);
        let (mut cache, mut of_packed) = (layers.new_cache(), packed.new_cache());
        for message in [
            refusal("layers", || layers.forward_cached(&x, &plain, &mut cache)),
            refusal("packed", || {
                packed.forward_cached(&on_cpu, &plain, &mut of_packed)
            }),
        ] {
            assert!(message.contains("causal"), "{message}");
        }
    }
}

#[test]
fn inputs_that_track_gradients_are_refused_with_a_cache() {
    let layers = stack(&kinds::cross_decoder());
    let tracked = |tensor| Var::from_tensor(&tensor).unwrap().into_inner();
    let x = numbers(&[2, 1, WIDTH], 1);
    let memory = tracked(numbers(&[2, 4, MEMORY], 5));
    let of_variable =
        ForwardContext::evaluation().with_encoder_output(memory, AttentionMask::none());
    let mut cache = layers.new_cache();
    for (x, context, name) in [
        (tracked(x.clone()), with_memory(&[2, 4, MEMORY]), "input"),
        (x, of_variable, "encoder_hidden_states"),
    ] {
        let message = refusal(name, || layers.forward_cached(&x, &context, &mut cache));
        assert!(
            message.contains(name) && message.contains("detach()"),
            "{message}"
        );
        assert_eq!(cache.seen(), 0);
    }
}

#[test]
fn a_refused_call_leaves_the_cache_as_it_was() {
    let ids = |shape: &[usize]| {
        numbers(shape, 1)
            .abs()
            .unwrap()
            .to_dtype(DType::I64)
            .unwrap()
    };
    let plain = with_memory(&[2, 4, MEMORY]);
    let positions = plain.clone().with_position_ids(&ids(&[2, 3])).unwrap();
    let ones = Tensor::ones((2, 1), DType::U8, &device()).unwrap();
    let marked = |context: &ForwardContext| {
        let mask = AttentionMask::padding(&ones).unwrap();
        context.clone().with_mask(mask)
    };
    let wrong: [(&[usize], ForwardContext); 6] = [
        (&[2, 1, WIDTH + 1], plain.clone()),
        (&[3, 1, WIDTH], with_memory(&[3, 4, MEMORY])),
        (&[2, 1, WIDTH], with_memory(&[2, 3, MEMORY])),
        (&[2, 1, WIDTH], marked(&with_memory(&[1, 4, MEMORY]))),
        (&[2, 1, WIDTH], ForwardContext::evaluation()),
        (&[2, 1, WIDTH], positions),
    ];
    for config in [small::decoder(), kinds::cross_decoder()] {
        let layers = stack(&config);
        let begun = || after_five(&layers, &plain);
        let next = |cache: &mut KvCache| next(&layers, &plain, cache);
        let expected = next(&mut begun());
        let mut n_refused = 0;
        for (shape, context) in &wrong {
            let mut cache = begun();
            let x = numbers(shape, 3);
            if layers.forward_cached(&x, context, &mut cache).is_err() {
                n_refused += 1;
                assert_eq!(cache.seen(), 5, "{shape:?} {context:?}");
                assert_same(&next(&mut cache), &expected, (shape, context));
            }
        }
        assert!(n_refused >= 3, "{n_refused}");
    }
}
