//! Adapters on weights with half types are f32, like PEFT's, and train in the same way.

use candle_blocks::{
    Checkpoint, ForwardContext, Linear, Stack, Weights,
    candle_core::{DType, Module, Tensor},
    layers::LowRank,
    train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup, loss_value},
};

use crate::{
    device::device,
    kept_quantized::ruled,
    numbers::{bits, numbers},
    reference::{Reference, assert_passed},
    said::assert_says,
    weights::weights,
};

const TARGETS: [&str; 3] = ["attention.query", "attention.value", "feed_forward.up"];

/// `A` as in `weights/fixtures/reference/half_lora.py`, and `B` zero.
fn attached(dtype: DType) -> (Stack, Lora) {
    let checkpoint = Checkpoint::open(weights("tiny-bert-bf16")).unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(dtype, &device()))
        .stack()
        .unwrap();
    let lora = Lora::attach(&mut stack, LoraConfig::new(2, 4.0, &TARGETS), 0).unwrap();
    for (role, variable) in &lora.parameters() {
        let place = TARGETS.iter().position(|target| role.contains(target));
        if role.ends_with("lora_a.weight") {
            let a = ruled(place.unwrap(), 0.5, variable.dims());
            variable
                .set(&a.to_dtype(variable.dtype()).unwrap())
                .unwrap();
        }
    }
    (stack, lora)
}

#[test]
fn thirty_steps_over_a_base_in_bf16_stay_on_the_curve_of_peft() {
    let (stack, lora) = attached(DType::BF16);
    let group = ParameterGroup::new(lora.parameters(), 0.0);
    let config = AdamWConfig {
        learning_rate: 3e-3,
        eps: 1e-2,
        ..Default::default()
    };
    let mut optimizer = AdamW::new([group], config).unwrap();
    let half = |start| ruled(start, 4.0, &[4, 6, 12]).to_dtype(DType::BF16);
    let (x, target) = (half(7).unwrap(), half(11).unwrap());
    let target = target.to_dtype(DType::F32).unwrap();
    let losses = (0..30).map(|_| {
        let y = stack
            .forward_with(&x, &ForwardContext::evaluation())
            .unwrap();
        assert_eq!(y.dtype(), DType::BF16);
        let off = (y.to_dtype(DType::F32).unwrap() - &target).unwrap();
        let loss = off.sqr().unwrap().mean_all().unwrap();
        let gradients = optimizer.backward(&loss).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
        loss_value(&loss).unwrap() as f32
    });
    let losses = Tensor::new(losses.collect::<Vec<f32>>(), &device()).unwrap();
    let mut adapters = Vec::new();
    for layer in 0..2 {
        for target in TARGETS {
            for part in ["a", "b"] {
                let role = format!("blocks.{layer}.{target}.lora_{part}.weight");
                let variable = lora.parameters().find(&role).unwrap().as_detached_tensor();
                assert_eq!(variable.dtype(), DType::F32, "{role}");
                adapters.push(variable.flatten_all().unwrap());
            }
        }
    }
    let adapters = Tensor::cat(&adapters, 0).unwrap();
    let reference = Reference::open("half_lora");
    assert_passed(&[
        reference.compare("losses", &losses),
        reference.compare("adapters", &adapters),
    ]);
}

#[test]
fn the_sum_of_both_outputs_is_rounded_once() {
    let (d_in, d_out) = (12, 20);
    for dtype in [DType::BF16, DType::F16] {
        let half = |t: Tensor| t.to_dtype(dtype).unwrap();
        let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let (weight, x) = (
            half(ruled(1, 1.0, &[d_out, d_in])),
            half(ruled(2, 4.0, &[5, d_in])),
        );
        let (a, b) = (ruled(3, 0.3, &[2, d_in]), ruled(4, 0.3, &[d_out, 2]));
        let plain = Linear::from_parts(weight.clone(), None).unwrap();
        let adapter = LowRank::from_parts(a.clone(), b.clone(), 2.0).unwrap();
        let adapted = plain.clone().with_adapter(adapter).unwrap();
        let narrow = wide(&x).matmul(&a.t().unwrap()).unwrap();
        let low = (narrow.matmul(&b.t().unwrap()).unwrap() * 2.0).unwrap();
        let sum = (wide(&plain.forward(&x).unwrap()) + low).unwrap();
        let (found, expected) = (adapted.forward(&x).unwrap(), half(sum.clone()));
        // The sums of two products may be in another order, and so may one rounding.
        let (found, expected) = (bits(&found), bits(&expected));
        let pairs = found.iter().zip(&expected);
        assert!(pairs.filter(|(a, b)| a != b).count() <= 2, "{dtype:?}");
        let merged = adapted.merged().unwrap().weight().unwrap();
        assert_eq!(merged.dtype(), dtype);
        let product = (b.matmul(&a).unwrap() * 2.0).unwrap();
        let expected = (&weight + half(product)).unwrap();
        assert_eq!(numbers(&merged), numbers(&expected), "{dtype:?}");
    }
}

#[test]
fn factors_of_any_other_type_than_the_weights_are_refused() {
    let zeros = |dims: (usize, usize), dtype| Tensor::zeros(dims, dtype, &device()).unwrap();
    let (a, b) = (zeros((2, 4), DType::BF16), zeros((7, 2), DType::BF16));
    let linear = Linear::from_parts(zeros((7, 4), DType::F32), None).unwrap();
    let adapter = LowRank::from_parts(a.clone(), b, 1.0).unwrap();
    let error = linear.with_adapter(adapter).unwrap_err();
    assert_says(&error, &["BF16", "F32"]);
    assert!(LowRank::from_parts(a, zeros((7, 2), DType::F32), 1.0).is_err());
}
