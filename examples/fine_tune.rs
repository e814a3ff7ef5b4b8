//! Fine-tunes the feed-forward of a pretrained block, in full and with low-rank adapters, saves both and reads them back.
//!
//! ```sh
//! cargo run --release --example fine_tune -- [OUT] [DIR] [STEPS] # DIR is weights/minilm-block0 unless given
//! python weights/check_saved.py weights/minilm-block0 OUT/full --changed .0.intermediate. --changed .0.output.dense. \
//!   --outputs OUT/full.safetensors                               # transformers gives the same outputs
//! python weights/check_saved.py weights/minilm-block0 OUT/lora --changed .0.intermediate.dense.weight \
//!   --changed .0.output.dense.weight --outputs OUT/lora.safetensors
//! ```
//!
//! The task: a sequence is its topic's direction plus larger noise, and the mean over its outputs should become the topic's
//! target.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use candle_blocks::{
    Checkpoint, ForwardContext, Parameters, SaveOptions, Stack, Weights,
    candle_core::{DType, Device, Shape, Tensor},
    checkpoint::ExistingFiles,
    checkpoint::write::write_safetensors,
    ops,
    train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup, loss_value},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const N_TOPICS: usize = 8;
const SEQ: usize = 8;
const NOISE: f64 = 3.0;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let out = PathBuf::from(arguments.next().unwrap_or("fine-tuned".to_string()));
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("weights/minilm-block0");
    let directory = arguments.next().map_or(committed, PathBuf::from);
    let steps = arguments.next().unwrap_or("60".to_string());
    let steps = steps
        .parse()
        .with_context(|| format!("number of steps {steps}"))?;
    ensure!(
        directory.exists(),
        "{} is missing; the published package leaves weights/minilm-block0 out: run this in a clone of the \
         repository, or give another checkpoint: fine_tune OUT DIR",
        directory.display()
    );
    let checkpoint = Checkpoint::open(&directory)?;
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    full(&checkpoint, &out, steps)?;
    lora(&checkpoint, &out, steps)?;
    Ok(())
}

/// Trains every feed-forward weight; everything else is frozen. Returns the losses on unseen sequences before and after.
pub fn full(checkpoint: &Checkpoint, out: &Path, steps: usize) -> Result<(f64, f64)> {
    let task = HeadTask::of(checkpoint)?;
    let frozen = ["*attention*", "*feed_forward_norm*"];
    let loader = checkpoint
        .trainable(DType::F32, &Device::Cpu)?
        .freeze(&frozen)?;
    let stack = loader.stack()?;
    let losses = train("full", &stack, loader.parameters(), &task, 3e-4, steps)?;
    let changed: Vec<(String, Tensor)> = loader
        .parameters()
        .into_iter()
        .map(|(role, variable)| (role, variable.as_detached_tensor()))
        .collect();
    save_and_reload(checkpoint, &stack, changed, &task, &out.join("full"))?;
    Ok(losses)
}

/// Trains adapters for the feed-forward weights, and finally merges them.
pub fn lora(checkpoint: &Checkpoint, out: &Path, steps: usize) -> Result<(f64, f64)> {
    let task = HeadTask::of(checkpoint)?;
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()?;
    let config = LoraConfig::new(8, 16.0, &["feed_forward.*"]);
    let lora = Lora::attach(&mut stack, config, 42)?;
    let losses = train("lora", &stack, lora.parameters(), &task, 1e-3, steps)?;
    let merged = lora.merge(&mut stack)?;
    save_and_reload(checkpoint, &stack, merged, &task, &out.join("lora"))?;
    Ok(losses)
}

/// Updates the parameters with AdamW for `steps` steps.
fn train(
    name: &str,
    stack: &Stack,
    parameters: Parameters,
    task: &HeadTask,
    learning_rate: f64,
    steps: usize,
) -> Result<(f64, f64)> {
    let n_trained: usize = parameters.iter().map(|(_, p)| p.elem_count()).sum();
    let groups = ParameterGroup::decaying_matrices(parameters, 0.01);
    let config = AdamWConfig {
        learning_rate,
        ..Default::default()
    };
    let mut optimizer = AdamW::new(groups, config)?;
    let before = task.held_out(stack)?;
    println!("{name}: {n_trained} parameters, loss on fresh sequences {before:.4} before");
    for step in 0..steps {
        // New sequences at each step: what is learnt is the topics.
        let loss = task.loss(stack, 1 + step as u64, &ForwardContext::training())?;
        let value = loss_value(&loss).with_context(|| format!("step {step}"))?;
        if step % 10 == 0 {
            println!("{name}: step {step:>3}, loss {value:.4}");
        }
        let mut gradients = optimizer.backward(&loss)?;
        gradients.clip_norm(1.0)?;
        optimizer.update(&gradients, 1.0)?;
    }
    let after = task.held_out(stack)?;
    println!("{name}: loss on fresh sequences {after:.4} after {steps} steps");
    Ok((before, after))
}

/// Saves a copy of the checkpoint with the changed weights, reads it back, and compares it with the trained stack.
/// Inputs and outputs go to a file beside the directory, for `weights/check_saved.py`.
fn save_and_reload(
    checkpoint: &Checkpoint,
    stack: &Stack,
    changed: Vec<(String, Tensor)>,
    task: &HeadTask,
    directory: &Path,
) -> Result<()> {
    let options = SaveOptions::default().existing(ExistingFiles::Replace); // of an earlier run
    let changed = changed.iter().map(|(role, tensor)| (role, tensor));
    options.save(checkpoint, directory, changed)?;
    let (x, _) = task.sequences(0, 2)?;
    let expected = stack.forward(&x)?;
    let reloaded = Checkpoint::open(directory)?
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()?;
    let difference = (reloaded.forward(&x)? - &expected)?.abs()?.max_all()?;
    let difference = difference.to_scalar::<f32>()?;
    ensure!(
        difference == 0.0,
        "{}: outputs differ by {difference:e} after reloading",
        directory.display()
    );
    let tensors = [("hidden_states", x), ("last_hidden_state", expected)];
    let tensors = tensors.map(|(name, tensor)| (name.to_string(), tensor));
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    write_safetensors(
        directory.with_extension("safetensors"),
        &tensors,
        Some(metadata),
    )?;
    println!("{}: saved, read back, same outputs\n", directory.display());
    Ok(())
}

/// The task to learn.
struct HeadTask {
    /// `[topics, d_model]`
    directions: Tensor,
    /// `[topics, d_model]`
    targets: Tensor,
}

impl HeadTask {
    fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let shape = (N_TOPICS, checkpoint.config().blocks[0].d_model());
        Ok(Self {
            directions: noise(1 << 32, shape)?,
            targets: noise(2 << 32, shape)?,
        })
    }

    /// `n` sequences `[n, seq, d_model]` that cycle through the topics, and their targets `[n, d_model]`.
    fn sequences(&self, seed: u64, n: usize) -> Result<(Tensor, Tensor)> {
        let width = self.directions.dim(1)?;
        let topics: Vec<u32> = (0..n).map(|i| (i % N_TOPICS) as u32).collect();
        let topics = Tensor::new(topics, &Device::Cpu)?;
        let directions = self.directions.index_select(&topics, 0)?.unsqueeze(1)?;
        let x = (noise(seed, (n, SEQ, width))? * NOISE)?.broadcast_add(&directions)?;
        Ok((x, self.targets.index_select(&topics, 0)?))
    }

    /// The mean squared error between a sequence's mean output and its target.
    fn loss(&self, stack: &Stack, seed: u64, context: &ForwardContext) -> Result<Tensor> {
        let (x, target) = self.sequences(seed, 4 * N_TOPICS)?;
        let mean = stack.forward_with(&x, context)?.mean(1)?;
        Ok(ops::mse(&mean, &target)?)
    }

    /// The loss on sequences that no training step has seen.
    fn held_out(&self, stack: &Stack) -> Result<f64> {
        let loss = self.loss(stack, 0, &ForwardContext::evaluation())?;
        Ok(loss_value(&loss)?)
    }
}

/// Uniform values with variance 1.
fn noise(seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let mut random = StdRng::seed_from_u64(seed);
    let bound = 3f32.sqrt();
    let values = (0..shape.elem_count()).map(|_| random.random_range(-bound..bound));
    let values: Vec<f32> = values.collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}
