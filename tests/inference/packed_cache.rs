//! A cache serves the stack and the sequences that it is of; what it cannot serve is an error that leaves it as it was.

use candle_blocks::{
    AttentionMask, ForwardContext, KvCache, Precision, Stack, StackConfig,
    candle_core::{DType, Device, Tensor},
};

use crate::{
    cpu_only::cpu_only,
    device::device,
    kinds::{self, MEMORY},
    memory::with_memory,
    numbers::bits,
    same::assert_same,
    small::{self, WIDTH, numbers, stack},
    small_on_device,
};

fn packed(config: &StackConfig) -> Stack {
    stack(config).pack(Precision::F32).unwrap()
}

/// Returns a cache after two sequences with five positions.
fn after_five(stack: &Stack, context: &ForwardContext) -> KvCache {
    let mut cache = stack.new_cache();
    first_five(stack, context, &mut cache);
    cache
}

fn first_five(stack: &Stack, context: &ForwardContext, cache: &mut KvCache) {
    let x = numbers(&[2, 5, WIDTH], 1);
    stack.forward_cached(&x, context, cache).unwrap();
}

/// Returns the next two positions' output.
fn next(stack: &Stack, context: &ForwardContext, cache: &mut KvCache) -> Vec<u64> {
    let x = numbers(&[2, 2, WIDTH], 2);
    bits(&stack.forward_cached(&x, context, cache).unwrap())
}

#[test]
fn a_refused_call_leaves_the_cache_as_it_was() {
    cpu_only("packed weights");
    let ids = |shape: &[usize]| Tensor::zeros(shape, DType::I64, &Device::Cpu).unwrap();
    let marks = |shape: &[usize]| AttentionMask::padding(&ids(shape)).unwrap();
    let plain = with_memory(&[2, 4, MEMORY]);
    let wrong: [(&[usize], ForwardContext, &str); 8] = [
        (&[2, 1, WIDTH + 1], plain.clone(), "expected [.., 12]"),
        (&[3, 1, WIDTH], with_memory(&[3, 4, MEMORY]), "a batch of 2"),
        (
            &[2, 1, WIDTH],
            plain.clone().with_mask(marks(&[2, 6])),
            "attention_mask",
        ),
        (
            &[3, 1, WIDTH],
            plain.clone().with_mask(marks(&[3, 1])),
            "batch of",
        ),
        (
            &[2, 1, WIDTH],
            plain.clone().with_train(true),
            "do not train",
        ),
        (
            &[2, 1, WIDTH],
            with_memory(&[2, 3, MEMORY]),
            "encoder_hidden_states",
        ),
        (
            &[2, 1, WIDTH],
            with_memory(&[2, 4, 2 * MEMORY]),
            "encoder_hidden_states",
        ),
        (
            &[2, 1, WIDTH],
            ForwardContext::evaluation(),
            "encoder_hidden_states",
        ),
    ];
    let stack = packed(&kinds::cross_decoder());
    let expected = next(&stack, &plain, &mut after_five(&stack, &plain));
    for (shape, context, word) in wrong {
        let mut cache = after_five(&stack, &plain);
        let refused = stack.forward_cached(&numbers(shape, 3), &context, &mut cache);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
        assert_eq!(cache.seen(), 5, "{message}");
        assert_eq!(next(&stack, &plain, &mut cache), expected, "{message}");
    }
    // The first block checks positions after its projections.
    let stack = packed(&small::decoder());
    let plain = ForwardContext::evaluation();
    let expected = next(&stack, &plain, &mut after_five(&stack, &plain));
    let mut cache = after_five(&stack, &plain);
    let context = plain.clone().with_position_ids(&ids(&[2, 3])).unwrap();
    let refused = stack.forward_cached(&numbers(&[2, 2, WIDTH], 3), &context, &mut cache);
    assert!(refused.unwrap_err().to_string().contains("position_ids"));
    assert_eq!(next(&stack, &plain, &mut cache), expected);
}

#[test]
fn a_refused_first_call_leaves_the_cache_free_for_any_batch() {
    cpu_only("packed weights");
    let stack = packed(&kinds::cross_decoder());
    let plain = with_memory(&[2, 4, MEMORY]);
    let expected = next(&stack, &plain, &mut stack.new_cache());
    let mut cache = stack.new_cache();
    let wrong = with_memory(&[3, 4, MEMORY + 1]);
    let x = numbers(&[3, 2, WIDTH], 2);
    stack.forward_cached(&x, &wrong, &mut cache).unwrap_err();
    assert_eq!(next(&stack, &plain, &mut cache), expected);
    cache.reset();
    let context = with_memory(&[3, 4, MEMORY]);
    let again = stack.forward_cached(&x, &context, &mut cache).unwrap();
    let new = stack.forward_cached(&x, &context, &mut stack.new_cache());
    assert_eq!(bits(&again), bits(&new.unwrap()));
}

/// Several continuations of one prompt, as in beam search.
#[test]
fn a_copy_of_a_cache_continues_alone() {
    cpu_only("packed weights");
    let windowed = small::decoder().with_each_attention(|_, attention| attention.window = Some(3));
    for (config, plain) in [
        (kinds::cross_decoder(), with_memory(&[2, 4, MEMORY])),
        (small::decoder(), ForwardContext::evaluation()),
        (windowed, ForwardContext::evaluation()),
        (kinds::latent(), ForwardContext::evaluation()),
    ] {
        for precision in [Precision::F32, Precision::Bf16] {
            let stack = stack(&config).pack(precision).unwrap();
            let step = |seed, cache: &mut KvCache| {
                let x = numbers(&[2, 2, WIDTH], seed);
                bits(&stack.forward_cached(&x, &plain, cache).unwrap())
            };
            // Two paths of two steps, each with a cache that saw nothing else.
            let paths = [(2, 3), (4, 5)].map(|(first, second)| {
                let mut cache = after_five(&stack, &plain);
                [step(first, &mut cache), step(second, &mut cache)]
            });
            let mut cache = after_five(&stack, &plain);
            let mut copy = cache.clone();
            assert_eq!(copy.seen(), 5);
            for i in 0..2 {
                assert_eq!(step([2, 3][i], &mut cache), paths[0][i]);
                assert_eq!(step([4, 5][i], &mut copy), paths[1][i]);
            }
            drop(cache);
            let x = numbers(&[2, 2, WIDTH], 6);
            assert!(stack.forward_cached(&x, &plain, &mut copy).is_ok());
        }
    }
}

#[test]
fn a_cache_of_a_stack_with_other_heads_is_refused() {
    cpu_only("packed weights");
    let plain = ForwardContext::evaluation();
    let ours = packed(&small::decoder());
    let mut config = small::decoder();
    for block in &mut config.blocks {
        block.attention_mut().unwrap().n_kv_heads = 4;
    }
    let theirs = packed(&config);
    let mut cache = after_five(&ours, &plain);
    let x = numbers(&[2, 2, WIDTH], 2);
    let message = theirs.forward_cached(&x, &plain, &mut cache).unwrap_err();
    assert!(message.to_string().contains("new_cache"), "{message}");
    assert_eq!(
        next(&ours, &plain, &mut cache),
        next(&ours, &plain, &mut after_five(&ours, &plain))
    );
}

#[test]
fn a_cache_of_another_precision_is_refused() {
    cpu_only("packed weights");
    let plain = ForwardContext::evaluation();
    let ours = packed(&small::decoder());
    let theirs = stack(&small::decoder()).pack(Precision::Bf16).unwrap();
    let mut cache = after_five(&ours, &plain);
    let x = numbers(&[2, 2, WIDTH], 2);
    let message = theirs.forward_cached(&x, &plain, &mut cache).unwrap_err();
    let message = message.to_string();
    assert!(
        message.contains("in f32") && message.contains("in bf16"),
        "{message}"
    );
    assert_eq!(
        next(&ours, &plain, &mut cache),
        next(&ours, &plain, &mut after_five(&ours, &plain))
    );
}

#[test]
fn to_go_back_too_far_leaves_no_position_in_any_layer() {
    cpu_only("packed weights");
    // Its second block has a window of 3, the first has none.
    let plain = ForwardContext::evaluation();
    for stack in [packed(&small::decoder()), stack(&small::decoder())] {
        let long = || {
            let mut cache = after_five(&stack, &plain);
            next(&stack, &plain, &mut cache);
            cache
        };
        let expected = next(&stack, &plain, &mut long());
        let mut cache = long();
        assert_eq!(cache.rewind(2), 0);
        assert_eq!((cache.seen(), cache.bytes()), (0, 0));
        // All is computed again, with the same bits.
        first_five(&stack, &plain, &mut cache);
        next(&stack, &plain, &mut cache);
        assert_eq!(next(&stack, &plain, &mut cache), expected);
        // The last call can be taken back.
        assert_eq!(cache.rewind(7), 7);
        assert_eq!(next(&stack, &plain, &mut cache), expected);
    }
}

/// A refused call may have dropped in one layer what only its own queries would not have seen.
#[test]
fn after_a_refused_call_the_last_one_is_taken_back_or_refused_too() {
    cpu_only("packed weights");
    let config =
        kinds::cross_decoder().with_each_attention(|_, attention| attention.window = Some(3));
    let stack = packed(&config);
    let plain = with_memory(&[2, 4, MEMORY]);
    let expected = next(&stack, &plain, &mut after_five(&stack, &plain));
    let x = numbers(&[2, 1, WIDTH], 3);
    let long = || {
        let mut cache = after_five(&stack, &plain);
        next(&stack, &plain, &mut cache);
        cache
    };
    // Refused before any layer.
    let mut cache = long();
    let other = numbers(&[3, 1, WIDTH], 3);
    let context = with_memory(&[3, 4, MEMORY]);
    stack
        .forward_cached(&other, &context, &mut cache)
        .unwrap_err();
    assert_eq!(cache.rewind(5), 5);
    assert_eq!(next(&stack, &plain, &mut cache), expected);
    // The first cross-attention refuses it, after the first self-attention.
    let mut cache = long();
    let context = ForwardContext::evaluation();
    stack.forward_cached(&x, &context, &mut cache).unwrap_err();
    assert_eq!((cache.rewind(5), cache.seen()), (0, 0));
    first_five(&stack, &plain, &mut cache);
    assert_eq!(next(&stack, &plain, &mut cache), expected);
}

/// A call for the last position alone needs fewer keys in the last block than what comes after it is taken back.
#[test]
fn a_call_for_the_last_position_after_padding_can_be_taken_back() {
    cpu_only("packed weights");
    let stack = packed(&small::decoder());
    let plain = ForwardContext::evaluation();
    let marks = Tensor::new(&[[1u8, 1, 1, 1, 1], [0, 0, 1, 1, 1]], &Device::Cpu).unwrap();
    let padded = plain
        .clone()
        .with_mask(AttentionMask::padding(&marks).unwrap());
    let expected = next(&stack, &plain, &mut after_five(&stack, &padded));
    let mut cache = after_five(&stack, &padded);
    let four = numbers(&[2, 4, WIDTH], 3);
    stack.last_cached(four, &plain, &mut cache).unwrap();
    assert_eq!(cache.rewind(5), 5);
    assert_eq!(next(&stack, &plain, &mut cache), expected);
}

#[test]
fn positions_before_the_first_mask_and_after_the_last_are_all_kept() {
    let layers = small_on_device::stack(&small::decoder());
    let packed = packed(&small::decoder());
    let plain = ForwardContext::evaluation();
    let masked = |rows: Option<[[u8; 2]; 2]>, device: &Device| match rows {
        None => plain.clone(),
        Some(rows) => {
            let mask = Tensor::new(&rows, device).unwrap();
            plain
                .clone()
                .with_mask(AttentionMask::padding(&mask).unwrap())
        }
    };
    let (all, some) = (Some([[1; 2]; 2]), Some([[1, 1], [1, 0]]));
    let run = |masks: [Option<[[u8; 2]; 2]>; 3]| {
        let (mut cache, mut of_packed) = (layers.new_cache(), packed.new_cache());
        let mut last = Vec::new();
        for (seed, rows) in masks.into_iter().enumerate() {
            let x = numbers(&[2, 2, WIDTH], seed);
            let context = masked(rows, x.device());
            let theirs = packed.forward_cached(&x, &context, &mut of_packed);
            let (x, context) = (x.to_device(&device()).unwrap(), masked(rows, &device()));
            let ours = layers.forward_cached(&x, &context, &mut cache).unwrap();
            last = vec![ours, theirs.unwrap()];
        }
        last
    };
    let expected = run([all, some, all]);
    let found = run([None, some, None]);
    let unmasked = run([None; 3]);
    for (i, expected) in expected.iter().enumerate() {
        assert_same(&found[i], expected, i);
        assert_ne!(bits(&unmasked[i]), bits(expected), "{i}");
    }
}

#[test]
fn a_call_without_positions_or_sequences_changes_nothing() {
    cpu_only("packed weights");
    for config in [
        small::decoder(),
        kinds::falcon(),
        kinds::cross_decoder(),
        kinds::latent(),
    ] {
        let stack = packed(&config);
        let plain = with_memory(&[2, 4, MEMORY]);
        let expected = next(&stack, &plain, &mut after_five(&stack, &plain));
        let mut cache = after_five(&stack, &plain);
        let none = stack.forward_cached(&numbers(&[2, 0, WIDTH], 1), &plain, &mut cache);
        assert_eq!(none.unwrap().dims(), [2, 0, WIDTH]);
        assert_eq!(next(&stack, &plain, &mut cache), expected);
        let nobody = with_memory(&[0, 4, MEMORY]);
        let x = numbers(&[0, 3, WIDTH], 1);
        let y = stack.forward_cached(&x, &nobody, &mut stack.new_cache());
        assert_eq!(y.unwrap().dims(), [0, 3, WIDTH]);
    }
}

#[test]
fn a_cache_that_goes_back_to_its_start_may_attend_to_another_output() {
    cpu_only("packed weights");
    let stack = packed(&kinds::cross_decoder());
    let first = with_memory(&[2, 4, MEMORY]);
    let other = ForwardContext::evaluation()
        .with_encoder_output(numbers(&[2, 4, MEMORY], 9), AttentionMask::none());
    let expected = next(&stack, &other, &mut stack.new_cache());
    let mut cache = after_five(&stack, &first);
    assert_eq!(cache.rewind(0), 0);
    assert_eq!(next(&stack, &other, &mut cache), expected);
}

#[test]
fn caches_join_only_with_those_of_the_same_stack_that_are_computed() {
    cpu_only("packed weights");
    let plain = ForwardContext::evaluation();
    let memory = with_memory(&[2, 4, MEMORY]);
    let (config, crossing) = (small::decoder(), packed(&kinds::cross_decoder()));
    let shallow = StackConfig::uniform(config.blocks[0].clone(), 1, None);
    let mut other_heads = config.clone();
    for block in &mut other_heads.blocks {
        block.attention_mut().unwrap().n_kv_heads = 4;
    }
    let ours = packed(&config);
    let attends = after_five(&crossing, &memory);
    let mut attends_longer = crossing.new_cache();
    first_five(
        &crossing,
        &with_memory(&[2, 3, MEMORY]),
        &mut attends_longer,
    );
    let own = after_five(&ours, &plain);
    for (cache, other, expected) in [
        (&own, ours.new_cache(), "is empty"),
        (
            &own,
            after_five(&stack(&config), &plain),
            "different stacks",
        ),
        (
            &own,
            after_five(&packed(&shallow), &plain),
            "different stacks",
        ),
        (
            &own,
            after_five(&packed(&other_heads), &plain),
            "different stacks",
        ),
        (
            &after_five(&stack(&config), &plain),
            after_five(&stack(&other_heads), &plain),
            "different stacks",
        ),
        (&attends, attends_longer, "outputs of 4 and 3 positions"),
    ] {
        let mut joined = cache.clone();
        let message = joined.join(&other).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(
            (joined.seen(), joined.bytes()),
            (cache.seen(), cache.bytes())
        );
    }
    let mut unchanged = own.clone();
    assert!(unchanged.join(&ours.new_cache()).is_err());
    assert_eq!(
        next(&ours, &plain, &mut unchanged),
        next(&ours, &plain, &mut own.clone())
    );
    assert!(own.fork(&[2]).is_err());
    let mut empty = ours.new_cache();
    empty.join(&own).unwrap();
    assert_eq!(
        next(&ours, &plain, &mut empty),
        next(&ours, &plain, &mut own.clone())
    );
}

#[test]
fn sequences_of_equal_encoder_outputs_join() {
    cpu_only("packed weights");
    let memory = with_memory(&[4, 4, MEMORY]);
    let of = |at: usize| {
        let output = memory.encoder_output().unwrap();
        let states = output.hidden_states.narrow(0, at, 2).unwrap();
        ForwardContext::evaluation().with_encoder_output(states, AttentionMask::none())
    };
    for stack in [
        stack(&kinds::cross_decoder()),
        packed(&kinds::cross_decoder()),
    ] {
        let x = numbers(&[4, 5, WIDTH], 1);
        let part = |at: usize| {
            let mut cache = stack.new_cache();
            stack
                .forward_cached(&x.narrow(0, at, 2).unwrap(), &of(at), &mut cache)
                .unwrap();
            cache
        };
        let mut joined = part(0);
        joined.join(&part(2)).unwrap();
        let mut together = stack.new_cache();
        stack.forward_cached(&x, &memory, &mut together).unwrap();
        let new = numbers(&[4, 2, WIDTH], 2);
        let [joined, together] = [&mut joined, &mut together]
            .map(|cache| bits(&stack.forward_cached(&new, &memory, cache).unwrap()));
        assert_eq!(joined, together);
    }
}
