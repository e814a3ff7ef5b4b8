//! A cache goes through tensors with the same bits, and tensors that are no cache of a stack are refused by name.

use std::collections::HashMap;

use candle_blocks::{
    AttentionMask, ForwardContext, KvCache, Position, Precision, RotaryConfig, Stack, StackConfig,
    candle_core::{DType, Device, Tensor},
    config::{
        GatedDeltaNetConfig, HybridHeadsConfig, LightningConfig, Mamba2Config, Mamba2Norm,
        RgLruConfig, ShortConvolutionConfig,
    },
};

use crate::{
    device::device,
    kinds::{self, MEMORY},
    memory::with_memory_on_device as with_memory,
    numbers::bits,
    rehearsal::rehearsed,
    small::{self, WIDTH, attention, block},
    small_on_device,
    zamba::zamba,
};

/// Decoders with every kind of state.
fn configs() -> Vec<StackConfig> {
    let rotary = Position::Rotary(RotaryConfig::new(2, 100.0));
    let attended = attention().with_position(rotary).causal();
    let mamba = Mamba2Config::new(WIDTH, [4, 3], 5).with_norm(Mamba2Norm::Absent);
    let mixers = [
        ShortConvolutionConfig::new(WIDTH, 3).into(),
        GatedDeltaNetConfig::new(WIDTH, [2, 4], [3, 5]).into(),
        RgLruConfig::new(WIDTH, 15, 3).into(),
        LightningConfig::new(WIDTH, 3, 5).into(),
        HybridHeadsConfig::new(attended.clone(), mamba).into(),
    ];
    let hybrids = mixers.map(|mixer| {
        let mut recurrent = block(attended.clone());
        recurrent.mixer = mixer;
        StackConfig::new(vec![recurrent, block(attended.clone())], None)
    });
    let mut shared = block(attended.clone());
    shared.attention_mut().unwrap().shared_keys = Some(0);
    let sharing = StackConfig::new(vec![block(attended), shared], None);
    let others = [
        small::decoder(),
        kinds::latent(),
        kinds::cross_decoder(),
        sharing,
    ];
    let own = others.into_iter().chain(hybrids);
    own.chain([zamba()]).collect()
}

/// The stack on the device under test, and packed.
fn forms(config: &StackConfig) -> Vec<Stack> {
    let mut forms = vec![small_on_device::stack(config)];
    if device().is_cpu() && rehearsed().is_none() {
        let packed = [Precision::F32, Precision::Bf16, Precision::Int8];
        forms.extend(packed.map(|precision| small::stack(config).pack(precision).unwrap()));
    }
    forms
}

fn context(seq: usize, padding: usize) -> ForwardContext {
    let second = (0..seq).map(|i| u8::from(i >= padding)).collect();
    let marks = Tensor::new(vec![vec![1u8; seq], second], &Device::Cpu).unwrap();
    with_memory(&[2, 4, MEMORY]).with_mask(AttentionMask::padding(&marks).unwrap())
}

fn pass(stack: &Stack, cache: &mut KvCache, (at, n): (usize, usize), padding: usize) -> Vec<u64> {
    let all = small_on_device::numbers(&[2, 200, WIDTH], 3);
    let x = all.narrow(1, at, n).unwrap();
    bits(
        &stack
            .forward_cached(&x, &context(n, padding), cache)
            .unwrap(),
    )
}

fn restored(stack: &Stack, cache: &KvCache) -> KvCache {
    stack
        .cache_from_tensors(&cache.to_tensors().unwrap())
        .unwrap()
}

#[test]
fn a_restored_cache_goes_on_as_the_one_that_was_stored() {
    for config in configs() {
        for stack in forms(&config) {
            let name = format!("{:?} {config:?}", stack.is_packed());
            // With and without padding before the second sequence, in one and in several chunks of keys.
            for (n, padding) in [(5, 0), (5, 2), (150, 3)] {
                let mut cache = stack.new_cache();
                pass(&stack, &mut cache, (0, n), padding);
                pass(&stack, &mut cache, (n, 2), 0);
                let mut again = restored(&stack, &cache);
                assert_eq!((again.seen(), again.batch()), (n + 2, 2), "{name}");
                assert_eq!(again.bytes(), cache.bytes(), "{name}");
                let mut back = again.clone();
                let next = |cache: &mut KvCache| pass(&stack, cache, (n + 2, 1), 0);
                assert_eq!(next(&mut again), next(&mut cache), "{name}, {n}");
                assert_eq!(next(&mut again), next(&mut cache), "{name}, {n}");
                // It goes back to where the other goes.
                let reached = back.rewind(n);
                assert_eq!(reached, n, "{name}");
                let mut other = stack.new_cache();
                pass(&stack, &mut other, (0, n), padding);
                assert_eq!(next(&mut back), next(&mut other), "{name}, {n} again");
            }
        }
    }
}

#[test]
fn an_empty_cache_is_restored_empty() {
    for config in configs() {
        for stack in forms(&config) {
            let mut cache = stack.new_cache();
            let mut again = restored(&stack, &cache);
            let first = pass(&stack, &mut again, (0, 5), 2);
            assert_eq!(first, pass(&stack, &mut cache, (0, 5), 2), "{config:?}");
            cache.reset();
            let mut again = restored(&stack, &cache);
            assert_eq!(again.seen(), 0);
            assert_eq!(pass(&stack, &mut again, (0, 5), 2), first, "{config:?}");
        }
    }
}

#[test]
fn tensors_of_another_stack_are_refused() {
    for config in configs() {
        let stacks = forms(&config);
        for (i, stack) in stacks.iter().enumerate() {
            let mut cache = stack.new_cache();
            pass(stack, &mut cache, (0, 5), 1);
            let tensors = cache.to_tensors().unwrap();
            for (j, other) in stacks.iter().enumerate() {
                // A recurrent state has one form, whatever the precision; bf16 and int8 keep keys in bf16.
                let is_alike = i == j || (i > 1 && j > 1);
                let restored = other.cache_from_tensors(&tensors);
                assert_eq!(restored.is_ok(), is_alike, "{config:?}: {i} in {j}");
            }
        }
    }
}

#[test]
fn damaged_tensors_are_refused_by_name() {
    for config in configs() {
        for stack in forms(&config) {
            let mut cache = stack.new_cache();
            pass(&stack, &mut cache, (0, 5), 1);
            let tensors = cache.to_tensors().unwrap();
            let refused = |tensors: &HashMap<String, Tensor>, name: &str| {
                let error = stack.cache_from_tensors(tensors).unwrap_err().to_string();
                assert!(
                    error.contains("a cache that this stack made"),
                    "{name}: {error}"
                );
                error
            };
            let mut more = tensors.clone();
            more.insert("layers.7.keys".into(), tensors["numbers"].clone());
            assert!(refused(&more, "more").contains("layers.7.keys"));
            for (name, tensor) in &tensors {
                let with = |changed: Option<Tensor>| {
                    let mut all = tensors.clone();
                    all.remove(name);
                    all.extend(changed.map(|tensor| (name.clone(), tensor)));
                    all
                };
                // Without its mask and its encoder, a cache is another, whole one.
                if name != "mask" && !name.contains("encoder") {
                    refused(&with(None), name);
                }
                if tensor.dtype() == DType::I64 {
                    let huge = (tensor + 1e15).unwrap();
                    refused(&with(Some(huge)), name);
                    let negative = (tensor - 1e3).unwrap();
                    refused(&with(Some(negative)), name);
                    continue;
                }
                let first = tensor.narrow(0, 0, 1).unwrap();
                refused(&with(Some(first)), name);
                let flat = tensor.flatten_all().unwrap();
                refused(&with(Some(flat)), name);
            }
        }
    }
}
