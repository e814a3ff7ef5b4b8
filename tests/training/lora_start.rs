//! Adapters start as PEFT's do, train alone, and are taken out only by those who put them in.

use candle_blocks::{
    Checkpoint, ForwardContext, Stack, Weights,
    candle_core::{DType, Tensor},
    train::{Gradients, Lora, LoraConfig},
};

use crate::{
    device::device,
    message::message,
    numbers::{bits, numbers},
    said::assert_says,
    weights::weights,
};

fn open() -> Checkpoint {
    Checkpoint::open(weights("tiny-bert")).unwrap()
}

fn attach(stack: &mut Stack, seed: u64) -> Lora {
    let config = LoraConfig::new(64, 4.0, &["attention.*", "feed_forward.*"]);
    Lora::attach(stack, config, seed).unwrap()
}

/// `kaiming_uniform_(a=sqrt(5))`: every value within `1/√d_in`, and evenly so.
#[test]
fn the_first_factor_is_kaiming_uniform_and_a_function_of_the_seed() {
    let draw = |seed| {
        let mut stack = open()
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        attach(&mut stack, seed).parameters()
    };
    let mut n_compared = 0;
    for ((role, a), (_, other)) in draw(1).iter().zip(draw(2)) {
        if role.ends_with("lora_b.weight") {
            assert!(numbers(a).iter().all(|&b| b == 0.0), "{role}");
            continue;
        }
        let (values, bound) = (numbers(a), 1.0 / (a.dims()[1] as f64).sqrt());
        let largest = values.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
        assert!(
            largest <= bound && largest > 0.97 * bound,
            "{role}: {largest} {bound}"
        );
        let square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        // The standard error of 64 · 20 squares is below 3 %.
        assert!(
            (3.0 * square / (bound * bound) - 1.0).abs() < 0.12,
            "{role}"
        );
        assert_ne!(bits(a), bits(&other), "{role}");
        n_compared += 1;
    }
    assert_eq!(n_compared, draw(1).len() / 2);
}

#[test]
fn neither_weight_nor_bias_of_an_adapted_layer_gets_a_gradient() {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let lora = attach(&mut stack, 1);
    let width = checkpoint.config().blocks[0].d_model();
    let x = Tensor::ones((2, 3, width), DType::F32, &device()).unwrap();
    let y = stack
        .forward_with(&x, &ForwardContext::evaluation())
        .unwrap();
    let loss = (y * &x).unwrap().sqr().unwrap().sum_all().unwrap();
    let mut all = loader.parameters();
    all.extend(lora.parameters());
    let gradients = Gradients::backward(&all, &loss).unwrap();
    let roles: Vec<&str> = gradients.roles().collect();
    let is_expected = |role: &&str| role.contains("norm") || role.contains("lora_");
    assert!(roles.iter().all(is_expected), "{roles:?}");
    assert!(roles.iter().any(|role| role.contains("norm")), "{roles:?}");
}

#[test]
fn the_adapters_of_others_are_not_merged() {
    let mut stacks = [0, 1].map(|_| {
        open()
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap()
    });
    let ours = attach(&mut stacks[0], 1);
    attach(&mut stacks[1], 1);
    let refused = message(ours.merge(&mut stacks[1]).map(|_| ()));
    assert_says(refused, &["is not one of these"]);
    assert!(
        stacks[1]
            .linears()
            .all(|(_, linear)| linear.adapter().is_some())
    );
    ours.merge(&mut stacks[0]).unwrap();
}
