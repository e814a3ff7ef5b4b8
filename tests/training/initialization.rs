//! Fresh parameters have the distributions that transformers and PyTorch draw from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use candle_blocks::{
    Checkpoint, CheckpointOptions, FeedForward, FeedForwardConfig, Linear, LinearConfig,
    candle_core::{DType, Tensor},
    candle_nn::{
        Init,
        init::{FanInOut, NonLinearity, NormalOrUniform},
    },
    config::{Distribution, Initialization},
    train::Fresh,
};

use crate::{
    all::all,
    device::device,
    double::has_f64,
    message::message,
    numbers::{bits, numbers},
    reference::Reference,
    said::assert_says,
    statistics::{N_MODELS, SIGMAS, Statistics, check},
    weights::{is_present, weights},
};

#[test]
fn every_family_draws_what_transformers_draws() {
    let reference = Reference::open("initialization");
    let known = BTreeSet::from_iter(reference.names());
    let (mut n_stacks, mut n_compared) = (0, 0);
    for stack in all() {
        let prefix = format!("{}/", stack.name);
        if !known.iter().any(|name| name.starts_with(&prefix)) {
            continue;
        }
        let architecture = stack.options().architecture(stack.folder()).unwrap();
        let checkpoint = stack.open();
        assert_eq!(
            &architecture.config,
            checkpoint.config(),
            "{}",
            stack.label()
        );
        let mut drawn: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for seed in 0..N_MODELS {
            let fresh = Fresh::new(
                architecture.initialization.clone(),
                seed,
                DType::F32,
                &device(),
            );
            fresh.stack(&architecture.config).unwrap();
            let by_role: HashMap<String, Tensor> = fresh
                .parameters()
                .into_iter()
                .map(|(role, variable)| (role, variable.as_tensor().clone()))
                .collect();
            for (name, tensor) in checkpoint.to_disk(&by_role).unwrap() {
                let name = format!("{prefix}{name}");
                if known.contains(&name) {
                    drawn.entry(name).or_default().extend(numbers(&tensor));
                }
            }
        }
        assert!(
            drawn.len() >= 4,
            "{}: only {:?}",
            stack.label(),
            drawn.keys()
        );
        check(&reference, &drawn);
        n_stacks += 1;
        n_compared += drawn.len();
    }
    println!("{n_compared} tensors of {n_stacks} stacks");
    if is_present("families") {
        assert!(
            n_stacks >= 80 && n_compared >= 1000,
            "{n_stacks} {n_compared}"
        );
    }
}

#[test]
fn linear_layers_and_feed_forwards_draw_what_torch_draws() {
    let mut drawn: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for seed in 0..N_MODELS {
        let draw = |initialization| Fresh::new(initialization, seed, DType::F32, &device());
        let torch = draw(Initialization::torch());
        Linear::new(&LinearConfig::new(24, 40), torch.var_builder().pp("linear")).unwrap();
        let layers = draw(Initialization::layers());
        let config = FeedForwardConfig::new(24).with_d_ff(40);
        FeedForward::new(&config, layers.var_builder()).unwrap();
        for (role, variable) in torch.parameters().into_iter().chain(layers.parameters()) {
            let name = match role.as_str() {
                "up.weight" => "kaiming_normal",
                "down.weight" => "xavier_normal",
                "up.bias" | "down.bias" => {
                    assert!(numbers(&variable).iter().all(|&bias| bias == 0.0));
                    continue;
                }
                other => other,
            };
            let values = drawn.entry(format!("torch/{name}")).or_default();
            values.extend(numbers(&variable));
        }
    }
    assert_eq!(drawn.len(), 4);
    check(&Reference::open("initialization"), &drawn);
}

#[test]
fn a_seed_fixes_every_parameter_and_another_changes_it() {
    let architecture = CheckpointOptions::default()
        .architecture(weights("tiny-gpt2"))
        .unwrap();
    let draw = |seed, n_blocks| {
        let mut config = architecture.config.clone();
        config.blocks.truncate(n_blocks);
        config.layers.truncate(n_blocks);
        let initialization = architecture.initialization.clone();
        let fresh = Fresh::new(initialization, seed, DType::F32, &device());
        fresh.stack(&config).unwrap();
        let parameters = fresh.parameters().into_iter();
        parameters
            .map(|(role, v)| (role, bits(&v)))
            .collect::<BTreeMap<_, _>>()
    };
    let (both, again, other, one) = (draw(7, 2), draw(7, 2), draw(8, 2), draw(7, 1));
    assert_eq!(both, again);
    for (role, values) in &both {
        let is_drawn = role.ends_with("weight") && !role.contains("norm");
        assert_eq!(is_drawn, other[role] != *values, "{role}");
        if let Some(alone) = one.get(role) {
            assert_eq!(alone, values, "{role} depends on the other block");
        }
    }
    let query = &both["blocks.0.attention.query.weight"];
    assert_ne!(query, &both["blocks.0.attention.key.weight"]);
    assert_ne!(query, &both["blocks.1.attention.query.weight"]);
}

/// A custom layer may request any distribution from candle's `VarBuilder`.
#[test]
fn hints_of_any_mean_are_followed() {
    if !has_f64("fresh parameters in f64") {
        return;
    }
    let fresh = Fresh::new(Initialization::layers(), 5, DType::F64, &device());
    let vb = fresh.var_builder();
    let n = 40_000;
    // candle's default for a linear layer, and its uniform twin: √2 / √(columns), for `[rows, columns]`.
    let kaiming = |dist| Init::Kaiming {
        dist,
        fan: FanInOut::FanIn,
        non_linearity: NonLinearity::ReLU,
    };
    let mut shapes = Vec::new();
    for (name, dist) in [
        ("n", NormalOrUniform::Normal),
        ("u", NormalOrUniform::Uniform),
    ] {
        let drawn = vb.get_with_hints((400, 100), name, kaiming(dist)).unwrap();
        let drawn = Statistics::of(&numbers(&drawn));
        let deviation = (2.0f64 / 100.0).sqrt();
        assert!(
            (drawn.deviation / deviation - 1.0).abs() < 0.03,
            "{name} {drawn:?}"
        );
        shapes.push(drawn.kurtosis);
    }
    assert!(
        (shapes[0] - 3.0).abs() < 0.2 && (shapes[1] - 1.8).abs() < 0.1,
        "{shapes:?}"
    );
    for (name, hint, mean, deviation) in [
        (
            "a",
            Init::Uniform { lo: 0.0, up: 1.0 },
            0.5,
            1.0 / 12f64.sqrt(),
        ),
        (
            "b",
            Init::Uniform { lo: -3.0, up: -1.0 },
            -2.0,
            2.0 / 12f64.sqrt(),
        ),
        (
            "c",
            Init::Randn {
                mean: 3.0,
                stdev: 0.5,
            },
            3.0,
            0.5,
        ),
    ] {
        let drawn = Statistics::of(&numbers(&vb.get_with_hints(n, name, hint).unwrap()));
        let error = deviation / (n as f64).sqrt();
        assert!(
            (drawn.mean - mean).abs() < SIGMAS * error,
            "{name} {drawn:?}"
        );
        assert!(
            (drawn.deviation / deviation - 1.0).abs() < 0.03,
            "{name} {drawn:?}"
        );
    }
}

/// `torch.nn.Linear(0, 3).bias` is zeros.
#[test]
fn a_linear_layer_without_inputs_has_a_bias_of_zeros() {
    for initialization in [Initialization::layers(), Initialization::torch()] {
        let fresh = Fresh::new(initialization, 5, DType::F32, &device());
        let linear = Linear::new(&LinearConfig::new(0, 3), fresh.var_builder()).unwrap();
        assert_eq!(numbers(linear.bias().unwrap()), [0.0; 3]);
    }
}

/// A converted copy would not follow the variable in training.
#[test]
fn a_parameter_is_not_made_in_two_types() {
    let fresh = Fresh::new(Initialization::layers(), 5, DType::F32, &device());
    let vb = fresh.var_builder();
    vb.get(3, "shared").unwrap();
    let again = vb.get(3, "shared").unwrap();
    assert_eq!(again.id(), fresh.parameters()[0].1.id());
    let refused = message(vb.to_dtype(DType::F16).get(3, "shared"));
    assert_says(refused, &["shared", "F32", "F16"]);

    let opened = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = opened.trainable(DType::F32, &device()).unwrap();
    let role = "blocks.0.attention.query.bias";
    let vb = loader.var_builder();
    vb.get(20, role).unwrap();
    let refused = message(vb.to_dtype(DType::F16).get(20, role));
    assert_says(refused, &[role, "F32", "F16"]);
}

#[test]
fn a_parameter_that_cannot_be_initialized_is_named() {
    let endless = Distribution::TruncatedNormal {
        deviation: 1.0,
        cut: 0.0,
    };
    let of_nan = Distribution::TruncatedNormal {
        deviation: f64::NAN,
        cut: 1.0,
    };
    let normal = Distribution::Normal {
        deviation: f64::NAN,
    };
    for (draw, culprit) in [
        (endless, "a.weight"),
        (of_nan, "b.weight"),
        (normal, "c.weight"),
        (Distribution::Uniform { bound: -1.0 }, "d.weight"),
        (Distribution::TorchLinear, "scale"),
    ] {
        let initialization = Initialization::layers().with("*", draw);
        let fresh = Fresh::new(initialization, 0, DType::F32, &device());
        let message = fresh.var_builder().get(3, culprit).unwrap_err().to_string();
        assert!(message.contains(culprit), "{message}");
    }
    let error = CheckpointOptions::default().architecture("nowhere/config.json");
    let message = error.unwrap_err().to_string();
    assert!(message.contains("nowhere/config.json"), "{message}");
}
