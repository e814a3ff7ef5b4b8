//! This crate's whole models: text embeddings, and generation.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_blocks::{
    Checkpoint, Precision, Weights,
    generate::{GenerationOptions, Generator, Sampler},
    model::Model,
    text::TextEmbedder,
};
use candle_core::{Device, Tensor};

use crate::{
    precision,
    protocol::{Generation, Run, Simply, Texts},
};

pub fn texts(task: Texts) -> Result<Box<dyn Run>> {
    if task.precision != "f32" {
        bail!("texts are measured in f32 only");
    }
    let embedder = TextEmbedder::open(&task.checkpoint)?;
    Ok(Box::new(Simply(move || Ok(embedder.embed(&task.texts)?))))
}

pub fn generation(task: Generation) -> Result<Box<dyn Run>> {
    let (path, precision) = match &task.file {
        Some(file) => (file, Precision::AsStored),
        None => (&task.checkpoint, precision(&task.precision)?),
    };
    Ok(Box::new(Generating {
        model: Checkpoint::open(path)?
            .load(Weights::Packed(precision))
            .model()?,
        task,
        first_ms: 0.0,
    }))
}

/// The same prompts in each run, with an empty cache.
struct Generating {
    model: Model,
    task: Generation,
    first_ms: f64,
}

impl Run for Generating {
    fn compute(&mut self) -> Result<Tensor> {
        let start = Instant::now();
        let options = GenerationOptions::default().with_max_new_tokens(self.task.new_tokens);
        let generator = Generator::new(&self.model, options)?;
        let mut generation = generator.start(&self.task.prompts, Sampler::greedy())?;
        generation.next().context("no token is requested")??;
        self.first_ms = start.elapsed().as_secs_f64() * 1e3;
        for step in &mut generation {
            step?;
        }
        Ok(Tensor::new(generation.into_tokens(), &Device::Cpu)?)
    }

    fn first_ms(&self) -> Option<f64> {
        Some(self.first_ms)
    }
}
