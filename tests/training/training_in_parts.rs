//! Training in parts: micro-batches, interruptions, and a stack with frozen parts.

use std::{collections::BTreeMap, ops::Range};

use candle_blocks::{
    Checkpoint, DropoutSource, ForwardContext, Parameters, Stack,
    candle_core::{DType, Device, Tensor, Var, safetensors},
    train::{AdamW, AdamWConfig, Decay, Gradients, ParameterGroup, Schedule},
};

use crate::{
    device::device,
    double::has_f64,
    message::message,
    numbers::{bits, numbers},
    said::assert_says,
    trained::trained,
    weights::weights,
};

const CONFIG: AdamWConfig = AdamWConfig {
    learning_rate: 3e-3,
    beta1: 0.9,
    beta2: 0.98,
    eps: 1e-6,
};

/// A stack to train, with its variables.
fn trainable(dtype: DType) -> (Stack, Parameters) {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.trainable(dtype, &device()).unwrap();
    let stack = loader.stack().unwrap();
    (stack, loader.parameters())
}

/// Returns the output's mean square for some rows of a fixed batch.
fn loss(stack: &Stack, rows: Range<usize>, context: &ForwardContext) -> Tensor {
    let dtype = stack.final_norm().map_or_else(
        || {
            stack.blocks()[0]
                .mixer()
                .inner()
                .attention()
                .unwrap()
                .output()
                .weight()
                .unwrap()
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
    if !has_f64("accumulation in f64") {
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

/// A variable `w = [3, 4]`, and the gradients of `factor · w² / 2`, which are `factor` times `w`.
fn of_square() -> (Parameters, impl Fn(f64) -> Gradients) {
    let w = Var::new(&[3f32, 4.], &device()).unwrap();
    let parameters: Parameters = vec![("w".to_string(), w.clone())].into();
    let named = parameters.clone();
    let backward = move |factor: f64| {
        let loss = (w.sqr().unwrap().sum_all().unwrap() * (0.5 * factor)).unwrap();
        Gradients::backward(&named, &loss).unwrap()
    };
    (parameters, backward)
}

fn of_w(gradients: &Gradients) -> Vec<f64> {
    numbers(&gradients.get("w").unwrap().unwrap())
}

#[test]
fn a_first_micro_batch_without_a_number_of_targets_is_refused_instead_of_forgotten() {
    let (_, backward) = of_square();
    let mut summed = Gradients::default();
    summed.accumulate(backward(1.0)).unwrap();
    let mut both = Gradients::default();
    both.accumulate_mean(backward(1.0), 1).unwrap();
    both.accumulate(backward(1.0)).unwrap();
    for (mut first, before) in [
        (backward(1.0), [3.0, 4.0]),
        (summed, [3.0, 4.0]),
        (both, [6.0, 8.0]),
    ] {
        let refused = message(first.accumulate_mean(backward(5.0), 1));
        assert_says(
            refused,
            &[
                "gradients",
                "number of targets",
                "Gradients::default()",
                "accumulate_mean",
            ],
        );
        assert_eq!(of_w(&first), before);
    }
    // What the message advises.
    let mut mean = Gradients::default();
    for factor in [1.0, 5.0] {
        mean.accumulate_mean(backward(factor), 1).unwrap();
    }
    assert_eq!(of_w(&mean), [9.0, 12.0]);
}

/// Two workers, with 3 targets (the mean of factors 1, 1, 4) and 1 target (8): all four have the mean 3.5.
#[test]
fn the_means_of_workers_are_joined_by_their_target_counts() {
    let (_, backward) = of_square();
    let worker = |factors: &[(f64, usize)]| {
        let mut mean = Gradients::default();
        for &(factor, n_targets) in factors {
            mean.accumulate_mean(backward(factor), n_targets).unwrap();
        }
        mean
    };
    let (three, one) = (worker(&[(1.0, 2), (4.0, 1)]), worker(&[(8.0, 1)]));
    let mut all = Gradients::default();
    all.accumulate(three.clone()).unwrap(); // into nothing: still a mean over 3
    for wrong in [0, 2] {
        let refused = message(all.accumulate_mean(one.clone(), wrong));
        assert_says(
            refused,
            &["mean over 1 targets", &format!("but {wrong} are given")],
        );
    }
    all.accumulate_mean(one, 1).unwrap();
    for (found, w) in of_w(&all).into_iter().zip([3.0, 4.0]) {
        assert!((found - 3.5 * w).abs() < 1e-5, "{found}");
    }
}

#[test]
fn gradients_that_cannot_be_added_are_refused_by_name_and_nothing_changes() {
    let (_, backward) = of_square();
    let longer = vec![(
        "w".to_string(),
        Var::new(&[1f32, 2., 3.], &device()).unwrap(),
    )];
    let of_longer = || {
        let loss = longer[0].1.sum_all().unwrap();
        Gradients::backward(&longer, &loss).unwrap()
    };
    let mut mean = Gradients::default();
    mean.accumulate_mean(backward(1.0), 2).unwrap();
    for refused in [
        mean.accumulate_mean(of_longer(), 2),
        mean.accumulate(of_longer()),
    ] {
        let refused = message(refused);
        assert!(refused.starts_with("w: "), "{refused}");
        assert_says(refused, &["F32 [2]", "F32 [3]"]);
    }
    assert_eq!(of_w(&mean), [3.0, 4.0]);
    mean.accumulate_mean(backward(4.0), 1).unwrap();
    for (found, w) in of_w(&mean).into_iter().zip([3.0, 4.0]) {
        assert!((found - 2.0 * w).abs() < 1e-5, "{found}");
    }
}

/// Returns parameters and moments after `steps`, with dropout, and some of them after a restart from a file.
fn train(interruption: Option<usize>) -> Vec<Vec<u64>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let steps = |range: Range<usize>, optimizer: &mut AdamW, stack: &Stack| {
        let schedule = Schedule::new(Decay::Cosine, 2, 9);
        for step in range {
            let loss = loss(stack, 0..4, &ForwardContext::training());
            let mut gradients = optimizer.gradients(&loss.backward().unwrap());
            gradients.clip_norm(0.5).unwrap();
            optimizer.update(&gradients, schedule.factor(step)).unwrap();
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
    let (mut stack, mut dropout, mut optimizer) = start();
    let middle = interruption.unwrap_or(0);
    steps(0..middle, &mut optimizer, &stack);
    if interruption.is_some() {
        let position = dropout.position().unwrap().to_string();
        let notes = BTreeMap::from([("dropout".to_string(), position)]);
        optimizer.save(&path, &notes).unwrap();
        (stack, dropout, optimizer) = start();
        let notes = optimizer.restore(&path).unwrap();
        dropout
            .set_position(notes["dropout"].parse().unwrap())
            .unwrap();
        assert_eq!(optimizer.n_updates(), middle);
    }
    steps(middle..9, &mut optimizer, &stack);
    optimizer.save(&path, &BTreeMap::new()).unwrap();
    let state = safetensors::load(&path, &Device::Cpu).unwrap();
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
        let mut optimizer = make(&parameters);
        let refusal = message(optimizer.restore(&path));
        assert_says(refusal, &[culprit, "state.safetensors"]);
        let values = optimizer.parameters();
        assert_eq!(numbers(&values[0].1)[..2], [7.0, 8.0]);
    }
    if has_f64("restoring into f64") {
        let wide = Var::new(&[7f64, 8.], &device()).unwrap();
        let both = vec![("a".to_string(), wide), saved.parameters()[1].clone()];
        let mut optimizer = AdamW::new([ParameterGroup::new(both, 0.0)], CONFIG).unwrap();
        let refusal = message(optimizer.restore(&path));
        assert_says(refusal, &["value.a", "F32", "F64"]);
    }
    let mut optimizer = make(&[a]);
    let other = message(optimizer.restore(weights("tiny-bert/model.safetensors")));
    assert_says(other, &["not a training state"]);
    let none = message(optimizer.restore(folder.path().join("none.safetensors")));
    assert_says(none, &["none.safetensors"]);
}

#[test]
fn frozen_parameters_are_no_variables_and_stay_through_training_and_saving() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let all = || checkpoint.trainable(DType::F32, &device()).unwrap();
    let loader = all().freeze(&["*attention*", "blocks.0.*"]).unwrap();
    let stack = loader.stack().unwrap();
    let parameters = loader.parameters();
    // In each of the two other blocks: up, down and their norm, with weight and bias.
    assert_eq!(parameters.len(), 2 * 6);
    let is_trained = |role: &str| !role.contains("attention") && !role.starts_with("blocks.0.");
    assert!(parameters.iter().all(|(role, _)| is_trained(role)));
    let mut optimizer = AdamW::new([ParameterGroup::new(parameters.clone(), 0.1)], CONFIG).unwrap();
    for _ in 0..3 {
        let store = loss(&stack, 0..4, &ForwardContext::training())
            .backward()
            .unwrap();
        let gradients = optimizer.gradients(&store);
        assert_eq!(gradients.roles().count(), parameters.len());
        optimizer.update(&gradients, 1.0).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    checkpoint.save(&saved, parameters).unwrap();
    let values = |checkpoint: &Checkpoint| {
        let parameters = trained(checkpoint, DType::F32).into_iter();
        let with_bits = parameters.map(|(role, variable)| (role, bits(&variable)));
        with_bits.collect::<Vec<_>>()
    };
    let reloaded = values(&Checkpoint::open(&saved).unwrap());
    for ((role, before), (_, after)) in values(&checkpoint).iter().zip(&reloaded) {
        assert_eq!(before != after, is_trained(role), "{role}");
    }
    assert_says(message(all().freeze(&["*attn*"])), &["*attn*", "blocks.0."]);
}
