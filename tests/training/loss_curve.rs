//! A hundred fine-tuning steps stay on PyTorch's loss curve.

use candle_blocks::{
    Checkpoint, DropoutSource, ForwardContext, Stack,
    candle_core::{DType, Tensor},
    train::{AdamW, AdamWConfig, Decay, ParameterGroup, Schedule, loss_value},
};

use crate::{
    device::device,
    numbers::numbers,
    reference::{Reference, assert_passed},
    weights::weights,
};

const NAMES: [&str; 2] = ["tiny-bert", "tiny-gpt2"];
const N_STEPS: usize = 100;

/// Returns the losses for every step, as in `weights/fixtures/reference/training.py`.
fn run(reference: &Reference, name: &str, dropout: f64, seed: u64) -> Vec<f64> {
    let checkpoint = Checkpoint::open(weights(name)).unwrap();
    let mut config = checkpoint.config().clone();
    for block in &mut config.blocks {
        block.attention_mut().unwrap().dropout = dropout;
        *block = block.clone().with_residual_dropout(dropout);
    }
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = Stack::new(&config, loader.var_builder()).unwrap();
    stack.set_dropout_source(&DropoutSource::seeded(seed));
    let groups = ParameterGroup::decaying_matrices(loader.parameters(), 0.1);
    let mut optimizer = AdamW::new(groups, AdamWConfig::default()).unwrap();
    let schedule = Schedule::new(Decay::Cosine, 10, N_STEPS);
    let get = |part: &str| reference.get(&format!("{name}.{part}"));
    let (x, target) = (get("x"), get("target"));
    let context = ForwardContext::training();
    let step = |step| {
        let y = stack.forward_with(&x, &context).unwrap();
        let loss = (y - &target).unwrap().sqr().unwrap().mean_all().unwrap();
        let mut gradients = optimizer.gradients(&loss.backward().unwrap());
        gradients.clip_norm(1.0).unwrap();
        optimizer.update(&gradients, schedule.factor(step)).unwrap();
        loss_value(&loss).unwrap()
    };
    (0..N_STEPS).map(step).collect()
}

#[test]
fn the_loss_curve_stays_on_pytorchs() {
    let reference = Reference::open("training");
    let mut comparisons = Vec::new();
    for name in NAMES {
        let losses = run(&reference, name, 0.0, 0);
        assert!(losses[99] < 0.6 * losses[0], "{losses:?}");
        let losses: Vec<f32> = losses.into_iter().map(|loss| loss as f32).collect();
        let losses = Tensor::new(losses, &device()).unwrap();
        comparisons.push(reference.compare(&format!("{name}.losses"), &losses));
    }
    for c in &comparisons {
        let torch = c.tolerance.and_then(|t| t.torch_error);
        println!(
            "{}: ours {:.1e} off, PyTorch's f32 {torch:?}",
            c.name, c.max_abs
        );
    }
    assert_passed(&comparisons);
}

/// Returns a column's mean and standard deviation.
fn moments(rows: &[Vec<f64>], column: usize) -> (f64, f64) {
    let n = rows.len() as f64;
    let mean = rows.iter().map(|row| row[column]).sum::<f64>() / n;
    let squares = rows.iter().map(|row| (row[column] - mean).powi(2));
    (mean, (squares.sum::<f64>() / (n - 1.0)).sqrt())
}

#[test]
fn with_dropout_the_losses_of_twenty_seeds_are_distributed_as_pytorchs() {
    let reference = Reference::open("training");
    const N_SEEDS: u64 = 20;
    for name in NAMES {
        let theirs = numbers(&reference.get(&format!("{name}.dropout")));
        let theirs: Vec<Vec<f64>> = theirs.chunks(5).map(<[f64]>::to_vec).collect();
        let every_20th = |losses: Vec<f64>| losses.into_iter().skip(19).step_by(20).collect();
        let ours: Vec<Vec<f64>> = (0..N_SEEDS)
            .map(|s| every_20th(run(&reference, name, 0.1, s)))
            .collect();
        for column in 0..5 {
            let ((mean, deviation), (their_mean, their_deviation)) =
                (moments(&ours, column), moments(&theirs, column));
            let square = |deviation: f64, n: f64| deviation.powi(2) / n;
            let error =
                square(deviation, N_SEEDS as f64) + square(their_deviation, theirs.len() as f64);
            let error = error.sqrt();
            let off = (mean - their_mean) / error;
            println!(
                "{name} {column}: {mean:.4} ± {deviation:.4}, PyTorch {their_mean:.4} ± {their_deviation:.4}: {off:.1} σ"
            );
            assert!(off.abs() < 4.0, "{name}: {mean} {their_mean}");
            // For normal samples, 0.1% of all pairs with 20 and 80 values are outside.
            let ratio = deviation / their_deviation;
            assert!(
                (0.48..1.72).contains(&ratio),
                "{name}: {deviation} {their_deviation}"
            );
        }
    }
}
