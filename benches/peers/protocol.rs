//! Answers the driver's lines of JSON with one line each. `worker.py` documents the protocol.
//!
//! This crate's worker and candle's worker share this file, so that both are measured in the same way.

use std::{
    collections::HashMap,
    fs,
    hint::black_box,
    io::{self, BufRead, Write},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};

/// The layers or model to run, with their input.
pub enum HeadTask {
    Layers(Case),
    Texts(Texts),
    Generation(Generation),
}

/// Layers, and hidden states as their input.
pub struct Case {
    pub op: String,
    pub precision: String,
    pub checkpoint: PathBuf,
    /// `[batch, seq, d_model]`.
    pub x: Tensor,
    /// `[batch, seq]`, 1 = keep.
    pub mask: Option<Tensor>,
    /// `[batch, 1, d_model]`, after `x`.
    pub step: Option<Tensor>,
    pub training: Option<Training>,
}

/// Texts to embed.
pub struct Texts {
    pub precision: String,
    pub checkpoint: PathBuf,
    pub texts: Vec<String>,
}

/// Prompts for greedy generation.
pub struct Generation {
    pub precision: String,
    pub checkpoint: PathBuf,
    /// The checkpoint, quantized to the precision.
    pub file: Option<PathBuf>,
    pub prompts: Vec<Vec<u32>>,
    pub new_tokens: usize,
}

/// The settings for a training step, except its input.
pub struct Training {
    /// The target in the output's shape, for a mean squared error loss.
    pub target: Tensor,
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// The file with the adapters to train, or `None` to train all weights.
    pub adapters: Option<PathBuf>,
    /// The number of steps without dropout whose losses are compared before the timed steps.
    pub plain_steps: u64,
    /// The number of steps with dropout that follow. If there are any, the timed steps have dropout as well.
    pub dropout_steps: u64,
}

/// A case that can be computed repeatedly.
pub trait Run {
    /// Prepares a run, without being timed.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Runs the timed computation.
    fn compute(&mut self) -> Result<Tensor>;

    /// Computes the values that are compared with the reference.
    fn check(&mut self) -> Result<Tensor> {
        self.prepare()?;
        self.compute()
    }

    /// Returns the result's name: `output`, or `last_logits`.
    fn result(&self) -> &'static str {
        "output"
    }

    /// Returns the milliseconds to a generation's first token.
    fn first_ms(&self) -> Option<f64> {
        None
    }
}

/// Computes without preparation.
pub struct Simply<F>(pub F);

impl<F: FnMut() -> candle_core::Result<Tensor>> Run for Simply<F> {
    fn compute(&mut self) -> Result<Tensor> {
        Ok((self.0)()?)
    }
}

/// Training steps, which return their losses. `step` takes whether to apply dropout.
pub struct Steps<F> {
    pub step: F,
    pub plain_steps: u64,
    pub dropout_steps: u64,
}

impl<F: FnMut(bool) -> Result<Tensor>> Run for Steps<F> {
    fn compute(&mut self) -> Result<Tensor> {
        (self.step)(self.dropout_steps > 0)
    }

    fn check(&mut self) -> Result<Tensor> {
        let plain = (0..self.plain_steps).map(|_| false);
        let dropping = (0..self.dropout_steps).map(|_| true);
        let losses: Vec<Tensor> = plain
            .chain(dropping)
            .map(&mut self.step)
            .collect::<Result<_>>()?;
        Ok(Tensor::stack(&losses, 0)?)
    }
}

/// Answers commands until the driver closes the pipe. `load` prepares a case.
pub fn serve(
    name: &str,
    version: &str,
    settings: &str,
    mut load: impl FnMut(HeadTask) -> Result<Box<dyn Run>>,
) -> Result<()> {
    say(&json!({"name": name, "version": version}))?;
    let mut current: Option<Box<dyn Run>> = None;
    for line in io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line?)?;
        let answer = match command["do"].as_str() {
            Some("load") => {
                current = None; // frees its memory first
                task(&command).and_then(|task| {
                    let is_layers = matches!(task, HeadTask::Layers(_));
                    current = Some(load(task)?);
                    if is_layers {
                        forget_peak(); // a whole model's peak includes loading
                    }
                    Ok(json!({"settings": settings}))
                })
            }
            Some("check") => {
                loaded(&mut current).and_then(|run| check(run, text(&command, "output")?))
            }
            Some("run") => loaded(&mut current)
                .and_then(|run| times(run, number(&command, "warm")?, number(&command, "count")?)),
            other => bail!("the driver asks for {other:?}"),
        };
        match answer {
            Ok(answer) => say(&answer)?,
            Err(error) => say(&json!({"error": first_line(&error)}))?,
        }
    }
    Ok(())
}

fn say(answer: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}

fn loaded(current: &mut Option<Box<dyn Run>>) -> Result<&mut dyn Run> {
    match current {
        Some(run) => Ok(run.as_mut()),
        None => bail!("nothing is loaded"),
    }
}

fn task(command: &Value) -> Result<HeadTask> {
    let op = text(command, "op")?.to_string();
    let precision = text(command, "precision")?.to_string();
    let checkpoint = PathBuf::from(text(command, "checkpoint")?);
    let input = text(command, "input")?;
    if op == "texts" {
        return Ok(HeadTask::Texts(Texts {
            precision,
            checkpoint,
            texts: fs::read_to_string(input)?
                .lines()
                .map(str::to_string)
                .collect(),
        }));
    }
    let mut input: HashMap<String, Tensor> = safetensors::load(input, &Device::Cpu)?;
    if op == "generation" {
        let ids = input
            .remove("input_ids")
            .context("the input has no input_ids")?;
        return Ok(HeadTask::Generation(Generation {
            precision,
            checkpoint,
            file: command["file"].as_str().map(PathBuf::from),
            prompts: ids.to_dtype(DType::U32)?.to_vec2()?,
            new_tokens: number(command, "new_tokens")? as usize,
        }));
    }
    let training = match &command["training"] {
        Value::Null => None,
        numbers => Some(Training {
            target: input.remove("target").context("the input has no target")?,
            learning_rate: real(numbers, "learning_rate")?,
            weight_decay: real(numbers, "weight_decay")?,
            adapters: numbers["adapters"].as_str().map(PathBuf::from),
            plain_steps: number(numbers, "plain_steps")?,
            dropout_steps: number(numbers, "dropout_steps")?,
        }),
    };
    Ok(HeadTask::Layers(Case {
        op,
        precision,
        checkpoint,
        x: input
            .remove("hidden_states")
            .context("the input has no hidden_states")?,
        mask: input.remove("attention_mask"),
        step: input.remove("step"),
        training,
    }))
}

fn check(run: &mut dyn Run, path: &str) -> Result<Value> {
    let y = run.check()?.to_dtype(DType::F32)?;
    y.contiguous()?.save_safetensors(run.result(), path)?;
    Ok(json!({}))
}

fn times(run: &mut dyn Run, warm: u64, count: u64) -> Result<Value> {
    let mut once = || -> Result<(f64, Option<f64>)> {
        run.prepare()?;
        let start = Instant::now();
        let y = black_box(run.compute()?);
        let time = start.elapsed().as_secs_f64() * 1e3;
        drop(y);
        Ok((time, run.first_ms()))
    };
    for _ in 0..warm {
        once()?;
    }
    let samples: Vec<_> = (0..count).map(|_| once()).collect::<Result<_>>()?;
    let ms: Vec<f64> = samples.iter().map(|sample| sample.0).collect();
    let first_ms: Vec<f64> = samples.iter().filter_map(|sample| sample.1).collect();
    Ok(json!({"ms": ms, "first_ms": first_ms, "peak_mb": peak_mb()}))
}

/// Resets the system's count of peak resident memory. If that fails, the peak is the whole process's.
fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

fn text<'a>(command: &'a Value, key: &str) -> Result<&'a str> {
    command[key]
        .as_str()
        .with_context(|| format!("the driver gives no {key}"))
}

fn number(command: &Value, key: &str) -> Result<u64> {
    command[key]
        .as_u64()
        .with_context(|| format!("the driver gives no {key}"))
}

fn real(command: &Value, key: &str) -> Result<f64> {
    command[key]
        .as_f64()
        .with_context(|| format!("the driver gives no {key}"))
}

fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}")
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}
