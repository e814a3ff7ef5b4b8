//! Trains low-rank adapters on the blocks of a checkpoint, and saves them for PEFT and merged: `lora DIR OUT [ROLE ..]`.
//!
//! Each ROLE is a linear layer's; by default, four that nearly every family has.
//!
//! ```sh
//! cargo run --release --example lora -- weights/tiny-bert OUT
//! python weights/check_adapters.py weights/tiny-bert OUT   # PEFT with the first gives what transformers gives with the second
//! ```

use std::path::PathBuf;

use anyhow::{Context, Result};
use candle_blocks::{
    Checkpoint, ForwardContext, Weights,
    candle_core::{DType, Device, Tensor},
    ops,
    train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup, loss_value},
};

fn main() -> Result<()> {
    let usage = "usage: lora DIR OUT [ROLE ..]";
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().context(usage)?;
    let out = PathBuf::from(arguments.next().context(usage)?);

    let checkpoint = Checkpoint::open(directory)?;
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()?;
    let mut targets: Vec<String> = arguments.collect();
    if targets.is_empty() {
        targets = [
            "attention.query",
            "attention.value",
            "attention.output",
            "feed_forward.*",
        ]
        .map(String::from)
        .to_vec();
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let config = LoraConfig::new(4, 8.0, &targets);
    let lora = Lora::attach(&mut stack, config, 42)?;
    let group = ParameterGroup::new(lora.parameters(), 0.0);
    let learning_rate = 0.01;
    let mut optimizer = AdamW::new(
        [group],
        AdamWConfig {
            learning_rate,
            ..Default::default()
        },
    )?;

    // A toy task: the output of a position shall be the input of the one before.
    let width = checkpoint.config().blocks[0].d_model();
    let x = Tensor::randn(0f32, 1., (8, 6, width), &Device::Cpu)?;
    let target = x.roll(1, 1)?;
    for step in 0..100 {
        let y = stack.forward_with(&x, &ForwardContext::training())?;
        let loss = ops::mse(&y, &target)?;
        if step % 20 == 0 {
            println!("step {step}: loss {:.4}", loss_value(&loss)?);
        }
        let mut gradients = optimizer.backward(&loss)?;
        gradients.clip_norm(1.0)?;
        optimizer.update(&gradients, 1.0)?;
    }

    lora.save_peft(&checkpoint, out.join("adapters"))?;
    let merged = lora.merge(&mut stack)?;
    let n_adapted = merged.len();
    checkpoint.save(out.join("merged"), merged)?;
    println!("{}: {n_adapted} adapted layers", out.display());
    Ok(())
}
