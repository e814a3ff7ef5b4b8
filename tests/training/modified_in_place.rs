//! A backward pass whose variables changed after its forward pass is refused by name, as PyTorch refuses it: "one of the
//! variables needed for gradient computation has been modified by an inplace operation".

use std::collections::BTreeMap;

use candle_blocks::{
    Activation, Checkpoint, FeedForward, FeedForwardConfig, ForwardContext, Linear, Parameters,
    candle_core::{DType, Device, Module, Tensor, Var},
    candle_nn::{Optimizer, SGD},
    config::Initialization,
    ops,
    train::{AdamW, AdamWConfig, Fresh, Gradients, ParameterGroup, backward_recomputing},
};

use crate::{
    device::device,
    message::message,
    numbers::{bits, numbers},
    said::assert_says,
    weights::{left_out, weights},
};

const D: usize = 8;

/// The words of every refusal.
const REFUSED: [&str; 3] = [
    "modified by an in-place operation",
    "before the update",
    "forward pass",
];

fn x() -> Tensor {
    let x = Tensor::arange(0f32, 2.0 * D as f32, &Device::Cpu).unwrap();
    x.sin()
        .unwrap()
        .reshape((2, D))
        .unwrap()
        .to_device(&device())
        .unwrap()
}

fn layer() -> (FeedForward, Parameters) {
    let fresh = Fresh::new(Initialization::torch(), 1, DType::F32, &device());
    let config = FeedForwardConfig::new(D).with_activation(Activation::Gelu);
    let layer = FeedForward::new(&config, fresh.var_builder()).unwrap();
    (layer, fresh.parameters())
}

fn loss(layer: &FeedForward, target: f64) -> Tensor {
    let y = layer.forward(&x()).unwrap();
    ops::mse(&y, &y.ones_like().unwrap().affine(target, 0.0).unwrap()).unwrap()
}

fn optimizer(parameters: impl Into<Parameters>) -> AdamW {
    let config = AdamWConfig {
        learning_rate: 0.1,
        ..Default::default()
    };
    AdamW::new([ParameterGroup::new(parameters, 0.0)], config).unwrap()
}

/// The gradients' roles and bits.
fn of(gradients: &Gradients) -> Vec<(String, Vec<u64>)> {
    let bits = |role: &str| {
        (
            role.to_string(),
            bits(&gradients.get(role).unwrap().unwrap()),
        )
    };
    gradients.roles().map(bits).collect()
}

#[test]
fn an_update_between_the_backward_passes_of_two_losses_is_refused_and_the_cures_work() {
    let (layer, parameters) = layer();
    let mut optimizer = optimizer(parameters.clone());
    let (first, second) = (loss(&layer, 0.0), loss(&layer, 1.0));
    let expected = of(&optimizer.backward(&loss(&layer, 1.0)).unwrap());
    let gradients = optimizer.backward(&first).unwrap();
    let kept = [(); 2].map(|()| loss(&layer, 1.0));
    // The first cure: all backward passes before the update.
    let before = optimizer.backward(&second).unwrap();
    assert!(of(&before) == expected);
    optimizer.update(&gradients, 1.0).unwrap();
    let refused = message(optimizer.backward(&kept[0]));
    assert!(refused.starts_with("down.weight: "), "{refused}");
    assert_says(refused, &REFUSED);
    // candle's own call does not know the names.
    let refused = message(kept[1].backward());
    assert_says(&refused, &REFUSED);
    assert_says(refused, &[&format!("F32 [{D}, {}]", 4 * D)]);
    // The second cure: the forward pass again.
    let again = optimizer.backward(&loss(&layer, 1.0)).unwrap();
    assert!(again.roles().eq(parameters.iter().map(|(role, _)| role)));
    optimizer.update(&again, 1.0).unwrap();
}

/// Two losses on one trunk have one update together: the sum of their gradients, by candle's own graph.
#[test]
fn two_backward_passes_over_one_trunk_before_one_update_are_right() {
    let weight = |salt: f64| {
        let x = Tensor::arange(0f32, (D * D) as f32, &Device::Cpu).unwrap();
        let x = x.affine(0.3, salt).unwrap().sin().unwrap();
        Var::from_tensor(&x.reshape((D, D)).unwrap().to_device(&device()).unwrap()).unwrap()
    };
    let (trunk, heads) = (weight(0.0), [weight(1.0), weight(2.0)]);
    let linear = |of: &Var| Linear::from_parts(of.as_tensor().clone(), None).unwrap();
    let hidden = linear(&trunk).forward(&x()).unwrap();
    let parameters = vec![("trunk".to_string(), trunk.clone())];
    let mut sum = Gradients::default();
    for head in &heads {
        let loss = linear(head).forward(&hidden).unwrap().sqr().unwrap();
        let store = loss.sum_all().unwrap().backward().unwrap();
        sum.accumulate(Gradients::of(&parameters, &store)).unwrap();
    }
    let hidden = x().matmul(&trunk.t().unwrap()).unwrap();
    let losses = heads.map(|head| hidden.matmul(&head.t().unwrap()).unwrap().sqr().unwrap());
    let both = (&losses[0] + &losses[1]).unwrap().sum_all().unwrap();
    let expected = numbers(both.backward().unwrap().get(&trunk).unwrap());
    let largest = expected.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
    let found = numbers(&sum.get("trunk").unwrap().unwrap());
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 1e-5 * largest,
            "{found} {expected}"
        );
    }
    optimizer(parameters).update(&sum, 1.0).unwrap();
}

#[test]
fn every_way_to_write_a_variable_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    type Write<'a> = (&'a str, Box<dyn Fn(&Parameters) + 'a>);
    let halved = |variable: &Var| (variable.as_tensor() * 0.5).unwrap().detach();
    let down = |parameters: &Parameters| parameters.find("down.weight").unwrap().clone();
    let ways: Vec<Write> = vec![
        (
            "restore",
            Box::new(|parameters| {
                // The same values: PyTorch counts writes, not changes.
                let mut optimizer = optimizer(parameters.clone());
                optimizer.save(&path, &BTreeMap::new()).unwrap();
                optimizer.restore(&path).unwrap();
            }),
        ),
        (
            "update of one parameter",
            Box::new(|parameters| {
                let only = vec![("down.weight".to_string(), down(parameters))];
                let loss = only[0].1.sqr().unwrap().sum_all().unwrap();
                let gradients = Gradients::backward(&only, &loss).unwrap();
                optimizer(only).update(&gradients, 1e-3).unwrap();
            }),
        ),
        (
            "update by candle's interface",
            Box::new(|parameters| {
                let weight = down(parameters);
                let mut optimizer =
                    <AdamW as Optimizer>::new(vec![weight.clone()], AdamWConfig::default())
                        .unwrap();
                let loss = weight.sqr().unwrap().sum_all().unwrap();
                optimizer.backward_step(&loss).unwrap();
            }),
        ),
        (
            "Var::set",
            Box::new(|parameters| {
                let weight = down(parameters);
                weight.set(&halved(&weight)).unwrap();
            }),
        ),
        (
            "candle's SGD",
            Box::new(|parameters| {
                let weight = down(parameters);
                let mut optimizer = SGD::new(vec![weight.clone()], 0.1).unwrap();
                let loss = weight.sqr().unwrap().sum_all().unwrap();
                optimizer.backward_step(&loss).unwrap();
            }),
        ),
    ];
    for (way, write) in ways {
        // Only on the CPU are the writes of candle found, by their values.
        if !device().is_cpu() && ["Var::set", "candle's SGD"].contains(&way) {
            left_out(&format!("{way} on this device"));
            continue;
        }
        let (layer, parameters) = layer();
        let loss = loss(&layer, 1.0);
        write(&parameters);
        let refused = message(Gradients::backward(&parameters, &loss));
        assert!(refused.starts_with("down.weight: "), "{way}: {refused}");
        assert_says(refused, &REFUSED);
    }
}

/// PyTorch does not keep a bias, nor the weight of a layer whose input needs no gradient.
#[test]
fn tensors_that_the_backward_pass_does_not_read_may_change_and_the_gradients_stay() {
    for names in [&["up.bias", "down.bias"][..], &["up.weight"]] {
        let (layer, parameters) = layer();
        let (first, second) = (loss(&layer, 0.0), loss(&layer, 1.0));
        let expected = of(&Gradients::backward(&parameters, &loss(&layer, 1.0)).unwrap());
        let is_trained = |(role, _): &&(String, Var)| names.contains(&role.as_str());
        let trained: Parameters = parameters.iter().filter(is_trained).cloned().collect();
        let mut optimizer = optimizer(trained);
        let gradients = optimizer.backward(&first).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
        let found = of(&Gradients::backward(&parameters, &second).unwrap());
        assert!(found == expected, "{names:?}");
    }
}

#[test]
fn an_update_of_another_model_is_no_hindrance() {
    let ((ours, parameters), (theirs, of_theirs)) = (layer(), layer());
    let pending = loss(&ours, 1.0);
    let expected = of(&Gradients::backward(&parameters, &loss(&ours, 1.0)).unwrap());
    let mut optimizer = optimizer(of_theirs);
    for _ in 0..2 {
        let gradients = optimizer.backward(&loss(&theirs, 0.0)).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
    }
    assert!(of(&Gradients::backward(&parameters, &pending).unwrap()) == expected);
}

#[test]
fn a_view_of_a_variable_is_its_memory() {
    let all = Tensor::arange(0f32, (3 * D * D) as f32, &Device::Cpu).unwrap();
    let all = all.sin().unwrap().reshape((3 * D, D)).unwrap();
    let fused = Var::from_tensor(&all.to_device(&device()).unwrap()).unwrap();
    let part = |i: usize| {
        let rows = fused.narrow(0, i * D, D).unwrap();
        Linear::from_parts(rows, None).unwrap()
    };
    let parameters = vec![("in_proj_weight".to_string(), fused.clone())];
    let pass = || {
        let hidden = part(0).forward(&x()).unwrap().sqr().unwrap();
        part(2).forward(&hidden).unwrap().sum_all().unwrap()
    };
    let (loss, mut optimizer) = (pass(), optimizer(parameters.clone()));
    let gradients = optimizer.backward(&pass()).unwrap();
    optimizer.update(&gradients, 1.0).unwrap();
    let refused = message(optimizer.backward(&loss));
    assert!(refused.starts_with("in_proj_weight: "), "{refused}");
    assert_says(refused, &REFUSED);
}

/// A detached tensor shares its variable's memory, and in PyTorch its version, too.
#[test]
fn a_frozen_layer_that_shares_a_variables_memory_is_found() {
    let (layer, parameters) = layer();
    let before = Var::from_tensor(&x().matmul(&x().t().unwrap()).unwrap()).unwrap(); // [2, 2]
    let frozen = parameters.find("up.weight").unwrap().as_detached_tensor();
    let frozen = Linear::from_parts(frozen, None).unwrap();
    let pass = || {
        let hidden = before.matmul(&x()).unwrap();
        frozen
            .forward(&hidden)
            .unwrap()
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap()
    };
    let (pending, inputs) = (pass(), vec![("before".to_string(), before.clone())]);
    let mut optimizer = optimizer(parameters.clone());
    let gradients = optimizer.backward(&loss(&layer, 0.0)).unwrap();
    optimizer.update(&gradients, 1.0).unwrap();
    let named: Vec<_> = inputs.iter().chain(&parameters).cloned().collect();
    let refused = message(Gradients::backward(&named, &pending));
    assert!(refused.starts_with("up.weight: "), "{refused}");
    assert_says(refused, &REFUSED);
    assert!(!Gradients::backward(&inputs, &pass()).unwrap().is_empty());
}

/// The head's graph is candle's own, which reads the head in its backward pass, too.
#[test]
fn a_variable_that_candles_operations_read_is_found_as_well() {
    let head = Var::from_tensor(&x().t().unwrap().contiguous().unwrap()).unwrap(); // [D, 2]
    let input = Var::from_tensor(&x()).unwrap();
    let parameters = vec![
        ("head".to_string(), head.clone()),
        ("input".to_string(), input.clone()),
    ];
    let loss = || {
        input
            .matmul(&head)
            .unwrap()
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap()
    };
    let (first, second) = (loss(), loss());
    let mut optimizer = optimizer(parameters.clone());
    let gradients = optimizer.backward(&first).unwrap();
    optimizer.update(&gradients, 1.0).unwrap();
    let refused = message(optimizer.backward(&second));
    assert_says(&refused, &REFUSED);
    assert!(
        refused.starts_with("head: ") || refused.starts_with("input: "),
        "{refused}"
    );
    assert!(!optimizer.backward(&loss()).unwrap().is_empty());
}

#[test]
fn a_whole_stack_is_refused_and_recomputing_computes_anew() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let stack = loader.stack().unwrap();
    let parameters = loader.parameters();
    let input = Tensor::arange(0f32, 4.0 * 24.0, &Device::Cpu).unwrap();
    let input = input
        .sin()
        .unwrap()
        .reshape((1, 4, 24))
        .unwrap()
        .to_device(&device())
        .unwrap();
    let context = ForwardContext::evaluation();
    let square = |y: &Tensor| y.sqr()?.mean_all();
    let loss = || square(&stack.forward_with(&input, &context).unwrap()).unwrap();
    let (pending, mut optimizer) = (loss(), optimizer(parameters.clone()));
    let gradients = optimizer.backward(&loss()).unwrap();
    optimizer.update(&gradients, 0.1).unwrap();
    let refused = message(optimizer.backward(&pending));
    assert!(refused.starts_with("blocks.0."), "{refused}");
    assert_says(refused, &REFUSED);
    let recomputed = backward_recomputing(&stack, &input, &context, &parameters, square).unwrap();
    assert!(
        of(&recomputed.gradients) == of(&Gradients::of(&parameters, &loss().backward().unwrap()))
    );
    optimizer.update(&recomputed.gradients, 0.1).unwrap();
}
