//! Memory in training: it does not grow over time, and with recomputation only one block's activations are held.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use candle_blocks::{
    AttentionConfig, BlockConfig, FeedForwardConfig, ForwardContext, NormConfig, NormPlacement,
    Parameters, Stack, StackConfig,
    candle_core::{DType, Device, Tensor},
    config::Initialization,
    train::{AdamW, AdamWConfig, Fresh, Gradients, ParameterGroup, backward_recomputing},
};

use crate::counted::{LIVE, PEAK, alone};

struct Step {
    stack: Stack,
    parameters: Parameters,
    x: Tensor,
    context: ForwardContext,
}

impl Step {
    fn new(n_blocks: usize, d_model: usize, n_heads: usize, batch: usize, seq: usize) -> Self {
        let norm = NormConfig::layer_norm(d_model, 1e-5);
        let attention = AttentionConfig::new(d_model, n_heads).unwrap();
        let feed_forward = FeedForwardConfig::new(d_model);
        let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
        let config = StackConfig::uniform(block, n_blocks, Some(norm));
        let fresh = Fresh::new(Initialization::normal(0.02), 1, DType::F32, &Device::Cpu);
        let x: Vec<f32> = (0..batch * seq * d_model)
            .map(|i| (i as f32 * 0.37).sin())
            .collect();
        Self {
            stack: fresh.stack(&config).unwrap(),
            parameters: fresh.parameters(),
            x: Tensor::from_vec(x, (batch, seq, d_model), &Device::Cpu).unwrap(),
            context: ForwardContext::training(),
        }
    }

    fn loss(&self) -> Tensor {
        let y = self.stack.forward_with(&self.x, &self.context).unwrap();
        y.sqr().unwrap().mean_all().unwrap()
    }

    fn directly(&self) -> Gradients {
        Gradients::of(&self.parameters, &self.loss().backward().unwrap())
    }

    fn recomputed(&self) -> Gradients {
        let loss = |y: &Tensor| y.sqr()?.mean_all();
        let found =
            backward_recomputing(&self.stack, &self.x, &self.context, &self.parameters, loss);
        found.unwrap().gradients
    }

    /// Returns the gradients' size in bytes, which both methods must hold in the end.
    fn gradient_bytes(&self) -> usize {
        self.parameters
            .iter()
            .map(|(_, v)| 4 * v.elem_count())
            .sum()
    }
}

/// The most that a run held beyond what was there and beyond the gradients, and how long it took.
fn measured(step: &Step, run: impl Fn(&Step) -> Gradients) -> (usize, Duration) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let gradients = run(step);
    let time = start.elapsed();
    drop(gradients);
    (
        PEAK.load(Ordering::Relaxed) - before - step.gradient_bytes(),
        time,
    )
}

#[test]
fn a_thousand_steps_more_hold_no_more_than_the_first_ones() {
    let _alone = alone();
    let step = Step::new(2, 16, 2, 2, 5);
    let groups = ParameterGroup::decaying_matrices(step.parameters.clone(), 0.01);
    let mut optimizer = AdamW::new(groups, AdamWConfig::default()).unwrap();
    let mut live = Vec::new();
    for _ in 0..5 {
        // Memory that threads keep varies by tens of kilobytes from step to step, so growth is measured in the minimum of
        // many steps.
        let mut least = usize::MAX;
        for i in 0..250 {
            let mut gradients = match i % 3 {
                0 => step.directly(),
                1 => step.recomputed(),
                _ => optimizer.backward(&step.loss()).unwrap(),
            };
            gradients.accumulate(gradients.clone()).unwrap();
            gradients.scale(0.5);
            gradients.clip_norm(1.0).unwrap();
            optimizer.update(&gradients, 1.0).unwrap();
            drop(gradients);
            least = least.min(LIVE.load(Ordering::Relaxed));
        }
        live.push(least);
    }
    println!("{live:?} bytes at least in each 250 steps");
    // The least of the first steps may be from before a busy machine's helper threads took their share;
    // the thread pool's queues grow by a block now and then.
    assert!(live[4] <= live[1] + 4096, "{live:?}");
}

#[test]
fn gradients_take_the_place_of_activations_that_are_done_with() {
    let _alone = alone();
    let step = Step::new(6, 96, 4, 2, 64);
    let group = ParameterGroup::new(step.parameters.clone(), 0.01);
    let optimizer = AdamW::new([group], AdamWConfig::default()).unwrap();
    let held = || LIVE.load(Ordering::Relaxed);
    let before = held();
    let loss = step.loss();
    let activations = held() - before;
    PEAK.store(held(), Ordering::Relaxed);
    let gradients = optimizer.backward(&loss).unwrap();
    let most = PEAK.load(Ordering::Relaxed) - before;
    let gradient_bytes = step.gradient_bytes();
    println!("{activations} bytes of activations, {gradient_bytes} of gradients, {most} together");
    assert!(most < activations + gradient_bytes / 2);
    drop(gradients);
}

#[test]
fn twelve_blocks_take_a_third_of_the_memory_or_less() {
    let _alone = alone();
    let step = Step::new(12, 128, 4, 4, 64);
    let (direct, _) = measured(&step, Step::directly);
    let (recomputed, _) = measured(&step, Step::recomputed);
    let ratio = direct as f64 / recomputed as f64;
    println!(
        "{direct} bytes of activations directly, {recomputed} recomputed: {ratio:.1} times less"
    );
    assert!(ratio > 3.0, "{direct} {recomputed}");
}

#[test]
#[ignore = "a measurement: `cargo test --release --test memory -- --ignored --nocapture`"]
fn memory_and_time_of_a_large_stack() {
    let _alone = alone();
    let step = Step::new(12, 768, 12, 8, 128);
    let mut best = [Duration::MAX; 2];
    let mut peak = [0; 2];
    for _ in 0..5 {
        for (way, run) in [Step::directly, Step::recomputed].into_iter().enumerate() {
            let (bytes, time) = measured(&step, run);
            best[way] = best[way].min(time);
            peak[way] = bytes;
        }
    }
    println!(
        "activations {} MB directly, {} MB recomputed; {best:?}, {:.2} times the time",
        peak[0] / 1_000_000,
        peak[1] / 1_000_000,
        best[1].as_secs_f64() / best[0].as_secs_f64()
    );
}

/// PyTorch for comparison: `torch.optim.AdamW` on parameters with these shapes.
#[test]
#[ignore = "a measurement: `cargo test --release --test memory -- --ignored --nocapture`"]
fn time_of_an_optimizers_step() {
    use candle_blocks::candle_nn::{self, Optimizer};
    let _alone = alone();
    let step = Step::new(1, 768, 12, 1, 4);
    let y = step.stack.forward_with(&step.x, &step.context).unwrap();
    let store = y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
    let group = ParameterGroup::new(step.parameters.clone(), 0.01);
    let mut ours = AdamW::new([group], AdamWConfig::default()).unwrap();
    let variables = step.parameters.iter().map(|(_, v)| v.clone()).collect();
    let mut candles = candle_nn::AdamW::new_lr(variables, 1e-3).unwrap();
    let mut best = [Duration::MAX; 3];
    for _ in 0..30 {
        let mut time = |which: usize, run: &mut dyn FnMut()| {
            let start = Instant::now();
            run();
            best[which] = best[which].min(start.elapsed());
        };
        time(0, &mut || {
            ours.update(&ours.gradients(&store), 1.0).unwrap()
        });
        time(1, &mut || {
            ours.gradients(&store).norm().unwrap();
        });
        time(2, &mut || candles.step(&store).unwrap());
    }
    let n: usize = step.parameters.iter().map(|(_, v)| v.elem_count()).sum();
    println!(
        "{n} parameters: AdamW {:?}, of which the norm {:?}; candle's {:?}",
        best[0], best[1], best[2]
    );
}
