//! The optimizer's steps, clipping and schedules are PyTorch's, and parameters that cannot be trained are refused.

use std::collections::BTreeMap;

use candle_blocks::{
    Parameters,
    candle_core::{DType, Device, Tensor, Var},
    candle_nn::Optimizer,
    ops::{self, Route},
    train::{AdamW, AdamWConfig, Decay, Gradients, ParameterGroup, Schedule, loss_value, split},
};

use crate::{
    device::device,
    double::has_f64,
    message::message,
    numbers::{bits, numbers},
    reference::{Reference, assert_passed},
    said::assert_says,
};

const CONFIG: AdamWConfig = AdamWConfig {
    learning_rate: 3e-3,
    beta1: 0.9,
    beta2: 0.98,
    eps: 1e-6,
};

/// Returns the parameters and groups in `weights/fixtures/reference/optimization.py`.
fn groups(reference: &Reference, dtype: DType) -> (Parameters, Vec<ParameterGroup>) {
    let parameter = |name: &str| {
        let start = reference.get(&format!("adamw.{name}")).to_dtype(dtype);
        (name.to_string(), Var::from_tensor(&start.unwrap()).unwrap())
    };
    let all: Parameters = ["a", "b", "c"].map(parameter).into_iter().collect();
    let (a, others) = split(all.clone(), &["a"]).unwrap();
    (
        all,
        vec![
            ParameterGroup::new(a, 0.1),
            ParameterGroup::new(others, 0.0),
        ],
    )
}

/// A store that holds the given gradients, as a backward pass leaves it.
fn gradients(parameters: &[(String, Var)], given: &[(&str, Tensor)]) -> Gradients {
    let mut loss = Tensor::zeros((), given[0].1.dtype(), given[0].1.device()).unwrap();
    for (name, gradient) in given {
        let (_, variable) = parameters.iter().find(|(role, _)| role == name).unwrap();
        let term = (variable.as_tensor() * gradient)
            .unwrap()
            .sum_all()
            .unwrap();
        loss = (loss + term).unwrap();
    }
    Gradients::of(parameters, &loss.backward().unwrap())
}

/// Returns the gradients for a step in that script: `c` only has one in every other step.
fn given(reference: &Reference, step: usize, dtype: DType) -> Vec<(&'static str, Tensor)> {
    let gradient = |name| {
        let all = reference.get(&format!("adamw.{name}.gradients"));
        (name, all.get(step).unwrap().to_dtype(dtype).unwrap())
    };
    let names = ["a", "b", "c"].into_iter();
    let has_one = |name: &&str| *name != "c" || step.is_multiple_of(2);
    names.filter(has_one).map(gradient).collect()
}

#[test]
fn a_hundred_steps_are_those_of_torch() {
    let reference = Reference::open("optimization");
    let mut comparisons = Vec::new();
    for is_scheduled in [false, true] {
        let (parameters, groups) = groups(&reference, DType::F32);
        let mut optimizer = AdamW::new(groups, CONFIG).unwrap();
        let schedule = match is_scheduled {
            true => Schedule::new(Decay::Linear, 10, 100),
            false => Schedule::new(Decay::None, 0, 100),
        };
        for step in 0..100 {
            let given = given(&reference, step, DType::F32);
            let gradients = gradients(&parameters, &given);
            optimizer.update(&gradients, schedule.factor(step)).unwrap();
            for (role, variable) in &parameters {
                let name = match (is_scheduled, step + 1) {
                    (false, 1 | 10 | 100) => format!("adamw.step{}.{role}", step + 1),
                    (true, 100) => format!("adamw.scheduled.{role}"),
                    _ => continue,
                };
                comparisons.push(reference.compare(&name, variable));
            }
        }
        let path = tempfile::tempdir().unwrap();
        let path = path.path().join("state.safetensors");
        optimizer.save(&path, &BTreeMap::new()).unwrap();
        if !is_scheduled {
            let state = candle_blocks::candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
            for name in ["a", "b", "c"] {
                for (ours, theirs) in [("first_moment", "first"), ("second_moment", "second")] {
                    let ours = &state[&format!("{ours}.{name}")];
                    comparisons
                        .push(reference.compare(&format!("adamw.step100.{name}.{theirs}"), ours));
                }
            }
        }
    }
    assert_eq!(comparisons.len(), 3 * 3 + 3 + 6);
    assert_passed(&comparisons);
}

/// In f64 there is nothing but the formula: a wrong order of decay and step, or a misplaced eps, shows.
#[test]
fn steps_in_f64_are_those_of_torch_to_the_last_digits() {
    if !has_f64("AdamW in f64") {
        return;
    }
    let reference = Reference::open("optimization");
    let (parameters, groups) = groups(&reference, DType::F64);
    let mut optimizer = AdamW::new(groups, CONFIG).unwrap();
    for step in 0..100 {
        let given = given(&reference, step, DType::F64);
        optimizer
            .update(&gradients(&parameters, &given), 1.0)
            .unwrap();
    }
    assert!(!parameters.is_empty());
    for (role, variable) in &parameters {
        let theirs = numbers(&reference.get(&format!("adamw.step100.{role}.f64")));
        for (ours, theirs) in numbers(variable).iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-14, "{role}: {ours} {theirs}");
        }
    }
}

#[test]
fn clipping_is_that_of_torch() {
    let reference = Reference::open("optimization");
    let parameters: Parameters = (0..3)
        .map(|i| {
            let zeros = reference.get(&format!("clip.{i}")).zeros_like().unwrap();
            (i.to_string(), Var::from_tensor(&zeros).unwrap())
        })
        .collect();
    let exact = numbers(&reference.get("clip.norm.f64"))[0];
    assert!((5.0..50.0).contains(&exact), "{exact}: two of three clip");
    for max_norm in ["0.5", "5.0", "50.0"] {
        let given = ["0", "1", "2"].map(|i| (i, reference.get(&format!("clip.{i}"))));
        let mut gradients = gradients(&parameters, &given);
        let norm = gradients.clip_norm(max_norm.parse().unwrap()).unwrap();
        if ops::route(&device()) == Route::Kernels {
            // Summed in f64.
            assert!((norm / exact - 1.0).abs() < 1e-12, "{norm} {exact}");
        }
        let single = Tensor::new(norm as f32, &Device::Cpu).unwrap();
        reference.check("clip.norm", &single);
        for (i, _) in &given {
            let ours = gradients.get(i).unwrap().unwrap();
            reference.check(&format!("clip.max{max_norm}.{i}"), &ours);
        }
        let clipped = gradients.norm().unwrap();
        assert!(clipped <= f64::min(max_norm.parse().unwrap(), norm));
    }
}

/// The factor is applied late, and norms are kept: neither may show.
#[test]
fn scaled_gradients_are_their_multiples_in_norms_sums_clips_and_steps() {
    let parameters = vec![("w".to_string(), Var::new(&[3f32, -4.], &device()).unwrap())];
    let of = |values: &[f32]| {
        gradients(
            &parameters,
            &[("w", Tensor::new(values, &device()).unwrap())],
        )
    };
    let mut scaled = of(&[6., 8.]);
    assert_eq!(scaled.norm().unwrap(), 10.0);
    scaled.scale(0.5);
    assert_eq!(scaled.norm().unwrap(), 5.0);
    // 0.5 · (6, 8) + 0.25 · (4, -8) = (4, 2)
    let mut other = of(&[4., -8.]);
    other.scale(0.25);
    assert_eq!(other.norm().unwrap(), 5f64.sqrt());
    scaled.accumulate(other).unwrap();
    assert_eq!(scaled.norm().unwrap(), 20f64.sqrt());
    assert_eq!(numbers(&scaled.get("w").unwrap().unwrap()), [4.0, 2.0]);

    // torch's `clip_grad_norm_` divides by the norm plus 1e-6.
    let mut clipped = of(&[3e-3, 4e-3]);
    clipped.clip_norm(1e-3).unwrap();
    let factor = 1e-3 / (5e-3 + 1e-6);
    assert!((clipped.norm().unwrap() / (5e-3 * factor) - 1.0).abs() < 1e-6);

    // An eps beside which the size of the gradient counts.
    let config = AdamWConfig { eps: 1.0, ..CONFIG };
    let step = |gradients: &Gradients| {
        let start = Tensor::new(&[3f32, -4.], &device()).unwrap();
        parameters[0].1.set(&start).unwrap();
        let group = ParameterGroup::new(parameters.clone(), 0.0);
        AdamW::new([group], config)
            .unwrap()
            .update(gradients, 1.0)
            .unwrap();
        bits(&parameters[0].1)
    };
    let mut quarter = of(&[4., -8.]);
    quarter.scale(0.25);
    assert_eq!(step(&quarter), step(&of(&[1., -2.])));
    assert_ne!(step(&quarter), step(&of(&[4., -8.])));
}

#[test]
fn the_first_gradient_that_is_not_finite_is_named_and_no_other() {
    let parameters: Vec<(String, Var)> = ["a", "b", "c"]
        .map(|name| (name.to_string(), Var::new(&[1f32, 2.], &device()).unwrap()))
        .into();
    let of = |values: [[f32; 2]; 3]| {
        let tensors = values.map(|values| Tensor::new(&values, &device()).unwrap());
        let given: Vec<_> = ["a", "b", "c"].into_iter().zip(tensors).collect();
        gradients(&parameters, &given)
    };
    // Its square is beyond f32.
    let large = of([[3e25, 0.], [0., 4e25], [1., 1.]]);
    assert!((large.norm().unwrap() / 5e25 - 1.0).abs() < 1e-6);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut gradients = of([[3e25, 0.], [0., bad], [bad, 1.]]);
        for refused in [message(gradients.norm()), message(gradients.clip_norm(1.0))] {
            assert!(refused.starts_with("b: "), "{refused}");
        }
    }
}

#[test]
fn schedules_are_those_of_transformers() {
    let reference = Reference::open("optimization");
    let mut n_compared = 0;
    for (kind, decay) in [
        ("constant", Decay::None),
        ("linear", Decay::Linear),
        ("cosine", Decay::Cosine),
    ] {
        for (warm_up, total) in [(0, 7), (10, 100), (5, 5), (1, 30)] {
            let schedule = Schedule::new(decay, warm_up, total);
            let theirs = numbers(&reference.get(&format!("{kind}.{warm_up}.{total}")));
            for (step, theirs) in theirs.into_iter().enumerate() {
                let ours = schedule.factor(step);
                if decay == Decay::Cosine && step > total {
                    // There transformers' formula climbs again.
                    assert!(ours < 1e-15, "{ours}");
                    continue;
                }
                assert!(
                    (ours - theirs).abs() < 1e-15,
                    "{kind} {warm_up} {total}: {step}"
                );
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 400, "{n_compared}");
}

#[test]
fn a_group_with_a_scale_steps_as_one_with_a_learning_rate_times_it() {
    let step = |learning_rate, scale| {
        let weight = Var::new(&[1f32, -2.], &device()).unwrap();
        let all = vec![("weight".to_string(), weight.clone())];
        let group = ParameterGroup::new(all.clone(), 0.1).with_learning_rate_scale(scale);
        let config = AdamWConfig {
            learning_rate,
            ..CONFIG
        };
        let gradient = Tensor::new(&[0.5f32, 3.], &device()).unwrap();
        let gradients = gradients(&all, &[("weight", gradient)]);
        let mut optimizer = AdamW::new([group], config).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
        bits(&weight)
    };
    assert_eq!(step(0.5, 0.25), step(0.125, 1.0));
    assert_ne!(step(0.5, 0.25), step(0.5, 1.0));
}

#[test]
fn candles_own_interface_steps_too() {
    let weight = Var::new(&[1f32, -2.], &device()).unwrap();
    let mut optimizer = <AdamW as Optimizer>::new(vec![weight.clone()], CONFIG).unwrap();
    optimizer.set_learning_rate(0.1);
    assert_eq!(optimizer.learning_rate(), 0.1);
    optimizer
        .backward_step(&weight.sqr().unwrap().sum_all().unwrap())
        .unwrap();
    // Adam's first step is the learning rate in the direction of the sign.
    let moved = numbers(&weight);
    assert!(
        (moved[0] - 0.9).abs() < 1e-5 && (moved[1] + 1.9).abs() < 1e-5,
        "{moved:?}"
    );
}

#[test]
fn parameters_that_cannot_be_trained_are_refused_by_name() {
    let parameter = |value: &[f32]| Var::new(value, &device()).unwrap();
    let a = ("a".to_string(), parameter(&[1., 2.]));
    let group = |parameters: Vec<_>| ParameterGroup::new(parameters, 0.0);
    let new = |parameters: Vec<_>| AdamW::new([group(parameters)], CONFIG);
    // Everything is frozen.
    let (_, rest) = split(vec![a.clone()], &["*"]).unwrap();
    let frozen = message(new(rest.to_vec()));
    assert_says(frozen, &["none to train", "freeze fewer"]);
    let unknown = message(split(vec![a.clone()], &["blocks.9.*"]));
    assert_says(unknown, &["blocks.9.*", "like a"]);
    let same = ("b".to_string(), a.1.clone());
    assert!(message(new(vec![a.clone(), same])).starts_with("b: "));
    assert!(message(new(vec![a.clone(), a.clone()])).starts_with("a: "));
    let ids = Var::new(&[1u32], &device()).unwrap();
    assert!(message(new(vec![("ids".to_string(), ids)])).starts_with("ids: "));
    let wrong = AdamWConfig {
        beta1: 1.0,
        ..CONFIG
    };
    assert!(message(AdamW::new([group(vec![a.clone()])], wrong)).contains("beta"));
    assert!(
        message(AdamW::new(
            [ParameterGroup::new(vec![a.clone()], -1.0)],
            CONFIG
        ))
        .contains("-1")
    );

    let mut optimizer = new(vec![a.clone()]).unwrap();
    let b = ("b".to_string(), parameter(&[3.]));
    let both = vec![a.clone(), b.clone()];
    let given = |value: f32| {
        let a = Tensor::new(&[0f32, value], &device()).unwrap();
        gradients(
            &both,
            &[("a", a), ("b", Tensor::new(&[1f32], &device()).unwrap())],
        )
    };
    let before = bits(&a.1);
    assert!(message(optimizer.update(&given(1.0), 1.0)).starts_with("b: "));
    assert!(message(optimizer.update(&Gradients::default(), 1.0)).contains("gradients"));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut gradients = given(bad);
        assert!(message(gradients.clip_norm(1.0)).starts_with("a: "));
        assert!(message(optimizer.update(&gradients, 1.0)).contains("NaN"));
    }
    assert!(message(given(1.0).clip_norm(0.0)).contains("max_norm"));
    assert_eq!(bits(&a.1), before, "a refused step moves nothing");
    assert_eq!(optimizer.n_updates(), 0);

    let scalar = |value: f32| Tensor::new(value, &device()).unwrap();
    assert_eq!(loss_value(&scalar(1.5)).unwrap(), 1.5);
    assert!(message(loss_value(&scalar(f32::NAN))).contains("NaN"));
    assert!(message(loss_value(&scalar(f32::INFINITY))).contains("inf"));
    assert!(message(loss_value(&Tensor::new(&[1f32, 2.], &device()).unwrap())).contains("[2]"));
}
