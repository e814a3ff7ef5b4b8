//! The optimiser takes PyTorch's steps, and goes on after an interruption with the same bits.

mod common;

use std::collections::BTreeMap;

use candle_blocks::{
    Checkpoint, DropoutSource, ForwardContext, Parameters, Stack,
    candle_core::{DType, Device, Tensor, Var},
    candle_nn::Optimizer,
    train::{AdamW, AdamWConfig, Decay, Gradients, ParameterGroup, Schedule, loss_value, split},
};
use common::{Reference, assert_passed, bits, device, numbers, weights};

const CONFIG: AdamWConfig = AdamWConfig {
    learning_rate: 3e-3,
    beta1: 0.9,
    beta2: 0.98,
    eps: 1e-6,
};

/// The parameters and groups of `weights/fixtures/reference/optimisation.py`.
fn groups(reference: &Reference, dtype: DType) -> (Parameters, Vec<ParameterGroup>) {
    let parameter = |name: &str| {
        let start = reference.get(&format!("adamw.{name}")).to_dtype(dtype);
        (name.to_string(), Var::from_tensor(&start.unwrap()).unwrap())
    };
    let all: Parameters = ["a", "b", "c"].map(parameter).into();
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
fn gradients(parameters: &Parameters, given: &[(&str, Tensor)]) -> Gradients {
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

#[test]
fn a_hundred_steps_are_those_of_torch() {
    let reference = Reference::open("optimisation");
    let mut comparisons = Vec::new();
    for is_scheduled in [false, true] {
        let (parameters, groups) = groups(&reference, DType::F32);
        let mut optimiser = AdamW::new(groups, CONFIG).unwrap();
        let schedule = match is_scheduled {
            true => Schedule::new(Decay::Linear, 10, 100),
            false => Schedule::new(Decay::None, 0, 100),
        };
        for step in 0..100 {
            let given = |name: &'static str| {
                let all = reference.get(&format!("adamw.{name}.gradients"));
                (name, all.get(step).unwrap())
            };
            let names: &[&str] = if step % 2 == 1 {
                &["a", "b"]
            } else {
                &["a", "b", "c"]
            };
            let given: Vec<_> = names
                .iter()
                .map(|&name| {
                    given(match name {
                        "a" => "a",
                        "b" => "b",
                        _ => "c",
                    })
                })
                .collect();
            let gradients = gradients(&parameters, &given);
            optimiser
                .update(&gradients, schedule.factor(step as u64))
                .unwrap();
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
        optimiser.save(&path, &BTreeMap::new()).unwrap();
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
    if !common::has_f64("AdamW in f64") {
        return;
    }
    let reference = Reference::open("optimisation");
    let (parameters, groups) = groups(&reference, DType::F64);
    let mut optimiser = AdamW::new(groups, CONFIG).unwrap();
    for step in 0..100 {
        let mut given = Vec::new();
        for name in ["a", "b", "c"] {
            if name == "c" && step % 2 == 1 {
                continue;
            }
            let all = reference.get(&format!("adamw.{name}.gradients"));
            given.push((name, all.get(step).unwrap().to_dtype(DType::F64).unwrap()));
        }
        optimiser
            .update(&gradients(&parameters, &given), 1.0)
            .unwrap();
    }
    for (role, variable) in &parameters {
        let theirs = numbers(&reference.get(&format!("adamw.step100.{role}.f64")));
        for (ours, theirs) in numbers(variable).iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-14, "{role}: {ours} {theirs}");
        }
    }
}

#[test]
fn clipping_is_that_of_torch() {
    let reference = Reference::open("optimisation");
    let parameters: Parameters = (0..3)
        .map(|i| {
            let zeros = reference.get(&format!("clip.{i}")).zeros_like().unwrap();
            (i.to_string(), Var::from_tensor(&zeros).unwrap())
        })
        .collect();
    for max_norm in ["0.5", "5.0", "50.0"] {
        let given = ["0", "1", "2"].map(|i| (i, reference.get(&format!("clip.{i}"))));
        let mut gradients = gradients(&parameters, &given);
        let norm = gradients.clip_norm(max_norm.parse().unwrap()).unwrap();
        let exact = numbers(&reference.get("clip.norm.f64"))[0];
        assert!((norm / exact - 1.0).abs() < 1e-12, "{norm} {exact}");
        for (i, _) in &given {
            let ours = gradients.get(i).unwrap().unwrap();
            reference.check(&format!("clip.max{max_norm}.{i}"), &ours);
        }
        let clipped = gradients.norm().unwrap();
        assert!(clipped <= f64::min(max_norm.parse().unwrap(), norm));
    }
}

#[test]
fn schedules_are_those_of_transformers() {
    let reference = Reference::open("optimisation");
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
                let ours = schedule.factor(step as u64);
                if decay == Decay::Cosine && step as u64 > total {
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

/// A stack to train, with its variables.
fn trainable(dtype: DType) -> (Stack, Parameters) {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.trainable(dtype, &device()).unwrap();
    let stack = loader.stack().unwrap();
    (stack, loader.parameters())
}

/// The mean square of the output on some rows of a fixed batch.
fn loss(stack: &Stack, rows: std::ops::Range<usize>, context: &ForwardContext) -> Tensor {
    let dtype = stack.final_norm().map_or_else(
        || {
            stack.blocks()[0]
                .attention()
                .inner()
                .output()
                .weight()
                .dtype()
        },
        |norm| norm.weight().dtype(),
    );
    let values: Vec<f64> = (0..4 * 3 * 20).map(|i| (i as f64 * 0.37).sin()).collect();
    let x = Tensor::from_vec(values, (4, 3, 20), &Device::Cpu).unwrap();
    let x = x.to_dtype(dtype).unwrap().to_device(&device()).unwrap();
    let target = x.roll(1, 2).unwrap();
    let batch = |t: &Tensor| t.narrow(0, rows.start, rows.len()).unwrap();
    let y = stack.forward_with(&batch(&x), context).unwrap();
    (y - batch(&target))
        .unwrap()
        .sqr()
        .unwrap()
        .mean_all()
        .unwrap()
}

#[test]
fn accumulated_micro_batches_are_one_big_batch() {
    if !common::has_f64("accumulation in f64") {
        return;
    }
    let (stack, parameters) = trainable(DType::F64);
    let context = ForwardContext::evaluation();
    let whole = Gradients::of(
        &parameters,
        &loss(&stack, 0..4, &context).backward().unwrap(),
    );
    let mut sum = Gradients::default();
    for i in 0..4 {
        let store = loss(&stack, i..i + 1, &context).backward().unwrap();
        sum.accumulate(Gradients::of(&parameters, &store)).unwrap();
    }
    sum.scale(1.0 / 4.0);
    assert_eq!(sum.roles().count(), parameters.len());
    for (role, _) in &parameters {
        let (ours, theirs) = (sum.get(role).unwrap(), whole.get(role).unwrap());
        let (ours, theirs) = (numbers(&ours.unwrap()), numbers(&theirs.unwrap()));
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-14, "{role}: {ours} {theirs}");
        }
    }
    assert!((sum.norm().unwrap() / whole.norm().unwrap() - 1.0).abs() < 1e-12);
}

/// Parameters and moments after `steps`, with dropout, some of them after a restart from a file.
fn train(interruption: Option<u64>) -> Vec<Vec<u64>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let steps = |range: std::ops::Range<u64>, optimiser: &mut AdamW, stack: &Stack| {
        let schedule = Schedule::new(Decay::Cosine, 2, 9);
        for step in range {
            let loss = loss(stack, 0..4, &ForwardContext::training());
            let mut gradients = optimiser.gradients(&loss.backward().unwrap());
            gradients.clip_norm(0.5).unwrap();
            optimiser.update(&gradients, schedule.factor(step)).unwrap();
        }
    };
    let start = || {
        let (mut stack, parameters) = trainable(DType::F32);
        let dropout = DropoutSource::seeded(5);
        stack.set_dropout_source(&dropout);
        let groups = ParameterGroup::decaying_matrices(parameters, 0.1);
        assert_eq!(groups.len(), 2);
        (stack, dropout, AdamW::new(groups, CONFIG).unwrap())
    };
    let (mut stack, mut dropout, mut optimiser) = start();
    let middle = interruption.unwrap_or(0);
    steps(0..middle, &mut optimiser, &stack);
    if interruption.is_some() {
        let position = dropout.position().unwrap().to_string();
        let notes = BTreeMap::from([("dropout".to_string(), position)]);
        optimiser.save(&path, &notes).unwrap();
        (stack, dropout, optimiser) = start();
        let notes = optimiser.restore(&path).unwrap();
        dropout
            .set_position(notes["dropout"].parse().unwrap())
            .unwrap();
        assert_eq!(optimiser.n_updates(), middle);
    }
    steps(middle..9, &mut optimiser, &stack);
    optimiser.save(&path, &BTreeMap::new()).unwrap();
    let state = candle_blocks::candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let state: BTreeMap<_, _> = state.into_iter().collect();
    state.values().map(bits).collect()
}

#[test]
fn a_resumed_training_has_the_bits_of_one_that_never_stopped() {
    let whole = train(None);
    assert_eq!(whole.len(), 3 * 16 * 3);
    assert!(whole == train(Some(4)));
    assert!(whole == train(Some(1)));
}

#[test]
fn candles_own_interface_steps_too() {
    let weight = Var::new(&[1f32, -2.], &device()).unwrap();
    let mut optimiser = <AdamW as Optimizer>::new(vec![weight.clone()], CONFIG).unwrap();
    optimiser.set_learning_rate(0.1);
    assert_eq!(optimiser.learning_rate(), 0.1);
    optimiser
        .backward_step(&weight.sqr().unwrap().sum_all().unwrap())
        .unwrap();
    // Adam's first step is the learning rate in the direction of the sign.
    let moved = numbers(&weight);
    assert!(
        (moved[0] - 0.9).abs() < 1e-5 && (moved[1] + 1.9).abs() < 1e-5,
        "{moved:?}"
    );
}

fn message<T>(result: candle_blocks::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_cannot_be_trained_is_refused_with_its_name() {
    let parameter = |value: &[f32]| Var::new(value, &device()).unwrap();
    let a = ("a".to_string(), parameter(&[1., 2.]));
    let group = |parameters| ParameterGroup::new(parameters, 0.0);
    let new = |parameters| AdamW::new([group(parameters)], CONFIG);
    // Everything is frozen.
    let (_, rest) = split(vec![a.clone()], &["*"]).unwrap();
    let frozen = message(new(rest));
    assert!(
        frozen.contains("none to train") && frozen.contains("freeze fewer"),
        "{frozen}"
    );
    let unknown = message(split(vec![a.clone()], &["blocks.9.*"]));
    assert!(
        unknown.contains("blocks.9.*") && unknown.contains("like a"),
        "{unknown}"
    );
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

    let mut optimiser = new(vec![a.clone()]).unwrap();
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
    assert!(message(optimiser.update(&given(1.0), 1.0)).starts_with("b: "));
    assert!(message(optimiser.update(&Gradients::default(), 1.0)).contains("gradients"));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut gradients = given(bad);
        assert!(message(gradients.clip_norm(1.0)).starts_with("a: "));
        assert!(message(optimiser.update(&gradients, 1.0)).contains("NaN"));
    }
    assert!(message(given(1.0).clip_norm(0.0)).contains("max_norm"));
    assert_eq!(bits(&a.1), before, "a refused step moves nothing");
    assert_eq!(optimiser.n_updates(), 0);

    let scalar = |value: f32| Tensor::new(value, &device()).unwrap();
    assert_eq!(loss_value(&scalar(1.5)).unwrap(), 1.5);
    assert!(message(loss_value(&scalar(f32::NAN))).contains("NaN"));
    assert!(message(loss_value(&Tensor::new(&[1f32, 2.], &device()).unwrap())).contains("[2]"));
}

#[test]
fn a_file_of_another_training_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    type Values<'a> = (&'a str, Vec<f32>);
    let make = |parameters: &[Values]| {
        let named = |(name, value): &Values| {
            let variable = Var::new(value.as_slice(), &device()).unwrap();
            (name.to_string(), variable)
        };
        let all: Parameters = parameters.iter().map(named).collect();
        AdamW::new([ParameterGroup::new(all, 0.0)], CONFIG).unwrap()
    };
    let (a, b) = (("a", vec![7., 8.]), ("b", vec![9.]));
    let saved = make(&[a.clone(), b.clone()]);
    saved.save(&path, &BTreeMap::new()).unwrap();
    let longer = ("a", vec![7., 8., 9.]);
    for (parameters, culprit) in [
        (vec![a.clone()], "first_moment.b"),
        (vec![a.clone(), b.clone(), ("c", vec![5.])], "value.c"),
        (vec![longer, b], "value.a"),
    ] {
        let mut optimiser = make(&parameters);
        let message = message(optimiser.restore(&path));
        assert!(message.contains(culprit), "{message}");
        assert!(message.contains("state.safetensors"), "{message}");
        let values = optimiser.parameters();
        assert_eq!(numbers(&values[0].1)[..2], [7.0, 8.0]);
    }
    let mut optimiser = make(&[a]);
    let other = message(optimiser.restore(weights("tiny-bert/model.safetensors")));
    assert!(other.contains("no training state"), "{other}");
    assert!(
        message(optimiser.restore(folder.path().join("none.safetensors")))
            .contains("none.safetensors")
    );
}

#[test]
fn frozen_parameters_are_no_variables_and_stay_through_training_and_saving() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let all = || checkpoint.trainable(DType::F32, &device()).unwrap();
    let loader = all().freeze(&["*attention*", "blocks.0.*"]).unwrap();
    let stack = loader.stack().unwrap();
    let parameters = loader.parameters();
    // Of each of the two other blocks up, down and their norm, with weight and bias.
    assert_eq!(parameters.len(), 2 * 6);
    let is_trained = |role: &str| !role.contains("attention") && !role.starts_with("blocks.0.");
    assert!(parameters.iter().all(|(role, _)| is_trained(role)));
    let mut optimiser = AdamW::new([ParameterGroup::new(parameters.clone(), 0.1)], CONFIG).unwrap();
    for _ in 0..3 {
        let store = loss(&stack, 0..4, &ForwardContext::training())
            .backward()
            .unwrap();
        let gradients = optimiser.gradients(&store);
        assert_eq!(gradients.roles().count(), parameters.len());
        optimiser.update(&gradients, 1.0).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    checkpoint.save(&saved, parameters).unwrap();
    let values = |checkpoint: &Checkpoint| {
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        loader.stack().unwrap();
        let parameters = loader.parameters().into_iter();
        parameters
            .map(|(role, v)| (role, bits(&v)))
            .collect::<Vec<_>>()
    };
    let reloaded = values(&Checkpoint::open(&saved).unwrap());
    for ((role, before), (_, after)) in values(&checkpoint).iter().zip(&reloaded) {
        assert_eq!(before != after, is_trained(role), "{role}");
    }
    let message = message(all().freeze(&["*attn*"]).map(|_| ()));
    assert!(
        message.contains("*attn*") && message.contains("blocks.0."),
        "{message}"
    );
}
