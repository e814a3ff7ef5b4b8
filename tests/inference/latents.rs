//! A cache for latent attention keeps the latents, not each head's keys and values.

use candle_blocks::{
    ForwardContext, KvCache, Position, Precision, Stack,
    candle_core::{DType, Device, Result, Tensor},
    candle_nn::VarBuilder,
};

use crate::{
    cpu_only::cpu_only,
    device::device,
    kinds::{self, LATENT},
    numbers::bits,
    same::assert_same,
    small::{self, WIDTH, numbers, stack},
    small_on_device,
    types::computable,
};

const BATCH: usize = 2;

/// The number of values that one layer keeps for each position.
const KEPT: usize = LATENT[0] + LATENT[1];

fn plain() -> ForwardContext {
    ForwardContext::evaluation()
}

#[test]
fn a_position_takes_the_latent_and_the_shared_key_of_each_layer() {
    let mut config = kinds::latent();
    config.blocks[1].attention_mut().unwrap().window = None;
    let n_layers = config.blocks.len();
    let dtypes = [DType::F32, DType::F64, DType::BF16];
    for dtype in computable(dtypes, "a cache of latents in f64") {
        let layers = Stack::new(&config, VarBuilder::zeros(dtype, &device())).unwrap();
        let mut cache = layers.new_cache();
        for (n, seen) in [(5, 5), (1, 6), (1, 7), (9, 16)] {
            let x = small_on_device::numbers(&[BATCH, n, WIDTH], n);
            let x = x.to_dtype(dtype).unwrap();
            layers.forward_cached(&x, &plain(), &mut cache).unwrap();
            let expected = BATCH * seen * KEPT * dtype.size_in_bytes() * n_layers;
            assert_eq!(cache.bytes(), expected, "{dtype:?} after {seen}");
        }
    }
    let layers = stack(&config);
    for (precision, number) in [
        (Precision::F32, 4),
        (Precision::F16, 4),
        (Precision::Bf16, 2),
        (Precision::Int8, 2),
    ] {
        let packed = layers.pack(precision).unwrap();
        let mut cache = packed.new_cache();
        for (n, seen) in [(5, 5), (1, 6), (1, 7), (9, 16)] {
            let x = numbers(&[BATCH, n, WIDTH], n);
            packed.forward_cached(&x, &plain(), &mut cache).unwrap();
            let expected = BATCH * seen * KEPT * number * n_layers;
            assert_eq!(cache.bytes(), expected, "{precision:?} after {seen}");
        }
    }
}

#[test]
fn other_attentions_keep_keys_and_values_of_every_head() {
    let mut config = small::decoder();
    config.blocks[1].attention_mut().unwrap().window = None;
    let layers = small_on_device::stack(&config);
    let packed = stack(&config).pack(Precision::F32).unwrap();
    let (mut cache, mut of_packed) = (layers.new_cache(), packed.new_cache());
    let x = numbers(&[BATCH, 5, WIDTH], 1);
    packed.forward_cached(&x, &plain(), &mut of_packed).unwrap();
    let x = x.to_device(&device()).unwrap();
    layers.forward_cached(&x, &plain(), &mut cache).unwrap();
    // Two key/value heads of six.
    assert_eq!(cache.bytes(), BATCH * 5 * 2 * (2 * 6) * 4 * 2);
    assert_eq!(of_packed.bytes(), cache.bytes());
}

/// A stack with a cache of it.
#[derive(Clone)]
struct OfStack(Stack, KvCache);

impl OfStack {
    fn step(&mut self, x: &Tensor) -> Tensor {
        self.0.forward_cached(x, &plain(), &mut self.1).unwrap()
    }

    fn keep(&mut self, sequences: &[usize]) -> Result<()> {
        self.1.keep_sequences(sequences)
    }

    fn forget(&mut self) {
        self.1.reset();
    }
}

fn serves_fewer_sequences_and_begins_again(mut cache: OfStack, device: &Device) {
    let x = |seed| numbers(&[3, 2, WIDTH], seed).to_device(device).unwrap();
    let one = |seed: usize, of: usize| x(seed).narrow(0, of, 1).unwrap();
    let mut alone = cache.clone();
    alone.step(&one(1, 1));
    let expected = [alone.step(&one(2, 1)), alone.step(&one(3, 1))];
    cache.step(&x(1));
    cache.keep(&[1]).unwrap();
    for (seed, expected) in [2, 3].into_iter().zip(&expected) {
        assert_same(&cache.step(&one(seed, 1)), expected, seed);
    }
    cache.forget();
    alone.forget();
    assert_same(&cache.step(&x(4)), &alone.step(&x(4)), "begun again");
}

#[test]
fn a_cache_of_latents_serves_fewer_sequences_and_begins_again() {
    let layers = small_on_device::stack(&kinds::latent());
    let cache = layers.new_cache();
    serves_fewer_sequences_and_begins_again(OfStack(layers, cache), &device());
    let layers = stack(&kinds::latent());
    for precision in [Precision::F32, Precision::Bf16] {
        let packed = layers.pack(precision).unwrap();
        let cache = packed.new_cache();
        serves_fewer_sequences_and_begins_again(OfStack(packed, cache), &Device::Cpu);
    }
}

#[test]
fn latents_are_taken_back_to_any_position() {
    cpu_only("packed weights");
    let packed = stack(&kinds::latent()).pack(Precision::F32).unwrap();
    let step = |cache: &mut KvCache, seed| {
        let x = numbers(&[BATCH, 2, WIDTH], seed);
        bits(&packed.forward_cached(&x, &plain(), cache).unwrap())
    };
    let mut cache = packed.new_cache();
    step(&mut cache, 1);
    let expected = step(&mut cache, 2);
    for seed in 3..9 {
        step(&mut cache, seed);
    }
    assert_eq!(cache.rewind(2), 2);
    assert_eq!(step(&mut cache, 2), expected);
}

/// A head that is as wide as a latent with its shared key.
#[test]
fn a_cache_of_latents_is_refused_by_an_attention_of_heads() {
    cpu_only("packed weights");
    let latents = stack(&kinds::latent()).pack(Precision::F32).unwrap();
    let mut config = kinds::latent();
    for block in &mut config.blocks {
        let attention = block.attention_mut().unwrap();
        (attention.latent, attention.position) = (None, Position::None);
        (attention.n_kv_heads, attention.head_dim) = (1, KEPT);
        attention.window = None;
    }
    let heads = stack(&config).pack(Precision::F32).unwrap();
    let x = numbers(&[BATCH, 3, WIDTH], 1);
    for (first, second) in [(&latents, &heads), (&heads, &latents)] {
        let mut cache = first.new_cache();
        first.forward_cached(&x, &plain(), &mut cache).unwrap();
        let refused = second.forward_cached(&x, &plain(), &mut cache).unwrap_err();
        let message = refused.to_string();
        let both = format!("latents of {KEPT}");
        assert!(
            message.contains(&both) && message.contains("1 key/value heads"),
            "{message}"
        );
    }
}
