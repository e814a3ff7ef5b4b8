//! Gradients and state files carry the rank to which they belong, on the device under test.

use std::{collections::BTreeMap, path::Path, sync::Mutex};

use candle_blocks::{
    Checkpoint, ForwardContext, Parameters, Result, Stack,
    candle_core::{DType, Device, Tensor},
    checkpoint::TensorParallel,
    ops::parallel::Communicator,
    train::{AdamW, AdamWConfig, Gradients, ParameterGroup, backward_recomputing},
};

use crate::{
    device::device,
    even_llama::{WIDTH, even_llama},
    message::message,
    numbers::{bits, numbers},
    ranks::of_ranks,
    said::assert_says,
};

fn x() -> Tensor {
    let x = Tensor::arange(0f32, (2 * 3 * WIDTH) as f32, &Device::Cpu).unwrap();
    x.sin()
        .unwrap()
        .reshape((2, 3, WIDTH))
        .unwrap()
        .to_device(&device())
        .unwrap()
}

/// A mean square, times a factor.
fn loss(stack: &Stack, factor: f64) -> Tensor {
    let y = stack
        .forward_with(&x(), &ForwardContext::evaluation())
        .unwrap();
    let off = (y - x().cos().unwrap()).unwrap().sqr().unwrap();
    (off.mean_all().unwrap() * factor).unwrap()
}

fn optimizer(parameters: impl Into<Parameters>) -> AdamW {
    let config = AdamWConfig {
        learning_rate: 1e-2,
        ..Default::default()
    };
    AdamW::new([ParameterGroup::new(parameters, 0.0)], config).unwrap()
}

fn part<'c>(
    checkpoint: &'c Checkpoint,
    rank: std::sync::Arc<dyn Communicator>,
) -> TensorParallel<'c> {
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    TensorParallel::new(loader, rank).unwrap()
}

/// Takes steps as one process would, with the norm over all ranks.
fn train(stack: &Stack, parallel: &TensorParallel, optimizer: &mut AdamW, steps: usize) {
    for _ in 0..steps {
        let mut gradients = optimizer.backward(&loss(stack, 1.0)).unwrap();
        gradients.norm_among(parallel).unwrap();
        gradients.clip_norm(0.1).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
    }
}

/// The bits of all parameters.
fn state(parameters: &Parameters) -> Vec<Vec<u64>> {
    parameters
        .iter()
        .map(|(_, variable)| bits(variable))
        .collect()
}

const ALONE: [&str; 3] = ["gradients", "alone", "Gradients::norm_among(&parallel)"];

#[test]
fn one_ranks_norm_is_refused_wherever_its_gradients_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    of_ranks(2, |rank| {
        let name = format!("rank {} of 2", rank.rank());
        let parallel = part(&checkpoint, rank);
        let stack = parallel.stack().unwrap();
        let parameters = parallel.parameters();
        let mut optimizer = optimizer(parameters.clone());
        let of_loss = || optimizer.backward(&loss(&stack, 1.0)).unwrap();
        let (mut sum, mut mean) = (Gradients::default(), Gradients::default());
        sum.accumulate(of_loss()).unwrap();
        mean.accumulate_mean(of_loss(), 3).unwrap();
        let by_candle = optimizer.gradients(&loss(&stack, 1.0).backward().unwrap());
        let square = |y: &Tensor| y.sqr()?.mean_all();
        let context = ForwardContext::evaluation();
        let recomputed = backward_recomputing(&stack, &x(), &context, &parameters, square);
        for mut gradients in [
            of_loss(),
            sum,
            mean,
            by_candle,
            recomputed.unwrap().gradients,
        ] {
            for refused in [gradients.clip_norm(0.1), gradients.norm()] {
                let refused = message(refused);
                assert_says(&refused, &ALONE);
                assert_says(refused, &[&name]);
            }
            // What the message advises; it holds until more is added.
            let norm = gradients.norm_among(&parallel).unwrap();
            assert_eq!(gradients.clip_norm(0.5 * norm).unwrap(), norm);
            assert!((gradients.norm().unwrap() / norm - 0.5).abs() < 1e-4);
            gradients.accumulate(gradients.clone()).unwrap();
            assert_says(message(gradients.clip_norm(0.1)), &ALONE);
        }
        // A step without clipping needs no norm.
        let gradients = of_loss();
        optimizer.update(&gradients, 1.0).unwrap();
    });
}

/// Whole parameters have the same gradients on every rank.
#[test]
fn gradients_of_whole_parameters_need_no_other_rank_and_copies_stay_equal() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let states = of_ranks(2, |rank| {
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        let loader = loader.freeze(&["*attention.*", "*feed_forward.*"]).unwrap();
        let parallel = TensorParallel::new(loader, rank).unwrap();
        let stack = parallel.stack().unwrap();
        let mut optimizer = optimizer(parallel.parameters());
        for _ in 0..5 {
            let mut gradients = optimizer.backward(&loss(&stack, 1.0)).unwrap();
            gradients.clip_norm(0.01).unwrap();
            optimizer.update(&gradients, 1.0).unwrap();
        }
        state(&parallel.parameters())
    });
    assert!(!states[0].is_empty());
    assert!(states[0] == states[1]);
}

/// The squares of a norm above 1.8e19 are beyond f32.
#[test]
fn norms_beyond_the_squares_of_f32_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let alone = loader.stack().unwrap();
    for factor in [1e-12, 1.0, 1e21, 1e30] {
        let gradients = Gradients::backward(&loader.parameters(), &loss(&alone, factor)).unwrap();
        let expected = gradients.norm().unwrap();
        let norms = of_ranks(2, |rank| {
            let parallel = part(&checkpoint, rank);
            let stack = parallel.stack().unwrap();
            let parameters = parallel.parameters();
            let mut gradients = Gradients::backward(&parameters, &loss(&stack, factor)).unwrap();
            gradients.norm_among(&parallel).unwrap()
        });
        assert_eq!(norms[0], norms[1]);
        assert!(
            (norms[0] / expected - 1.0).abs() < 1e-5,
            "{factor}: {} {expected}",
            norms[0]
        );
    }
    let refused = of_ranks(2, |rank| {
        let is_second = rank.rank() == 1;
        let parallel = part(&checkpoint, rank);
        let stack = parallel.stack().unwrap();
        let mut gradients =
            Gradients::backward(&parallel.parameters(), &loss(&stack, 1.0)).unwrap();
        if is_second {
            let (role, variable) = parallel.parameters()[0].clone();
            let nan = (variable.as_tensor() * f64::NAN)
                .unwrap()
                .sum_all()
                .unwrap();
            let parameters = vec![(role, variable)];
            gradients
                .accumulate(Gradients::backward(&parameters, &nan).unwrap())
                .unwrap();
        }
        message(gradients.norm_among(&parallel))
    });
    for refused in refused {
        assert_says(refused, &["on some rank", "NaN"]);
    }
}

#[test]
fn gradients_of_another_rank_are_refused_by_sums_and_optimizers() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let lent = Mutex::new(None);
    let own = of_ranks(2, |rank| {
        let parallel = part(&checkpoint, rank.clone());
        let stack = parallel.stack().unwrap();
        let mut optimizer = optimizer(parallel.parameters());
        let gradients = optimizer.backward(&loss(&stack, 1.0)).unwrap();
        if rank.rank() == 1 {
            *lent.lock().unwrap() = Some(gradients.clone());
        }
        rank.all_reduce_sum(&mut [0.0]).unwrap(); // one after the other
        if rank.rank() == 0 {
            let before = state(&parallel.parameters());
            let other = lent.lock().unwrap().clone().unwrap();
            let refused = message(optimizer.update(&other, 1.0));
            assert_says(refused, &["rank 1 of 2", "rank 0 of 2"]);
            assert!(state(&parallel.parameters()) == before);
        }
        gradients
    });
    let mut sum = own[0].clone();
    let refused = message(sum.accumulate(own[1].clone()));
    assert_says(refused, &["rank 0 of 2", "rank 1 of 2", "each rank's own"]);
}

/// Trains three steps, saves, and returns what three more steps give: directly, or after a restart.
fn resumed(checkpoint: &Checkpoint, folder: &Path, is_restarted: bool) -> Vec<Vec<Vec<u64>>> {
    of_ranks(2, |rank| {
        let path = folder.join(format!("state-{}.safetensors", rank.rank()));
        let start = |rank| {
            let parallel = part(checkpoint, rank);
            let stack = parallel.stack().unwrap();
            let optimizer = optimizer(parallel.parameters());
            (parallel, stack, optimizer)
        };
        let (mut parallel, mut stack, mut optimizer) = start(rank.clone());
        for _ in 0..2 {
            // A rank replaces its own file.
            optimizer.save(&path, &BTreeMap::new()).unwrap();
            train(&stack, &parallel, &mut optimizer, 1);
        }
        optimizer.save(&path, &BTreeMap::new()).unwrap();
        if is_restarted {
            (parallel, stack, optimizer) = start(rank);
            optimizer.restore(&path).unwrap();
        }
        train(&stack, &parallel, &mut optimizer, 3);
        state(&parallel.parameters())
    })
}

#[test]
fn a_state_file_is_restored_on_its_own_rank_alone() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    assert!(
        resumed(&checkpoint, folder.path(), true) == resumed(&checkpoint, folder.path(), false)
    );
    let saved = |name: &str| folder.path().join(name);

    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let stack = loader.stack().unwrap();
    let mut alone = optimizer(loader.parameters());
    let gradients = alone.backward(&loss(&stack, 1.0)).unwrap();
    alone.update(&gradients, 1.0).unwrap();
    let refused = message(alone.restore(saved("state-1.safetensors")));
    assert_says(
        refused,
        &["state-1.safetensors", "rank 1 of 2", "whole parameters"],
    );
    alone
        .save(saved("alone.safetensors"), &BTreeMap::new())
        .unwrap();

    // Four ranks share the two key heads.
    for size in [2, 4] {
        of_ranks(size, |rank| {
            let own = rank.rank();
            let parallel = part(&checkpoint, rank);
            parallel.stack().unwrap();
            let mut optimizer = optimizer(parallel.parameters());
            let before = state(&parallel.parameters());
            let mut refuses = |name: &str, found: &str| {
                let refused = message(optimizer.restore(saved(name)));
                let expected = format!("expected the state of rank {own} of {size}");
                assert_says(refused, &[name, found, &expected, "the file that it saved"]);
                assert!(state(&parallel.parameters()) == before);
            };
            refuses("alone.safetensors", "whole parameters");
            for other in (0..2).filter(|&other| size != 2 || other != own) {
                refuses(
                    &format!("state-{other}.safetensors"),
                    &format!("rank {other} of 2"),
                );
            }
        });
    }
}

#[test]
fn two_ranks_cannot_save_to_one_path() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = even_llama(folder.path(), 2);
    let (existing, foreign) = (
        folder.path().join("old.safetensors"),
        folder.path().join("foreign"),
    );
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    loader.stack().unwrap();
    optimizer(loader.parameters())
        .save(&existing, &BTreeMap::new())
        .unwrap();
    std::fs::write(&foreign, "a text").unwrap();
    let results = of_ranks(2, |rank| {
        let parallel = part(&checkpoint, rank.clone());
        parallel.stack().unwrap();
        let mut optimizer = optimizer(parallel.parameters());
        let mut save = |path: &Path| -> Result<()> {
            rank.all_reduce_sum(&mut [0.0]).unwrap(); // at once
            let saved = optimizer.save(path, &BTreeMap::new());
            rank.all_reduce_sum(&mut [0.0]).unwrap();
            if saved.is_ok() {
                optimizer.restore(path).unwrap();
            }
            saved
        };
        let saved: Vec<_> = (0..20)
            .map(|i| save(&folder.path().join(format!("{i}"))))
            .collect();
        let others = [save(&existing), save(&foreign)].map(message);
        (saved, others)
    });
    for i in 0..20 {
        let found: Vec<_> = results.iter().map(|(saved, _)| &saved[i]).collect();
        let winner = found.iter().position(|saved| saved.is_ok()).unwrap();
        let refused = found[1 - winner].as_ref().unwrap_err();
        let (owner, own) = (
            format!("rank {winner} of 2"),
            format!("rank {} of 2", 1 - winner),
        );
        assert_says(refused, &[&owner, &own, "path of its own"]);
    }
    for (rank, (_, others)) in results.iter().enumerate() {
        for (refused, name) in others.iter().zip(["old.safetensors", "foreign"]) {
            assert_says(
                refused,
                &[name, "no state of a rank", &format!("rank {rank} of 2")],
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "a text");
    assert!(
        numbers(&loader.parameters()[0].1)
            .iter()
            .all(|x| x.is_finite())
    );
}
