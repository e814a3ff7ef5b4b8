//! Recurrent mixers: a state takes as much for one position as for many, pieces give the bits that the whole sequence gives, and
//! padding is no position, wherever it stands.

use candle_blocks::{
    AttentionMask, ForwardContext, KvCache, NormConfig, Position, Precision, RotaryConfig, Stack,
    StackConfig,
    candle_core::{DType, Device, Tensor},
    config::{
        DeltaForm, GatedDeltaNetConfig, HybridHeadsConfig, LightningConfig, Mamba2Config,
        Mamba2Norm, MambaConfig, MixerConfig, RgLruConfig, ShortConvolutionConfig,
    },
};

use crate::{
    device::device,
    numbers::bits,
    rehearsal::rehearsed,
    small::{self, WIDTH, attention, block},
    small_on_device,
    zamba::zamba,
};

/// Every recurrent mixer.
fn mixers() -> [MixerConfig; 9] {
    let delta = GatedDeltaNetConfig::new(WIDTH, [2, 4], [3, 5]);
    let by_channel = |rank, bound| delta.with_form(DeltaForm::Channel { rank, bound }).into();
    let mamba = Mamba2Config::new(WIDTH, [4, 3], 5);
    [
        ShortConvolutionConfig::new(WIDTH, 3).with_bias(true).into(),
        delta.with_strength(2.0).into(),
        by_channel(Some(2), None),
        by_channel(None, Some(-2.0)),
        mamba.with_groups(2).into(),
        MambaConfig::new(WIDTH, 9, 4, 2).into(),
        MambaConfig::new(WIDTH, 10, 4, 2).with_heads(2).into(),
        RgLruConfig::new(WIDTH, 15, 3).into(),
        LightningConfig::new(WIDTH, 3, 5).with_slope(0.5).into(),
    ]
}

/// A decoder with attention between two such mixers, as LFM2's and Qwen 3.5's.
fn hybrid(mixer: &MixerConfig) -> StackConfig {
    let rotary = Position::Rotary(RotaryConfig::new(2, 100.0));
    let attended = block(attention().with_position(rotary).causal());
    let mut recurrent = attended.clone();
    recurrent.mixer = mixer.clone();
    let norm = NormConfig::rms_norm(WIDTH, 1e-6);
    StackConfig::new(vec![recurrent.clone(), attended, recurrent], Some(norm))
}

/// The stacks on the device under test, and packed.
fn stacks(configs: impl IntoIterator<Item = StackConfig>) -> Vec<(Stack, String)> {
    configs
        .into_iter()
        .flat_map(|config| forms(&config))
        .collect()
}

fn forms(config: &StackConfig) -> Vec<(Stack, String)> {
    let mixer = &config.blocks[0].mixer;
    let mut stacks = vec![(
        small_on_device::stack(config),
        format!("{mixer:?}, unpacked"),
    )];
    if device().is_cpu() && rehearsed().is_none() {
        let packed = [
            (Precision::F32, "f32"),
            (Precision::Bf16, "bf16"),
            (Precision::Int8, "int8"),
            (Precision::INT4, "int4"),
        ];
        let stack = small::stack(config);
        let name = |name| format!("{mixer:?}, {name}");
        stacks.extend(packed.map(|(precision, of)| (stack.pack(precision).unwrap(), name(of))));
    }
    stacks
}

/// Returns stacks of two blocks without attention.
fn recurrent() -> impl Iterator<Item = StackConfig> {
    let hybrids = mixers().into_iter().map(|mixer| hybrid(&mixer));
    hybrids.map(|mut of| StackConfig::uniform(of.blocks.remove(0), 2, None))
}

/// Returns stacks with both: in turn, and side by side as in Falcon-H1.
fn hybrids() -> impl Iterator<Item = StackConfig> {
    let rotary = Position::Rotary(RotaryConfig::new(2, 100.0));
    let attention = attention().with_position(rotary).causal();
    let mamba = Mamba2Config::new(WIDTH, [4, 3], 5).with_norm(Mamba2Norm::Absent);
    let beside = HybridHeadsConfig::new(attention, mamba).with_multipliers([0.7, 1.3]);
    let mixers = mixers().into_iter().chain([beside.into()]);
    mixers.map(|mixer| hybrid(&mixer)).chain([zamba()])
}

/// Computes some positions of `x` after those in the cache.
fn piece(stack: &Stack, cache: &mut KvCache, x: &Tensor, at: usize, n: usize) -> Tensor {
    let x = x.narrow(1, at, n).unwrap();
    let context = ForwardContext::evaluation();
    stack.forward_cached(&x, &context, cache).unwrap()
}

/// Compares bits; on a device, whose operations sum in another order for fewer rows, within a bound.
#[track_caller]
fn assert_alike(ours: &Tensor, theirs: &Tensor, what: &str) {
    if device().is_cpu() && rehearsed().is_none() {
        return assert_eq!(bits(ours), bits(theirs), "{what}");
    }
    let difference = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap();
    let difference = difference.to_dtype(DType::F32).unwrap();
    assert!(difference.to_vec0::<f32>().unwrap() < 1e-4, "{what}");
}

#[test]
fn pieces_of_any_length_give_the_whole_sequence() {
    for (stack, name) in stacks(hybrids()) {
        for n in [1, 2, 63, 64, 65, 300] {
            let x = small_on_device::numbers(&[2, n, WIDTH], n);
            let whole = stack.forward(&x).unwrap();
            for length in [n, 7, 1] {
                let mut cache = stack.new_cache();
                let starts = (0..n).step_by(length);
                let pieces = starts.map(|at| piece(&stack, &mut cache, &x, at, length.min(n - at)));
                let joined = Tensor::cat(&pieces.collect::<Vec<_>>(), 1).unwrap();
                assert_alike(
                    &joined,
                    &whole,
                    &format!("{name}, {n} in pieces of {length}"),
                );
            }
        }
    }
}

#[test]
fn a_state_takes_as_much_for_many_positions_as_for_one() {
    for config in recurrent() {
        let stack = small_on_device::stack(&config);
        let mut cache = stack.new_cache();
        let x = small_on_device::numbers(&[1, 1000, WIDTH], 3);
        let mut sizes = Vec::new();
        for _ in 0..100 {
            piece(&stack, &mut cache, &x, 0, 1000);
            piece(&stack, &mut cache, &x, 0, 1);
            sizes.push(cache.bytes());
        }
        assert_eq!(cache.seen(), 100_100);
        // Two layers, after the last call and before it.
        let state = config.blocks[0].facts().state.unwrap();
        assert_eq!(sizes, [2 * 2 * state * size_of::<f32>(); 100]);
    }
}

#[test]
fn f32_states_stay_near_those_in_f64_over_many_positions() {
    // A device computes position by position.
    let n_pieces = if rehearsed().is_some() { 1 } else { 20 };
    let mut shares = Vec::new();
    for config in recurrent() {
        let made = |dtype| {
            let value = |i, around, dims: &[usize]| {
                let value = small::numbers(dims, i).affine(0.4, around).unwrap();
                value.to_dtype(dtype).unwrap()
            };
            small::made_of(dtype, |vb| Stack::new(&config, vb), value).0
        };
        let dtypes = [DType::F32, DType::F64];
        let stacks = dtypes.map(made);
        let mut caches = stacks.each_ref().map(Stack::new_cache);
        for at in 0..n_pieces {
            let x = small::numbers(&[1, 1000, WIDTH], at);
            let mut y = |i: usize| {
                let x = x.to_dtype(dtypes[i]).unwrap();
                let y = piece(&stacks[i], &mut caches[i], &x, 0, 1000);
                y.to_dtype(DType::F64).unwrap()
            };
            let [found, exact] = [y(0), y(1)];
            let largest = |of: &Tensor| of.abs()?.max_all()?.to_vec0::<f64>();
            let difference = largest(&(found - &exact).unwrap()).unwrap();
            shares.push(difference / largest(&exact).unwrap() / 8e-6);
        }
        let of_mixer = &shares[shares.len() - n_pieces..];
        println!("{:?}: {of_mixer:.2?} of the bound", config.blocks[0].mixer);
    }
    let worst = shares.into_iter().fold(0.0, f64::max);
    assert!(worst <= 1.0 && worst > 0.1, "{worst}");
}

#[test]
fn a_state_goes_back_to_the_position_before_the_last_call() {
    for (stack, name) in stacks(hybrids()) {
        let x = small_on_device::numbers(&[2, 9, WIDTH], 5);
        let whole = stack.forward(&x).unwrap();
        let mut cache = stack.new_cache();
        piece(&stack, &mut cache, &x, 0, 3);
        piece(&stack, &mut cache, &x, 3, 4);
        assert_eq!(cache.rewind(6), 3, "{name}");
        let again = piece(&stack, &mut cache, &x, 3, 6);
        assert_alike(&again, &whole.narrow(1, 3, 6).unwrap(), &name);
        assert_eq!(cache.rewind(9), 9, "{name}: nothing is removed");
        assert_eq!(cache.rewind(3), 3, "{name}");
        assert_eq!(cache.rewind(2), 0, "{name}: no earlier state");
        let again = piece(&stack, &mut cache, &x, 0, 9);
        assert_alike(&again, &whole, &name);
    }
}

#[test]
fn whoever_has_a_state_keeps_it_while_the_cache_goes_on() {
    for (stack, name) in stacks(hybrids()) {
        for sequences in [&[0][..], &[0, 1]] {
            others_keep_their_states(&stack, sequences, &name);
        }
    }
}

fn others_keep_their_states(stack: &Stack, sequences: &[usize], name: &str) {
    let x = small_on_device::numbers(&[sequences.len(), 12, WIDTH], 6);
    let whole = stack.forward(&x).unwrap();
    let mut cache = stack.new_cache();
    (0..4).for_each(|at| drop(piece(stack, &mut cache, &x, at, 1)));
    let tensors = cache.to_tensors().unwrap();
    piece(stack, &mut cache, &x, 4, 1);
    let cloned = cache.clone();
    let mut kept = cache.clone();
    kept.keep_sequences(sequences).unwrap();
    let fork = cache.fork(sequences).unwrap();
    // Each call takes over the memory of the state before the last, if nobody else has it.
    let goes_on = |cache: &mut KvCache, what: &str| {
        let from = cache.seen();
        for at in from..from + 4 {
            let y = piece(stack, cache, &x, at, 1);
            let expected = whole.narrow(1, at, 1).unwrap();
            assert_alike(&y, &expected, &format!("{name}: {what}"));
        }
    };
    goes_on(&mut cache, "the cache");
    assert_eq!(cache.rewind(8), 8, "{name}");
    goes_on(&mut cache, "the cache after going back");
    goes_on(&mut kept, "its sequences");
    for (mut of, what) in [(cloned, "a clone"), (fork, "a fork")] {
        goes_on(&mut of, what);
    }
    let mut restored = stack.cache_from_tensors(&tensors).unwrap();
    assert_eq!(restored.rewind(3), 3, "{name}");
    goes_on(&mut restored, "a restored cache");
    goes_on(&mut stack.cache_from_tensors(&tensors).unwrap(), "again");
}

#[test]
fn padding_before_or_after_any_piece_is_no_position() {
    for (stack, name) in stacks(recurrent()) {
        let x = small_on_device::numbers(&[1, 6, WIDTH], 8);
        let padding = small_on_device::numbers(&[1, 2, WIDTH], 9);
        let rows = |from: usize, n: usize| x.narrow(1, from, n).unwrap();
        let alone = {
            let mut cache = stack.new_cache();
            piece(&stack, &mut cache, &x, 0, 3);
            piece(&stack, &mut cache, &x, 3, 3)
        };
        // Where the padding of each piece stands: before its rows, after them, or in both places.
        for places in [
            [(2, 0), (0, 0)],
            [(0, 2), (0, 0)],
            [(0, 0), (2, 0)],
            [(2, 2), (2, 2)],
        ] {
            let mut cache = stack.new_cache();
            let mut last = None;
            for (at, (before, after)) in places.into_iter().enumerate() {
                let parts = [
                    padding.narrow(1, 0, before).unwrap(),
                    rows(3 * at, 3),
                    padding.narrow(1, 0, after).unwrap(),
                ];
                let marks = [vec![0u8; before], vec![1; 3], vec![0; after]].concat();
                let marks = Tensor::new(vec![marks], &Device::Cpu).unwrap();
                let context = ForwardContext::evaluation();
                let context = context.with_mask(AttentionMask::padding(&marks).unwrap());
                // The positions of the rows alone; those of padding mean nothing.
                let positions =
                    (0..before + 3 + after).map(|i| (3 * at + i).saturating_sub(before));
                let positions: Vec<u32> = positions.map(|position| position as u32).collect();
                let positions = Tensor::new(vec![positions], &Device::Cpu).unwrap();
                let context = context.with_position_ids(&positions).unwrap();
                let input = Tensor::cat(&parts, 1).unwrap();
                let y = stack.forward_cached(&input, &context, &mut cache).unwrap();
                last = Some(y.narrow(1, before, 3).unwrap());
            }
            assert_alike(&last.unwrap(), &alone, &format!("{name}, {places:?}"));
        }
    }
}

#[test]
fn additive_masks_and_states_of_other_layers_are_refused() {
    for config in hybrids() {
        let stack = small_on_device::stack(&config);
        let x = small_on_device::numbers(&[1, 4, WIDTH], 2);
        let mask = Tensor::zeros((1, 1, 4, 4), DType::F32, &device()).unwrap();
        let context = ForwardContext::evaluation();
        let context = context.with_mask(AttentionMask::none().with_additive(mask));
        let error = stack.forward_with(&x, &context).unwrap_err().to_string();
        assert!(error.contains("give a padding mask"), "{error}");
        // The state of a stack with another width.
        let mut other = config.clone();
        for block in &mut other.blocks {
            match &mut block.mixer {
                MixerConfig::ShortConvolution(of) => of.taps = 5,
                MixerConfig::GatedDeltaNet(of) => of.key_dim = 5,
                MixerConfig::Mamba(of) => of.state_dim = 7,
                MixerConfig::Mamba2(of) => of.state_dim = 7,
                MixerConfig::RgLru(of) => of.taps = 6,
                MixerConfig::Lightning(of) => *of = LightningConfig::new(WIDTH, 3, 4),
                MixerConfig::HybridHeads(of) => of.mamba.state_dim = 7,
                _ => {}
            }
        }
        let mut cache = small_on_device::stack(&other).new_cache();
        piece(&small_on_device::stack(&other), &mut cache, &x, 0, 4);
        let context = ForwardContext::evaluation();
        let next = small_on_device::numbers(&[1, 1, WIDTH], 1);
        let refused = stack.forward_cached(&next, &context, &mut cache);
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("make another cache with new_cache"),
            "{error}"
        );
        assert_eq!(cache.seen(), 4);
    }
}
