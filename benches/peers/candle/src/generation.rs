//! Generation with candle-transformers' Llama for quantized files.

use std::{fs::File, io::BufReader, time::Instant};

use anyhow::{Context, Result, bail};
use candle_core::{D, DType, Device, Tensor, quantized::gguf_file::Content};
use candle_transformers::models::quantized_llama::ModelWeights;

use crate::protocol::{Generation, Run};

pub fn load(task: Generation) -> Result<Box<dyn Run>> {
    let Some(path) = &task.file else {
        bail!("candle is measured in generation from files of codes only");
    };
    let mut file = BufReader::new(File::open(path)?);
    let content = Content::read(&mut file)?;
    let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    Ok(Box::new(Generating {
        model,
        task,
        first_ms: 0.0,
    }))
}

/// The same prompt in each run, with an empty cache.
struct Generating {
    model: ModelWeights,
    task: Generation,
    first_ms: f64,
}

impl Run for Generating {
    fn compute(&mut self) -> Result<Tensor> {
        let start = Instant::now();
        let [prompt] = &self.task.prompts[..] else {
            bail!("one prompt at a time");
        };
        self.model.clear_kv_cache();
        let (mut next, mut seen, mut tokens) = (prompt.clone(), 0, Vec::new());
        while tokens.len() < self.task.new_tokens {
            let input = Tensor::new(&next[..], &Device::Cpu)?.unsqueeze(0)?;
            let logits = self.model.forward(&input, seen)?;
            seen += next.len();
            next = logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
            if tokens.is_empty() {
                self.first_ms = start.elapsed().as_secs_f64() * 1e3;
            }
            tokens.push(*next.first().context("no token")?);
        }
        Ok(Tensor::new(tokens, &Device::Cpu)?
            .unsqueeze(0)?
            .to_dtype(DType::U32)?)
    }

    fn first_ms(&self) -> Option<f64> {
        Some(self.first_ms)
    }
}
